"""What a training step costs with CSE-SFP's one forward, and with PromptEOL's two.

    python -m benchmarks.studies.one_forward --backbone pypi:smollm2-135m --data DATA

Both train low-rank updates of the same backbone on the same texts. CSE-SFP reads each once, inside
a template with two stages, which are its two views; PromptEOL reads each twice, dropout making the
views. Each kind runs in a process of its own, by turns, because a process keeps the memory that it
has had. Prints a Markdown table: medians of seconds a step, and of peak memory above the start.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil

KINDS: dict[str, dict[str, Any]] = {
    "CSE-SFP, one forward": {"template": "sfp", "pooling": "rep1", "objective": "sfp"},
    "PromptEOL, two forwards": {
        "template": "prompteol",
        "pooling": "last_token",
        "objective": "simcse",
    },
}
SOURCE = "captions"
MAX_TOKENS = 32  # of a text, as in CSE-SFP


def main() -> None:
    """Measure both kinds by turns and print the table, or measure one kind for it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--data", type=Path, required=True, help="the folder that has corpus/")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument(
        "--steps", type=int, default=4, help="of a process, after one that warms up"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kind", choices=list(KINDS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.kind:
        print(json.dumps(measure(options.kind, options)))
        return
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for number in range(options.rounds):
        order = list(found) if number % 2 == 0 else list(found)[::-1]
        for kind in order:
            command = [sys.executable, "-m", "benchmarks.studies.one_forward", *sys.argv[1:]]
            done = subprocess.run(
                [*command, "--kind", kind], capture_output=True, text=True, check=True
            )
            found[kind].append(json.loads(done.stdout.splitlines()[-1]))
    print(table(found))


def table(found: dict[str, list[dict[str, float]]]) -> str:
    """A row for each kind, medians over its processes; the first is compared with the second."""
    rows = ["| | tokens a row | s a step | peak MB above the start |", "|---|---:|---:|---:|"]
    cells = {
        kind: {name: median(run[name] for run in runs) for name in runs[0]}
        for kind, runs in found.items()
    }
    for kind, of in cells.items():
        rows.append(f"| {kind} | {of['tokens']:.1f} | {of['seconds']:.2f} | {of['peak_mb']:.0f} |")
    first, second = cells.values()
    less = [100 * (1 - first[name] / second[name]) for name in ("seconds", "peak_mb")]
    rows.append(f"| less, % | | {less[0]:.0f} | {less[1]:.0f} |")
    return "\n".join(rows)


def measure(kind: str, options: argparse.Namespace) -> dict[str, float]:
    """The median step of one process, and its peak memory above what it had before the first."""
    import torch

    from s2sent.training.corpus import read_corpus
    from s2sent.training.encoder import new_encoder
    from s2sent.training.objectives.families import make_loss
    from s2sent.training.objectives.loss_inputs import LossInputs
    from s2sent.training.recipe.recipe import recipe_from

    recipe = recipe_from(recipe_table(KINDS[kind], options), kind)
    encoder = new_encoder(recipe)
    corpus = read_corpus(options.data / "corpus", recipe.corpus, kind="texts")
    loss = make_loss(LossInputs(encoder, recipe, corpus))
    encoder.train()
    encoder.max_seq_length = MAX_TOKENS
    texts = corpus.texts()[: options.batch_size]
    views = (
        1 if KINDS[kind]["objective"] == "sfp" else 2
    )  # dropout makes the second of equal columns
    transformer: Any = encoder[0]
    columns = [transformer.preprocess(texts, task="view_1") for _ in range(views)]

    def step() -> float:
        started = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(columns, torch.empty(0))
        value.backward()
        encoder.zero_grad()
        return time.perf_counter() - started

    before = psutil.Process().memory_info().rss
    step()  # warms up
    seconds = [step() for _ in range(options.steps)]
    return {
        "tokens": float(sum(column["attention_mask"].sum() for column in columns)) / len(texts),
        "seconds": median(seconds),
        "peak_mb": (_peak_bytes() - before) / 1e6,
    }


def recipe_table(kind: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The recipe of one kind: low-rank updates on as many texts as a batch has."""
    return {
        "seed": 1,
        "backbone": {
            "name": options.backbone,
            "template": kind["template"],
            "pooling": kind["pooling"],
        },
        "corpus": [{"source": SOURCE, "limit": options.batch_size}],
        "objective": {"name": kind["objective"]},
        "training": {"max_seq_length": MAX_TOKENS, "lora_rank": 16, "precision": "bf16"},
    }


def _peak_bytes() -> int:
    """The largest resident size of this process so far."""
    lines = Path(f"/proc/{os.getpid()}/status").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
