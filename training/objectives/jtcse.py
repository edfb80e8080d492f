"""The JTCSE objective: twin encoders that agree in direction and in modulus (arXiv 2505.02366).

    L = L_nce + L_icnce + L_tmc(A -> B) + L_tmc(B -> A)

Without cross-attention it is TNCSE's. Both towers start from trained checkpoints. The paper leaves
open how the cross-attention of the chosen blocks joins the network, and its code is not public:
here it is a side branch, whose mean over the chosen blocks is one more pair of vectors in the loss
and reaches no other block. The paper's positive pairs are round-trip translations; here they are
the corpus's pairs.

Shapes: B pairs of two texts each, L tokens (padded), D features.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import all_gather
from torch import Tensor, nn
from torch.nn import functional

from s2sent.model.network.encoder import find_selector, pooling_mode
from s2sent.model.network.selector_states import pool_tokens
from s2sent.model.network.transformer import padding_id
from s2sent.model.network.twins import get_twins
from s2sent.training.errors import ConfigError
from s2sent.training.objectives.forward import Features, join_columns
from s2sent.training.objectives.similarity import cosine, right_partners, text_keys
from s2sent.training.recipe.objectives import JTCSE

LEAST_COSINE = 1e-4  # what stands for a negative cosine under the logarithm
# The linear layers of an attention, by what backbones of transformers call them.
PROJECTIONS = (
    ("query", "q", "q_lin", "q_proj"),
    ("key", "k", "k_lin", "k_proj"),
    ("value", "v", "v_lin", "v_proj"),
)

Attended = list[tuple[Tensor, Tensor, Tensor]]  # query, key and value [N, L, D] of each block


class JTCSELoss(nn.Module):
    """JTCSE's loss, or TNCSE's without cross-attention, of twins that `join_towers` made.

    h are the towers' vectors. The modulus is that of h. Only where a tower pools its first token
    and has a BERT pooler, it is that of the pooler's output, as in the paper.
    """

    def __init__(self, model: SentenceTransformer, objective: JTCSE, *, gather: bool) -> None:
        super().__init__()
        self.model = model
        self.temperature = objective.temperature
        self.gather = gather
        self.mask = objective.mask_equal_texts
        self.padding = padding_id(model.tokenizer)
        self.towers = get_twins(model).towers  # a tuple: the towers are the model's parts already
        self.branch = CrossAttention(self.towers, objective) if objective.cross_attention else None

    def forward(self, sentence_features: Features, labels: Tensor) -> Tensor:
        """The loss of two columns of texts; ``labels`` are unused."""
        batch = join_columns(sentence_features, self.padding)
        if self.branch is None:
            vectors = self.model(batch)["tower_embeddings"]
            crossed: tuple[Tensor, ...] = ()
        else:
            with self.branch.watching() as attended:
                vectors = self.model(batch)["tower_embeddings"]
            crossed = self.branch.cross(attended, batch["attention_mask"])
        moduli = [_modulus(t, of_tower) for t, of_tower in zip(self.towers, vectors, strict=True)]
        rows = [self._rows(value) for value in (*vectors, *moduli, *crossed)]
        swapped = bool(torch.rand(()) < 0.5)
        right = right_partners(self._rows(text_keys(batch))) if self.mask else None
        return jtcse_loss(rows, temperature=self.temperature, swapped=swapped, right=right)

    def _rows(self, values: Tensor) -> Tensor:
        """[2 B, D] of all anchors, then all positives, as rows 2i and 2i + 1 of one text each."""
        pairs = torch.stack(values.chunk(2), dim=1)
        if self.gather:
            pairs = all_gather(pairs, with_grad=pairs.is_floating_point())
        return pairs.flatten(0, 1)


def jtcse_loss(
    rows: Sequence[Tensor], *, temperature: float, swapped: bool, right: Tensor | None = None
) -> Tensor:
    """L of h_A, h_B, p_A, p_B and, with cross-attention, c_A, c_B, all [2 B, D].

    Rows 2i and 2i + 1 are of one pair. ``swapped`` lets B ask and A answer in L_icnce. ``right`` is
    that of `nce`.
    """
    h_a, h_b, p_a, p_b = rows[:4]
    loss = nce(h_a, h_a, temperature, right) + nce(h_b, h_b, temperature, right)
    for asking, answering in ((h_a, h_b), tuple(rows[4:])) if rows[4:] else ((h_a, h_b),):
        if swapped:
            asking, answering = answering, asking
        loss = loss + nce(asking, answering, temperature, right)
    return loss + modulus_constraint(h_a, h_b, p_a, p_b) + modulus_constraint(h_b, h_a, p_b, p_a)


def nce(
    asking: Tensor, answering: Tensor, temperature: float, right: Tensor | None = None
) -> Tensor:
    """The mean cross-entropy of cos(asking_i, answering_j) / temperature, [2 B, D] each.

    The target of row i is its partner; the row itself and what ``right`` marks are no candidates.
    """
    logits = cosine(asking, answering) / temperature
    row = torch.arange(len(logits), device=logits.device)
    itself = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
    left_out = itself if right is None else itself | right
    return functional.cross_entropy(logits.masked_fill(left_out, -torch.inf), row ^ 1)


def modulus_constraint(h_a: Tensor, h_b: Tensor, p_a: Tensor, p_b: Tensor) -> Tensor:
    """L_tmc(A -> B): the mean over pairs of -log cos(h_A, h_B') |p_A - p_B'| / 2 (|p_A| + |p_B'|).

    h_A is of a pair's first text, h_B' of its second. A cosine that is not positive counts as
    `LEAST_COSINE`, without a gradient.
    """
    cosines = functional.cosine_similarity(h_a[::2].float(), h_b[1::2].float())
    cosines = torch.where(cosines > 0, cosines, LEAST_COSINE)
    first, second = p_a[::2].float(), p_b[1::2].float()
    distance = (first - second).norm(dim=-1)
    modulus = distance / (first.norm(dim=-1) + second.norm(dim=-1)) / 2
    constraint: Tensor = (-cosines.log() * modulus).mean()
    return constraint


def _modulus(tower: SentenceTransformer, vectors: Tensor) -> Tensor:
    """p [N, D] of h [N, D]: the BERT pooler's output for a first token, elsewhere h itself."""
    pooler: Any = getattr(tower[0].get_submodule("auto_model"), "pooler", None)
    first_token = pooling_mode(tower) == "cls" and find_selector(tower) is None
    if not first_token or not isinstance(getattr(pooler, "dense", None), nn.Linear):
        return vectors
    modulus: Tensor = pooler(vectors[:, None])
    return modulus


class CrossAttention:
    """The side branch of two towers, without parameters: one's attention over the other's values.

    c_A = pooled softmax(Q_A K_A^T / sqrt(d)) V_B, the mean over the chosen blocks, and c_B likewise
    with A and B exchanged. Relative positions that a backbone adds to its logits are left out.
    """

    def __init__(self, towers: Sequence[SentenceTransformer], objective: JTCSE) -> None:
        """Raises `ConfigError` for a backbone with too few blocks or another attention."""
        self.layers = [_attention_layers(tower, objective.num_ca_layers) for tower in towers]
        self.heads = [_config(tower).num_attention_heads for tower in towers]
        self.poolings = [pooling_mode(tower) for tower in towers]

    @contextmanager
    def watching(self) -> Iterator[list[Attended]]:
        """Within the block a forward pass of both towers leaves what their attentions read."""
        seen: dict[nn.Module, Tensor] = {}

        def keep(layer: nn.Module, _inputs: object, output: Tensor) -> None:
            seen[layer] = output

        layers = [layer for tower in self.layers for block in tower for layer in block]
        hooks = [layer.register_forward_hook(keep) for layer in layers]
        attended: list[Attended] = []
        try:
            yield attended
            for tower in self.layers:
                attended.append([(seen[q], seen[k], seen[v]) for q, k, v in tower])
        finally:
            for hook in hooks:
                hook.remove()

    def cross(self, attended: Sequence[Attended], mask: Tensor) -> tuple[Tensor, Tensor]:
        """c_A and c_B [N, D] of the towers' queries, keys and values; ``mask`` is [N, L]."""
        first, second = attended
        return self._crossed(0, first, second, mask), self._crossed(1, second, first, mask)

    def _crossed(self, tower: int, asking: Attended, answering: Attended, mask: Tensor) -> Tensor:
        pooled = []
        for (query, key, _), (_, _, value) in zip(asking, answering, strict=True):
            q, k, v = (
                part.view(*mask.shape, self.heads[tower], -1).transpose(1, 2)
                for part in (query, key, value)
            )
            tokens = mask[:, None, None].bool()
            seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=tokens)
            states = seen.transpose(1, 2).flatten(-2)  # [N, L, D]
            pooled.append(pool_tokens(states, mask, self.poolings[tower]))
        return torch.stack(pooled).mean(0)


def _attention_layers(tower: SentenceTransformer, count: int) -> list[list[nn.Linear]]:
    """The query, key and value layers of ``count`` blocks at equal steps, the last one included."""
    total = int(_config(tower).num_hidden_layers)
    if count > total:
        raise ConfigError(
            f"[objective] num_ca_layers = {count} is more than the {total} blocks of the towers: "
            f"use at most {total}."
        )
    found = [_layers_named(tower, names) for names in PROJECTIONS]
    if any(len(of_kind) != total for of_kind in found):
        raise ConfigError(
            f"{_config(tower).model_type} has no separate query, key and value of one width in "
            "each block, which cross-attention reads: set cross_attention = false."
        )
    chosen = [(place + 1) * total // count - 1 for place in range(count)]
    return [[of_kind[block] for of_kind in found] for block in chosen]


def _layers_named(tower: SentenceTransformer, names: Sequence[str]) -> list[nn.Linear]:
    """The square linear layers with one of these names, in the order of the blocks."""
    width = int(_config(tower).hidden_size)
    return [
        layer
        for name, layer in tower[0].named_modules()
        if name.rpartition(".")[2] in names
        and isinstance(layer, nn.Linear)
        and layer.out_features == width
    ]


def _config(tower: SentenceTransformer) -> Any:
    """The backbone's configuration, as transformers has it."""
    backbone: Any = tower[0]
    return backbone.auto_model.config
