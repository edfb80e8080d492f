"""The tables of a chain: each seed, means over seeds, and what the last selector adds by seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.development import WITHOUT_OVERLAP
from s2sent.training.evaluation.results.markdown import markdown_table
from s2sent.training.evaluation.results.statistics import (
    LEAST_MOVEMENT,
    LEVEL,
    equivalence,
    mean_and_spread,
    p_equation,
    paired,
    verdict,
)
from s2sent.training.evaluation.sts import AVERAGE
from s2sent.training.experiments.chain.plan import WITH, WITHOUT
from s2sent.training.files.jsonl import read_lines

DEVELOPMENT, TESTS = "development", "tests"  # parts of the results
COMPARED = {DEVELOPMENT: WITHOUT_OVERLAP, TESTS: AVERAGE}  # the score by which arms are compared
TITLES = {DEVELOPMENT: "Development data", TESTS: "The seven STS tests"}
TABLES_FILE = "chain.md"
MARGIN = 0.1  # points; a difference within it counts as none

Line = Mapping[str, Any]


def write_chain_tables(file: Path) -> Path:
    """Write the tables of a file of results beside it; returns their path.

    Raises `ConfigError` for a file without results.
    """
    lines = sorted(read_lines(file), key=lambda line: int(line["seed"]))
    if not lines:
        raise ConfigError(f"{file} has no results: run the chain first.")
    moved = [line["weight_moved"] for line in lines if line.get("weight_moved") is not None]
    parts = ["# A chain of recipes by seeds"]
    for part, title in TITLES.items():
        of_part = [line for line in lines if line["part"] == part]
        if of_part:
            parts += [f"## {title}", _table(of_part), *_comparison(of_part, part, moved)]
    target = file.with_name(TABLES_FILE)
    target.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return target


def _table(lines: Sequence[Line]) -> str:
    """A row a seed and, from two seeds, a row of means ± standard deviations, for each arm."""
    scores, rows = list(lines[0]["scores"]), []
    steps = any("kept_steps" in line for line in lines)
    for arm in (WITH, WITHOUT):
        of_arm = [line for line in lines if line["arm"] == arm]
        for line in of_arm:
            kept = [", ".join(map(str, line["kept_steps"]))] if steps else []
            rows.append([arm, str(line["seed"]), *kept, *_cells(line["scores"], scores)])
        if len(of_arm) > 1:
            spread = [mean_and_spread([line["scores"][name] for line in of_arm]) for name in scores]
            rows.append([arm, f"mean of {len(of_arm)}", *([""] if steps else []), *spread])
    return markdown_table(["", "seed", *(["kept steps"] if steps else []), *scores], rows)


def _cells(scores: Mapping[str, float], names: Sequence[str]) -> list[str]:
    return [f"{scores[name]:.2f}" for name in names]


def _comparison(lines: Sequence[Line], part: str, moved: Sequence[float]) -> list[str]:
    """What the selector adds, by pairs of seeds; nothing without pairs."""
    by_arm = {
        arm: {
            int(line["seed"]): line["scores"][COMPARED[part]]
            for line in lines
            if line["arm"] == arm
        }
        for arm in (WITH, WITHOUT)
    }
    found = paired(by_arm[WITH], by_arm[WITHOUT])
    if found is None:
        return []
    mean, count = round(found.mean, 2) + 0.0, len(found.differences)  # never -0.00
    text = f"The selector adds {mean:+.2f} in {COMPARED[part]} (n = {count}"
    if found.p is not None:
        text += f", 95 % {found.low:+.2f} to {found.high:+.2f}, {p_equation(found.p)}"
    text += f"): {verdict(found.mean, found.p)}."
    alike = equivalence(found.differences, MARGIN)
    if alike is not None:
        shown = "shown" if alike < LEVEL else "not shown"
        text += f" That it is within ± {MARGIN:g}: {p_equation(alike)}, {shown}."
    if moved and max(moved) < LEAST_MOVEMENT:
        text += (
            f" Its weights moved by {max(moved):.3f} at most, below {LEAST_MOVEMENT:g}, so whether "
            "a selector that is trained would add anything is not tested."
        )
    return [text]
