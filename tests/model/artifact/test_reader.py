"""An artifact opens as it was written, or the error names the wrong file and the cure."""

import dataclasses
import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from s2sent.model.artifact.errors import (
    ChecksumMismatch,
    MalformedManifest,
    MissingFile,
    UnsafeFile,
    UnsupportedSchema,
)
from s2sent.model.artifact.manifest import MANIFEST, MODEL, REQUIRED_FILES, Manifest
from s2sent.model.artifact.reader import MAX_MANIFEST_BYTES, Artifact
from s2sent.model.artifact.template import Template
from s2sent.model.artifact.writer import seal
from tests.support.small_artifact import GRAPH, a_manifest, write_artifact


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
    assert opened.take_graph() == graph
    with pytest.raises(ChecksumMismatch):
        opened.take_graph()


def test_an_artifact_without_selector_opens(artifact: Artifact) -> None:
    edit_manifest(artifact, selector=None)
    assert Artifact.open(artifact.path).manifest.selector is None


def test_a_manifest_from_before_early_exits_opens(artifact: Artifact) -> None:
    fields = json.loads((artifact.path / MANIFEST).read_text())
    del fields["depths"]
    (artifact.path / MANIFEST).write_text(json.dumps(fields))
    assert Artifact.open(artifact.path).manifest.depths == ()


def test_a_manifest_without_its_pooling_is_refused_by_name(artifact: Artifact) -> None:
    fields = json.loads((artifact.path / MANIFEST).read_text())
    del fields["pooling"]
    (artifact.path / MANIFEST).write_text(json.dumps(fields))
    with pytest.raises(MalformedManifest, match=r"misses .* the fields pooling\. Export"):
        Artifact.open(artifact.path)


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


def test_a_file_that_this_user_may_not_read_is_not_to_be_copied_again(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *_arguments: object, **_options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything
    with pytest.raises(MissingFile, match=r"permission denied\. Let this user read it\.$"):
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


TEMPLATE = {"prefix": [1, 2], "suffix": [3], "read": -1, "space": " ", "clean_up": "none"}


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
        ({"dim": -1}, "dim has -1, which is no number above 0"),
        ({"max_seq_length": 0}, "max_seq_length has 0"),
        ({"depths": ["2"]}, "depths has '2'"),
        ({"comparable_depths": [True]}, "comparable_depths has True"),
        ({"backbone": {"num_blocks": "6"}}, r"backbone\.num_blocks has '6'"),
        ({"selector": {}}, r"selector\.num_blocks has None"),
        ({"prompts": {"q": 5}}, "prompts must be texts"),
        ({"default_prompt_name": "nope"}, "default_prompt_name is 'nope', which prompts"),
        ({"template": {}}, "template needs the token ids"),
        ({"template": TEMPLATE | {"read": 2}}, "template needs the token ids"),
        ({"template": TEMPLATE | {"clean_up": "wash"}}, "clean_up as one of none, full_stop"),
        ({"template": TEMPLATE | {"prefix": ["a"]}}, "template needs the token ids"),
    ],
)
def test_a_manifest_of_another_shape_is_refused(
    artifact: Artifact, changes: dict[str, object], message: str
) -> None:
    """Unknown, mistyped and incomplete fields are named."""
    edit_manifest(artifact, **changes)
    with pytest.raises(MalformedManifest, match=f"^{artifact.path}: .*{message}"):
        Artifact.open(artifact.path)


@pytest.mark.parametrize("size", [10**15, 2**63 - 1, 10**30])
@pytest.mark.parametrize("name", [MODEL, "config.json"])
def test_a_size_that_no_file_has_is_a_mismatch(artifact: Artifact, name: str, size: int) -> None:
    """No memory is asked for beyond what the file has."""
    files = {key: dataclasses.asdict(value) for key, value in artifact.manifest.files.items()}
    edit_manifest(artifact, files=files | {name: files[name] | {"bytes": size}})
    with pytest.raises(ChecksumMismatch, match=f"the manifest says {size}"):
        Artifact.open(artifact.path)


def test_a_template_comes_back_and_leaves_less_room_for_a_text(artifact: Artifact) -> None:
    """An artifact without one has the field's default, as manifests of earlier versions have."""
    assert (artifact.manifest.template, artifact.manifest.max_input_length) == (None, 16)
    edit_manifest(artifact, template=TEMPLATE)
    manifest = Artifact.open(artifact.path).manifest
    assert manifest.template == Template((1, 2), (3,), read=-1, space=" ")
    assert manifest.max_input_length == 13
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_the_last_token_of_a_bare_text_can_be_read(artifact: Artifact) -> None:
    edit_manifest(artifact, template=TEMPLATE | {"prefix": [], "suffix": []})
    assert Artifact.open(artifact.path).manifest.template == Template((), (), read=-1, space=" ")


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
