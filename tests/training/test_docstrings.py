"""The corpus of docstrings: what is taken of one, what is left out, and that `fit` can read it."""

from pathlib import Path

import pytest

from s2sent.training.__main__ import main
from s2sent.training.corpus import read_corpus
from s2sent.training.docstrings import read_docstrings, split_docstring, write_docstrings
from s2sent.training.errors import ConfigError, DataError
from s2sent.training.recipe.recipe import CorpusPart

SUMMARY = "Return the mean of the numbers."
DESCRIPTION = "Numbers that are missing count as zero, and an empty list has no mean at all."


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "\n\nArgs:\n    numbers: what is added",
        "\n\nParameters\n----------\nnumbers : list",
        "\n\nReturns::\n    a number",
        "\n\n:param numbers: what is added",
        "\n\n>>> mean([1, 3])\n2",
        "\n\n.. versionadded:: 3.4",
    ],
)
def test_a_summary_and_its_description_end_at_the_first_section(rest: str) -> None:
    first, second = DESCRIPTION[:30], DESCRIPTION[30:]
    assert split_docstring(f"{SUMMARY}\n\n    {first}\n    {second}{rest}") == (
        SUMMARY,
        " ".join([*first.split(), *second.split()]),
    )


@pytest.mark.parametrize(
    "docstring",
    [
        SUMMARY,
        f"{SUMMARY}\n\nToo few words.",
        f"Too short. {DESCRIPTION}",
        f"{'Word ' * 26}ends. {DESCRIPTION}",
        f"{SUMMARY} Él dijo. {DESCRIPTION}",
        f"{SUMMARY} The \x07 bell. {DESCRIPTION}",
        f"{SUMMARY} X" + " = (1, 2); y" * 20,
        "",
    ],
)
def test_what_is_no_pair_of_prose_is_left_out(docstring: str) -> None:
    assert split_docstring(docstring) is None


def test_a_long_description_is_cut() -> None:
    pair = split_docstring(f"{SUMMARY} The {'word ' * 100}")
    assert pair is not None
    assert len(pair[1].split()) == 75


def test_files_are_read_in_order_and_repeats_left_out(tmp_path: Path) -> None:
    """Modules, classes, functions; not tests, not what Python cannot parse, nothing twice."""
    docstring = f'"""{SUMMARY}\n\n{DESCRIPTION}\n"""\n'
    other = docstring.replace("mean", "median").replace("missing", "absent")
    for name, text in {
        "b.py": other,
        "a.py": f"def mean(numbers):\n    {docstring}",
        "c.py": docstring,  # as in a.py
        "d.py": docstring.replace(SUMMARY, "Another summary of one description."),
        "broken.py": "def (",
        "nul.py": "\0",
        "tests/e.py": other.replace("median", "mode").replace("absent", "lost"),
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [summary for summary, _ in read_docstrings([tmp_path])] == [
        SUMMARY,
        SUMMARY.replace("mean", "median"),
    ]
    with pytest.raises(DataError, match="missing is not a folder: name one that holds Python"):
        list(read_docstrings([tmp_path / "missing"]))


def test_the_table_is_a_corpus_of_related_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "one.py").write_text(f'"""{SUMMARY}\n\n{DESCRIPTION}\n"""\n')
    table = tmp_path / "corpus" / "docstrings.tsv"
    main_exits_well(["docstrings", str(table), str(package)])
    assert capsys.readouterr().out == f"1 pairs in {table}\n"
    corpus = read_corpus(table.parent, [CorpusPart(source=table.name)], kind="related")
    assert corpus.parts == {"docstrings.tsv": [(SUMMARY, DESCRIPTION)]}


def test_the_table_is_refused(tmp_path: Path) -> None:
    """An existing file, another kind of file, and a folder without a pair."""
    (tmp_path / "there.tsv").touch()
    with pytest.raises(ConfigError, match=r"there\.tsv exists: remove it"):
        write_docstrings(tmp_path / "there.tsv")
    with pytest.raises(ConfigError, match=r"docs\.txt must end in \.tsv"):
        write_docstrings(tmp_path / "docs.txt")
    with pytest.raises(DataError, match="No docstring of .* has a description: name the folder"):
        write_docstrings(tmp_path / "docs.tsv", [tmp_path])
    assert not (tmp_path / "docs.tsv").exists()


def test_without_a_folder_installed_packages_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standard library, then the packages beside this one."""
    folders = {}
    for name in ("stdlib", "purelib"):
        folders[name] = tmp_path / name
        folders[name].mkdir()
        text = f'"""{SUMMARY} {DESCRIPTION}"""'.replace("mean", name)
        (folders[name] / "module.py").write_text(text.replace("missing", name))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(folders[name]))
    assert write_docstrings(tmp_path / "docs.tsv") == 2
    _, *rows = (tmp_path / "docs.tsv").read_text().splitlines()
    assert [row.split()[2] for row in rows] == ["stdlib", "purelib"]


def main_exits_well(arguments: list[str]) -> None:
    """Run the command line, which ends by SystemExit(0)."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0
