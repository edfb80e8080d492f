"""The artifact is served as it lies there, or converted to int8 once and kept in a cache."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from s2sent.model.artifact.manifest import CANARY, MODEL
from s2sent.model.artifact.reader import Artifact
from s2sent.model.artifact.writer import seal
from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.gpu import conversion as for_gpu
from s2sent.model.export.gpu.operators import AVOIDED
from s2sent.model.export.int8 import conversion as to_int8
from s2sent.model.export.twins import export_twins
from s2sent.model.runtime import providers
from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.service.engine.inference import served_artifact
from s2sent.service.engine.inference.model import LoadedModel
from s2sent.service.engine.inference.served_artifact import ConversionUnavailable, open_artifact
from s2sent.service.settings import Settings
from s2sent.service.settings_loading import load_settings
from s2sent.service.telemetry.metrics import Metrics
from tests.support.fake_runtime import FakeRuntime
from tests.support.few import FEW
from tests.support.operators_run import softmax_axes
from tests.support.tiny_twins import tiny_twins
from tests.test_imports import BLOCK, HEAVY

TEXTS = ["the cat sings", "a", "two happy dogs read books in the green city at night", "a car"]
NOT_FOR_SERVING = [name for name in HEAVY if name != "onnx"]


class Converter:
    """Stands for the start of the converter's process: runs it in this one, and counts."""

    def __init__(self) -> None:
        self.runs = 0
        self.before: Callable[[], object] = bool  # nothing

    def __call__(self, command: list[Any], **options: Any) -> "subprocess.CompletedProcess[str]":
        assert command[:2] == [sys.executable, "-m"]
        converters: dict[str, Callable[..., None]] = {
            "s2sent.model.export.int8.conversion": to_int8.main,
            "s2sent.model.export.gpu.conversion": for_gpu.main,
        }
        self.runs += 1
        self.before()
        try:
            converters[str(command[2])](*map(str, command[3:]))
        except SystemExit as error:
            return subprocess.CompletedProcess(command, 1, "", f"{error.code}\n")
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def converter(monkeypatch: pytest.MonkeyPatch) -> Converter:
    converter = Converter()
    monkeypatch.setattr(subprocess, "run", converter)
    return converter


