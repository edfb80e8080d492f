"""The selector's share of inference time, on a model of BERT-base's shape.

    python -m benchmarks.studies.selector_share [--pairs N] [--tokens N] [--out FOLDER]

Two artifacts are exported from the same random weights, 12 blocks and 768 wide, one with the
default selector and one that only averages its tokens. Their sessions run the same batch of 32 in
turns, in an order that changes, on one thread each; the share is the median, over the pairs of
runs, of what the selector adds to the processor time, which other programs hardly disturb. Writes
selector_share.json into FOLDER, where the report finds it.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import quantiles

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from transformers import AutoConfig, AutoModel, AutoTokenizer

from benchmarks.systems.models import WEIGHTS
from benchmarks.systems.system import ROOT
from s2sent.model.artifact.reader import Artifact
from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.options import ExportOptions
from s2sent.model.network.encoder import build_encoder
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.training.backbones import resolve

WIDTH = 768
BATCH_SIZE = 32
MAX_TOKENS = 128
SENTENCES = ("A few sentences are enough.", "Parity on random weights says little.")


def main() -> None:
    """Export, run in turns, write and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=32, help="of each text")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain, selected = (open_encoder(path) for path in export_pair(Path(folder)))
    extra = time_in_turns(plain, selected, arguments.tokens, arguments.pairs)
    lower, middle, upper = (100 * cut for cut in quantiles(extra, n=4))
    result = {
        "share_percent": middle,
        "quartiles_percent": [lower, upper],
        "pairs": arguments.pairs,
        "tokens": arguments.tokens,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "selector_share.json").write_text(json.dumps(result), encoding="utf-8")
    print(
        f"The selector takes {middle:+.2f} % of a run of {BATCH_SIZE} x {arguments.tokens} tokens"
    )
    print(f"(quartiles {lower:+.2f} and {upper:+.2f}, over {arguments.pairs} pairs of runs).")


def export_pair(folder: Path) -> tuple[Path, Path]:
    """Artifacts without and with a selector, on one random backbone."""
    backbone = write_backbone(folder / "backbone")
    transformer = Transformer(str(backbone))
    transformer.max_seq_length = MAX_TOKENS
    plain = SentenceTransformer(modules=[transformer, Pooling(WIDTH), Normalize()])
    config = SelectorConfig.preset("default", width=WIDTH)
    selected = build_encoder(backbone, config, max_seq_length=MAX_TOKENS)
    options = ExportOptions(sentences=SENTENCES)
    for name, encoder in (("plain", plain), ("selected", selected)):
        encoder.save(str(folder / f"{name}-checkpoint"))
        export_checkpoint(folder / f"{name}-checkpoint", folder / name, options)
    return folder / "plain", folder / "selected"


def write_backbone(folder: Path) -> Path:
    """A random BERT-base, with the tokenizer of all-MiniLM-L6-v2, which is BERT's own."""
    torch.manual_seed(0)
    AutoModel.from_config(AutoConfig.for_model("bert")).save_pretrained(folder)  # type: ignore[no-untyped-call]  # transformers is partly typed
    AutoTokenizer.from_pretrained(resolve(WEIGHTS)).save_pretrained(folder)  # type: ignore[no-untyped-call]  # as above
    return folder


def open_encoder(path: Path) -> OnnxEncoder:
    """The artifact's session on one thread."""
    return OnnxEncoder(Artifact.open(path), intra_op_num_threads=1)


def time_in_turns(
    plain: OnnxEncoder, selected: OnnxEncoder, tokens: int, pairs: int
) -> list[float]:
    """What the selector adds to a run as a share of it, once per pair of runs."""
    ids = np.random.default_rng(0).integers(1000, 30_000, size=(BATCH_SIZE, tokens)).tolist()
    for encoder in (plain, selected):
        encoder.run(ids)
    shares = []
    for pair in range(pairs):
        turns = (plain, selected) if pair % 2 else (selected, plain)
        seconds = {id(encoder): _time(encoder, ids) for encoder in turns}
        shares.append(1 - seconds[id(plain)] / seconds[id(selected)])
    return shares


def _time(encoder: OnnxEncoder, ids: list[list[int]]) -> float:
    started = time.process_time()
    encoder.run(ids)
    return time.process_time() - started


if __name__ == "__main__":
    main()
