"""The wheel beside a user's own code: folders of the same names as ours change nothing."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from s2sent.model.artifact.reader import Artifact
from tests.support.server_process import running_server

ROOT = Path(__file__).parents[1]
HOSTILE = "raise SystemExit('the file of the user was run')\n"
OURS = ("model", "service", "training")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what the Dockerfile copies, by the setuptools of this environment."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    for name in ("s2sent", *OURS):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    target = source / "wheels"
    build = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    command = [sys.executable, *build, "--wheel-dir", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = target.glob("s2sent-*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs' folder of a new environment: the wheel, and this environment's libraries."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"]
    subprocess.run([*command, "--no-index", "--quiet", str(wheel)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # A path file is not read in a folder that another adds, so this clone is not found by it.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return python.parent


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A working directory with files and packages named as ours."""
    (tmp_path / "model.py").write_text(HOSTILE)
    for name in ("service", "training"):
        (tmp_path / name).mkdir()
        for file in ("__init__.py", "__main__.py"):
            (tmp_path / name / file).write_text(HOSTILE)
    return tmp_path


def run(*command: str | Path, folder: Path) -> str:
    """What a command prints that does not find this clone by the environment."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_one_package_and_what_it_reads(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"s2sent"}
    assert {
        "s2sent/model/export/parity_sentences.txt",
        "s2sent/service/pages/static/playground.html",
        "s2sent/training/configs/simcse-bert.toml",
    } <= {*names}


@pytest.mark.parametrize("start", ["program", "module"])
def test_the_wheel_serves_in_a_folder_with_a_users_own_packages(
    installed: Path, hostile: Path, tiny_artifact: Artifact, start: str
) -> None:
    """In int8, which is converted by a process of its own."""
    python = [str(installed / "python"), "-m", "s2sent.service"]
    program = [*(python if start == "module" else [str(installed / "s2sent")]), "serve"]
    flags = ("--precision", "int8", "--int8-cache", str(hostile / "cache"))
    with running_server(tiny_artifact.path, *flags, program=program, cwd=hostile) as server:
        assert server.client.get("/info").json()["precision"] == "int8"
        assert server.client.post("/embed", json={"inputs": "the dog"}).status_code == 200


def test_the_wheel_exports_in_a_folder_with_a_users_own_packages(
    installed: Path, hostile: Path, tiny_checkpoint: Path
) -> None:
    run(
        installed / "s2sent-train",
        "export",
        tiny_checkpoint,
        "made",
        "--name",
        "mine",
        folder=hostile,
    )
    assert Artifact.open(hostile / "made").manifest.name == "mine"


def test_a_users_own_model_is_imported_beside_the_package(
    installed: Path, hostile: Path, tiny_artifact: Artifact
) -> None:
    (hostile / "model.py").write_text("WORDS = ['the dog']\n")
    (hostile / "script.py").write_text(
        "import sys\nimport model\nfrom s2sent import OnnxEncoder\n"
        "print(OnnxEncoder(sys.argv[1]).encode(model.WORDS).shape, model.__file__)\n"
    )
    printed = run(installed / "python", "script.py", tiny_artifact.path, folder=hostile)
    assert printed == f"(1, {tiny_artifact.manifest.dim}) {hostile / 'model.py'}\n"
