"""Vectors have one identity exactly where they can be compared."""

import dataclasses

import pytest

from s2sent.model.artifact.identity import vector_fingerprint
from s2sent.model.artifact.manifest import CONFIG, MODEL, TOKENIZER, WEIGHTS, FileEntry, Manifest
from s2sent.model.artifact.template import Template
from tests.support.small_artifact import a_manifest

FILES = {name: FileEntry(name, 1) for name in (MODEL, TOKENIZER, CONFIG)}
BASE = dataclasses.replace(a_manifest(), files=FILES, backbone={"num_blocks": 6}, depths=(2, 4))


@pytest.mark.parametrize(
    "other",
    [
        *(
            dataclasses.replace(BASE, files=FILES | {name: FileEntry("0", 1)})
            for name in (MODEL, TOKENIZER)
        ),
        dataclasses.replace(BASE, precision="another"),
        dataclasses.replace(BASE, template=Template((1,), (2,), read=-1)),
    ],
)
def test_another_graph_tokenizer_or_precision_is_another_identity(other: Manifest) -> None:
    assert vector_fingerprint(other) != vector_fingerprint(BASE)


def test_weights_apart_from_their_graph_are_a_part_of_the_identity() -> None:
    one, other = (
        dataclasses.replace(BASE, files=FILES | {WEIGHTS: FileEntry(digest, 1)}) for digest in "12"
    )
    assert len({vector_fingerprint(each) for each in (BASE, one, other)}) == 3


def test_what_leaves_vectors_as_they_are_leaves_the_identity() -> None:
    other = dataclasses.replace(
        BASE, name="renamed", scores={"STS12": 1.0}, prompts={"query": "q: "}, training={"a": 1},
        files=FILES | {CONFIG: FileEntry("0", 1)},
    )  # fmt: skip
    assert vector_fingerprint(other) == vector_fingerprint(BASE)


def test_each_depth_is_an_identity_and_the_last_block_is_full_depth() -> None:
    assert len({vector_fingerprint(BASE, depth) for depth in (None, 2, 4)}) == 3
    assert vector_fingerprint(BASE, 6) == vector_fingerprint(BASE)


def test_depths_that_can_be_compared_are_one_identity() -> None:
    aligned = dataclasses.replace(BASE, comparable_depths=(4, 6))
    full, two, four = (vector_fingerprint(aligned, depth) for depth in (None, 2, 4))
    assert full == four == vector_fingerprint(BASE)
    assert two == vector_fingerprint(BASE, 2) != full
