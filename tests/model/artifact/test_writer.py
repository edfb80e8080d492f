"""An artifact is written whole or not at all, and opens as it was written."""

import dataclasses
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from s2sent.model.artifact.errors import ArtifactError, MissingFile
from s2sent.model.artifact.manifest import MODEL, REQUIRED_FILES
from s2sent.model.artifact.reader import Artifact
from s2sent.model.artifact.writer import record_scores, seal, staged
from tests.support.small_artifact import GRAPH, a_manifest, fill, write_artifact


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    return write_artifact(tmp_path / "artifact")


def test_what_was_sealed_opens_equal(artifact: Artifact) -> None:
    """Opening gives back every field of the manifest, and the files it lists."""
    found = dataclasses.replace(artifact.manifest, files={})
    assert found == a_manifest()
    assert set(artifact.manifest.files) == set(REQUIRED_FILES)
    assert artifact.canary.embedding == [0.6, 0.8]
    assert artifact.config == {"is": "config.json"}


def test_an_exception_while_writing_leaves_nothing(tmp_path: Path) -> None:
    """Neither the target nor a partial folder stays behind."""

    def write_half() -> None:
        with staged(tmp_path / "artifact") as folder:
            fill(folder)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (["photos/", "thesis.txt"], "holds photos and no manifest.json"),
        (["modules.json"], "holds modules.json and no manifest.json"),
        (None, "is a file"),
    ],
)
def test_only_an_artifact_is_overwritten(
    tmp_path: Path, content: list[str] | None, reason: str
) -> None:
    target = tmp_path / "target"
    if content is None:
        target.write_text("of somebody else")
    for name in content or []:
        (target / name).parent.mkdir(exist_ok=True)
        (target / name).mkdir(parents=True) if name[-1] == "/" else (target / name).touch()
    with pytest.raises(ArtifactError, match=f"target {reason}, so it is not overwritten"):
        write_artifact(target, overwrite=True)
    if content is None:
        assert target.read_text() == "of somebody else"
    else:
        left = sorted(each.name for each in target.iterdir())
        assert left == sorted(name.rstrip("/") for name in content)
    assert [*tmp_path.iterdir()] == [target]


@pytest.mark.parametrize("stranger", ["checkpoint/model.safetensors", "notes.txt"])
def test_an_artifact_that_holds_something_else_is_not_overwritten(
    artifact: Artifact, stranger: str
) -> None:
    """Such as the checkpoint that it was exported from."""
    (artifact.path / stranger).parent.mkdir(exist_ok=True)
    (artifact.path / stranger).touch()
    with pytest.raises(ArtifactError, match=f"holds {stranger}, which its manifest.json does not"):
        write_artifact(artifact.path, overwrite=True)
    assert (artifact.path / stranger).is_file()
    (artifact.path / stranger).unlink()
    assert write_artifact(artifact.path, overwrite=True).fingerprint == artifact.fingerprint


@pytest.mark.parametrize("content", ['{"name": "an app", "icons": []}', "[]", "{", '{"files": 1}'])
def test_a_folder_with_another_programs_manifest_is_not_overwritten(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app/manifest.json").write_text(content)
    (tmp_path / "app/index.html").touch()
    with pytest.raises(ArtifactError, match=r"app holds index\.html, which its manifest\.json"):
        write_artifact(tmp_path / "app", overwrite=True)
    assert (tmp_path / "app/index.html").is_file()


def test_what_appears_at_the_target_meanwhile_stays(tmp_path: Path) -> None:
    """Such as what another export wrote there first."""

    def write_beside_another() -> None:
        with staged(tmp_path / "artifact") as folder:
            fill(folder)
            (tmp_path / "artifact").mkdir()
            (tmp_path / "artifact/thesis.txt").touch()

    with pytest.raises(ArtifactError, match=r"artifact exists\. .* replace it with --overwrite"):
        write_beside_another()
    assert [*tmp_path.iterdir()] == [tmp_path / "artifact"]
    assert (tmp_path / "artifact/thesis.txt").is_file()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_to_nothing_is_refused_before_any_work(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with (
        pytest.raises(ArtifactError, match="link is a link to nothing"),
        staged(tmp_path / "link", overwrite=overwrite),
    ):
        pytest.fail("the block ran")
    assert [*tmp_path.iterdir()] == [tmp_path / "link"]


def test_the_folder_that_a_command_runs_in_is_not_overwritten(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(artifact.path)
    with pytest.raises(ArtifactError, match="is the folder that this command runs in"):
        write_artifact(Path(), overwrite=True)


def test_an_empty_folder_may_be_overwritten(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    assert write_artifact(tmp_path / "target", overwrite=True).manifest.name == "tiny"


def test_an_artifact_that_cannot_be_replaced_stays(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of the two renames fails."""
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        if ".partial-" in path.name:
            raise PermissionError
        return rename(path, target)

    def replace() -> None:
        with staged(artifact.path, overwrite=True) as folder:
            fill(folder)
            monkeypatch.setattr(Path, "rename", failing)

    with pytest.raises(PermissionError):
        replace()
    assert [*artifact.path.parent.iterdir()] == [artifact.path]
    assert Artifact.open(artifact.path).fingerprint == artifact.fingerprint


def test_a_killed_export_leaves_no_folder_that_opens(tmp_path: Path) -> None:
    """SIGKILL before the manifest is written: what remains on disk does not open."""
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from s2sent.model.artifact.writer import *\n"
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
    with staged(tmp_path / "artifact") as folder:
        fill(folder)
        (folder / "extra").write_text("old")
        seal(folder, a_manifest())
    old = Artifact.open(tmp_path / "artifact")
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
