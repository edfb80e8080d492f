"""Embedding tables, read from an ONNX graph's bytes so that several sessions can share them.

The word embeddings are half of a small encoder. ONNX Runtime copies them for every session and
keeps them as they are in the file, unlike a matrix, which it packs for its products. The sessions
of one graph therefore share one copy (`model.runtime.sessions.open_sessions`).
"""

import numpy as np
from numpy.typing import NDArray

from s2sent.model.artifact.graph_policy import content_of, fields_by_number

LOOKUPS = frozenset({b"Gather", b"EmbedLayerNormalization"})


def read_lookup_tables(content: bytes | memoryview) -> dict[str, NDArray[np.float32]]:
    """The float32 matrices [rows, width] that lookups in the main graph read, by name.

    They are copies, and keep nothing of ``content`` alive. A tensor is left out unless it is one
    block of bytes of the length that its shape says. Raises ValueError for what is not ONNX.
    """
    tables = {}
    for graph in fields_by_number(memoryview(content)).get(
        7, []
    ):  # the numbers are those of onnx.proto
        parts = fields_by_number(graph)
        looked_up = {
            name
            for node in map(fields_by_number, parts.get(1, []))
            if LOOKUPS.intersection(node.get(4, []))  # op_type
            for name in node.get(1, [])  # input
        }
        for tensor in map(fields_by_number, parts.get(5, [])):
            match tensor:
                case {
                    1: [int(rows), int(width)],  # dims
                    2: [1],  # data_type: FLOAT
                    8: [name],
                    9: [memoryview() as raw_data],
                } if name in looked_up and 0 < len(raw_data) == 4 * rows * width:
                    table = np.frombuffer(raw_data, np.float32).reshape(rows, width)
                    tables[str(content_of(name), "utf-8")] = table.copy()
    return tables
