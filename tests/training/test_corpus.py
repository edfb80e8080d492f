"""The corpus: rows as described, counts and a hash that can be trusted, bad lines named."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from s2sent.training.corpus import MAX_CHARACTERS, Corpus, read_corpus, read_table
from s2sent.training.errors import DataError
from s2sent.training.recipe.objectives import ExampleKind
from s2sent.training.recipe.recipe import CorpusPart
from s2sent.training.sources.by_name import MADE
from tests.support.tiny_data import tiny_data, write_table

SPLIT = ("complex", "simple1", "simple2")
PAN = ("label", "sentence1", "sentence2")
CAPTIONS = tuple(f"caption{number}" for number in range(1, 6))
REAL = Path(__file__).parents[3] / "shared" / "data" / "corpus"


def read(folder: Path, limits: dict[str, int], kind: ExampleKind = "pairs") -> Corpus:
    parts = [CorpusPart(source=source, limit=limit) for source, limit in limits.items()]
    return read_corpus(folder, parts, kind=kind)


@pytest.mark.parametrize(
    ("source", "rows", "pairs", "related", "texts"),
    [
        (
            "wikisplit",
            [SPLIT, ("a and b", "a", "b")],
            [("a and b", "a b")],
            [("a and b", "a"), ("a", "b")],
            "ab",
        ),
        (
            "captions",
            [CAPTIONS, ("a", "b", "c", "d", "e")],
            [("a", "b"), ("c", "d")],
            [("a", "b"), ("c", "d")],
            "abcde",
        ),
        (
            "pan_paraphrase",
            [PAN, ("1", "a", "b"), ("0", "c", "d")],
            [("a", "b")],
            [("a", "b"), ("c", "d")],
            "abcd",
        ),
    ],
)
def test_a_known_file_gives_its_pairs_and_its_texts(
    tmp_path: Path,
    source: str,
    rows: list[tuple[str, ...]],
    pairs: list[tuple[str, str]],
    related: list[tuple[str, str]],
    texts: str,
) -> None:
    """A split sentence with its parts joined, neighbours of one picture, labelled paraphrases."""
    write_table(tmp_path / f"{source.replace('_', '-')}.tsv.gz", rows)
    assert read(tmp_path, {source: 9}).parts == {source: pairs}
    assert read(tmp_path, {source: 9}, kind="related").parts == {source: related}
    assert read(tmp_path, {source: 0}, kind="texts").parts == {source: [(text,) for text in texts]}


def texts_of(folder: Path, **rows: list[str]) -> None:
    table = [(group.replace("_", "-"), text) for group, texts in rows.items() for text in texts]
    write_table(folder / "texts.tsv.gz", [("source", "text"), *table])


def test_texts_are_taken_of_the_groups_that_are_named(tmp_path: Path) -> None:
    """All without a name; two of one group are related, and one that stays over is left out."""
    texts_of(tmp_path, foldoc=["a", "b", "c"], python_doc=["d", "e"])
    some = CorpusPart(source="texts", groups=["python-doc"])
    every = CorpusPart(source="texts")
    assert read_corpus(tmp_path, [some], kind="texts", made=MADE).parts == {
        "texts python-doc": [("d",), ("e",)]
    }
    both = read_corpus(tmp_path, [some, every], kind="related", made=MADE)
    assert both.parts == {"texts python-doc": [("d", "e")], "texts": [("a", "b")]}


@pytest.mark.parametrize(
    ("part", "kind", "reason"),
    [
        (CorpusPart(source="texts", groups=["x"]), "texts", "no texts of x: use foldoc."),
        (CorpusPart(source="texts"), "pairs", "no pairs of one meaning: name another source."),
    ],
)
def test_what_cannot_be_taken_of_texts_is_refused(
    tmp_path: Path, part: CorpusPart, kind: ExampleKind, reason: str
) -> None:
    texts_of(tmp_path, foldoc=["a", "b"])
    with pytest.raises(DataError, match=reason):
        read_corpus(tmp_path, [part], kind=kind, made=MADE)


def test_white_space_is_folded_and_repeated_or_equal_pairs_are_left_out(tmp_path: Path) -> None:
    rows = [PAN, ("1", " a  x", "b "), ("1", "a x", "b"), ("1", "c", "c")]
    write_table(tmp_path / "pan-paraphrase.tsv.gz", rows)
    assert read(tmp_path, {"pan_paraphrase": 9}).parts["pan_paraphrase"] == [("a x", "b")]


def test_a_text_of_one_source_is_left_out_of_the_next(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a\nb\n")
    (tmp_path / "two.txt").write_text("b\nc\n")
    corpus = read(tmp_path, {"one.txt": 0, "two.txt": 0}, kind="texts")
    assert corpus.parts == {"one.txt": [("a",), ("b",)], "two.txt": [("c",)]}


def test_a_source_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a\nb\n")
    part = CorpusPart(source="one.txt", limit=1)
    with pytest.raises(DataError, match=r"names one\.txt twice"):
        read_corpus(tmp_path, [part, part], kind="texts")


def test_single_texts_are_put_together_into_longer_ones(tmp_path: Path) -> None:
    """A text stands in one of them at most, and not also among the single ones of another part."""
    write_table(
        tmp_path / "wikisplit.tsv.gz", [SPLIT, *((f"{n}", f"{n}a", f"{n}b") for n in "1234")]
    )
    parts = [
        CorpusPart(source="wikisplit", limit=2),
        CorpusPart(source="wikisplit", join=2, limit=5),
        CorpusPart(source="wikisplit", join=3),
    ]
    corpus = read_corpus(tmp_path, parts[:2], kind="texts")
    single, joined = corpus.parts["wikisplit"], corpus.parts["wikisplit, 2 joined"]
    assert single == [("1a",), ("3a",)]
    assert joined == [("1b 2a",), ("2b 3b",), ("4a 4b",)]
    assert len(read_corpus(tmp_path, parts[2:], kind="texts").texts()) == 2  # two stay over
    with pytest.raises(DataError, match=r"join = 2 puts single texts together: leave it out"):
        read_corpus(tmp_path, parts[1:2], kind="pairs")


def test_a_limit_takes_rows_at_equal_steps_through_the_file(tmp_path: Path) -> None:
    rows = [("1", f"a{number}", f"b{number}") for number in range(10)]
    write_table(tmp_path / "pan-paraphrase.tsv.gz", [PAN, *rows])
    pairs = read(tmp_path, {"pan_paraphrase": 5}).parts["pan_paraphrase"]
    assert [first for first, _ in pairs] == ["a0", "a2", "a4", "a6", "a8"]


def test_the_hash_follows_the_content_and_nothing_else(tmp_path: Path) -> None:
    """The same pairs in another folder hash the same; one changed letter does not."""
    limits = {"wikisplit": 10, "captions": 10}
    one = read(tiny_data(tmp_path / "one") / "corpus", limits)
    two = read(tiny_data(tmp_path / "two") / "corpus", limits)
    assert one.sha256 == two.sha256
    write_table(tmp_path / "two/corpus/wikisplit.tsv.gz", [SPLIT, ("x and y", "x", "y")])
    assert read(tmp_path / "two" / "corpus", limits).sha256 != one.sha256


def test_texts_are_listed_once_each(tmp_path: Path) -> None:
    corpus = read(tiny_data(tmp_path) / "corpus", {"wikisplit": 99, "captions": 99})
    texts = corpus.texts()
    assert len(texts) == len(set(texts))
    rows = [row for part in corpus.parts.values() for row in part]
    assert set(texts) == {text for row in rows for text in row}


def test_a_file_of_ones_own_gives_texts_pairs_or_triples(tmp_path: Path) -> None:
    """Lines of a .txt; columns of a .tsv; of a .csv with its quotes, as SimCSE's NLI file is."""
    (tmp_path / "wiki.txt").write_text('One "line"\there.\nTwo.\n')
    (tmp_path / "pairs.tsv").write_text('first\tsecond\n"a\tb\n')
    csv = 'sent0,sent1,hard_neg\n"Yes, he did.",Indeed.,"No ""never""."\n'
    (tmp_path / "nli.csv.gz").write_bytes(gzip.compress(csv.encode()))
    texts = read(tmp_path, {"wiki.txt": 0}, kind="texts").parts["wiki.txt"]
    assert texts == [('One "line" here.',), ("Two.",)]
    assert read(tmp_path, {"pairs.tsv": 0}).parts["pairs.tsv"] == [('"a', "b")]
    triples = read(tmp_path, {"nli.csv.gz": 0}).parts["nli.csv.gz"]
    assert triples == [("Yes, he did.", "Indeed.", 'No "never".')]


