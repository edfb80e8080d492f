"""Texts become ids with the right special tokens, truncated as asked, whoever else is asking."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from s2sent.model.artifact.template import Template
from s2sent.model.runtime.input_errors import InputTooLong, InvalidTokenIds, UnusableInput
from s2sent.model.runtime.token_spans import unknown_id_of
from s2sent.model.runtime.tokenizer import MAX_CHARACTERS_PER_TOKEN, Tokenizer
from s2sent.model.runtime.windows import Windows

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d", "e", "##x", "query", ":"]
A, B, C, D, E = range(4, 9)
CLS, SEP = 2, 3


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer: Any = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106  # a word, not a password
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    # A file may carry truncation and padding; neither may leak into what we do.
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    target = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(target))
    return target


@pytest.fixture
def tokenizer(path: Path) -> Tokenizer:
    return Tokenizer(path, max_seq_length=6)


def ids(tokenizer: Tokenizer, *texts: str | list[int], **options: Any) -> list[list[int]]:
    return [row.input_ids for row in tokenizer.tokenize(texts, **options)]


def test_special_tokens_frame_each_text_and_order_is_kept(tokenizer: Tokenizer) -> None:
    """One row per text, in the order given, without padding."""
    assert ids(tokenizer, "a b", "ax", "") == [[CLS, A, B, SEP], [CLS, A, 9, SEP], [CLS, SEP]]


def test_special_tokens_frame_a_text_where_the_vocabulary_lacks_our_letters() -> None:
    """And has no token for what it lacks."""
    words = {word: index for index, word in enumerate([*WORDS[:4], "\u4e00", "\u4e8c"])}
    made: Any = tokenizers.Tokenizer(models.BPE(words, []))
    made.post_processor = processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    tokenizer = Tokenizer(made.to_str().encode(), 8)
    assert ids(tokenizer, "\u4e8c\u4e00", "a") == [[CLS, 5, 4, SEP], [CLS, SEP]]


@pytest.mark.parametrize(
    ("model", "unknown"),
    [
        (models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"), 0),  # noqa: S106  # a word
        (models.Unigram([("<s>", 0.0), ("<unk>", 0.0), ("a", -1.0)], unk_id=1), 1),
        (models.Unigram([('"unk_id": 2', 0.0), ("a", -1.0)], unk_id=0), 0),
        (models.BPE({"<unk>": 0, "a": 1}, [], unk_token="<unk>"), 0),  # noqa: S106  # a word
        (models.BPE({"a": 0}, []), None),
    ],
    ids=["wordpiece", "unigram", "unigram, odd piece", "bpe", "bpe without"],
)
def test_the_token_of_what_the_vocabulary_lacks_is_known(model: Any, unknown: int | None) -> None:
    content = tokenizers.Tokenizer(model).to_str(pretty=True).encode()
    made: Any = tokenizers.Tokenizer.from_str(content.decode())
    assert unknown_id_of(made, content) == unknown


def test_a_long_text_keeps_its_start_or_its_end(tokenizer: Tokenizer) -> None:
    """Truncation leaves room for the special tokens and says that it happened."""
    right = tokenizer.tokenize(["a b c d e"])[0]
    left = tokenizer.tokenize(["a b c d e"], truncation_direction="left")[0]
    assert right.input_ids == [CLS, A, B, C, D, SEP]
    assert left.input_ids == [CLS, B, C, D, E, SEP]
    assert right.truncated
    assert left.truncated
    assert len(right) == 6


def test_a_text_that_just_fits_is_not_truncated(tokenizer: Tokenizer) -> None:
    """The limit counts special tokens, and is inclusive."""
    row = tokenizer.tokenize(["a b c d"], truncate=False)[0]
    assert (len(row), row.truncated) == (6, False)


def test_declining_truncation_names_the_text_and_the_counts(tokenizer: Tokenizer) -> None:
    """The error says which input, how many tokens and what the limit is."""
    with pytest.raises(InputTooLong, match="input 1 has 7 tokens; the limit is 6") as error:
        tokenizer.tokenize(["a", "a b c d e"], truncate=False)
    assert error.value.index == 1


def test_a_prompt_is_part_of_the_text(tokenizer: Tokenizer) -> None:
    """The prompt comes first and counts towards the limit; ids have none."""
    assert ids(tokenizer, "a", [A], prompt="query: ") == [[CLS, 10, 11, A, SEP], [A]]


def test_token_ids_are_taken_as_they_are(tokenizer: Tokenizer) -> None:
    """Ids get no special tokens, and mix with texts in one call."""
    assert ids(tokenizer, [CLS, A, SEP], "b", [C]) == [[CLS, A, SEP], [CLS, B, SEP], [C]]
    assert ids(tokenizer, [A, B, C, D, E, A, B]) == [[A, B, C, D, E, A]]


@pytest.mark.parametrize("wrong", [-1, len(WORDS), 2**40])
def test_ids_outside_the_vocabulary_are_refused(tokenizer: Tokenizer, wrong: int) -> None:
    """The error names the input, the id and the range."""
    with pytest.raises(InvalidTokenIds, match=f"input 2 has the token id {wrong}.*0 to 11"):
        tokenizer.tokenize(["a", [A], [A, wrong]])


def test_the_work_for_an_endless_text_is_bounded(tokenizer: Tokenizer) -> None:
    """Far too many characters are cut before tokenising, from the side asked for, or refused."""
    limit = MAX_CHARACTERS_PER_TOKEN * 6
    text = "a " * limit + "b b b b"
    assert ids(tokenizer, text) == [[CLS, A, A, A, A, SEP]]
    assert ids(tokenizer, text, truncation_direction="left") == [[CLS, B, B, B, B, SEP]]
    with pytest.raises(InputTooLong, match=f"{len(text)} characters; the limit is {limit}"):
        tokenizer.tokenize([text], truncate=False)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_text_whose_characters_are_cut_is_truncated_whatever_is_left(
    tokenizer: Tokenizer, side: Any
) -> None:
    text = "a" + " " * MAX_CHARACTERS_PER_TOKEN * 6 + "b"
    short, long = tokenizer.tokenize(["a b", text], truncation_direction=side)
    assert (short.input_ids, short.truncated) == ([CLS, A, B, SEP], False)
    assert (long.input_ids, long.truncated) == ([CLS, A if side == "right" else B, SEP], True)


def test_requests_with_different_wishes_do_not_disturb_each_other(tokenizer: Tokenizer) -> None:
    """Truncation is no state of the shared tokenizer: threads that differ get their own answer."""

    def ask(number: int) -> list[int]:
        direction = "left" if number % 2 else "right"
        return ids(tokenizer, "a b c d e", "b", truncation_direction=direction)[0]

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(200)))
    assert answers[0::2] == [[CLS, A, B, C, D, SEP]] * 100
    assert answers[1::2] == [[CLS, B, C, D, E, SEP]] * 100


def test_a_limit_without_room_for_text_is_refused(path: Path) -> None:
    """max_seq_length must exceed the number of special tokens."""
    with pytest.raises(ValueError, match="no room beside 2 special tokens"):
        Tokenizer(path, max_seq_length=2)


def test_the_vocabulary_size_counts_added_tokens(tokenizer: Tokenizer) -> None:
    """The range of valid ids is the embedding table's."""
    assert tokenizer.vocab_size == len(WORDS)


