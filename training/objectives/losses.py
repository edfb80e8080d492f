"""What a run optimises: a recipe's objective as a loss of sentence-transformers and its columns.

Without teachers an objective is InfoNCE over the rows of a batch (`MultipleNegativesRankingLoss`,
one direction, the rows of all processes as negatives); this file adds what the library lacks: one
pass over all views, a head that is used in training only, and teachers' similarities.
"""

from collections.abc import Iterable

import torch
from datasets import Dataset, DatasetDict
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.util import all_gather_with_grad, cos_sim
from torch import Tensor, nn
from torch.nn import functional

from training.corpus import Corpus, Example
from training.errors import ConfigError
from training.recipe import Distillation, PairDistillation, PromptBERT, Recipe

Features = Iterable[dict[str, Tensor]]


def cosine(first: Tensor, second: Tensor) -> Tensor:
    """Cosines [A, B] of [A, D] and [B, D] in full precision, also under autocast.

    A tuned encoder's loss is a few thousandths; bfloat16 would round the cosines by as much.
    """
    with torch.autocast(first.device.type, enabled=False):
        return cos_sim(first.float(), second.float())


def columns(corpus: Corpus, recipe: Recipe) -> Dataset | DatasetDict:
    """The corpus as the trainer reads it: a dataset for each source, so that batches are of one.

    Single texts stand in both columns; each is embedded for itself, so dropout (or the template)
    makes them two views. With teachers, ``label`` is a row of their embeddings.
    """
    parts = {name: _dataset(rows, start, recipe) for (name, rows), start in _starts(corpus)}
    return next(iter(parts.values())) if len(parts) == 1 else DatasetDict(parts)


def make_loss(
    model: SentenceTransformer,
    recipe: Recipe,
    teacher: Tensor | None = None,
    *,
    gather: bool = False,
) -> nn.Module:
    """The loss of a recipe; ``teacher`` [M, C, E] has what teachers make of each row's C texts.

    With ``gather`` the negatives of a row are those of all processes.

    Raises `ConfigError` for gradients in pieces where the objective cannot have them.
    """
    objective, pieces = recipe.objective, recipe.training.mini_batch_size
    if isinstance(objective, Distillation):
        _refuse_pieces(recipe)
        assert teacher is not None  # noqa: S101 - the caller's business, not the user's
        return SimilarityDistillationLoss(model, objective, teacher[:, 0], gather=gather)
    if isinstance(objective, PairDistillation):
        _refuse_pieces(recipe)
        assert teacher is not None  # noqa: S101 - the caller's business, not the user's
        return PairDistillationLoss(model, teacher, gather=gather)
    if isinstance(objective, PromptBERT):
        from training.objectives.prompt import TemplateDenoisingLoss

        _refuse_pieces(recipe)
        return TemplateDenoisingLoss(
            model,
            temperature=objective.temperature,
            denoising=objective.denoising,
            projection=objective.projection,
            gather=gather,
        )
    if pieces and not objective.projection:
        scale = 1 / objective.temperature
        return CachedMultipleNegativesRankingLoss(
            model, scale, cosine, mini_batch_size=pieces, gather_across_devices=gather
        )
    _refuse_pieces(recipe)
    return ContrastiveLoss(
        model, objective.temperature, projection=objective.projection, gather=gather
    )


class ContrastiveLoss(MultipleNegativesRankingLoss):
    """InfoNCE of columns that are embedded as one batch, as SimCSE's own code does.

    The columns' gradients cancel almost wholly in a tuned encoder; within one pass they are summed
    in full precision, between passes only after each was rounded to bfloat16. With ``projection``
    a Linear + tanh stands between encoder and loss in training (SimCSE's ``mlp_only_train``).
    """

    def __init__(
        self, model: SentenceTransformer, temperature: float, *, projection: bool, gather: bool
    ) -> None:
        super().__init__(model, 1 / temperature, cosine, gather_across_devices=gather)
        width = model.get_embedding_dimension()
        assert width is not None  # noqa: S101 - an encoder has a width
        self.padding = int(model.tokenizer.pad_token_id)  # the model may be wrapped later
        self.head = (
            nn.Sequential(nn.Linear(width, width), nn.Tanh()) if projection else nn.Identity()
        )

    def forward(self, sentence_features: Features, labels: Tensor) -> Tensor:
        """The mean loss of the rows; ``labels`` are not used."""
        views = [
            self.head(view) for view in embed_together(self.model, sentence_features, self.padding)
        ]
        return self.compute_loss_from_embeddings(views, labels)


def embed_together(model: nn.Module, columns: Features, padding: int) -> list[Tensor]:
    """The embeddings [B, D] of each column, from one pass over all; ``padding`` is a token's id."""
    columns = list(columns)
    longest = max(column["input_ids"].shape[1] for column in columns)
    batch = {
        name: torch.cat([_padded(column[name], longest, name, padding) for column in columns])
        for name in columns[0]
        if isinstance(columns[0][name], Tensor)
    }
    return list(model(batch)["sentence_embedding"].chunk(len(columns)))


def _padded(rows: Tensor, longest: int, name: str, padding: int) -> Tensor:
    """[B, L] made ``longest`` wide; masks and types with 0, token ids with the padding's."""
    value = padding if name == "input_ids" else 0
    return functional.pad(rows, (0, longest - rows.shape[1]), value=value)


