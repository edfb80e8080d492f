"""Distillation: the losses against hand calculations, and several teachers as their mean."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers.util import cos_sim

from s2sent.model.network.encoder import build_plain_encoder
from s2sent.training.corpus import Corpus, read_corpus
from s2sent.training.errors import ConfigError, DataError
from s2sent.training.evaluation.encoders import open_encoder
from s2sent.training.files.arrays import kept_arrays
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.objectives import teacher as teachers
from s2sent.training.objectives.distillation import (
    PairDistillationLoss,
    SimilarityDistillationLoss,
)
from s2sent.training.objectives.from_recipe import make_loss
from s2sent.training.objectives.teacher import teachers_embeddings
from s2sent.training.recipe.objectives import Distillation, PairDistillation
from s2sent.training.recipe.recipe import CorpusPart, Recipe
from s2sent.training.recipe.toml_tables import build
from tests.support.tiny import tiny_backbone
from tests.support.tiny_recipes import with_objective


def divergence_by_hand(teacher: NDArray[np.float64], student: NDArray[np.float64]) -> float:
    """The mean over rows of KL(teacher || student) over the other rows, of logits [n, n]."""
    count, total = len(teacher), 0.0
    for row in range(count):
        others = [other for other in range(count) if other != row]
        p, q = (np.exp(m[row, others]) / np.exp(m[row, others]).sum() for m in (teacher, student))
        total += (p * np.log(p / q)).sum()
    return total / count


def test_distillation_follows_the_teacher_by_hand(recipe: Recipe, backbone: Path) -> None:
    """The mean over rows of KL(teacher || student) over the other rows, and InfoNCE beside it."""
    objective = Distillation(
        teachers=["unused"],
        temperature=0.1,
        teacher_temperature=0.2,
        weight=2,
        contrastive_weight=0.5,
    )
    encoder = new_encoder(recipe)
    teacher = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    loss = SimilarityDistillationLoss(encoder, objective, teacher, gather=False)
    rows = torch.tensor([4, 0, 7])
    columns = [encoder.preprocess(["a cat", "two dogs", "he reads"]) for _ in range(2)]
    student = torch.from_numpy(encoder.encode(["a cat", "two dogs", "he reads"]))
    ours = cos_sim(student, student).double().numpy() / 0.1
    guide = cos_sim(teacher[rows], teacher[rows]).double().numpy() / 0.2
    contrast = np.mean(np.log(np.exp(ours).sum(1)) - ours.diagonal())
    expected = 2 * divergence_by_hand(guide, ours) + 0.5 * contrast
    assert loss(columns, rows).item() == pytest.approx(expected, rel=1e-4)


def test_pair_distillation_is_the_squared_error_of_cosines_by_hand(
    recipe: Recipe, backbone: Path
) -> None:
    """Over the two texts of a row, and over every two texts; and no dropout blurs it."""
    objective = PairDistillation(teachers=[str(backbone)])
    encoder = new_encoder(with_objective(recipe, objective)).train()
    teacher = torch.randn(5, 2, 7, generator=torch.Generator().manual_seed(0))
    loss = PairDistillationLoss(encoder, objective, teacher, gather=False)
    rows = torch.tensor([3, 1])
    texts = [("a cat", "a small cat sleeps"), ("two dogs", "he reads")]
    columns = [encoder.preprocess(list(column)) for column in zip(*texts, strict=True)]
    flat = [text for row in texts for text in row]
    student = torch.from_numpy(encoder.encode(flat))
    guide = teacher[rows].flatten(0, 1)
    errors = (cos_sim(student, student) - cos_sim(guide, guide)).square().double().numpy()
    related = (errors[0, 1] + errors[2, 3]) / 2
    everything = errors[~np.eye(4, dtype=bool)].mean()
    encoder.train()
    assert loss(columns, rows).item() == pytest.approx(related + everything, rel=1e-4)


def test_pair_distillation_adds_the_divergence_of_all_texts_by_hand(
    recipe: Recipe, backbone: Path
) -> None:
    """Three times the mean over the four texts of KL(teacher || student) over the other three."""
    objective = PairDistillation(
        teachers=[str(backbone)], divergence_weight=3, temperature=0.1, teacher_temperature=0.2
    )
    encoder: Any = new_encoder(with_objective(recipe, objective))
    teacher = torch.randn(5, 2, 7, generator=torch.Generator().manual_seed(0))
    without = PairDistillation(teachers=[str(backbone)])
    plain = PairDistillationLoss(encoder, without, teacher, gather=False)
    loss = PairDistillationLoss(encoder, objective, teacher, gather=False)
    rows = torch.tensor([3, 1])
    columns = [encoder.preprocess(column) for column in (["a cat", "two dogs"], ["sings", "reads"])]
    student = torch.from_numpy(encoder.encode(["a cat", "sings", "two dogs", "reads"]))
    guide = teacher[rows].flatten(0, 1)
    logits = cos_sim(student, student).double().numpy() / 0.1
    targets = cos_sim(guide, guide).double().numpy() / 0.2
    expected = 3 * divergence_by_hand(targets, logits)
    found = loss([dict(c) for c in columns], rows) - plain(columns, rows)
    assert found.item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"divergence_weight": -1}, "divergence_weight = -1.0 must be at least 0."),
        ({"temperature": 0}, "temperature = 0.0 must be above 0."),
        ({"teacher_temperature": 0}, "teacher_temperature = 0.0 must be above 0."),
    ],
)
def test_pair_distillation_refuses_impossible_numbers(option: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build(PairDistillation, {"teachers": ["one"], **option}, "recipe.toml")
    assert str(refused.value) == f"recipe.toml: {reason}"


def test_two_teachers_are_the_mean_of_their_cosines(
    backbone: Path, data: Path, tmp_path: Path
) -> None:
    """Each counts alike, however long its vectors; what was computed is read back the next time."""
    wider = tiny_backbone(tmp_path / "wider", width=64, seed=5)
    corpus = read_corpus(data / "corpus", [CorpusPart(source="captions", limit=9)], kind="texts")
    names = [str(backbone), str(wider)]
    both = teachers_embeddings(names, corpus, tmp_path / "cache")
    alone = [torch.from_numpy(open_encoder(name)(corpus.texts())) for name in names]
    expected = (cos_sim(alone[0], alone[0]) + cos_sim(alone[1], alone[1])) / 2
    torch.testing.assert_close(cos_sim(both[:, 0], both[:, 0]), expected, rtol=0, atol=1e-5)
    kept = sorted((tmp_path / "cache").glob("*.sqlite"))
    assert len(kept) == 2
    assert torch.equal(teachers_embeddings(names, corpus, tmp_path / "cache"), both)
    assert sorted((tmp_path / "cache").glob("*.sqlite")) == kept


def test_a_text_is_embedded_once_whatever_corpus_it_stands_in(
    backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a run that was ended between two calls of the teacher."""
    monkeypatch.setattr(teachers, "TEXTS_PER_CALL", 2)
    asked: list[str] = []
    encode = open_encoder(str(backbone))

    def counted(texts: Sequence[str]) -> NDArray[np.float32]:
        if "stop" in texts:
            raise KeyboardInterrupt
        asked.extend(text for text in texts if text not in teachers.PROBES)
        return encode(texts)

    monkeypatch.setattr(teachers, "open_encoder", lambda _: counted)
    corpora: list[list[tuple[str, ...]]] = [
        [("a", "b"), ("b", "c")],
        [("c", "d"), ("e", "stop")],
        [("e", "a"), ("f", "d")],
    ]
    for rows in corpora:
        with suppress(KeyboardInterrupt):
            teachers_embeddings(["any"], Corpus({"some": rows}, ""), tmp_path)
    assert asked == ["a", "b", "c", "d", "e", "f"]


