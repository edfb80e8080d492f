"""The Dockerfile and its locks; tests/support/check_containers.py looks at the built image
itself."""

import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from s2sent.service.settings import Settings, environment_name
from tests.test_imports import BLOCK, SERVING_MODULES

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HUB_CLIENT_MODULES = ("huggingface_hub", "hf_xet", "filelock", "fsspec", "tqdm", "yaml")


def pins(path: Path) -> dict[str, str]:
    """The version of each package that a file of requirements pins."""
    found = re.findall(r"^([\w.-]+)==([^\s;\\]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


LOCKS = {extra: pins(ROOT / f"deploy/requirements-{extra}.txt") for extra in ("cpu", "gpu")}


def tool(name: str) -> str:
    """The path of a program beside this Python or on the PATH; skips the test without it."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run(
        [tool("hadolint"), "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_default_target_is_cpu() -> None:
    """Without --target the last stage is built."""
    stages = re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE)
    assert stages[-1] == "cpu"
    assert "gpu" in stages


@pytest.mark.parametrize("planted", [None, "lib/python3.11/site-packages/planted.pth"])
def test_a_build_fails_where_a_package_has_left_a_pth_file(
    tmp_path: Path, planted: str | None
) -> None:
    """Python runs what is in one at every start (litellm 1.82.7 on PyPI); in both environments."""
    checks = re.findall(r"&& (test -z .*\.pth.*)$", DOCKERFILE, re.MULTILINE)
    assert len(checks) == 2
    if planted:
        (tmp_path / planted).parent.mkdir(parents=True)
        (tmp_path / planted).write_text("import os")
    for check in checks:
        command = ["sh", "-c", check.replace("/opt/venv", str(tmp_path))]
        assert subprocess.run(command, check=False).returncode == (1 if planted else 0)


def test_base_is_one_pinned_tag() -> None:
    """One external image for every stage, and never `latest`."""
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE))
    bases = set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) - stages
    assert bases == {"${BASE}"}
    assert re.search(r"^ARG BASE=python:3\.\d+-slim-\w+$", DOCKERFILE, re.MULTILINE)


def test_version_label_is_the_packages() -> None:
    assert f"ARG VERSION={PROJECT['version']}\n" in DOCKERFILE


def test_settings_of_the_image_exist() -> None:
    """The service would refuse to start with an unknown one."""
    known = {environment_name(field) for field in Settings.model_fields}
    assert set(re.findall(r"\b(S2SENT_\w+)=", DOCKERFILE)) <= known


def test_what_is_copied_is_sent_to_the_builder() -> None:
    """.dockerignore leaves out everything it does not name."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sent = [line.removeprefix("!") for line in lines if line.startswith("!")]
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    for source in " ".join(copied).split():
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, pattern) for pattern in sent), source


@pytest.mark.parametrize("extra", LOCKS)
def test_lock_covers_what_the_package_asks_for(extra: str) -> None:
    """In versions that pyproject.toml allows."""
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras[extra], *extras["otel"]]
    for requirement in map(Requirement, wanted):
        version = LOCKS[extra][canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}: {version}"


@pytest.mark.parametrize("extra", LOCKS)
def test_lock_is_what_is_tested(extra: str) -> None:
    """Where constraints.txt has a version, the images have the same."""
    tested = pins(ROOT / "constraints.txt")
    assert {name: tested.get(name, version) for name, version in LOCKS[extra].items()} == LOCKS[
        extra
    ]


@pytest.mark.parametrize("extra", LOCKS)
def test_lock_has_no_torch_and_one_onnxruntime(extra: str) -> None:
    """Both builds of ONNX Runtime install the same module."""
    runtimes = {name for name in LOCKS[extra] if name.startswith("onnxruntime")}
    assert runtimes == {"onnxruntime" if extra == "cpu" else "onnxruntime-gpu"}
    assert not {"torch", "transformers", "optimum", "sentence-transformers"} & LOCKS[extra].keys()


def test_service_needs_no_hub_client() -> None:
    """What the images leave out of the lock is never imported, not even to open a tokenizer."""
    left_out = re.search(r'^ENV HUB_CLIENT="(.+)"$', DOCKERFILE, re.MULTILINE)
    assert left_out is not None
    assert len(left_out[1].split()) == len(HUB_CLIENT_MODULES)
    code = BLOCK.format(blocked=HUB_CLIENT_MODULES, modules=SERVING_MODULES) + (
        "from pathlib import Path\nfrom s2sent.model.runtime.tokenizer import Tokenizer\n"
        "Tokenizer(Path('artifacts/default/tokenizer.json'), 16).tokenize(['a text'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_cpu_image_names_no_architecture() -> None:
    """docs/deployment.md says that it builds for arm64 too."""
    assert not re.search(r"amd64|x86[-_]64|arm64|aarch64|--platform", DOCKERFILE)
    lock = (ROOT / "deploy" / "requirements-cpu.txt").read_text(encoding="utf-8")
    hashes = {
        name: block.count("--hash=sha256:")
        for name, block in re.findall(
            r"^([\w.-]+)==(.*?)(?=^[\w#]|\Z)", lock, re.MULTILINE | re.DOTALL
        )
    }
    compiled = ("numpy", "onnxruntime", "orjson", "pydantic-core", "tokenizers", "httptools")
    for name in compiled:  # a wheel for each platform: a lock of one machine's would have one
        assert hashes[name] > 2, name