# A text stands as in `[CLS] query : TEXT b [SEP]`, after a space, with a full stop of its own.
PREFIX, SUFFIX = [CLS, 10, 11], [B, SEP]
TEMPLATE = Template(tuple(PREFIX), tuple(SUFFIX), read=-2, space=" ", clean_up="full_stop")
STOP = 1  # the full stop is unknown to this vocabulary


@pytest.fixture
def templated(path: Path) -> Tokenizer:
    return Tokenizer(path, max_seq_length=8, template=TEMPLATE)


def test_a_template_stands_around_each_cleaned_text(templated: Tokenizer) -> None:
    assert ids(templated, "a c", "d?") == [
        [*PREFIX, A, C, STOP, *SUFFIX],
        [*PREFIX, D, STOP, *SUFFIX],
    ]


@pytest.mark.parametrize(("direction", "kept"), [("right", [A, C, D]), ("left", [D, E, STOP])])
def test_truncation_cuts_the_text_and_never_the_template(
    templated: Tokenizer, direction: str, kept: list[int]
) -> None:
    row = templated.tokenize(["a c d e"], truncation_direction=direction)[0]  # type: ignore[arg-type]  # parametrised
    assert (row.input_ids, row.truncated) == ([*PREFIX, *kept, *SUFFIX], True)
    with pytest.raises(InputTooLong, match="has 10 tokens, 5 of them the template's; the limit is"):
        templated.tokenize(["a c d e"], truncate=False)


