"""The artifact opens exactly as it was written, or says which file is wrong and what to do."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from model.artifact import (
    MANIFEST,
    REQUIRED_FILES,
    Artifact,
    ArtifactError,
    ChecksumMismatch,
    MalformedManifest,
    Manifest,
    MissingFile,
    UnsupportedSchema,
    record_scores,
    seal,
    staged,
)

CANARY = {"text": "hello", "embedding": [0.6, 0.8]}


def a_manifest() -> Manifest:
    return Manifest(
        name="tiny",
        dim=2,
        max_seq_length=16,
        pooling="mean",
        normalize=True,
        precision="fp32",
        inputs=("input_ids", "attention_mask"),
        selector={"num_blocks": 3},
        backbone={"name": "tiny-bert"},
        prompts={"query": "query: "},
        training={"seed": 1},
        scores={},
        parity={},
        fused={"Attention": 4},
        versions={"torch": "2"},
        files={},
    )


def fill(folder: Path) -> None:
    for name in REQUIRED_FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(CANARY if name == "canary.json" else {"is": name}))


def write_artifact(target: Path, **options: bool) -> Artifact:
    with staged(target, **options) as folder:
        fill(folder)
        seal(folder, a_manifest())
    return Artifact.open(target)


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    return write_artifact(tmp_path / "artifact")


def edit_manifest(artifact: Artifact, **changes: object) -> None:
    path = artifact.path / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_was_sealed_opens_equal(artifact: Artifact) -> None:
    """Opening gives back every field of the manifest, and the files it lists."""
    found = dataclasses.replace(artifact.manifest, files={})
    assert found == a_manifest()
    assert set(artifact.manifest.files) == set(REQUIRED_FILES)
    assert artifact.canary.embedding == [0.6, 0.8]
    assert artifact.config == {"is": "config.json"}


def test_an_artifact_without_selector_opens(artifact: Artifact) -> None:
    edit_manifest(artifact, selector=None)
    assert Artifact.open(artifact.path).manifest.selector is None


@pytest.mark.parametrize("name", REQUIRED_FILES)
def test_one_changed_byte_is_found_in_every_file(artifact: Artifact, name: str) -> None:
    """A flipped bit keeps the size and still does not open; the message names file and cure."""
    path = artifact.path / name
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    with pytest.raises(ChecksumMismatch, match=rf"{name}.*export it anew"):
        Artifact.open(artifact.path)


@pytest.mark.parametrize("name", REQUIRED_FILES)
def test_truncated_and_missing_files_are_named(artifact: Artifact, name: str) -> None:
    """A file cut short is a mismatch, a file gone is missing."""
    path = artifact.path / name
    os.truncate(path, 3)
    with pytest.raises(ChecksumMismatch, match=name):
        Artifact.open(artifact.path)
    path.unlink()
    with pytest.raises(MissingFile, match=name):
        Artifact.open(artifact.path)


def test_a_folder_without_manifest_is_not_an_artifact(tmp_path: Path) -> None:
    """An empty folder, no folder and a file are all refused with the manifest's path."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(MissingFile, match=r"manifest\.json is not there.*s2sent-train export"):
            Artifact.open(path)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_schema_version_is_refused(artifact: Artifact, version: object) -> None:
    """A newer or older format is never guessed at."""
    edit_manifest(artifact, schema_version=version)
    with pytest.raises(UnsupportedSchema, match=f"schema_version {version!r}"):
        Artifact.open(artifact.path)


@pytest.mark.parametrize("name", ["../model.onnx", "/etc/hostname", "a/../../b", "..\\x", MANIFEST])
def test_a_path_that_leaves_the_folder_is_refused(artifact: Artifact, name: str) -> None:
    """The manifest may list files inside the artifact only."""
    entry = dataclasses.asdict(artifact.manifest.files["config.json"])
    files = {key: dataclasses.asdict(value) for key, value in artifact.manifest.files.items()}
    edit_manifest(artifact, files=files | {name: entry})
    with pytest.raises(MalformedManifest, match="does not stay inside"):
        Artifact.open(artifact.path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"surprise": 1}, "surprise"),
        ({"dim": "2"}, "dim must be int"),
        ({"normalize": 1}, "normalize must be bool"),
        ({"selector": []}, "selector must be dict or NoneType"),
        ({"files": {"onnx/model.onnx": {"sha256": "0"}}}, "needs sha256 and bytes"),
        ({"files": {}}, "does not list"),
    ],
)
def test_a_manifest_of_another_shape_is_refused(
    artifact: Artifact, changes: dict[str, object], message: str
) -> None:
    """Unknown, mistyped and incomplete fields are named."""
    edit_manifest(artifact, **changes)
    with pytest.raises(MalformedManifest, match=message):
        Artifact.open(artifact.path)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe"])
def test_a_manifest_that_is_no_json_object_is_refused(artifact: Artifact, content: bytes) -> None:
    """Broken JSON, a list and broken UTF-8 all end in one sentence."""
    (artifact.path / MANIFEST).write_bytes(content)
    with pytest.raises(MalformedManifest):
        Artifact.open(artifact.path)


def test_an_exception_while_writing_leaves_nothing(tmp_path: Path) -> None:
    """Neither the target nor a partial folder stays behind."""

    def write_half() -> None:
        with staged(tmp_path / "artifact") as folder:
            fill(folder)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_export_leaves_no_folder_that_opens(tmp_path: Path) -> None:
    """SIGKILL before the manifest is written: what remains on disk does not open."""
    code = (
        "import os, signal, sys; from pathlib import Path; from model.artifact import *\n"
        "with staged(Path(sys.argv[1]) / 'artifact') as folder:\n"
        "    (folder / 'config.json').write_text('{}')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    left = list(tmp_path.iterdir())
    assert len(left) == 1
    for path in [*left, tmp_path / "artifact"]:
        with pytest.raises(MissingFile):
            Artifact.open(path)


def test_an_existing_artifact_is_replaced_only_when_asked(tmp_path: Path) -> None:
    """Without overwrite the old one stays; with it the new one takes its place, whole."""
    old = write_artifact(tmp_path / "artifact")
    (old.path / "extra").write_text("old")
    with pytest.raises(ArtifactError, match="exists"):
        write_artifact(old.path)
    assert (old.path / "extra").exists()
    write_artifact(old.path, overwrite=True)
    assert not (old.path / "extra").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["artifact"]


def test_recording_scores_changes_nothing_else(artifact: Artifact) -> None:
    """Scores come after the export; files and every other field stay as they were."""
    before = artifact.fingerprint
    scored = record_scores(artifact, {"STS-B": 82.03})
    assert scored.manifest == dataclasses.replace(artifact.manifest, scores={"STS-B": 82.03})
    assert scored.fingerprint != before


def test_the_fingerprint_follows_the_weights(artifact: Artifact, tmp_path: Path) -> None:
    """Two artifacts with one differing file have different fingerprints."""
    with staged(tmp_path / "other") as folder:
        fill(folder)
        (folder / "onnx/model.onnx").write_text("other weights")
        other = seal(folder, a_manifest())
        assert other.fingerprint != artifact.fingerprint