def test_teachers_that_cut_texts_elsewhere_share_no_embeddings(
    backbone: Path, tmp_path: Path
) -> None:
    """Their weights are the same, and so is what they say of short probes."""
    corpus = Corpus({"long": [("the man " * 60,), ("a woman reads",)]}, "")
    for limit in (64, 96):
        encoder = build_plain_encoder(str(backbone), max_seq_length=limit)
        encoder.save(str(tmp_path / f"cut-{limit}"), create_model_card=False)
    names = [str(tmp_path / f"cut-{limit}") for limit in (64, 96)]
    kept = [teachers_embeddings([name], corpus, tmp_path / "cache") for name in names]
    for name, embeddings in zip(names, kept, strict=True):
        assert torch.equal(embeddings, teachers_embeddings([name], corpus, None))
    assert not torch.allclose(kept[0], kept[1])


def test_directions_are_one_more_term_of_one_teacher(recipe: Recipe, backbone: Path) -> None:
    """Twice the mean of 1 - cosine to the teacher's vector of the same text, beside the cosines."""
    objective = PairDistillation(teachers=[str(backbone)], direction_weight=2)
    encoder: Any = new_encoder(with_objective(recipe, objective))
    teacher = torch.randn(5, 2, 32, generator=torch.Generator().manual_seed(0))
    without = PairDistillation(teachers=[str(backbone)])
    plain = PairDistillationLoss(encoder, without, teacher, gather=False)
    loss = PairDistillationLoss(encoder, objective, teacher, gather=False)
    rows = torch.tensor([3, 1])
    columns = [encoder.preprocess(column) for column in (["a cat", "two dogs"], ["sings", "reads"])]
    student = torch.from_numpy(encoder.encode(["a cat", "two dogs", "sings", "reads"]))
    guide = teacher[rows].transpose(0, 1).flatten(0, 1)
    apart = 1 - np.diag(cos_sim(student, guide).double().numpy())
    found = loss([dict(c) for c in columns], rows) - plain(columns, rows)
    assert found.item() == pytest.approx(2 * apart.mean(), rel=1e-4)


