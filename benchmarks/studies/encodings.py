"""What each encoding of an answer costs in quality: Spearman's correlation on STS-B dev.

    python -m benchmarks.studies.encodings --data DATA [--artifact FOLDER]

Prints a Markdown table: bytes of an embedding, raw and in JSON, the correlation, and what it lost
against float. Rows are compared as a store compares them: cosines of the numbers as they are, and
for bits the share that is equal (Hamming).
"""

import argparse
from pathlib import Path
from typing import get_args

import numpy as np
import orjson
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.systems.system import DEFAULT_ARTIFACT
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.service.api.encodings import Encoding, as_json_items, encode
from s2sent.service.api.vectors import truncate_and_normalize
from s2sent.training.evaluation.sts import DEV_FILE, distinct, read_sentence_pairs


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--artifact", type=Path, default=DEFAULT_ARTIFACT)
    parser.add_argument("--data", type=Path, required=True, help="the folder that has sts/")
    arguments = parser.parse_args()
    pairs = read_sentence_pairs(arguments.data / "sts" / DEV_FILE)
    texts = distinct(pairs.first, pairs.second)
    row_of = {text: row for row, text in enumerate(texts)}
    first = [row_of[text] for text in pairs.first]
    second = [row_of[text] for text in pairs.second]
    embeddings = embed(arguments.artifact, texts)
    largest = np.abs(embeddings).max() * np.sqrt(embeddings.shape[1])
    print(f"largest component: {largest:.2f} / sqrt(components)\n")
    print("| encoding | bytes | bytes in JSON | STS-B dev | against float |\n|---|---|---|---|---|")
    best = None
    for encoding in get_args(Encoding):
        rows = encode(embeddings, encoding)
        scores = similarities(rows, first, second, bits="binary" in encoding)
        correlation = 100 * float(spearmanr(scores, pairs.gold).statistic)
        best = correlation if best is None else best
        items = as_json_items(rows, encoding)
        json = sum(len(orjson.dumps(one, option=orjson.OPT_SERIALIZE_NUMPY)) for one in items)
        print(
            f"| `{encoding}` | {rows[0].nbytes} | {json / len(rows):.0f}"
            f" | {correlation:.2f} | {correlation - best:+.2f} |"
        )


def embed(artifact: Path, texts: list[str]) -> NDArray[np.float32]:
    """Embeddings of length 1, [n, dim]."""
    encoder = OnnxEncoder(Artifact.open(artifact))
    tokens = [text.input_ids for text in encoder.tokenizer.tokenize(texts)]
    order = sorted(range(len(texts)), key=lambda at: len(tokens[at]))
    rows = np.empty((len(texts), encoder.dim), np.float32)
    for start in range(0, len(order), 32):
        part = order[start : start + 32]
        rows[part] = encoder.run([tokens[at] for at in part])
    return truncate_and_normalize(rows, dimensions=None, normalize=True)


def similarities(
    rows: NDArray[np.generic], first: list[int], second: list[int], *, bits: bool
) -> NDArray[np.float64]:
    """The similarity of row ``first[i]`` and row ``second[i]`` for every i."""
    if bits:
        different = np.bitwise_xor(rows[first].view(np.uint8), rows[second].view(np.uint8))
        equal: NDArray[np.float64] = -np.bitwise_count(different).sum(axis=1, dtype=np.float64)
        return equal
    numbers = rows.astype(np.float64)
    unit = numbers / np.linalg.norm(numbers, axis=1, keepdims=True)
    cosines: NDArray[np.float64] = np.vecdot(unit[first], unit[second])
    return cosines


if __name__ == "__main__":
    main()
