"""The folder of a bench: reads its results, writes page, summary and plot beside them."""

import json
from pathlib import Path

from benchmarks.report.page import to_markdown
from benchmarks.report.plot import save_plot
from benchmarks.report.results import Results
from benchmarks.report.summary import to_summary

RESULTS = "results.json"
BESIDE = ("soak_memory",)  # what other commands leave in the same folder


def write_report(folder: Path) -> str:
    """Write results.md, summary.md and plot.svg beside results.json; returns the page."""
    results = read_results(folder)
    text = to_markdown(results)
    (folder / "results.md").write_text(text, encoding="utf-8")
    (folder / "summary.md").write_text(to_summary(results), encoding="utf-8")
    save_plot(results, folder / "plot.svg")
    return text


def read_results(folder: Path) -> Results:
    """The results, with what the commands beside the bench left in the folder."""
    results: Results = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    for name in BESIDE:
        path = folder / f"{name}.json"
        if path.is_file():
            results[name] = json.loads(path.read_text(encoding="utf-8"))
    return results
