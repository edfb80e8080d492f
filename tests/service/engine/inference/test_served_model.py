"""serve --model: a folder or a hub id becomes an artifact once, and is served like any other."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from s2sent.model.artifact.reader import Artifact
from s2sent.model.export.from_onnx import conversion as from_onnx
from s2sent.service.engine.inference import served_model
from s2sent.service.engine.inference.private_cache import UMASK
from s2sent.service.engine.inference.served_model import ModelUnavailable, artifact_of
from s2sent.training import __main__ as training
from tests.support.given_graphs import given_graph, static_encoder
from tests.support.server_process import running_server

ROOT = Path(__file__).resolve().parents[4]

TEXTS = ["the dog runs", "a cat"]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given") / "tiny"
    given_graph(folder)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache of exported models, in which nothing is yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "s2sent" / "models"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty local cache as the hub lays it out, and no connection."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "hub"


@pytest.fixture
def exported_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Exports run in this process, which has imported what they need."""

    def run(command: list[str], model: str, _lock: int) -> None:
        module, *arguments = command
        try:
            if module == "s2sent.training":
                training.main(arguments)
            else:
                from_onnx.main(*arguments)
        except SystemExit as ended:
            if ended.code:
                raise ModelUnavailable(f"{model} could not be exported: {ended.code}") from None

    monkeypatch.setattr(served_model, "_run", run)
    before = os.umask(UMASK)
    yield
    os.umask(before)


def keep_in(hub: Path, name: str, folder: Path) -> None:
    cached = hub / f"models--{name.replace('/', '--')}"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs/main").write_text("c0ffee")
    shutil.copytree(folder, cached / "snapshots/c0ffee")


