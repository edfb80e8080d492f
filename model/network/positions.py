"""How many tokens a backbone has positions for, and where they begin."""

from torch import Tensor, nn


def position_table(backbone: nn.Module) -> nn.Embedding | None:
    """The learned absolute positions of a backbone like BERT or GPT-2; None where it has none."""
    names = ("position_embeddings", "wpe")
    tables = (getattr(part, name, None) for part in backbone.modules() for name in names)
    return next((table for table in tables if isinstance(table, nn.Embedding)), None)


def first_position(table: object) -> int:
    """The position id of the first token; RoBERTa-like models count from the padding id."""
    padding = getattr(table, "padding_idx", None)
    return 0 if padding is None else int(padding) + 1


def num_positions(backbone: nn.Module) -> int | None:
    """The most tokens that the position tables of a backbone have rows for; None without a table.

    They are learned or fixed, as embeddings or as a matrix; a table may begin with rows that no
    token has (``offset``, as OPT's).
    """
    names = ("position_embeddings", "position_embedding", "positions_embed", "embed_positions")
    rows = []
    for part in backbone.modules():
        for table in (getattr(part, name, None) for name in (*names, "wpe")):
            matrix = getattr(table, "weight", table)  # of an embedding, or the table itself
            if isinstance(matrix, Tensor) and matrix.dim() == 2:
                skipped = first_position(table) + getattr(table, "offset", 0)
                rows.append(len(matrix) - skipped)
    return min(rows, default=None)
