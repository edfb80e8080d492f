"""The artifact opens exactly as it was written, or says which file is wrong and what to do."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from model.artifact.manifest import (
    MANIFEST,
    MODEL,
    REQUIRED_FILES,
    ArtifactError,
    ChecksumMismatch,
    MalformedManifest,
    Manifest,
    MissingFile,
    UnsafeFile,
    UnsupportedSchema,
)
from model.artifact.reader import MAX_MANIFEST_BYTES, Artifact
from model.artifact.writer import record_scores, seal, staged

CANARY = {"text": "hello", "embedding": [0.6, 0.8]}
GRAPH = b"\x08\x08\x3a\x00"  # ir_version 8 and a graph without nodes, as protocol buffers write it


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
    (folder / MODEL).write_bytes(GRAPH)


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


def test_a_graph_that_was_kept_is_taken_once(artifact: Artifact) -> None:
    """Its bytes are the verified ones, whatever becomes of the file, and nobody keeps them."""
    graph = artifact.read(MODEL)
    opened = Artifact.open(artifact.path, keep_graph=True)
    artifact.onnx_path.write_bytes(b"another")
    assert opened.take_graph().content == graph
    with pytest.raises(ChecksumMismatch):
        opened.take_graph()


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


def test_a_manifest_from_before_early_exits_opens(artifact: Artifact) -> None:
    fields = json.loads((artifact.path / MANIFEST).read_text())
    del fields["depths"]
    (artifact.path / MANIFEST).write_text(json.dumps(fields))
    assert Artifact.open(artifact.path).manifest.depths == ()


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
        ({"depths": 2}, "depths must be list"),
        ({"normalize": 1}, "normalize must be bool"),
        ({"selector": []}, "selector must be dict or NoneType"),
        ({"files": {MODEL: {"sha256": "0"}}}, "needs sha256 and bytes"),
        ({"files": {MODEL: {"sha256": "0", "bytes": "1"}}}, "needs sha256 and bytes"),
        ({"files": {MODEL: {"sha256": "0", "bytes": -1}}}, "needs sha256 and bytes"),
        ({"files": {MODEL: {"sha256": "0", "bytes": float("inf")}}}, "needs sha256 and bytes"),
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


BROKEN = [b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"1" * 5_000]


@pytest.mark.parametrize("content", BROKEN, ids=lambda content: repr(content[:2]))
def test_a_manifest_that_is_no_json_object_is_refused(artifact: Artifact, content: bytes) -> None:
    """Broken JSON, a list, broken UTF-8, nesting and a long number all end in one sentence."""
    (artifact.path / MANIFEST).write_bytes(content)
    with pytest.raises(MalformedManifest):
        Artifact.open(artifact.path)


def test_a_manifest_that_is_too_large_is_not_read_to_its_end(artifact: Artifact) -> None:
    os.truncate(artifact.path / MANIFEST, MAX_MANIFEST_BYTES + 1)
    with pytest.raises(MalformedManifest, match=f"above the limit of {MAX_MANIFEST_BYTES} bytes"):
        Artifact.open(artifact.path)


@pytest.mark.parametrize("canary", [{}, {"text": "a", "embedding": [1]}, {"text": 1}, [1]])
def test_a_canary_of_another_shape_is_refused(artifact: Artifact, canary: object) -> None:
    """One number would be compared with every component and prove nothing."""
    (artifact.path / "canary.json").write_text(json.dumps(canary))
    with pytest.raises(MalformedManifest, match=r"canary\.json (needs a text|must hold)"):
        _ = seal(artifact.path, a_manifest()).canary


@pytest.mark.parametrize("name", REQUIRED_FILES)
def test_a_link_that_leads_out_of_the_folder_is_refused(
    artifact: Artifact, tmp_path: Path, name: str
) -> None:
    """Also where the file behind it is the right one: it is not the artifact's."""
    path = artifact.path / name
    path.rename(tmp_path / "outside")
    path.symlink_to(tmp_path / "outside")
    with pytest.raises(UnsafeFile, match=rf"{name} leads out of the artifact.*cp -rL"):
        Artifact.open(artifact.path)


def test_a_folder_of_files_that_leads_out_is_refused(artifact: Artifact, tmp_path: Path) -> None:
    (artifact.path / "onnx").rename(tmp_path / "outside")
    (artifact.path / "onnx").symlink_to(tmp_path / "outside")
    with pytest.raises(UnsafeFile, match="leads out of the artifact"):
        Artifact.open(artifact.path)


def test_links_to_and_within_the_artifact_are_followed(artifact: Artifact, tmp_path: Path) -> None:
    """As a mounted volume has them."""
    (artifact.path / "config.json").rename(artifact.path / "data")
    (artifact.path / "config.json").symlink_to("data")
    (tmp_path / "link").symlink_to(artifact.path)
    assert Artifact.open(tmp_path / "link").fingerprint == artifact.fingerprint


def test_a_graph_that_does_more_than_compute_is_refused(artifact: Artifact) -> None:
    """By the artifact, with its path; tests/model/artifact/test_graph_policy.py has what is
    refused."""
    (artifact.path / MODEL).write_bytes(b"\x3a\x05\x0a\x03\x3a\x01x")  # a node of the domain x
    with pytest.raises(UnsafeFile, match=r"onnx/model\.onnx may not be served.*domain 'x'"):
        seal(artifact.path, a_manifest())


def test_what_was_verified_is_what_is_used(artifact: Artifact) -> None:
    """A folder that changes, or goes, after it was opened changes nothing."""
    before = artifact.fingerprint, artifact.contents
    shutil.rmtree(artifact.path)
    assert (artifact.fingerprint, artifact.contents) == before
    assert artifact.canary.embedding == [0.6, 0.8]
    assert artifact.config == {"is": "config.json"}


def test_a_file_is_verified_each_time_it_is_read(artifact: Artifact) -> None:
    assert artifact.read(MODEL) == GRAPH
    (artifact.path / MODEL).write_bytes(GRAPH[::-1])
    with pytest.raises(ChecksumMismatch, match=MODEL):
        artifact.read(MODEL)


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
        "import os, signal, sys; from pathlib import Path; from model.artifact.writer import *\n"
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
        (folder / MODEL).write_bytes(GRAPH + b"\x12\x01a")  # another producer
        other = seal(folder, a_manifest())
        assert other.fingerprint != artifact.fingerprint
