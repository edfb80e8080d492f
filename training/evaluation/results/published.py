"""The scores that the S2Sent paper (arXiv 2508.18164) prints in its tables 2, 3 and 4.

Every table is keyed by backbone and objective, then by the name of a configuration of
`training.experiments.arms.configurations`. STS scores are Spearman x 100, transfer scores accuracy
x 100.
"""

from collections.abc import Mapping

PAPER = "arXiv 2508.18164"
Group = tuple[str, str]  # backbone, objective
STS_COLUMNS = ("STS-B", "SICK-R", "average")  # of table 2
BASE, S2SENT = "last1", "last3-2d"  # the backbone alone, and the paper's main configuration
MODELS: dict[Group, str] = {
    ("BERT", "simcse"): "SimCSE-BERT base",
    ("RoBERTa", "simcse"): "SimCSE-RoBERTa base",
    ("BERT", "prompt"): "PromptBERT base",
    ("RoBERTa", "prompt"): "PromptRoBERTa base",
}

# Table 2, by backbone and objective: STS-B, SICK-R and the average of the seven STS tasks.
TABLE_2: dict[Group, dict[str, tuple[float, ...]]] = {
    ("BERT", "simcse"): {
        "last1": (76.88, 72.19, 76.21),
        "last1-1d": (77.82, 71.98, 77.18),
        "last3-avg": (77.25, 72.05, 76.48),
        "last3-1d": (77.79, 72.05, 77.02),
        "last3-2d": (79.54, 73.18, 78.50),
        "last6-avg": (76.73, 72.21, 76.17),
        "last6-1d": (77.87, 71.75, 77.06),
        "last6-2d": (79.23, 73.03, 78.14),
    },
    ("BERT", "prompt"): {
        "last1": (81.70, 69.57, 78.11),
        "last1-1d": (82.34, 69.78, 79.85),
        "last3-avg": (82.06, 69.89, 79.22),
        "last3-1d": (82.62, 69.62, 79.71),
        "last3-2d": (83.41, 71.15, 80.98),
        "last6-avg": (81.81, 69.92, 79.50),
        "last6-1d": (82.19, 69.82, 79.90),
        "last6-2d": (83.58, 70.97, 80.81),
    },
    ("RoBERTa", "simcse"): {
        "last1": (80.32, 68.51, 76.46),
        "last1-1d": (81.68, 69.25, 78.19),
        "last3-avg": (80.73, 68.47, 76.61),
        "last3-1d": (81.97, 69.11, 78.35),
        "last3-2d": (82.57, 70.95, 78.32),
        "last6-avg": (80.13, 68.60, 76.53),
        "last6-1d": (81.81, 69.23, 78.26),
        "last6-2d": (82.41, 70.89, 78.48),
    },
    ("RoBERTa", "prompt"): {
        "last1": (81.81, 69.74, 79.02),
        "last1-1d": (82.17, 70.34, 79.80),
        "last3-avg": (81.97, 69.89, 79.61),
        "last3-1d": (81.98, 69.82, 80.36),
        "last3-2d": (83.91, 71.21, 81.18),
        "last6-avg": (81.77, 69.98, 79.50),
        "last6-1d": (82.08, 70.34, 79.98),
        "last6-2d": (83.67, 71.57, 81.25),
    },
}

# Table 3: the average of the seven STS tasks. Our copy lacks RoBERTa's rows with mean pooling.
TABLE_3: dict[Group, dict[str, tuple[float, ...]]] = {
    ("BERT", "simcse"): {
        "cls-last1-mlp": (76.21,),
        "cls-last3-2d-mlp": (66.88,),
        "last1": (76.22,),
        "last3-2d": (78.50,),
    },
    ("RoBERTa", "simcse"): {"cls-last1-mlp": (76.65,), "cls-last3-2d-mlp": (61.17,)},
}

# Table 4: MR, CR, SUBJ, MPQA, SST2, TREC, MRPC and their average.
TABLE_4: dict[Group, dict[str, tuple[float, ...]]] = {
    ("BERT", "simcse"): {
        "last1": (81.01, 86.19, 94.45, 89.28, 85.10, 89.40, 74.51, 85.71),
        "last3-2d": (80.95, 86.79, 95.12, 89.97, 86.12, 89.97, 74.98, 86.27),
    },
    ("BERT", "prompt"): {
        "last1": (80.69, 85.89, 93.81, 89.87, 84.89, 88.48, 76.28, 85.70),
        "last3-2d": (81.45, 86.64, 93.91, 89.91, 84.77, 89.52, 76.99, 86.17),
    },
    ("RoBERTa", "simcse"): {
        "last1": (81.15, 87.14, 93.29, 86.14, 86.50, 84.43, 73.28, 84.56),
        "last3-2d": (82.01, 87.89, 93.96, 85.91, 86.94, 85.23, 74.02, 85.14),
    },
    ("RoBERTa", "prompt"): {
        "last1": (83.72, 88.59, 93.37, 90.40, 88.10, 90.01, 76.27, 87.21),
        "last3-2d": (83.44, 88.90, 93.01, 90.77, 88.64, 90.08, 76.43, 87.32),
    },
}


def best_sts_rows() -> dict[str, tuple[float, ...]]:
    """Two rows of table 2 for each model: without S2Sent, and with the S2Sent of best average."""
    return _pairs(
        {
            group: (rows[BASE], max(rows.values(), key=lambda row: row[-1]))
            for group, rows in TABLE_2.items()
        }
    )


def transfer_rows() -> dict[str, tuple[float, ...]]:
    """The rows of table 4 for each model: without S2Sent, and with it."""
    return _pairs({group: (rows[BASE], rows[S2SENT]) for group, rows in TABLE_4.items()})


def _pairs(
    rows: Mapping[Group, tuple[tuple[float, ...], tuple[float, ...]]],
) -> dict[str, tuple[float, ...]]:
    found: dict[str, tuple[float, ...]] = {}
    for group, model in MODELS.items():
        found[model], found[f"{model}, S2Sent"] = rows[group]
    return found