def test_directions_need_one_teacher_of_the_students_width(
    recipe: Recipe, backbone: Path, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="direction_weight needs one teacher"):
        PairDistillation(teachers=["one", "two"], direction_weight=1)
    wider = tiny_backbone(tmp_path / "wider", width=64, seed=5)
    objective = PairDistillation(teachers=[str(wider)], direction_weight=1)
    corpus = read_corpus(data / "corpus", [CorpusPart(source="captions", limit=9)], kind="related")
    narrow = with_objective(recipe, objective)
    with pytest.raises(ConfigError, match="is 64 wide where the student is 32: set it to 0"):
        make_loss(new_encoder(narrow), narrow, corpus)


def test_a_damaged_cache_is_named(backbone: Path, data: Path, tmp_path: Path) -> None:
    corpus = read_corpus(data / "corpus", [CorpusPart(source="captions", limit=9)], kind="texts")
    teachers_embeddings([str(backbone)], corpus, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(DataError, match=f"{file.name} cannot be used .* delete it"):
        teachers_embeddings([str(backbone)], corpus, tmp_path)


def test_two_processes_share_a_cache(
    backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one keeps while the other embeds is there for both, and kept once."""
    corpus, encode = Corpus({"some": [("a", "b")]}, ""), open_encoder(str(backbone))
    first: list[Any] = []

    def delayed(texts: Sequence[str]) -> NDArray[np.float32]:
        if texts == ["a", "b"] and not first:
            first.append(None)
            first[0] = teachers_embeddings(["any"], corpus, tmp_path)
        return encode(texts)

    monkeypatch.setattr(teachers, "open_encoder", lambda _: delayed)
    assert torch.equal(teachers_embeddings(["any"], corpus, tmp_path), first[0])
    (file,) = tmp_path.iterdir()
    with kept_arrays(file) as kept:
        assert len(kept) == 2