def test_special_tokens_spelled_out_inside_a_template_are_text(templated: Tokenizer) -> None:
    """Otherwise a text could bring the token that is read."""
    row = templated.tokenize(["[SEP]"])[0].input_ids[len(PREFIX) : -len(SUFFIX)]
    assert SEP not in row


def test_token_ids_with_the_template_are_taken_and_cut_inside_it(templated: Tokenizer) -> None:
    whole = [*PREFIX, A, C, *SUFFIX]
    assert ids(templated, whole, [*PREFIX, *SUFFIX]) == [whole, [*PREFIX, *SUFFIX]]
    assert ids(templated, [*PREFIX, A, C, D, E, *SUFFIX]) == [[*PREFIX, A, C, D, *SUFFIX]]


@pytest.mark.parametrize("wrong", [[A], [*PREFIX, A], [CLS, A, *SUFFIX], [CLS, 10, SEP]])
def test_token_ids_without_the_template_are_refused(templated: Tokenizer, wrong: list[int]) -> None:
    with pytest.raises(InvalidTokenIds, match="input 1 does not begin and end with .*template"):
        templated.tokenize(["a", wrong])


def test_a_template_without_room_for_a_text_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="5 leaves no room beside 5 template tokens"):
        Tokenizer(path, max_seq_length=5, template=TEMPLATE)


def test_spans_show_the_template_and_the_places_of_the_text(templated: Tokenizer) -> None:
    """Template tokens, and the full stop that was added, are special and cover nothing."""
    spans = templated.token_spans("a cx ", add_special_tokens=True)
    assert [span.id for span in spans] == [*PREFIX, A, C, 9, STOP, *SUFFIX]
    assert [span.special for span in spans] == [True] * 3 + [False] * 3 + [True] * 3
    assert [(span.start, span.stop, span.text) for span in spans[3:6]] == [
        (0, 1, "a"),
        (2, 3, "c"),
        (3, 4, "x"),
    ]
    assert [span.text for span in spans[:3]] == ["[CLS]", "query", ":"]
    bare = templated.token_spans("a cx ", add_special_tokens=False)
    assert [span.id for span in bare] == [A, C, 9]


def windows_of(tokenizer: Tokenizer, text: str, **options: Any) -> list[list[int]]:
    (row,) = tokenizer.tokenize([text], **options)
    assert len(row) == sum(len(ids) for ids in [row.input_ids, *row.more])
    return [row.input_ids, *row.more]


def test_a_long_text_is_split_into_windows_that_overlap(tokenizer: Tokenizer) -> None:
    """Every token is in one, neighbours share what was asked, and the last one ends the text."""
    text = "a b c d e a b"
    apart = windows_of(tokenizer, text, windows=Windows(8, 0))
    assert apart == [[CLS, A, B, C, D, SEP], [CLS, E, A, B, SEP]]
    shared = windows_of(tokenizer, text, windows=Windows(8, 1))
    assert shared == [[CLS, A, B, C, D, SEP], [CLS, D, E, A, B, SEP]]
    assert windows_of(tokenizer, text, windows=Windows(8, 3)) == [  # two are half of four
        *([CLS, A, B, C, D, SEP], [CLS, C, D, E, A, SEP], [CLS, E, A, B, SEP])
    ]


@pytest.mark.parametrize("length", [4, 5])
def test_only_what_does_not_fit_is_split(tokenizer: Tokenizer, length: int) -> None:
    text = " ".join("abcde"[:length])
    assert len(windows_of(tokenizer, text, windows=Windows(8, 0))) == length - 3


def test_each_window_has_the_prompt(tokenizer: Tokenizer) -> None:
    found = windows_of(tokenizer, "a b c d", prompt="query: ", windows=Windows(8, 0))
    assert found == [[CLS, 10, 11, A, B, SEP], [CLS, 10, 11, C, D, SEP]]


@pytest.mark.parametrize("pools_prompts", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"truncate": False}, {"windows": Windows(8, 0)}], ids=["cut", "whole", "split"]
)
def test_a_prompt_that_leaves_no_room_is_refused(
    path: Path, options: dict[str, Any], pools_prompts: bool
) -> None:
    """Unless it is cut on the left: there the text is kept."""
    tokenizer = Tokenizer(path, 6, pools_prompts=pools_prompts)
    said = (
        "^input 1 stands behind a prompt that has 6 tokens with the special ones; the limit for"
        " both is 6. Choose another prompt, or none.$"
    )
    with pytest.raises(UnusableInput, match=said):
        tokenizer.tokenize([[A], "a b"], prompt="e e e e ", **options)
    assert len(tokenizer.tokenize(["a b"], prompt="e e e ", windows=Windows(8, 0))[0].more) == 1
    (kept,) = ids(tokenizer, "a b", prompt="e e e e ", truncation_direction="left")
    assert kept[3:] == [A, B, SEP]


