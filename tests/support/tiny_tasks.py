"""Evaluation files in the real layout: every STS and transfer task, with made-up sentences."""

import itertools
from pathlib import Path

from s2sent.training.evaluation.sts import TASKS
from tests.support.tiny_data import SENTENCES, write_table

STS_HEADER = ("subset", "score", "sentence1", "sentence2")


def tiny_tasks(folder: Path) -> Path:
    """Write ``sts/`` and ``transfer/``: scores by shared words, labels of all kinds."""
    for shift, file in enumerate(TASKS.values(), start=1):
        pairs = zip(SENTENCES, SENTENCES[shift:] + SENTENCES[:shift], strict=True)
        rows = [("tiny", f"{5 * _shared(a, b):.1f}", a, b) for a, b in pairs]
        rows += [("tiny", f"{n}", SENTENCES[n], SENTENCES[-n]) for n in range(1, 6)]
        write_table(folder / "sts" / file, [STS_HEADER, *rows])
    one = [(str(index % 2), text) for index, text in enumerate(SENTENCES)]
    who = [(str(index // 15), text) for index, text in enumerate(SENTENCES)]
    for file in ("mr", "cr", "subj", "mpqa", "sst2-train", "sst2-dev", "sst2-test"):
        write_table(folder / "transfer" / f"{file}.tsv", [("label", "text"), *one])
    for file in ("trec-train", "trec-test"):
        write_table(folder / "transfer" / f"{file}.tsv", [("label", "text"), *who])
    every = itertools.product(SENTENCES[::9], SENTENCES[::11])
    same = [(str(int(a.split()[1] == b.split()[1])), a, b) for a, b in every]
    for file in ("mrpc-train", "mrpc-val", "mrpc-test"):
        table = [("label", "sentence1", "sentence2"), *same]
        write_table(folder / "transfer" / f"{file}.tsv", table)
    return folder


def write_dev_apart(folder: Path) -> Path:
    """Write an STS-B dev whose pairs stand in no test task, where they are seven apart at most."""
    pairs = enumerate(zip(SENTENCES, SENTENCES[20:], strict=False))
    rows = [("tiny", str(n % 6), a, b) for n, (a, b) in pairs]
    write_table(folder / "sts" / "stsb-dev.tsv", [STS_HEADER, *rows])
    return folder


def _shared(a: str, b: str) -> float:
    first, second = set(a.split()), set(b.split())
    return len(first & second) / len(first | second)
