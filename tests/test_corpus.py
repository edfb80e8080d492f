"""The corpus: pairs as described, counts and a hash that can be trusted, bad lines named."""

import gzip
from pathlib import Path

import pytest

from tests.tiny_data import tiny_data, write_table
from training.corpus import MAX_CHARACTERS, read_corpus, read_table
from training.errors import DataError

SPLIT = ("complex", "simple1", "simple2")
PAN = ("label", "sentence1", "sentence2")
REAL = Path(__file__).parents[2] / "shared" / "data" / "corpus"


def test_wikisplit_pairs_a_sentence_with_its_two_parts_joined(tmp_path: Path) -> None:
    write_table(tmp_path / "wikisplit.tsv.gz", [SPLIT, ("a and b", "a", "b")])
    assert read_corpus(tmp_path, {"wikisplit": 9}).pairs == (("a and b", "a b"),)


def test_captions_pair_neighbours_of_one_picture(tmp_path: Path) -> None:
    header = tuple(f"caption{number}" for number in range(1, 6))
    write_table(tmp_path / "captions.tsv.gz", [header, ("a", "b", "c", "d", "e")])
    assert read_corpus(tmp_path, {"captions": 9}).pairs == (("a", "b"), ("c", "d"))


def test_only_paraphrases_labelled_so_are_pairs(tmp_path: Path) -> None:
    rows = [PAN, ("1", "a", "b"), ("0", "c", "d")]
    write_table(tmp_path / "pan-paraphrase.tsv.gz", rows)
    corpus = read_corpus(tmp_path, {"pan_paraphrase": 9})
    assert corpus.pairs == (("a", "b"),)
    assert corpus.counts == {"pan_paraphrase": 1}


def test_white_space_is_folded_and_repeated_or_equal_pairs_are_left_out(tmp_path: Path) -> None:
    rows = [PAN, ("1", " a  x", "b "), ("1", "a x", "b"), ("1", "c", "c")]
    write_table(tmp_path / "pan-paraphrase.tsv.gz", rows)
    assert read_corpus(tmp_path, {"pan_paraphrase": 9}).pairs == (("a x", "b"),)


def test_a_limit_takes_pairs_at_equal_steps_through_the_file(tmp_path: Path) -> None:
    rows = [("1", f"a{number}", f"b{number}") for number in range(10)]
    write_table(tmp_path / "pan-paraphrase.tsv.gz", [PAN, *rows])
    pairs = read_corpus(tmp_path, {"pan_paraphrase": 5}).pairs
    assert [first for first, _ in pairs] == ["a0", "a2", "a4", "a6", "a8"]


def test_the_hash_follows_the_content_and_nothing_else(tmp_path: Path) -> None:
    """The same pairs in another folder hash the same; one changed letter does not."""
    limits = {"wikisplit": 10, "captions": 10}
    one = read_corpus(tiny_data(tmp_path / "one") / "corpus", limits)
    two = read_corpus(tiny_data(tmp_path / "two") / "corpus", limits)
    assert one.sha256 == two.sha256
    write_table(tmp_path / "two/corpus/wikisplit.tsv.gz", [SPLIT, ("x and y", "x", "y")])
    assert read_corpus(tmp_path / "two" / "corpus", limits).sha256 != one.sha256


def test_texts_are_listed_once_each(tmp_path: Path) -> None:
    corpus = read_corpus(tiny_data(tmp_path) / "corpus", {"wikisplit": 99, "captions": 99})
    texts = corpus.texts()
    assert len(texts) == len(set(texts))
    assert set(texts) == {text for pair in corpus.pairs for text in pair}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"1\tonly\n", "line 3 has 2 cells where the header has 3"),
        (b"1\t \tb\n", "line 3 has 0 characters in sentence1"),
        (b"1\ta\t" + b"x" * (MAX_CHARACTERS + 1) + b"\n", "line 3 has 10001 characters"),
        (b"1\ta\t\xff\n", "line 3 is not UTF-8"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, line: bytes, says: str) -> None:
    path = tmp_path / "pan-paraphrase.tsv.gz"
    path.write_bytes(gzip.compress(b"label\tsentence1\tsentence2\n1\ta\tb\n" + line))
    with pytest.raises(DataError, match=says) as caught:
        read_corpus(tmp_path, {"pan_paraphrase": 9})
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_corpus_without_any_pair_is_refused(tmp_path: Path) -> None:
    write_table(tmp_path / "pan-paraphrase.tsv.gz", [PAN, ("0", "a", "b")])
    with pytest.raises(DataError, match="gave no pairs of pan_paraphrase"):
        read_corpus(tmp_path, {"pan_paraphrase": 9})


def test_a_missing_broken_or_foreign_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"wikisplit\.tsv\.gz is not a file"):
        read_corpus(tmp_path, {"wikisplit": 1})
    (tmp_path / "wikisplit.tsv.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match="not a whole gzip file"):
        read_corpus(tmp_path, {"wikisplit": 1})
    write_table(tmp_path / "wikisplit.tsv.gz", [PAN])
    with pytest.raises(DataError, match="the header"):
        read_corpus(tmp_path, {"wikisplit": 1})
    (tmp_path / "empty.tsv").write_bytes(b"")
    with pytest.raises(DataError, match=r"empty\.tsv is empty"):
        list(read_table(tmp_path / "empty.tsv", PAN))


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is not here")
def test_the_real_corpus_is_read_whole() -> None:
    counts = read_corpus(
        REAL, {"wikisplit": 20_000, "captions": 99_999, "pan_paraphrase": 9_999}
    ).counts
    assert counts["wikisplit"] > 14_900
    assert counts["captions"] > 55_000
    assert counts["pan_paraphrase"] > 4_800
