"""A body's strings, lists, objects and values are counted exactly, however it is chunked."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s2sent.service.errors import PayloadTooLarge
from s2sent.service.http.body_limits import JsonBudget
from s2sent.service.settings import Settings

TEXTS = st.text(alphabet='a"\\[]{},:\n😀', max_size=6)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def parts_and_values(value: Any) -> tuple[int, int]:
    """Strings, keys, lists and objects; and the values of lists and objects after the first."""
    parts, values = int(isinstance(value, str | list | dict)), 0
    if isinstance(value, dict):
        parts += len(value)
    if isinstance(value, list | dict):
        values += max(0, len(value) - 1)
        for inner in value.values() if isinstance(value, dict) else value:
            inner_parts, inner_values = parts_and_values(inner)
            parts, values = parts + inner_parts, values + inner_values
    return parts, values


def is_within(pieces: list[bytes], **limits: int) -> bool:
    budget = JsonBudget(**limits)
    try:
        for piece in pieces:
            budget.feed(piece)
    except PayloadTooLarge:
        return False
    return True


@given(value=VALUES, ascii=st.booleans(), data=st.data())
def test_parts_and_values_are_counted_exactly_wherever_the_body_is_cut(
    value: Any, ascii: bool, data: st.DataObject
) -> None:
    body = json.dumps(value, ensure_ascii=ascii).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    parts, values = parts_and_values(value)
    assert is_within(pieces, max_parts=parts, max_values=values + 1)
    assert parts == 0 or not is_within(pieces, max_parts=parts - 1, max_values=values + 1)
    assert not is_within(pieces, max_parts=parts, max_values=values)


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs": [' + b",".join([b'"' + b"[" * 4000 + b'"'] * 2048) + b"]}",
        b'{"inputs": ["' + b'\\"' * 4_000_000 + b'"]}',
        b'{"inputs": [' + b",".join([b"[" + b"30521," * 511 + b"30521]"] * 2048) + b"]}",
    ],
    ids=["brackets in texts", "quotes in a text", "2048 lists of 512 ids"],
)
def test_what_a_request_may_hold_is_within_the_default_limits(body: bytes) -> None:
    JsonBudget.of(Settings()).feed(body)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"[[1]," * 40_000, "more than 33792 strings, lists and objects. Send fewer texts"),
        (b'["a",' * 40_000, "more than 33792 strings, lists and objects. Send fewer texts"),
        (b'{"a":1,' * 40_000, "more than 33792 strings, lists and objects. Send fewer texts"),
        (b"[" + b"1," * 1_100_000, "more than 1048576 values. Send fewer token ids"),
    ],
    ids=["lists", "strings", "keys", "numbers"],
)
def test_too_much_structure_is_refused_in_one_sentence(body: bytes, sentence: str) -> None:
    with pytest.raises(PayloadTooLarge, match=sentence):
        JsonBudget.of(Settings()).feed(body)
