"""Distillation losses: the student's cosines follow those of one or several teachers."""

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.util import all_gather_with_grad
from torch import Tensor, nn
from torch.nn import functional

from s2sent.model.network.transformer import padding_id
from s2sent.training.errors import ConfigError
from s2sent.training.objectives.forward import Batch, Features, embed_together
from s2sent.training.objectives.similarity import cosine, divergence
from s2sent.training.recipe.objectives import Distillation, PairDistillation


class DistillationLoss(nn.Module):
    """A loss against a teacher's embeddings of the corpus, of which ``labels`` are the rows."""

    teacher: Tensor  # [M, E] or [M, C, E]

    def __init__(self, model: SentenceTransformer, teacher: Tensor, *, gather: bool) -> None:
        super().__init__()
        self.model = model
        self.gather = gather
        self.padding = padding_id(model.tokenizer)
        self.register_buffer("teacher", teacher, persistent=False)

    def forward(self, sentence_features: Features, labels: Tensor) -> Tensor:
        """The mean loss over the rows; ``labels`` [B] are rows of the teacher's embeddings."""
        columns = self.prepare(sentence_features)
        embeddings = embed_together(self.model, columns, self.padding)
        return self.compute_loss_from_embeddings(embeddings, labels)

    def prepare(self, columns: Features) -> list[Batch]:
        """The columns that are embedded: all of them, without dropout."""
        self.model.eval()  # the trainer asks for training mode before every step
        return list(columns)

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor) -> Tensor:
        """The loss from the columns' embeddings [B, D], of which D may be a teacher's first."""
        raise NotImplementedError


class SimilarityDistillationLoss(DistillationLoss):
    """The weighted sum of the divergence from a teacher's similarities and of SimCSE's loss.

    With student views a, b and teacher embeddings t, over the other rows j of the batch:
    KL(softmax_j(cos(t_i, t_j) / T) || softmax_j(cos(a_i, b_j) / tau)), the mean over i (SEED,
    arXiv 2101.04731, Eq. 3-5, with the batch for its queue). The row itself is left out: its
    similarity to itself is constant, and the contrastive loss covers it. Without dropout there is
    one view, and a = b. ``error_weight`` times the mean squared error of the cosines is added.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        objective: Distillation,
        teacher: Tensor,
        *,
        gather: bool,
    ) -> None:
        super().__init__(model, teacher, gather=gather)
        self.objective = objective
        self.contrast = MultipleNegativesRankingLoss(
            model, 1 / objective.temperature, cosine, gather_across_devices=gather
        )

    def prepare(self, columns: Features) -> list[Batch]:
        """The columns that are embedded: two views, or one without dropout."""
        return list(columns) if self.objective.dropout else super().prepare(columns)

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor) -> Tensor:
        """The loss from one or two views [B, D]."""
        student, others = embeddings[0], embeddings[-1]
        guide = self.teacher[labels]
        first, all_others, all_guides = 0, others, guide
        if self.gather:  # `first` is the position of this process's rows among all
            first = torch.distributed.get_rank() * len(student)
            all_others, all_guides = all_gather_with_grad(others), all_gather_with_grad(guide)
        own = torch.arange(len(student), device=student.device)
        is_self = torch.zeros(len(student), len(all_others), dtype=torch.bool, device=own.device)
        is_self[own, own + first] = True
        target = cosine(guide, all_guides)[~is_self]
        found = cosine(student, all_others)[~is_self]
        loss = self.objective.weight * divergence(
            (target / self.objective.teacher_temperature).view(len(student), -1),
            (found / self.objective.temperature).view(len(student), -1),
        )
        if self.objective.error_weight:
            loss = loss + self.objective.error_weight * (found - target).square().mean()
        if self.objective.contrastive_weight:
            contrast = self.contrast.compute_loss_from_embeddings(embeddings, labels)
            loss = loss + self.objective.contrastive_weight * contrast
        return loss


class PairDistillationLoss(DistillationLoss):
    """The squared error between student and teacher cosines, over related texts and over all.

    With the N = B x C texts of B rows, student cosines s and teacher cosines t: the mean of
    (s_ij - t_ij)^2 over the texts i, j of one row, plus the mean over all i != j. The first term
    ranks texts of near meaning; the second is mostly about unrelated texts. Two terms may be added:
    ``direction_weight`` times the mean of 1 - cos(student_i, teacher_i), and ``divergence_weight``
    times the divergence of `SimilarityDistillationLoss` over the N texts.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        objective: PairDistillation,
        teacher: Tensor,
        *,
        gather: bool,
    ) -> None:
        """Raises `ConfigError` for directions of another width than the student's."""
        super().__init__(model, teacher, gather=gather)
        width = model.get_embedding_dimension()
        if objective.direction_weight and teacher.shape[-1] != width:
            raise ConfigError(
                f"[objective] direction_weight compares vectors, and {objective.teachers[0]} is "
                f"{teacher.shape[-1]} wide where the student is {width}: set it to 0, or choose a "
                "teacher of one width with the student."
            )
        self.objective = objective

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor) -> Tensor:
        """The loss from the columns' embeddings [B, D], of which D may be a teacher's first."""
        student = torch.stack(embeddings, dim=1)
        guide = self.teacher[labels]
        if self.gather:
            student, guide = all_gather_with_grad(student), all_gather_with_grad(guide)
        loss = pair_distillation_loss(student, guide)
        if self.objective.divergence_weight:
            loss = loss + self.objective.divergence_weight * self._divergence(student, guide)
        if self.objective.direction_weight:
            guide = guide[..., : student.shape[-1]]
            apart = 1 - functional.cosine_similarity(student.float(), guide.float(), dim=-1)
            loss = loss + self.objective.direction_weight * apart.mean()
        return loss

    def _divergence(self, student: Tensor, guide: Tensor) -> Tensor:
        """Of each text's similarities to the other texts, from [B, C, D] and [B, C, E]."""
        student, guide = student.flatten(0, 1), guide.flatten(0, 1)
        others = ~torch.eye(len(student), dtype=torch.bool, device=student.device)
        target = cosine(guide, guide)[others] / self.objective.teacher_temperature
        found = cosine(student, student)[others] / self.objective.temperature
        return divergence(target.view(len(student), -1), found.view(len(student), -1))


def pair_distillation_loss(student: Tensor, guide: Tensor) -> Tensor:
    """The loss of `PairDistillationLoss` from student embeddings [B, C, D] and teacher's [B, C, E].

    B rows of C related texts; neither needs a norm of 1.
    """
    rows, texts, _ = student.shape
    row = torch.arange(rows, device=student.device).repeat_interleave(texts)
    itself = torch.eye(rows * texts, dtype=torch.bool, device=student.device)
    related = (row[:, None] == row) & ~itself
    student, guide = student.flatten(0, 1), guide.flatten(0, 1)
    errors = (cosine(student, student) - cosine(guide, guide)).square()
    return errors[related].mean() + errors[~itself].mean()
