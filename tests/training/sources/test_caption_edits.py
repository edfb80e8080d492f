"""The corpus of edited captions: what each edit does, and what the pairs are made of."""

import gzip
import random
from pathlib import Path

import pytest

from s2sent.training.corpus import read_corpus
from s2sent.training.errors import DataError
from s2sent.training.recipe.recipe import CorpusPart
from s2sent.training.sources import caption_edits, edits
from s2sent.training.sources.by_name import MADE
from s2sent.training.sources.caption_edits import (
    Sentences,
    make_pairs,
    read_caption_edits,
    split_pictures,
)
from s2sent.training.sources.edits import ADDED, EDITS, Edit

CAPTION = "A young man is riding a bike near the river"


@pytest.mark.parametrize(
    ("name", "caption", "results"),
    [
        (
            "negate",
            "A man is running",
            {"A man is not running", "There is no man running", "Nobody is running"},
        ),
        (
            "negate",
            "Two men are running",
            {"Two men are not running", "There are no men running", "Nobody is running"},
        ),
        ("state_existence", "Two dogs are running", {"There are two dogs running"}),
        (
            "move_place",
            "A boy is eating rice in the park",
            {"A boy, who is in the park, is eating rice"},
        ),
        ("replace_determiner", "An old man sleeps", {"The old man sleeps", "One old man sleeps"}),
        (
            "replace_word",
            "Boats on a Lake",
            {f"Boats on a {word}" for word in ("Water", "River", "Pool", "Ocean", "Sea")}
            | {f"Boats {word} a Lake" for word in ("under", "near", "behind", "in", "over")},
        ),
        ("replace_two_words", "piano, drum and boat", None),
        ("swap_nouns", "A man walks a dog.", {"A dog walks a man."}),
        ("drop_description", "young man, tall tree", {"Man, tall tree", "young man, tree"}),
        ("add_description", "The dogs", {f"The {word} dogs" for word in ADDED}),
        ("cut", "The young woman sleeps on a bench", {"The young woman sleeps"}),
    ],
)
def test_an_edit(name: str, caption: str, results: set[str] | None) -> None:
    """Every result that can be drawn; None stands for results too many to write down."""
    change, draw = getattr(edits, name), random.Random(0)
    found = {change(caption, draw) for _ in range(400)}
    if results is not None:
        assert found == results
    else:
        first, second = zip(*[text.split(" ")[:2] for text in found], strict=True)
        assert "piano," not in first
        assert "drum" not in second
        assert all(word.endswith(",") for word in first)
        assert len(found) > 20


@pytest.mark.parametrize("change", EDITS)
def test_an_edit_of_a_text_that_it_does_not_fit_is_none(change: Edit) -> None:
    assert change("Rain", random.Random(0)) is None


def test_a_subject_with_the_is_not_said_to_exist() -> None:
    assert edits.state_existence("The man is running", random.Random(0)) is None


def test_equal_nouns_are_not_swapped() -> None:
    assert edits.swap_nouns("Man beside man", random.Random(0)) is None


def test_a_pair_is_drawn_from_captions_of_one_picture() -> None:
    """A caption beside its edit, two edits, or an edit of another caption, in either order."""
    captions = [CAPTION, "Two dogs are playing on a beach", "Rain", "word " * 17]
    pairs = {pair for seed in range(600) for pair in make_pairs([captions], seed=seed)}
    texts = {text for pair in pairs for text in pair}
    assert not texts & {"Rain", captions[-1]}
    assert all(first != second for first, second in pairs)
    for caption in captions[:2]:
        assert {caption in pair for pair in pairs} == {True, False}
    assert any(pair[0] == CAPTION and "dogs" in pair[1] for pair in pairs)
    assert any(pair[1] == CAPTION and "dogs" in pair[0] for pair in pairs)


