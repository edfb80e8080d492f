"""Measures a backbone in torch, or two exported artifacts, with a selector and without."""

import itertools
import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from s2sent.training.errors import ConfigError, EncoderError
from s2sent.training.evaluation.overhead.rounds import Arms, Protocol, cell, one_line, take_turns

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

    from s2sent.model.network.selector import S2SentSelector

log = logging.getLogger(__name__)

TOKENS = (1000, 5000)  # random ids are taken from here, where the vocabulary reaches so far


def measure_torch(backbone: str, options: Mapping[str, Any], protocol: Protocol) -> dict[str, Any]:
    """Parameters and latency of a backbone with and without a selector, in torch.

    ``options`` are of `SelectorConfig`, above its defaults. Raises `EncoderError` for what is no
    backbone, and `ConfigError` for a selector, a length or a device that does not fit it.
    """
    import torch

    from s2sent.model.network.encoder import get_selector

    if protocol.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("torch finds no GPU for the device cuda: choose cpu.")
    encoder = _with_selector(backbone, options, protocol)
    module, selector = encoder[0].get_submodule("auto_model"), get_selector(encoder)
    vocabulary = int(cast(Any, module).config.vocab_size)
    counts = {
        "backbone": sum(p.numel() for p in module.parameters()),
        "selector": sum(p.numel() for p in selector.parameters()),
    }
    if protocol.threads:
        torch.set_num_threads(protocol.threads)
    cells = []
    with torch.inference_mode():
        for precision in protocol.precisions:
            dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
            for part in (module, selector):
                part.to(device=protocol.device, dtype=dtype)
            for batch, length in itertools.product(protocol.batch_sizes, protocol.lengths):
                ids = token_ids(batch, length, vocabulary)
                arms = torch_arms(module, selector, ids)
                seconds = take_turns(arms, protocol)
                cells.append({"precision": precision, **cell(batch, length, seconds)})
                log.info("%s", one_line(cells[-1]))
    share = 100 * counts["selector"] / counts["backbone"]
    return {
        "backbone": backbone,
        "runtime": "torch",
        "selector": asdict(selector.config),
        "parameters": {**counts, "share_percent": share},
        **circumstances(protocol, ("torch", "transformers")),
        "cells": cells,
    }


def _with_selector(
    backbone: str, options: Mapping[str, Any], protocol: Protocol
) -> "SentenceTransformer":
    """A new encoder with a selector that reads the protocol's lengths. Raises `ConfigError`."""
    from s2sent.model.network.encoder import build_encoder, max_positions
    from s2sent.model.network.loading.checkpoint import CheckpointError
    from s2sent.model.network.selector_config import SelectorConfig
    from s2sent.model.network.template import PaddingError
    from s2sent.training.backbones import resolve, width_of

    source = resolve(backbone)
    try:
        config = SelectorConfig.preset("default", width=width_of(source), **options)
        encoder = build_encoder(source, config)
    except (CheckpointError, PaddingError):
        raise
    except ValueError as error:
        raise ConfigError(f"The selector does not fit {backbone}: {error}") from None
    limit = max_positions(encoder[0])
    if limit is not None and max(protocol.lengths) > limit:
        raise ConfigError(
            f"{backbone} reads {limit} tokens, fewer than {max(protocol.lengths)}: "
            "name shorter lengths."
        )
    return encoder


