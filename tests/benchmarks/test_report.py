"""The Markdown page and the plot show what was measured and say what was not."""

import json
from pathlib import Path
from typing import Any

from benchmarks.load.closed_loop import LOADS
from benchmarks.report.folder import RESULTS, write_report
from benchmarks.report.results import Results


def without_rounds(**settings: Any) -> Results:
    """What a run knows before its first round."""
    return {
        "date": "2026-01-01",
        "commit": "0123456789abc",
        "dirty": True,
        "settings": {"command": "python -m benchmarks", "seconds": 2, **settings},
        "machine": {
            "cpu": "a CPU",
            "cpu_flags": ["avx2", "avx_vnni"],
            "cores": 2,
            "memory_gb": 8,
            "system": "Linux",
        },
        "tokens": {kind: {"mean": 14, "longest": 40} for kind in ("short", "long")},
        "systems": {
            name: {"label": label, "is_server": True, "command": ["serve"], "versions": {}}
            for name, label in (("s2sent", "S2Sent"), ("raw", "raw limit"), ("tei", "TEI"))
        }
        | {
            "http": {
                "label": "HTTP",
                "is_server": True,
                "is_reference": True,
                "command": [],
                "versions": {},
            }
        },
        "not_measured": {},
        "rounds": [],
    }


def test_a_report_shows_what_was_measured_and_says_what_was_not(tmp_path: Path) -> None:
    figures = {"texts_per_second": 123.4, "p50_ms": 5.0, "p99_ms": 9.0}
    slower = {"texts_per_second": 99.6, "p50_ms": 6.0, "p99_ms": 9.0, "others_share": 0.25}
    loads = {load.name: figures for load in LOADS}
    results = without_rounds(answers=7, minutes=3.2) | {
        "not_measured": {"raw": "it is not there."},
        "rounds": [
            {"s2sent": {"loads": loads, "open_loop": {"50": {"p99_ms": 8.0}}}},
            {"s2sent": {"loads": {"c1": slower}}},
            {"tei": {"loads": {"c1": {"not_measured": "3 answers in 60 s"}}}},
            {"tei": {"loads": {"c4": {"requests": 9, "failed": 2, "unanswered": 1}}}},
            {"http": {"loads": loads}},
        ],
    }
    (tmp_path / RESULTS).write_text(json.dumps(results))
    (tmp_path / "soak_memory.json").write_text('{"growth_percent": 2.5}')
    text = write_report(tmp_path)
    once = "123 (123–123) | " * 5
    assert f"| S2Sent | 112 (100–123) | {once.strip()}" in text
    assert "| S2Sent | 5.50 (5.00–6.00) | 9.00 (9.00–9.00) |" in text
    assert "2 cores of a CPU (AVX2, VNNI), 8 GB, Linux" in text
    assert "commit 0123456789 with uncommitted changes" in text
    assert "at least 2 s and 7 answers" in text
    assert "in 3 minutes" in text
    assert "took 25% of the cores in the median window" in text
    assert "- TEI: 3 answers in 60 s" in text
    assert "- TEI: 3 requests of 9 were refused or not answered" in text
    assert "| HTTP |" not in text  # measured for study
    assert "- raw limit: it is not there." in text
    assert "| 2.50 % | **missed** |" in text
    assert "## Open loop" in text
    assert (tmp_path / "results.md").read_text() == text
    assert "<svg" in (tmp_path / "plot.svg").read_text()


def test_fewer_than_three_rounds_are_no_result(tmp_path: Path) -> None:
    results = without_rounds()
    (tmp_path / RESULTS).write_text(json.dumps(results))
    text = write_report(tmp_path)
    assert "not a result" in text
    assert "## Open loop" not in text
    assert "Nothing was left out." in text