LONG = "x" * (MAX_CHARACTERS + 1)
CUT = "x" * MAX_CHARACTERS


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.txt", "\none\n \t \n\nthree\n\n", [("one",), ("three",)]),
        ("a.tsv", "x\ty\n\n1\t2\n\t\n3\t4\n\n", [("1", "2"), ("3", "4")]),
        ("a.csv", 'x,y\n\n1,2\n"",""\n3,4\n\n', [("1", "2"), ("3", "4")]),
        ("b.tsv", "\n\t\n\nx\ty\n1\t2", [("1", "2")]),  # before the header
        ("b.csv", "\n,\n\nx,y\n1,2", [("1", "2")]),
    ],
)
def test_empty_lines_are_left_out_and_counted(
    tmp_path: Path, name: str, content: str, rows: list[tuple[str, ...]]
) -> None:
    (tmp_path / name).write_text(content)
    kind: ExampleKind = "texts" if name == "a.txt" else "pairs"
    corpus = read(tmp_path, {name: 0}, kind=kind)
    assert corpus.parts == {name: rows}
    left_out = 4 if name == "a.txt" else 3
    assert corpus.changed == {name: f"empty lines left out: {left_out}"}


def test_an_empty_line_of_a_known_source_is_left_out_too(tmp_path: Path) -> None:
    content = b"\nlabel\tsentence1\tsentence2\n\n1\ta\tb\n"
    (tmp_path / "pan-paraphrase.tsv.gz").write_bytes(gzip.compress(content))
    corpus = read(tmp_path, {"pan_paraphrase": 0})
    assert corpus.parts == {"pan_paraphrase": [("a", "b")]}
    assert corpus.changed == {"pan_paraphrase": "empty lines left out: 2"}


