"""The command ``s2sent-train reproduce``: the paper's experiments and our controls."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from s2sent.training.commands.options import Data, whole_numbers

Names = list[str] | None
Steps = Annotated[int | None, typer.Option(min=0, help="Of each run; the budget's by default.")]
PAPER_CORPUS = "wiki1m_for_simcse.txt"
Paper = Annotated[
    bool, typer.Option("--paper", help="With the paper's settings; Tables 2 to 4 by default.")
]
Budget = Annotated[
    Literal["smoke", "short", "full"] | None,
    typer.Option(help="How long each run is; short by default."),
]
Corpus = Annotated[
    str, typer.Option(help=f"A source of single texts; wikisplit, or {PAPER_CORPUS} with --paper.")
]


def reproduce(
    data: Data,
    output: Annotated[Path, typer.Option(help="Folder for the results; it can be shared.")],
    backbone: Annotated[str, typer.Option(help="The encoder to train, as in a recipe.")],
    table: Annotated[Names, typer.Option(help="The paper's: 2, 3, 4; or jtcse, sfp.")] = None,
    control: Annotated[Names, typer.Option(help="Ours: x1, x4.")] = None,
    paper: Paper = False,
    budget: Budget = None,
    objective: Annotated[Names, typer.Option(help="simcse, prompt, prompt-mean.")] = None,
    seeds: Annotated[str, typer.Option(help="Such as 1,2,3; the budget's by default.")] = "",
    steps: Steps = None,
    corpus: Corpus = "",
    test_pairs: Annotated[int, typer.Option(min=0, help="Of sfp: of each test; 0 is all.")] = 0,
    arm: Annotated[Names, typer.Option(help="Of x4, sfp: heads to train.")] = None,
    only_tables: Annotated[bool, typer.Option("--only-tables", help="Only build tables.")] = False,
) -> None:
    """Run the paper's tables and our controls, and build tables of the results.

    Without --table and --control all of the paper's. --table jtcse: twin encoders beside
    controls. --table sfp: heads on a frozen decoder, then low-rank updates, whose length is --steps
    (0 leaves them out); with --arm these alone. --control x4: early exits. --paper says before how
    long it takes. Processes with one command share its runs; after an interruption it goes on.
    """
    from s2sent.training.evaluation.results.output import require_writable
    from s2sent.training.experiments import reproduce as experiments
    from s2sent.training.experiments.engine import Series

    if paper and budget:
        raise typer.BadParameter("--paper sets how long runs are: leave --budget out.")
    series = Series(
        data=data,
        output=output,
        backbone=backbone,
        budget="paper" if paper else budget or "short",
        objectives=tuple(objective or ["simcse"]),
        seeds=tuple(whole_numbers(seeds, "seeds")),
        steps=steps,
        corpus=corpus or (PAPER_CORPUS if paper else "wikisplit"),
        arms=tuple(arm or ()),
        test_pairs=test_pairs,
    )
    require_writable(series.folder / "tables.md")
    asked = _asked({"table": table, "control": control})
    for page in experiments.reproduce(asked, series, only_tables=only_tables):
        typer.echo(page)


def _asked(named: Mapping[str, Iterable[str] | None]) -> list[str]:
    return [f"{kind} {name.lower()}" for kind, names in named.items() for name in names or ()]
