"""The systems: their commands, what is asked where one is absent, and those of our own making."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from httpx import ASGITransport, AsyncClient

from benchmarks.machine import describe_machine, describe_source
from benchmarks.systems import http_alone
from benchmarks.systems.catalogue import BY_DEFAULT, SYSTEMS, all_systems
from benchmarks.systems.models import (
    MADE_FROM,
    WEIGHTS,
    Models,
    begin_cache,
    hash_exporters,
)
from benchmarks.systems.peers import find_onnxruntime_library
from benchmarks.systems.plain_fastapi import create_app
from benchmarks.systems.raw_limit import RawLimit
from benchmarks.systems.running import NotMeasured, installed_versions, running
from benchmarks.systems.system import DEFAULT_ARTIFACT, ROOT, System
from s2sent.model.artifact.reader import Artifact

REFERENCE = np.array([[0.6, 0.8]], dtype=np.float32)


@pytest.fixture(scope="module")
def raw() -> RawLimit:
    return RawLimit(DEFAULT_ARTIFACT)


def systems(tmp_path: Path, tei: str = "/nowhere/router") -> dict[str, System]:
    names = ("checkpoint", "artifact", "int8", "onnx", "tei", "tei_int8")
    models = Models(**{name: tmp_path / name for name in names}, reference=REFERENCE)
    found = all_systems(models, ["a text"], tmp_path / "peers", tei, ["--threads", "1"])
    return {system.name: system for system in found}


def test_every_name_has_a_system_and_the_defaults_are_among_them(tmp_path: Path) -> None:
    assert tuple(systems(tmp_path)) == SYSTEMS
    assert set(BY_DEFAULT) < set(SYSTEMS)
    assert systems(tmp_path)["s2sent"].command[-2:] == ("--threads", "1")


def test_tei_is_named_by_a_path_and_compared_in_both_precisions(tmp_path: Path) -> None:
    found = systems(tmp_path, "/opt/router")
    for name, folder in (("tei", "tei"), ("tei-int8", "tei_int8")):
        assert found[name].command[:3] == ("/opt/router", "--model-id", str(tmp_path / folder))
    assert found["tei"].check.min_cosine == 0.9999
    assert found["tei-int8"].check.min_cosine < found["s2sent-int8"].check.min_cosine


def test_without_tei_the_reason_says_how_to_give_it(tmp_path: Path) -> None:
    tei = systems(tmp_path)["tei"]
    with (
        pytest.raises(NotMeasured, match="/nowhere/router is not there. Give the path .* --tei"),
        running(tei, tmp_path / "log"),
    ):
        pass
    assert installed_versions(tei) == {}


def test_a_program_tells_its_own_version(tmp_path: Path) -> None:
    router = tmp_path / "router"
    router.write_text("#!/bin/sh\necho text-embeddings-router 1.2.3\n")
    router.chmod(0o700)
    tei = systems(tmp_path, str(router))["tei"]
    assert installed_versions(tei) == {"text-embeddings-router": "1.2.3"}


def test_a_program_of_another_processor_is_not_measured(tmp_path: Path) -> None:
    router = tmp_path / "router"
    router.write_text("#!/bin/sh\nkill -ILL $$\n")
    router.chmod(0o700)
    tei = systems(tmp_path, str(router))["tei"]
    assert installed_versions(tei) == {}
    with (
        pytest.raises(NotMeasured, match="instructions that this processor lacks"),
        running(tei, tmp_path / "log"),
    ):
        pass


def test_the_runtime_s_library_is_that_of_the_environment_or_the_installed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORT_DYLIB_PATH", "/opt/libonnxruntime.so")
    assert find_onnxruntime_library() == Path("/opt/libonnxruntime.so")
    monkeypatch.delenv("ORT_DYLIB_PATH")
    found = find_onnxruntime_library()
    assert found
    assert found.is_file()


async def test_plain_fastapi_gives_the_artifact_s_embeddings() -> None:
    canary = Artifact.open(DEFAULT_ARTIFACT).canary
    transport = ASGITransport(create_app(DEFAULT_ARTIFACT))
    async with AsyncClient(transport=transport, base_url="http://test") as client:
        ready = await client.get("/health")
        rows = await client.post("/embed", json={"inputs": [canary.text, "A longer text, padded."]})
        alone = await client.post("/embed", json={"inputs": canary.text, "normalize": False})
    assert ready.json() == "ok"
    assert np.dot(rows.json()[0], canary.embedding) == pytest.approx(1, abs=1e-5)
    assert len(rows.json()) == 2
    assert len(alone.json()) == 1


async def test_http_alone_gives_each_text_an_embedding_without_a_model() -> None:
    transport = ASGITransport(http_alone.create_app())
    async with AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.get("/health")).json() == "ok"
        one = await client.post("/embed", json={"inputs": "a text"})
        rows = await client.post("/embed", json={"inputs": ["a text"] * 32})
    assert np.linalg.norm(one.json(), axis=1) == pytest.approx([1])
    assert np.shape(rows.json()) == (32, http_alone.WIDTH)


def test_the_raw_limit_gives_the_artifact_s_embeddings(raw: RawLimit) -> None:
    canary = Artifact.open(DEFAULT_ARTIFACT).canary
    rows = raw.embed([canary.text, "Another text, which is longer."])
    assert np.dot(rows[0], canary.embedding) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("in_flight", [1, 16, 128])
def test_the_raw_limit_says_which_way_was_fastest(raw: RawLimit, in_flight: int) -> None:
    task = {"texts": ["a", "a b", "a b c"], "in_flight": in_flight, "seconds": 0.05}
    answer = raw.measure(task)
    assert answer["way"].startswith("one session")
    assert answer["texts"] >= len(answer["call_seconds"]) >= 1
    assert answer["seconds"] >= 0.05
    assert raw.measure(task)["way"] == answer["way"]


@pytest.mark.parametrize(
    ("in_flight", "sizes"),
    [(1, {"1": {1}, "2": {1}}), (16, {"1": {1, 4, 8, 16}, "2": {1, 4, 8}})],
)
def test_the_raw_limit_tries_as_many_texts_a_run_as_its_sessions_can_have(
    raw: RawLimit, monkeypatch: pytest.MonkeyPatch, in_flight: int, sizes: dict[str, set[int]]
) -> None:
    """By the number of sessions, so that each has a batch of its own; the fastest is taken."""
    monkeypatch.setattr(raw, "_ways", {"1": [object()], "2": [object(), object()]})
    tried: dict[str, set[int]] = {"1": set(), "2": set()}

    def time(way: str, size: int, *_: Any) -> dict[str, float]:
        tried[way].add(size)
        return {"texts": 100 if (way, size) == ("2", max(sizes["2"])) else 1, "seconds": 1}

    monkeypatch.setattr(raw, "_time", time)
    task = {"texts": ["other"], "in_flight": in_flight, "seconds": 1}
    assert raw.measure(task)["way"].startswith(f"2, {max(sizes['2'])} text")
    assert tried == sizes


def test_the_machine_and_the_source_are_told() -> None:
    machine = describe_machine()
    assert machine["cpu"]
    assert machine["cores"] >= 1
    source = describe_source(ROOT)
    assert json.dumps(source)
    if (ROOT / ".git").exists():
        assert isinstance(source["dirty"], bool)
        assert len(source["commit"]) == 40


def test_a_folder_without_git_has_no_commit(tmp_path: Path) -> None:
    assert describe_source(tmp_path) == {"commit": None, "dirty": None}


def test_the_exporter_s_source_has_a_hash() -> None:
    assert hash_exporters() == hash_exporters()
    assert len(hash_exporters()) == 64


def test_a_cache_of_other_weights_is_emptied(tmp_path: Path) -> None:
    """Else a bench would measure one model and name another; also one from before it was told."""
    made = tmp_path / "artifact/manifest.json"
    made.parent.mkdir()
    made.touch()
    for same in (WEIGHTS, WEIGHTS):
        begin_cache(tmp_path, same)
        assert made.exists()
    (tmp_path / MADE_FROM).unlink()
    begin_cache(tmp_path, "another")
    assert [path.name for path in tmp_path.iterdir()] == [MADE_FROM]