@pytest.mark.parametrize(("too_long", "taken"), [("cut", [(CUT,), ("a",)]), ("skip", [("a",)])])
def test_a_text_that_is_too_long_is_cut_or_left_out_and_counted(
    tmp_path: Path, too_long: Any, taken: list[tuple[str, ...]]
) -> None:
    (tmp_path / "a.txt").write_text(f"{LONG}\na\n")
    part = CorpusPart(source="a.txt", too_long=too_long)
    corpus = read_corpus(tmp_path, [part], kind="texts")
    assert corpus.parts == {"a.txt": taken}
    done = "cut" if too_long == "cut" else "left out"
    assert corpus.changed == {"a.txt": f"lines {done} for more than 10,000 characters: 1"}


def test_a_corpus_as_it_should_be_has_nothing_to_tell(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\nb\n")
    assert read(tmp_path, {"a.txt": 0}, kind="texts").changed == {}


def test_a_file_of_an_evaluation_has_no_empty_line(tmp_path: Path) -> None:
    """A score over fewer pairs would be another score."""
    (tmp_path / "t.tsv").write_text("a\tb\n\n1\t2\n")
    with pytest.raises(DataError, match="line 2 has 1 cells"):
        list(read_table(tmp_path / "t.tsv", ("a", "b")))


def test_a_file_that_is_not_there_is_told_with_what_is(tmp_path: Path) -> None:
    for number in range(14):
        (tmp_path / "corpus" / f"{number:02}.txt").parent.mkdir(exist_ok=True)
        (tmp_path / "corpus" / f"{number:02}.txt").touch()
    says = r"b\.txt is not a file, and .*corpus holds 00\.txt, .*, 11\.txt and 2 more: name"
    with pytest.raises(DataError, match=says):
        read(tmp_path / "corpus", {"b.txt": 0}, kind="texts")
    with pytest.raises(DataError, match=rf"is not a file, and {tmp_path} holds corpus/: name"):
        read(tmp_path / "nowhere" / "corpus", {"b.txt": 0}, kind="texts")


@pytest.mark.parametrize(
    ("name", "content", "kind", "says"),
    [
        ("a.txt", b"one\n\xff\n", "texts", "a.txt, line 2 is not UTF-8"),
        ("a.tsv", b"x\ty\n1\t\n", "pairs", "a.tsv, line 2 has 0 characters in column 2"),
        ("a.txt", b"one\n", "pairs", "a.txt does not fit the objective, which needs pairs"),
        ("a.tsv", b"x\ty\n1\t2\n", "texts", "a.tsv does not fit the objective, which needs single"),
        ("a.csv", b"x,y\n1,2\n3\n", "pairs", "line 3 has 1 cells where the header has 2"),
        ("a.csv", b"x\n1\n", "pairs", "a.csv has 1 columns: it must have two or three"),
        ("a.csv", b"x,y,z\n1,2,3\n", "related", "a.csv has 3 columns: it must have two"),
        ("a.csv", b'x,y\n1,2\n3,"4\n5,6\n7,8\n', "pairs", "a.csv, line 3 is not CSV"),
        ("a.csv", b'x,y\n1,2\n3,"4" a\n', "pairs", "a.csv, line 3 is not CSV"),
        ("a.csv", b'x,y\n"1\n2",3\n4\n', "pairs", "a.csv, line 4 has 1 cells"),
        ("a.json", b"{}", "pairs", "a.json is no known source: use wikisplit"),
    ],
)
def test_a_file_that_does_not_fit_is_named(
    tmp_path: Path, name: str, content: bytes, kind: ExampleKind, says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says) as caught:
        read(tmp_path, {name: 0}, kind=kind)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_no_part_of_a_text_or_a_header(tmp_path: Path) -> None:
    (tmp_path / "wiki.txt").write_text("\ufeffOne.\n")
    assert read(tmp_path, {"wiki.txt": 0}, kind="texts").texts() == ["One."]
    (tmp_path / "table.tsv").write_text("\ufeffa\tb\n1\t2\n")
    assert [*read_table(tmp_path / "table.tsv", ("a", "b"))] == [["1", "2"]]


def test_a_file_that_the_system_cannot_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to("/proc/self/mem")
    with pytest.raises(DataError, match=r"a\.txt cannot be read \(Input/output error\)"):
        read(tmp_path, {"a.txt": 0}, kind="texts")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"1\tonly\n", "line 3 has 2 cells where the header has 3"),
        (b"1\t \tb\n", "line 3 has 0 characters in sentence1"),
        (b"1\ta\t\xff\n", "line 3 is not UTF-8"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, line: bytes, says: str) -> None:
    path = tmp_path / "pan-paraphrase.tsv.gz"
    path.write_bytes(gzip.compress(b"label\tsentence1\tsentence2\n1\ta\tb\n" + line))
    with pytest.raises(DataError, match=says) as caught:
        read(tmp_path, {"pan_paraphrase": 9})
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_corpus_without_any_pair_is_refused(tmp_path: Path) -> None:
    write_table(tmp_path / "pan-paraphrase.tsv.gz", [PAN, ("0", "a", "b")])
    with pytest.raises(DataError, match="gave no rows of pan_paraphrase"):
        read(tmp_path, {"pan_paraphrase": 9})


