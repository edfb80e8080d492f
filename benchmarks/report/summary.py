"""The results in one table for the README: the servers, what each answers and what it takes."""

from benchmarks.report.results import Results, label_of, loads_given, measured, median_at
from benchmarks.report.tables import format_number, to_table

LONE = "c1"
NOTES = dict.fromkeys(("tei", "tei-int8"), "plain export, attention not fused")


def to_summary(results: Results) -> str:
    """Of each server p50 of a lone request, texts a second by load, and memory at rest; medians."""
    loads = [load for load in loads_given(results) if load.name != LONE]
    rows = []
    for name in measured(results):
        if not results["systems"][name]["is_server"]:
            continue
        rates = [median_at(results, name, "loads", x.name, "texts_per_second") for x in loads]
        rows.append(
            [
                ", ".join(filter(None, (label_of(results, name), NOTES.get(name)))),
                format_number(median_at(results, name, "loads", LONE, "p50_ms"), 2),
                *(format_number(rate, 0) for rate in rates),
                format_number(median_at(results, name, "memory_at_rest_mb", "rss"), 0),
            ]
        )
    head = ["", "a lone request, p50 ms", *(f"texts/s, {load.short_label}" for load in loads)]
    return to_table([*head, "memory at rest, MB"], rows)
