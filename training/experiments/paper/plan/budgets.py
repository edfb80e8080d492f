"""How much of a run each budget pays for, and what the runs of an objective have in common."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Table = Mapping[str, Any]

OBJECTIVES: dict[str, Table] = {
    "simcse": {"objective": {"name": "simcse"}, "training": {"learning_rate": 3e-5}},
    # The paper pools every model by its mean; PromptBERT itself pools at the mask. Both are here.
    "prompt": {
        "objective": {"name": "prompt"},
        "backbone": {"pooling": "mask"},
        "training": {"learning_rate": 1e-5},
    },
    "prompt-mean": {
        "objective": {"name": "prompt"},
        "backbone": {"pooling": "mean"},
        "training": {"learning_rate": 1e-5},
    },
}


@dataclass(frozen=True)
class Budget:
    """The length of a run: keys of the recipe's [training], the seeds, a limit on corpus rows, and
    options of `training.evaluation.overhead.rounds.Protocol` for the latency measurement."""

    training: Table
    seeds: tuple[int, ...]
    limit: int = 0  # rows of the corpus, at most; 0 takes all
    selector_rate: float = 0.0  # the selector's learning rate; 0 means the backbone's
    latency: Table = field(default_factory=dict)


BUDGETS = {
    "smoke": Budget(
        {"steps": 4, "batch_size": 8, "eval_every": 2},
        (1,),
        limit=200,
        latency={"batch_sizes": (1,), "lengths": (32,), "warm_ups": 1, "repeats": 4},
    ),
    # For a backbone that is tuned already; long enough, and the gate's rate high enough, for fusion
    # weights to move.
    "short": Budget(
        {"steps": 1000, "eval_every": 100, "precision": "bf16"},
        (1, 2, 3, 4, 5),
        selector_rate=3e-3,
        latency={"warm_ups": 1, "repeats": 400, "seconds_per_cell": 100.0, "threads": 1},
    ),
    # The paper's protocol: one pass over the corpus, dev scored every 125 steps.
    "full": Budget({"steps": 0, "eval_every": 125, "precision": "bf16"}, (1, 2, 3, 4, 5, 6, 7)),
}