@pytest.fixture
def no_vnni(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu avx2\n")
    monkeypatch.setattr(providers, "CPU_INFO", tmp_path / "cpuinfo")


def settings_for(artifact: Artifact, cache: Path, precision: str = "int8") -> Settings:
    return load_settings(artifact=artifact.path, precision=precision, int8_cache=cache)


def entry_of(cache: Path) -> Path:
    (entry,) = [path for path in cache.iterdir() if path.is_dir()]
    return entry


def same_direction(first: Artifact, second: Artifact, depth: int | None = None) -> bool:
    rows = [OnnxEncoder(each).encode(TEXTS, depth=depth) for each in (first, second)]
    return bool(
        ((rows[0] * rows[1]).sum(axis=1) > 0.98).all() and not np.array_equal(rows[0], rows[1])
    )


@pytest.mark.parametrize(("device", "precision"), [("cpu", "int8"), ("cuda", "fp16")])
def test_a_start_converts_in_a_process_without_torch_and_the_next_finds_it(
    tiny_artifact: Artifact,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    precision: str,
) -> None:
    """The real process, in which what only training needs cannot be imported."""
    blocked = BLOCK.format(blocked=(*NOT_FOR_SERVING, "training", "service"), modules=())
    (tmp_path / "sitecustomize.py").write_text(blocked)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = load_settings(
        artifact=tiny_artifact.path,
        device=device,
        precision=precision,
        int8_cache=tmp_path / "cache",
    )
    made = open_artifact(settings)
    assert (made.manifest.precision, made.manifest.name) == (precision, "tiny")
    assert made.path == entry_of(tmp_path / "cache")
    assert same_direction(made, tiny_artifact)
    monkeypatch.setattr(subprocess, "run", None)  # it cannot be started again
    assert open_artifact(settings).fingerprint == made.fingerprint


def test_the_model_that_is_loaded_is_the_converted_one(
    tiny_artifact: Artifact, tmp_path: Path, converter: Converter
) -> None:
    model = LoadedModel.open(settings_for(tiny_artifact, tmp_path, "auto"))
    assert model.artifact is not None
    assert (model.artifact.manifest.precision, model.warning) == ("int8", "")
    model.check_canary(model.run)


def test_depths_and_towers_are_kept(
    exits_artifact: Artifact, tmp_path: Path, converter: Converter
) -> None:
    made = open_artifact(settings_for(exits_artifact, tmp_path / "cache"))
    assert made.manifest.depths == exits_artifact.manifest.depths
    assert same_direction(made, exits_artifact, depth=2)
    tiny_twins(tmp_path, num_layers=3).save(str(tmp_path / "twins"), create_model_card=False)
    twins = export_twins(tmp_path / "twins", tmp_path / "artifact", FEW)
    made = open_artifact(settings_for(twins, tmp_path / "cache"))
    assert len(made.manifest.towers) == 2
    assert same_direction(made, twins)


def test_what_is_int8_already_is_served_as_it_is(
    tiny_artifact: Artifact, tmp_path: Path, converter: Converter
) -> None:
    made = open_artifact(settings_for(tiny_artifact, tmp_path / "cache"))
    assert open_artifact(settings_for(made, tmp_path / "other")).path == made.path
    assert not (tmp_path / "other").exists()
    assert converter.runs == 1


def test_a_damaged_entry_and_what_a_killed_conversion_left_are_replaced(
    tiny_artifact: Artifact, tmp_path: Path, converter: Converter
) -> None:
    settings = settings_for(tiny_artifact, tmp_path)
    whole = open_artifact(settings)
    (whole.path / MODEL).write_bytes(b"half")
    left = tmp_path / f".{whole.path.name}.partial-abc"
    left.mkdir()
    assert open_artifact(settings).fingerprint == whole.fingerprint
    assert converter.runs == 2
    assert not left.exists()


def shifted(entry: Path) -> None:
    """An entry whose embeddings have their components in another order, the canary's too."""
    made = Artifact.open(entry)
    model = onnx.load_from_string(made.read(MODEL))
    output = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["in_order" if name == output else name for name in node.output]
    order = np.roll(np.arange(made.manifest.dim), 1)
    model.graph.initializer.append(numpy_helper.from_array(order, "order"))
    model.graph.node.append(helper.make_node("Gather", ["in_order", "order"], [output], axis=-1))
    onnx.save(model, str(entry / MODEL))
    canary = json.loads((entry / CANARY).read_text())
    canary["embedding"] = [canary["embedding"][at] for at in order]
    (entry / CANARY).write_text(json.dumps(canary))
    seal(entry, made.manifest)


def of_another_name(entry: Path) -> None:
    seal(entry, replace(Artifact.open(entry).manifest, prompts={"query": "other: "}))


@pytest.mark.parametrize("change", [shifted, of_another_name])
def test_an_entry_that_does_not_say_what_its_source_says_is_replaced(
    tiny_artifact: Artifact, tmp_path: Path, converter: Converter, change: Callable[[Path], None]
) -> None:
    settings = settings_for(tiny_artifact, tmp_path)
    entry = open_artifact(settings).path
    change(entry)
    replaced = LoadedModel.open(settings)
    assert replaced.artifact is not None
    assert converter.runs == 2
    assert replaced.artifact.canary == tiny_artifact.canary
    assert replaced.artifact.manifest.prompts == tiny_artifact.manifest.prompts
    replaced.check_canary(replaced.run)


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
def test_a_cache_that_others_may_write_is_a_sentence_and_with_auto_a_warning(
    tiny_artifact: Artifact,
    tmp_path: Path,
    converter: Converter,
    caplog: pytest.LogCaptureFixture,
    mode: int,
) -> None:
    open_artifact(settings_for(tiny_artifact, tmp_path))
    tmp_path.chmod(mode)
    with pytest.raises(
        ConversionUnavailable, match=rf"others may write it \(owner .*, mode {mode:o}\)"
    ):
        open_artifact(settings_for(tiny_artifact, tmp_path))
    served = open_artifact(settings_for(tiny_artifact, tmp_path, "auto"))
    assert served.fingerprint == tiny_artifact.fingerprint
    assert "others may write it" in caplog.text


@pytest.mark.parametrize("part", [".", "onnx", "onnx/model.onnx", "manifest.json"])
def test_an_entry_that_others_may_write_is_replaced(
    tiny_artifact: Artifact, tmp_path: Path, converter: Converter, part: str
) -> None:
    entry = open_artifact(settings_for(tiny_artifact, tmp_path)).path
    (entry / part).chmod(0o777)
    assert open_artifact(settings_for(tiny_artifact, tmp_path)).path == entry
    assert converter.runs == 2
    assert not [found for found in entry.rglob("*") if found.stat().st_mode & 0o022]


def test_what_is_converted_is_private_whatever_the_umask(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    before = os.umask(0)
    try:
        entry = open_artifact(settings_for(tiny_artifact, tmp_path)).path
    finally:
        os.umask(before)
    assert not [found for found in (entry, *entry.rglob("*")) if found.stat().st_mode & 0o022]


def test_the_log_says_that_a_start_converts(
    tiny_artifact: Artifact, tmp_path: Path, converter: Converter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    open_artifact(settings_for(tiny_artifact, tmp_path))
    assert f"converting {tiny_artifact.path} to int8" in caplog.text
    assert "converted to int8 in" in caplog.text
    caplog.clear()
    open_artifact(settings_for(tiny_artifact, tmp_path))
    assert not caplog.text


def test_a_lock_that_is_a_link_is_refused_and_its_target_stays(
    tiny_artifact: Artifact, tmp_path: Path, converter: Converter
) -> None:
    (tmp_path / "other").write_text("mine")
    settings = settings_for(tiny_artifact, tmp_path)
    name = f"{tiny_artifact.fingerprint}-{served_artifact.CONVERSION['int8']}.lock"
    (tmp_path / name).symlink_to(tmp_path / "other")
    with pytest.raises(ConversionUnavailable, match=r"\.lock is a link or no file; remove it"):
        open_artifact(settings)
    assert (tmp_path / "other").read_text() == "mine"


def test_another_artifact_has_another_entry(
    tiny_artifact: Artifact, exits_artifact: Artifact, tmp_path: Path, converter: Converter
) -> None:
    paths = {open_artifact(settings_for(a, tmp_path)).path for a in (tiny_artifact, exits_artifact)}
    assert len(paths) == converter.runs == 2


def test_of_two_starts_at_once_one_converts_and_both_have_it(
    tiny_artifact: Artifact, tmp_path: Path, converter: Converter
) -> None:
    """The second is begun while the first converts, and waits for the lock."""
    found: list[str] = []
    settings = settings_for(tiny_artifact, tmp_path)
    second = threading.Thread(target=lambda: found.append(open_artifact(settings).fingerprint))
    converter.before = second.start
    found.append(open_artifact(settings).fingerprint)
    second.join()
    assert len(found) == 2
    assert len(set(found)) == converter.runs == 1


@pytest.mark.usefixtures("no_vnni")
def test_a_processor_without_vnni_serves_int8_too(
    tiny_artifact: Artifact, tmp_path: Path, converter: Converter
) -> None:
    model = LoadedModel.open(settings_for(tiny_artifact, tmp_path))
    assert model.artifact is not None
    assert model.artifact.manifest.precision == "int8"
    model.verify()
    assert converter.runs == 1


def test_an_artifact_that_cannot_be_converted_is_a_sentence_or_served_as_it_is(
    tiny_checkpoint: Path, tmp_path: Path, converter: Converter, caplog: pytest.LogCaptureFixture
) -> None:
    options = replace(FEW, standard_operators=True)
    plain = export_checkpoint(tiny_checkpoint, tmp_path / "plain", options)
    with pytest.raises(
        ConversionUnavailable, match=r"plain is fp32, not packed: only .* auto or as_is"
    ):
        open_artifact(settings_for(plain, tmp_path / "cache"))
    model = LoadedModel.open(settings_for(plain, tmp_path / "cache", "auto"))
    assert model.artifact is not None
    assert model.artifact.path == plain.path
    model.describe(Metrics())
    assert "plain is fp32, not packed" in caplog.text
    assert converter.runs == 0
    assert not (tmp_path / "cache").exists()


def test_without_being_told_so_nothing_is_converted(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    artifact = open_artifact(load_settings(artifact=tiny_artifact.path, int8_cache=tmp_path / "c"))
    assert artifact.fingerprint == tiny_artifact.fingerprint
    assert artifact.graphs  # kept for the encoder
    assert not (tmp_path / "c").exists()


def on_gpu(artifact: Artifact, cache: Path, **given: Any) -> Settings:
    return load_settings(artifact=artifact.path, device="cuda", int8_cache=cache, **given)


@pytest.mark.parametrize(
    ("served", "told"),
    [
        ("fp16", [{}, {"precision": "auto"}, {"precision": "fp16"}]),
        ("fp32", [{"precision": "fp32"}, {"precision": "as_is"}]),
    ],
)
def test_on_a_gpu_float16_is_served_unless_told_otherwise(
    exits_artifact: Artifact,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    converter: Converter,
    served: str,
    told: list[dict[str, str]],
) -> None:
    """And every graph that is opened there has no operator that is wrong on it."""
    open_artifact(on_gpu(exits_artifact, tmp_path / "cache", **told[0]))
    for given in told:
        runtime = FakeRuntime().install(monkeypatch)
        settings = on_gpu(exits_artifact, tmp_path / "cache", **given)
        model = LoadedModel.open(settings)
        model.warm_up(settings)  # its vectors are the exporter's
        assert model.artifact is not None
        assert model.artifact.manifest.precision == served
        assert (model.artifact.manifest.min_cosine or 0) > 0.9995
        assert len(runtime.sessions) == 4  # for each of three depths, and for all blocks
        for session in runtime.sessions:
            nodes = onnx.load_from_string(session.graph).graph.node
            assert not AVOIDED.intersection(node.op_type for node in nodes)
            assert all(axis == -1 for axis in softmax_axes(nodes))
    assert converter.runs == 1


def test_precisions_of_one_artifact_have_entries_of_their_own(
    tiny_artifact: Artifact, tmp_path: Path, converter: Converter
) -> None:
    settings = [on_gpu(tiny_artifact, tmp_path, precision=each) for each in ("fp16", "fp32")]
    settings.append(settings_for(tiny_artifact, tmp_path, "int8"))
    made = [open_artifact(each) for each in settings]
    assert [each.manifest.precision for each in made] == ["fp16", "fp32", "int8"]
    assert open_artifact(settings[0]).fingerprint == made[0].fingerprint
    assert converter.runs == 3


@pytest.mark.parametrize("change", [shifted, of_another_name])
def test_an_entry_for_a_gpu_that_is_not_of_its_source_is_replaced(
    tiny_artifact: Artifact, tmp_path: Path, converter: Converter, change: Callable[[Path], None]
) -> None:
    settings = on_gpu(tiny_artifact, tmp_path)
    change(open_artifact(settings).path)
    replaced = open_artifact(settings)
    assert converter.runs == 2
    assert replaced.canary == tiny_artifact.canary
    assert replaced.manifest.prompts == tiny_artifact.manifest.prompts


def test_what_float16_cannot_hold_is_refused_with_the_family_and_the_cure(
    tiny_artifact: Artifact, tmp_path: Path, converter: Converter
) -> None:
    """A weight beyond the range of float16 makes other vectors."""
    folder = shutil.copytree(tiny_artifact.path, tmp_path / "large")
    model = onnx.load(folder / MODEL)
    (bias,) = [each for each in model.graph.initializer if each.name == "Attention_0_qkv_bias"]
    values = np.array(numpy_helper.to_array(bias))
    values[: len(values) // 3] = np.linspace(0, 3e5, len(values) // 3)
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))
    onnx.save(model, folder / MODEL)
    large = seal(folder, tiny_artifact.manifest)
    with pytest.raises(
        ConversionUnavailable, match=r"large \(a bert\) in fp16: cosine .* set precision to fp32\."
    ):
        open_artifact(on_gpu(large, tmp_path / "cache"))
    assert open_artifact(on_gpu(large, tmp_path / "cache", precision="fp32"))


def test_a_folder_that_cannot_be_written_is_a_sentence_with_the_cure(
    tiny_artifact: Artifact, tmp_path: Path, converter: Converter
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        ConversionUnavailable, match=r"file/cache cannot keep .*Set S2SENT_INT8_CACHE to"
    ):
        open_artifact(settings_for(tiny_artifact, tmp_path / "file" / "cache"))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("Traceback\nValueError: no", "failed: ValueError: no Or set precision to as_is"),
        ("", "failed: It ended with status -9. Or set"),
    ],
)
def test_a_converter_that_fails_is_a_sentence_and_with_auto_a_warning(
    tiny_artifact: Artifact,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    said: str,
    message: str,
) -> None:
    """Killed for its memory, for example; nothing is left that would be served as int8."""
    done = subprocess.CompletedProcess[str]([], -9, "", said)
    monkeypatch.setattr(subprocess, "run", lambda *_a, **_o: done)
    with pytest.raises(ConversionUnavailable, match=message):
        open_artifact(settings_for(tiny_artifact, tmp_path))
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    served = open_artifact(settings_for(tiny_artifact, tmp_path, "auto"))
    assert served.fingerprint == tiny_artifact.fingerprint
    assert served.graphs  # kept for the encoder
    assert re.search(message, caplog.text)


def test_an_artifact_replaced_during_the_start_is_not_kept_under_the_old_fingerprint(
    tiny_artifact: Artifact, tmp_path: Path, converter: Converter
) -> None:
    mine = Artifact.open(shutil.copytree(tiny_artifact.path, tmp_path / "mine"))

    def replace() -> None:
        manifest = mine.path / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"tiny"', '"other"'))

    converter.before = replace
    with pytest.raises(
        ConversionUnavailable, match=r"mine was replaced during the start\. Start again"
    ):
        open_artifact(settings_for(mine, tmp_path / "cache"))


def test_without_onnx_it_says_what_to_install(
    tiny_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_artifact, "find_spec", lambda _name: None)
    with pytest.raises(ConversionUnavailable, match=r"needs the package onnx.*-m pip install onnx"):
        open_artifact(settings_for(tiny_artifact, tmp_path))


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"XDG_CACHE_HOME": "/caches", "HOME": "/home/me"}, "/caches/s2sent/int8"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.cache/s2sent/int8"),
        ({"HOME": "/home/me"}, "/home/me/.cache/s2sent/int8"),
    ],
)
def test_the_cache_is_where_the_user_keeps_caches(
    variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(served_artifact._cache_folder(load_settings())) == folder


def test_a_user_without_a_home_folder_is_told_to_name_a_cache(
    tiny_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 10)  # no account, as a container's user
    settings = load_settings(artifact=tiny_artifact.path, precision="int8")
    with pytest.raises(ConversionUnavailable, match=r"no home folder\. Set S2SENT_INT8_CACHE"):
        open_artifact(settings)