def test_a_missing_broken_or_foreign_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"wikisplit\.tsv\.gz is not a file"):
        read(tmp_path, {"wikisplit": 1})
    (tmp_path / "wikisplit.tsv.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match="not a whole gzip file"):
        read(tmp_path, {"wikisplit": 1})
    packed = bytearray(gzip.compress(b"".join(b"%d\n" % number for number in range(5000))))
    packed[60:100] = bytes(255 - byte for byte in packed[60:100])
    (tmp_path / "wikisplit.tsv.gz").write_bytes(packed)
    with pytest.raises(DataError, match="not a whole gzip file"):
        read(tmp_path, {"wikisplit": 1})
    write_table(tmp_path / "wikisplit.tsv.gz", [PAN])
    with pytest.raises(DataError, match="the header"):
        read(tmp_path, {"wikisplit": 1})
    (tmp_path / "empty.tsv").write_bytes(b"")
    with pytest.raises(DataError, match=r"empty\.tsv is empty"):
        list(read_table(tmp_path / "empty.tsv", PAN))


@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is not here")
def test_the_real_corpus_is_read_whole() -> None:
    counts = read(REAL, {"wikisplit": 20_000, "captions": 99_999, "pan_paraphrase": 9_999}).counts
    assert counts["wikisplit"] > 14_900
    assert counts["captions"] > 55_000
    assert counts["pan_paraphrase"] > 4_800