class SimilarityDistillationLoss(nn.Module):
    """A teacher's similarities to the batch's other rows, and SimCSE's loss, weighed and summed.

    With student views a, b and teacher embeddings t, over the other rows j of the batch:
    KL(softmax_j(cos(t_i, t_j) / T) || softmax_j(cos(a_i, b_j) / tau)), the mean over i (SEED,
    arXiv 2101.04731, Eq. 3-5, with the batch for its queue). The row itself is left out: its
    similarity to itself says nothing, and the contrastive loss is about it.
    """

    teacher: Tensor  # [M, E]

    def __init__(
        self,
        model: SentenceTransformer,
        objective: Distillation,
        teacher: Tensor,
        *,
        gather: bool,
    ) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.contrast = MultipleNegativesRankingLoss(
            model, 1 / objective.temperature, cosine, gather_across_devices=gather
        )
        self.gather = gather
        self.padding = int(model.tokenizer.pad_token_id)
        self.register_buffer("teacher", teacher, persistent=False)

    def forward(self, sentence_features: Features, labels: Tensor) -> Tensor:
        """The mean loss of the rows; ``labels`` [B] are rows of the teacher's embeddings."""
        embeddings = embed_together(self.model, sentence_features, self.padding)
        student, others = embeddings
        guide = self.teacher[labels]
        first, all_others, all_guides = 0, others, guide
        if self.gather:  # the rows of this process stand at `first` among those of all
            first = torch.distributed.get_rank() * len(student)
            all_others, all_guides = all_gather_with_grad(others), all_gather_with_grad(guide)
        own = torch.arange(len(student), device=student.device)
        is_self = torch.zeros(len(student), len(all_others), dtype=torch.bool, device=own.device)
        is_self[own, own + first] = True
        divergence = _divergence(
            (cosine(guide, all_guides) / self.objective.teacher_temperature)[~is_self],
            (cosine(student, all_others) / self.objective.temperature)[~is_self],
            rows=len(student),
        )
        loss = self.objective.weight * divergence
        if self.objective.contrastive_weight:
            contrast = self.contrast.compute_loss_from_embeddings(embeddings, labels)
            loss = loss + self.objective.contrastive_weight * contrast
        return loss


class PairDistillationLoss(nn.Module):
    """The squared error of the batch's cosines to a teacher's, for related texts and for all.

    With the N = B x C texts of B rows, student cosines s and teacher cosines t: the mean of
    (s_ij - t_ij)^2 over the texts i, j of one row, plus the mean over all i != j. The first term
    is what ranks near meanings; unrelated texts, which the second is about, are most of a batch.
    """

    teacher: Tensor  # [M, C, E]

    def __init__(self, model: SentenceTransformer, teacher: Tensor, *, gather: bool) -> None:
        super().__init__()
        self.model = model
        self.gather = gather
        self.padding = int(model.tokenizer.pad_token_id)
        self.register_buffer("teacher", teacher, persistent=False)

    def forward(self, sentence_features: Features, labels: Tensor) -> Tensor:
        """The mean loss of the rows; ``labels`` [B] are rows of the teacher's embeddings."""
        self.model.eval()  # no dropout; the trainer asks for training mode before every step
        student = torch.stack(embed_together(self.model, sentence_features, self.padding), dim=1)
        guide = self.teacher[labels]
        if self.gather:
            student, guide = all_gather_with_grad(student), all_gather_with_grad(guide)
        rows, texts, _ = student.shape
        row = torch.arange(rows, device=student.device).repeat_interleave(texts)
        itself = torch.eye(rows * texts, dtype=torch.bool, device=student.device)
        related = (row[:, None] == row) & ~itself
        student, guide = student.flatten(0, 1), guide.flatten(0, 1)
        errors = (cosine(student, student) - cosine(guide, guide)).square()
        return errors[related].mean() + errors[~itself].mean()


def _divergence(target: Tensor, logits: Tensor, *, rows: int) -> Tensor:
    """KL(softmax(target) || softmax(logits)) of ``rows`` flattened rows, the mean of them."""
    return functional.kl_div(
        logits.view(rows, -1).float().log_softmax(-1),
        target.view(rows, -1).float().log_softmax(-1),
        log_target=True,
        reduction="batchmean",
    )


def _starts(corpus: Corpus) -> Iterable[tuple[tuple[str, list[Example]], int]]:
    """Each part of the corpus, and the number of rows before it."""
    start = 0
    for part in corpus.parts.items():
        yield part, start
        start += len(part[1])


def _dataset(rows: list[Example], start: int, recipe: Recipe) -> Dataset:
    names = ("anchor", "positive", "negative")
    filled = [row * 2 if len(row) == 1 else row for row in rows]
    table: dict[str, list[str] | list[int]] = {
        name: list(column) for name, column in zip(names, zip(*filled, strict=True), strict=False)
    }
    if isinstance(recipe.objective, Distillation | PairDistillation):
        table["label"] = list(range(start, start + len(rows)))
    return Dataset.from_dict(table)


def _refuse_pieces(recipe: Recipe) -> None:
    if recipe.training.mini_batch_size:
        raise ConfigError(
            f"[training] mini_batch_size = {recipe.training.mini_batch_size} works with plain "
            "simcse and supervised only: leave it out, or drop the projection."
        )