def torch_arms(
    backbone: "torch.nn.Module", selector: "S2SentSelector", ids: NDArray[np.int64]
) -> Arms:
    """The four arms on token ids [batch, length], each waiting until the device is done."""
    import torch

    from s2sent.model.network.selector_states import pool_tokens

    device = next(backbone.parameters()).device
    inputs = torch.from_numpy(ids).to(device)
    mask = torch.ones_like(inputs)
    pooling = selector.config.pooling

    def states() -> tuple[torch.Tensor, ...]:
        outputs = backbone(input_ids=inputs, attention_mask=mask, output_hidden_states=True)
        return tuple(outputs.hidden_states)

    def last_block() -> torch.Tensor:
        outputs = backbone(input_ids=inputs, attention_mask=mask, output_hidden_states=False)
        return pool_tokens(outputs.last_hidden_state, mask, pooling)

    def weighed_tokens() -> torch.Tensor:
        return pool_tokens(selector.fuse(selector.select_blocks(states()), mask), mask, pooling)

    def waiting(arm: Callable[[], torch.Tensor]) -> Callable[[], object]:
        def run() -> None:
            arm()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        return run

    return {
        "plain": waiting(last_block),
        "states": waiting(lambda: pool_tokens(states()[-1], mask, pooling)),
        "selector": waiting(lambda: selector.pool(selector.select_blocks(states()), mask)),
        "tokens": waiting(weighed_tokens),
    }


def measure_artifacts(selected: Path, plain: Path, protocol: Protocol) -> dict[str, Any]:
    """Latency of two exported artifacts, with a selector and without, as they are served.

    Raises `ArtifactError` for a folder that is none, and `EncoderError` for two precisions, a
    length that the artifacts do not read or a device that ONNX Runtime does not have.
    """
    from s2sent.model.artifact.reader import Artifact
    from s2sent.model.runtime.encoder import OnnxEncoder
    from s2sent.model.runtime.providers import ProviderUnavailable

    opened = {"plain": Artifact.open(plain), "selector": Artifact.open(selected)}
    stored = {name: artifact.manifest.precision for name, artifact in opened.items()}
    if stored["plain"] != stored["selector"]:
        raise EncoderError(
            f"{selected} is {stored['selector']} and {plain} is {stored['plain']}, and their times"
            " differ for that alone: export both with one --precision."
        )
    limit = min(artifact.manifest.max_seq_length for artifact in opened.values())
    if max(protocol.lengths) > limit:
        raise EncoderError(
            f"The artifacts read {limit} tokens, fewer than {max(protocol.lengths)}: "
            "name shorter lengths."
        )
    options: Any = {"device": protocol.device, "intra_op_num_threads": protocol.threads}
    try:
        encoders = {name: OnnxEncoder(artifact, **options) for name, artifact in opened.items()}
    except ProviderUnavailable as error:
        raise EncoderError(str(error)) from None
    vocabulary = int(opened["plain"].config["vocab_size"])
    cells = []
    for batch, length in itertools.product(protocol.batch_sizes, protocol.lengths):
        ids = token_ids(batch, length, vocabulary).tolist()
        arms = {name: partial(encoder.run, ids) for name, encoder in encoders.items()}
        precision = stored["selector"]
        cells.append({"precision": precision, **cell(batch, length, take_turns(arms, protocol))})
        log.info("%s", one_line(cells[-1]))
    return {
        "selected": str(selected),
        "plain": str(plain),
        "runtime": "onnxruntime",
        **circumstances(protocol, ("onnxruntime",)),
        "cells": cells,
    }


def token_ids(batch: int, length: int, vocabulary: int) -> NDArray[np.int64]:
    """Random token ids [batch, length], the same for the same sizes."""
    low, high = TOKENS if vocabulary >= TOKENS[1] else (vocabulary // 2, vocabulary)
    return np.random.default_rng(0).integers(low, high, size=(batch, length))


def circumstances(protocol: Protocol, packages: Sequence[str]) -> dict[str, Any]:
    """The protocol, the machine and the versions of a measurement."""
    machine = {"processor": _processor(), "system": platform.platform(), "device": protocol.device}
    if protocol.device == "cuda":
        import torch

        machine["gpu"] = torch.cuda.get_device_name(protocol.device)
    versions = {name: version(name) for name in packages}
    return {"protocol": asdict(protocol), "machine": machine, "versions": versions}


def _processor() -> str:
    """The processor's name from /proc/cpuinfo, or the machine type."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def share_of_parameters(counts: Mapping[str, float]) -> str:
    """One line with the numbers of parameters of the selector and the backbone."""
    return (
        f"{counts['selector']:,} parameters beside {counts['backbone']:,}: "
        f"{counts['share_percent']:.4f} %"
    )