def test_a_folder_with_a_graph_is_exported_once(
    given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = artifact_of(str(given))
    assert Artifact.open(made).manifest.name == "tiny"
    monkeypatch.setattr(subprocess, "run", None)  # it cannot be started again
    assert artifact_of(str(given)) == made


@pytest.mark.usefixtures("exported_here")
def test_other_files_are_exported_anew(given: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(given, tmp_path / "mine"))
    first = artifact_of(str(folder))
    settings = folder / "sentence_bert_config.json"
    settings.write_text('{"max_seq_length": 16, "do_lower_case": false}')
    second = artifact_of(str(folder))
    lengths = [Artifact.open(each).manifest.max_seq_length for each in (first, second)]
    assert lengths == [64, 16]


@pytest.mark.usefixtures("exported_here")
@pytest.mark.parametrize(
    ("kept", "asked"), [("me/mine", "me/mine"), ("sentence-transformers/mine", "mine")]
)
def test_a_hub_id_is_found_in_the_local_cache_without_a_connection(
    given: Path, hub: Path, kept: str, asked: str
) -> None:
    keep_in(hub, kept, given)
    assert Artifact.open(artifact_of(asked)).manifest.name == "mine"


def test_an_artifact_is_served_as_it_is(tiny_artifact: Artifact, hub: Path) -> None:
    assert artifact_of(str(tiny_artifact.path)) == tiny_artifact.path
    keep_in(hub, "me/artifact", tiny_artifact.path)
    assert artifact_of("me/artifact").parent.name == "snapshots"


def test_a_graph_is_exported_with_the_packages_of_the_cpu_image_alone(
    given: Path, tmp_path: Path
) -> None:
    """Any other package that is installed here is hidden, torch and what it brings among them."""
    code = f"""
import re, sys
from importlib.metadata import packages_distributions
lock = open("deploy/requirements-cpu.txt").read()
locked = {{"s2sent", *re.findall(r"^([\\w.-]+)==", lock, re.M)}}
owners = {{
    module: {{re.sub("[-_.]+", "-", name.lower()) for name in names}}
    for module, names in packages_distributions().items()
}}

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if not owners.get(name.partition(".")[0], locked) & locked:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
from pathlib import Path
from s2sent.model.export.from_onnx.conversion import export_given_graph
made = export_given_graph(Path({str(given)!r}), Path({str(tmp_path / "made")!r}))
assert made.manifest.packed
assert "torch" not in sys.modules and "sympy" in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("exported_here")
def test_static_embeddings_are_served_without_torch(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    static_encoder(tmp_path / "static")
    keep_in(hub, "me/static", tmp_path / "static")
    made = Artifact.open(artifact_of("me/static"))
    assert made.manifest.backbone == {"architecture": "static"}


@pytest.mark.usefixtures("exported_here")
def test_a_checkpoint_without_a_graph_is_exported_by_torch(tiny_checkpoint: Path) -> None:
    made = artifact_of(str(tiny_checkpoint))
    assert Artifact.open(made).manifest.selector is not None


def test_a_checkpoint_in_the_hubs_cache_is_exported_too_without_a_connection(
    tiny_checkpoint: Path, hub: Path
) -> None:
    keep_in(hub, "me/trained", tiny_checkpoint)
    made = Artifact.open(artifact_of("me/trained"))
    assert made.manifest.selector is not None
    assert made.manifest.name == "trained"


def test_without_torch_the_two_commands_that_help_are_named(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ModelUnavailable, match="`make train`, then `.*s2sent-train export"):
        artifact_of(str(tiny_checkpoint))


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("no/such-model", "no/such-model is no folder here and could not be fetched. Check the"),
        ("./nowhere/at/all", "is no folder and no hub id. Correct the path."),
    ],
)
def test_a_model_that_is_nowhere_is_a_sentence(hub: Path, model: str, sentence: str) -> None:
    with pytest.raises(ModelUnavailable, match=sentence):
        artifact_of(model)


@pytest.mark.usefixtures("exported_here")
def test_a_graph_that_is_refused_gives_way_to_the_export_by_torch(
    tiny_checkpoint: Path, given: Path, tmp_path: Path
) -> None:
    """Of a checkpoint with modules that are not read without torch."""
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "mine"))
    shutil.copytree(given / "onnx", folder / "onnx")
    made = artifact_of(str(folder))
    assert Artifact.open(made).manifest.selector is not None


def test_a_hubs_model_without_a_graph_is_exported_by_its_name(
    given: Path, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is fetched of it has no weights."""
    keep_in(hub, "me/mine", given)
    shutil.rmtree(next(hub.rglob("onnx")))
    ran: list[list[str]] = []
    monkeypatch.setattr(served_model, "_run", lambda command, *_: ran.append(command))
    entry = artifact_of("me/mine")
    assert ran == [["s2sent.training", "export", "me/mine", str(entry), "--name", "mine"]]


@pytest.mark.usefixtures("exported_here")
def test_a_folder_is_found_from_where_it_is_named(
    given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(given.parent)
    assert Artifact.open(artifact_of(given.name)).manifest.name == given.name


def test_what_the_export_says_is_told(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    folder = Path(shutil.copytree(given, tmp_path / "mine"))
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode": "max"}')
    with pytest.raises(ModelUnavailable, match="could not be exported: .* pools by max"):
        artifact_of(str(folder))
    assert not any(cache.glob("*/"))


def test_a_cache_that_cannot_be_written_is_a_sentence(given: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ModelUnavailable, match="set XDG_CACHE_HOME to a folder"):
        artifact_of(str(given))


def test_a_user_without_a_home_folder_is_told_to_name_a_cache(
    given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 10)  # no account, as a container's user
    with pytest.raises(ModelUnavailable, match=r"no home folder\): set XDG_CACHE_HOME"):
        artifact_of(str(given))


def test_a_lock_that_is_a_link_is_not_followed(given: Path, tmp_path: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    (tmp_path / "target").write_text("kept")
    entry = served_model._key(str(given), given)
    (cache / f"{entry}.lock").symlink_to(tmp_path / "target")
    with pytest.raises(ModelUnavailable, match="cannot keep the exported model"):
        artifact_of(str(given))
    assert (tmp_path / "target").read_text() == "kept"


@pytest.mark.usefixtures("exported_here")
@pytest.mark.parametrize("part", [".", "onnx/model.onnx", ".."])
def test_what_others_may_write_is_not_served(given: Path, part: str) -> None:
    made = artifact_of(str(given))
    (made / part).chmod(0o777)
    with pytest.raises(ModelUnavailable, match="cannot keep the exported model: others may write"):
        artifact_of(str(given))


def test_what_is_exported_is_private_whatever_the_umask(given: Path, cache: Path) -> None:
    cache.mkdir(mode=0o755, parents=True)
    before = os.umask(0)
    try:
        made = artifact_of(str(given))
    finally:
        os.umask(before)
    assert not [found for found in (made, *made.rglob("*")) if found.stat().st_mode & 0o022]


def test_a_server_is_started_by_a_models_name(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in another precision; both starts give the same vectors, the second exports nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = [sys.executable, "-m", "s2sent.service", "serve", "--model", str(given)]

    def start() -> tuple[np.ndarray, list[dict[str, Any]]]:
        with running_server(given, "--precision", "int8", program=program) as server:
            assert server.client.get("/info").json()["model_id"] == "tiny"
            vectors = server.client.post("/embed", json={"inputs": TEXTS}).json()
            return np.array(vectors), server.log

    first, log = start()
    assert any("exporting" in str(line["message"]) for line in log)
    second, log = start()
    assert not any("exporting" in str(line["message"]) for line in log)
    np.testing.assert_array_equal(first, second)


@pytest.mark.usefixtures("hub")
def test_a_server_whose_model_cannot_be_had_ends_with_a_sentence() -> None:
    command = [sys.executable, "-m", "s2sent.service", "serve", "--model", "no/such-model"]
    done = subprocess.run([*command, "--port", "0"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no/such-model is no folder here and could not be fetched" in done.stdout