def test_near_sentences_share_most_of_their_words() -> None:
    """At least 0.8 of the words of both together, whatever their order, case and repetitions."""
    sentences = Sentences(["A man is riding a horse.", "Two dogs run"])
    assert sentences.have_near("a HORSE is riding a man!")
    assert sentences.have_near("a man is not riding a horse")  # 5 of 6
    assert not sentences.have_near("a man is riding no big horse")  # 5 of 7
    assert not sentences.have_near("Two dogs")
    assert not sentences.have_near("...")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of 40 pictures, 10 of them held out, and one STS task."""
    monkeypatch.setattr(caption_edits, "HELD_OUT", 10)
    for folder in ("corpus", "sts"):
        (tmp_path / folder).mkdir()
    things = [f"{place}{number}" for place in ("street", "market") for number in range(20)]
    rows = [[f"A man is holding a thing{n} in the {thing} ." for n in range(5)] for thing in things]
    header = [f"caption{number}" for number in range(1, 6)]
    text = "".join("\t".join(row) + "\n" for row in [header, *rows])
    (tmp_path / "corpus" / "captions.tsv.gz").write_bytes(gzip.compress(text.encode()))
    task = "subset\tscore\tsentence1\tsentence2\ndev\t1.0\tsnow\train\n"
    (tmp_path / "sts" / "stsb-dev.tsv").write_text(task)
    return tmp_path


def test_edits_are_related_pairs_of_the_pictures_that_are_not_held_out(data: Path) -> None:
    """Made again they are the same."""
    parts = [CorpusPart(source="caption_edits")]
    corpus = read_corpus(data / "corpus", parts, kind="related", made=MADE)
    pairs = corpus.parts["caption_edits"]
    assert 20 <= len(pairs) <= 30
    assert all(not text.endswith((" ", ".")) for pair in pairs for text in pair)
    assert (
        pairs
        == read_corpus(data / "corpus", parts, kind="related", made=MADE).parts["caption_edits"]
    )
    _, held_out = split_pictures(data / "corpus")
    for row in held_out:
        assert row[0].split()[-1] not in " ".join(corpus.texts()).split()
    with pytest.raises(DataError, match="are related texts, and the objective needs texts"):
        read_corpus(data / "corpus", parts, kind="texts", made=MADE)


def test_captions_near_a_sentence_of_a_task_are_left_out(data: Path) -> None:
    with (data / "sts" / "stsb-dev.tsv").open("a") as task:
        task.write("dev\t1.0\ta man is holding a thing3 in the street7\tsnow\n")
    far, every = (
        read_corpus(data / "corpus", [CorpusPart(source=source)], kind="texts", made=MADE).texts()
        for source in ("far_captions", "captions")
    )
    assert set(every) - set(far) == {"A man is holding a thing3 in the street7 ."}


def test_a_pair_near_a_task_is_left_out(data: Path) -> None:
    every = read_caption_edits(data)
    first, second = every[0]
    with (data / "sts" / "stsb-dev.tsv").open("a") as task:
        task.write(f"dev\t1.0\t{first.split()[0]}\t{second.upper()}\n")
    kept = read_caption_edits(data)
    assert every[0] not in kept
    assert len(kept) > 2


def test_empty_lines_among_the_captions_are_counted_and_give_the_same_pairs(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = read_caption_edits(data)
    captions = data / "corpus" / "captions.tsv.gz"
    captions.write_bytes(gzip.compress(gzip.decompress(captions.read_bytes()) + b"\n \t \n"))
    assert read_caption_edits(data) == before
    assert "captions.tsv.gz: empty lines left out: 2" in caplog.text


def test_data_without_tasks_or_without_captions_to_edit_is_refused(data: Path) -> None:
    header = "\t".join(f"caption{number}" for number in range(1, 6))
    row = "\t".join(["Rain"] * 5)
    text = f"{header}\n" + f"{row}\n" * 12
    (data / "corpus" / "captions.tsv.gz").write_bytes(gzip.compress(text.encode()))
    with pytest.raises(DataError, match="no captions that can be edited: fetch corpus/ again"):
        read_caption_edits(data)
    (data / "sts" / "stsb-dev.tsv").unlink()
    with pytest.raises(DataError, match="has no STS tasks: name the folder"):
        read_caption_edits(data)