def test_what_is_longer_than_all_windows_is_cut_on_the_side_that_was_asked(
    tokenizer: Tokenizer,
) -> None:
    text = "a b c d e a b c d e"
    two: dict[str, Any] = {"windows": Windows(2, 0)}
    right = tokenizer.tokenize([text], **two)[0]
    left = tokenizer.tokenize([text], truncation_direction="left", **two)[0]
    assert [right.input_ids, *right.more] == [[CLS, A, B, C, D, SEP], [CLS, E, A, B, C, SEP]]
    assert [left.input_ids, *left.more] == [[CLS, C, D, E, A, SEP], [CLS, B, C, D, E, SEP]]
    assert right.truncated
    assert left.truncated
    with pytest.raises(InputTooLong, match="input 0 has 12 tokens; 2 windows hold 10"):
        tokenizer.tokenize([text], truncate=False, **two)


def test_token_ids_are_cut_and_not_split(tokenizer: Tokenizer) -> None:
    (row,) = tokenizer.tokenize([[A] * 9], windows=Windows(4, 0))
    assert (row.input_ids, row.more, row.truncated) == ([A] * 6, (), True)


def test_a_text_of_a_million_characters_is_bounded_by_its_windows(tokenizer: Tokenizer) -> None:
    (row,) = tokenizer.tokenize(["a " * 500_000], windows=Windows(3, 0))
    assert (len(row), len(row.more), row.truncated) == (18, 2, True)


@pytest.mark.parametrize("nothing", ["   ", [CLS, 10, 11]])
def test_a_template_s_prefix_alone_is_no_text(path: Path, nothing: Any) -> None:
    """Its row is empty, which is refused: the token that is read would be the row's before it."""
    template = Template(tuple(PREFIX), (), read=-1, clean_up="full_stop")
    tokenizer = Tokenizer(path, max_seq_length=8, template=template)
    empty, whole = tokenizer.tokenize([nothing, [*PREFIX, A]])
    assert (empty.input_ids, empty.truncated) == ([], False)
    assert whole.input_ids == [*PREFIX, A]


QUERY = [~CLS, ~10, ~11]  # "query:" and what is before it, which are not pooled


@pytest.mark.parametrize(
    ("texts", "options", "expected"),
    [
        (["a", "b c d"], {}, [[*QUERY, A, SEP], [*QUERY, B, C, SEP]]),
        ([[CLS, A, SEP]], {}, [[CLS, A, SEP]]),
        (["a b"], {"prompt": ""}, [[CLS, A, B, SEP]]),
        (["a b c"], {"truncation_direction": "left"}, [[~CLS, ~11, A, B, C, SEP]]),
        (["a b c d e"], {"truncation_direction": "left"}, [[~CLS, B, C, D, E, SEP]]),
    ],
)
def test_tokens_of_a_prompt_are_marked_where_they_are_not_pooled(
    path: Path, texts: list[Any], options: dict[str, Any], expected: list[list[int]]
) -> None:
    tokenizer = Tokenizer(path, 6, pools_prompts=False)
    assert ids(tokenizer, *texts, **{"prompt": "query: ", **options}) == expected


def test_a_prompt_is_marked_in_each_window(path: Path) -> None:
    tokenizer = Tokenizer(path, 6, pools_prompts=False)
    found = windows_of(tokenizer, "a b c d", prompt="query: ", windows=Windows(8, 0))
    assert found == [[*QUERY, A, B, SEP], [*QUERY, C, D, SEP]]


def test_a_prompt_without_its_special_token_at_the_end_is_marked(path: Path) -> None:
    """Of one that ends in a special token, where the tokenizer adds none, that one is pooled."""
    made: Any = tokenizers.Tokenizer.from_file(str(path))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", CLS)]
    )
    made.add_special_tokens(["[SEP]"])
    tokenizer = Tokenizer(made.to_str().encode(), 6, pools_prompts=False)
    assert ids(tokenizer, "a", prompt="b ") == [[~CLS, ~B, A]]
    assert ids(tokenizer, "a", prompt="b [SEP]") == [[~CLS, ~B, SEP, A]]
    assert ids(tokenizer, "", prompt="b ") == [[]]
