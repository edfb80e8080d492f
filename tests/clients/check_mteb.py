"""MTEB's wrapper of OpenAI's API, on a task that is made here: nothing comes from a hub."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mteb
import numpy as np
from datasets import Dataset, DatasetDict
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from scipy.stats import spearmanr

PAIRS = Path(__file__).parent / "pairs.tsv"


class LocalSTS(AbsTaskSTS):
    """Pairs of tests/clients/pairs.tsv, with scores from 0 to 5."""

    metadata = TaskMetadata(
        name="LocalSTS",
        dataset={"path": "local/pairs", "revision": "1"},
        description="Pairs of sentences, from the same to unrelated.",
        reference=None,
        type="STS",
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="cosine_spearman",
        date=("2026-01-01", "2026-12-31"),
        domains=["Written"],
        task_subtypes=[],
        license="apache-2.0",
        annotations_creators="human-annotated",
        dialect=[],
        sample_creation="created",
        bibtex_citation="",
    )

    def load_data(self, *_: Any, **__: Any) -> None:
        self.dataset = DatasetDict(test=Dataset.from_list(read_pairs()))
        self.data_loaded = True


def read_pairs() -> list[dict[str, Any]]:
    with PAIRS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return [row | {"score": float(row["score"])} for row in rows]


def test_the_pages_model_scores_what_its_vectors_say(
    run_snippet: Callable[[str], dict[str, Any]], known: Callable[..., Any]
) -> None:
    """MTEB's Spearman of cosines is that of the service's own vectors."""
    results = mteb.evaluate(run_snippet("mteb")["model"], LocalSTS(), cache=None)
    (scores,) = results.task_results[0].scores["test"]
    rows = read_pairs()
    left, right = known([r["sentence1"] for r in rows]), known([r["sentence2"] for r in rows])
    expected = spearmanr(np.sum(left * right, axis=1), [r["score"] for r in rows]).statistic
    assert scores["main_score"] == scores["cosine_spearman"]
    np.testing.assert_allclose(scores["main_score"], expected, atol=1e-6)
    assert scores["main_score"] > 0.8
