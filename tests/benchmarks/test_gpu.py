"""The study of a GPU, run on a CPU with the same graphs; and what is carried to a GPU."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_wheels import ENTRY, FATBIN, MAGIC, keep_architecture
from benchmarks.studies import gpu
from s2sent.model.artifact.reader import Artifact


@pytest.fixture
def run(
    exits_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """The cells of a dry run of which the service does not start, as they were written."""
    written: list[int] = []

    def start(_study: gpu.Study, _count: int) -> Any:
        written.append(len(json.loads(out.read_text())))
        raise OSError("no port is free")

    out = tmp_path / "out.json"
    monkeypatch.setattr(gpu.Study, "_start", start)
    monkeypatch.setattr(
        sys, "argv", ["gpu", "--device", "cpu", "--short", "--out", str(out)]
        + ["--artifact", str(exits_artifact.path)],
    )  # fmt: skip
    gpu.main()
    cells = 3 + 3 * len(gpu.FORMS)
    assert written == [cells]  # those before it were there already
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_cells_are_written_as_they_end_and_one_that_fails_says_so(run: dict[str, Any]) -> None:
    assert run["service, 1 HTTP processes, 1 x 1"] == "not measured: OSError: no port is free"
    exact = run["exactness, fp32"]
    assert exact["zeros"] == 0
    assert max(exact[f"batches of {size}"] for size in gpu.BATCHES) < 1e-5
    assert exact["least cosine to the CPU's float32"] > 0.9999
    for precision in ("fp16", "fp32"):
        found = run[f"two at once, {precision}"]
        assert (found["failed"], found["wrong"], found["zeros"]) == (0, 0, 0)
        assert "1 texts, depth 2" in run[f"a run, {precision}"]
    assert run["raw loop, 1 x 1"]["texts_per_second"] > 0


def test_what_there_is_no_time_for_is_not_measured(
    exits_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["gpu", "--device", "cpu", "--short", "--limit", "0", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", [*command, "--artifact", str(exits_artifact.path)])
    gpu.main()
    cells = json.loads((tmp_path / "out").read_text())
    assert cells["exactness, fp16"] == "not measured: no time was left"


def entry(architecture: int, code: bytes) -> bytes:
    header = ENTRY.pack(2, 257, ENTRY.size, len(code), 0, 0, 0, 0, architecture)
    return header + code


def test_code_for_other_architectures_is_set_to_zero() -> None:
    body = entry(80, b"old!") + entry(90, b"this") + entry(120, b"new!")
    library = bytearray(b"head" + MAGIC + len(body).to_bytes(8, "little") + body + b"tail")
    before = len(library)
    assert keep_architecture(library, 90) == 8
    assert len(library) == before
    found = [code in library for code in (b"head", b"old!", b"this", b"new!", b"tail")]
    assert found == [True, False, True, False, True]
    assert library[4 : 4 + FATBIN.size] == MAGIC + len(body).to_bytes(8, "little")


def test_bytes_that_look_like_code_and_are_not_stay() -> None:
    library = bytearray(b"head" + MAGIC + (1 << 40).to_bytes(8, "little") + b"other")
    assert keep_architecture(library, 90) == 0
    assert library.endswith(b"other")
