"""Measures what a selector adds to a backbone: parameters, and latency with both run in turns.

Each cell is a batch size, a length and a precision. Its arms share the backbone:

    plain      mean of the last block's tokens; the backbone gives no hidden states
    states     the same, but the backbone gives all hidden states
    selector   the blocks, weighed and pooled as a service does it: pooled first, then weighed
    tokens     the same as in training: every token weighed, then pooled

All arms run once in each round, in rotating order. A round gives the ratio of two arms under the
same conditions; a cell has the median and the quartiles of these ratios, in wall time and, on a
CPU, in processor time, which other programs disturb less. Inputs are random tokens
without padding. The short form is `benchmarks/studies/selector_share.py`: one cell, exported, on
random weights, as a share of the model with the selector instead of the one without.
"""

import itertools
import logging
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from training.errors import ConfigError, EncoderError

if TYPE_CHECKING:
    import torch

    from model.network.selector import S2SentSelector

log = logging.getLogger(__name__)

PRECISIONS = ("fp32", "bf16")  # of torch
TOKENS = (1000, 5000)  # random ids are taken from here, where the vocabulary reaches so far
Arms = Mapping[str, Callable[[], object]]
Seconds = Mapping[str, Sequence[tuple[float, float]]]  # of each arm: (by the clock, of processor)


@dataclass(frozen=True)
class Protocol:
    """The settings of a measurement; the defaults are the full protocol."""

    batch_sizes: tuple[int, ...] = (1, 32, 128)
    lengths: tuple[int, ...] = (32, 128)
    precisions: tuple[str, ...] = ("fp32", "bf16")
    warm_ups: int = 20  # rounds before those that count
    repeats: int = 200  # rounds that count
    seconds_per_cell: float = 0.0  # limit of a cell's time, whatever its rounds; 0 sets none
    threads: int = 0  # of torch or ONNX Runtime on the CPU; 0 leaves it to them
    device: Literal["cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.precisions) - set(PRECISIONS)):
            raise ConfigError(
                f"{', '.join(unknown)} is no precision: choose from {', '.join(PRECISIONS)}."
            )
        if min(*self.batch_sizes, *self.lengths, self.repeats) < 1:
            raise ConfigError(
                "A batch size, a length or the number of rounds is below 1: it must be at least 1."
            )


def measure_torch(backbone: str, options: Mapping[str, Any], protocol: Protocol) -> dict[str, Any]:
    """Parameters and latency of a backbone with and without a selector, in torch.

    ``options`` are of `SelectorConfig`, above its defaults. Raises `EncoderError` for what is no
    backbone, and ValueError for a selector that does not fit it.
    """
    import torch

    from model.network.encoder import build_encoder, get_selector
    from model.network.selector_config import SelectorConfig
    from training.backbones import resolve, width_of

    source = resolve(backbone)
    config = SelectorConfig.preset("default", width=width_of(source), **options)
    encoder = build_encoder(source, config)
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
        "selector": asdict(config),
        "parameters": {**counts, "share_percent": share},
        **circumstances(protocol, ("torch", "transformers")),
        "cells": cells,
    }


def torch_arms(
    backbone: "torch.nn.Module", selector: "S2SentSelector", ids: NDArray[np.int64]
) -> Arms:
    """The four arms on token ids [batch, length], each waiting until the device is done."""
    import torch

    from model.network.selector_states import pool_tokens

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

    Raises `ArtifactError` for a folder that is none, and `EncoderError` for a length that the
    artifacts do not read.
    """
    from model.artifact.reader import Artifact
    from model.runtime.encoder import OnnxEncoder

    opened = {"plain": Artifact.open(plain), "selector": Artifact.open(selected)}
    limit = min(artifact.manifest.max_seq_length for artifact in opened.values())
    if max(protocol.lengths) > limit:
        raise EncoderError(
            f"The artifacts read {limit} tokens, fewer than {max(protocol.lengths)}: "
            "name shorter lengths."
        )
    encoders = {
        name: OnnxEncoder(artifact, device=protocol.device, intra_op_num_threads=protocol.threads)
        for name, artifact in opened.items()
    }
    vocabulary = int(opened["plain"].config["vocab_size"])
    cells = []
    for batch, length in itertools.product(protocol.batch_sizes, protocol.lengths):
        ids = token_ids(batch, length, vocabulary).tolist()
        arms = {name: partial(encoder.run, ids) for name, encoder in encoders.items()}
        precision = opened["selector"].manifest.precision
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


def take_turns(arms: Arms, protocol: Protocol) -> Seconds:
    """Run all arms in rounds and return the seconds of each, without the warm-ups."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for order in itertools.islice(orders(tuple(arms)), protocol.warm_ups):
        for name in order:
            arms[name]()
    started = time.monotonic()
    for order in itertools.islice(orders(tuple(arms)), protocol.repeats):
        for name in order:
            seconds[name].append(_timed(arms[name]))
        if 0 < protocol.seconds_per_cell < time.monotonic() - started:
            break
    return seconds


def orders(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Orders in which every name has every position, and precedes every other, equally often."""
    for turn in itertools.count():
        shift = turn // 2 % len(names)
        order = names[shift:] + names[:shift]
        yield order[::-1] if turn % 2 else order


def _timed(arm: Callable[[], object]) -> tuple[float, float]:
    clock, processor = time.perf_counter(), time.process_time()
    arm()
    return time.perf_counter() - clock, time.process_time() - processor


def cell(batch: int, length: int, seconds: Seconds) -> dict[str, Any]:
    """The numbers of a cell: ``selector`` over ``plain`` and, with four arms, its parts, all in
    percent of ``plain``."""
    found: dict[str, Any] = {
        "batch_size": batch,
        "length": length,
        "rounds": len(seconds["plain"]),
        "median_ms": {
            name: 1000 * median(clock for clock, _ in of) for name, of in seconds.items()
        },
        "selector": _added(seconds, "selector", "plain"),
    }
    if "states" in seconds:
        found["hidden_states"] = _added(seconds, "states", "plain")
        found["selector_alone"] = _added(seconds, "selector", "states")
        found["selector_by_token"] = _added(seconds, "tokens", "plain")
    return found


def _added(seconds: Seconds, arm: str, base: str) -> dict[str, float | None]:
    """The time of ``arm`` minus that of ``base`` in percent of ``plain``: wall time, with quartiles
    over rounds, and processor time."""
    rounds = list(zip(seconds[arm], seconds[base], seconds["plain"], strict=True))
    clock = [100 * (a[0] - b[0]) / plain[0] for a, b, plain in rounds]
    processor = [100 * (a[1] - b[1]) / plain[1] for a, b, plain in rounds if plain[1] > 0]
    lower, middle, upper = quantiles(clock, n=4) if len(clock) > 1 else clock * 3
    return {
        "median_percent": middle,
        "lower_quartile_percent": lower,
        "upper_quartile_percent": upper,
        "processor_median_percent": median(processor) if processor else None,
    }


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


def one_line(found: Mapping[str, Any]) -> str:
    """A cell as a line of the log."""
    parts = [f"{found['precision']} {found['batch_size']} x {found['length']}"]
    for name in ("selector", "hidden_states", "selector_alone", "selector_by_token"):
        if name in found:
            value = found[name]
            quartiles = (
                f"{value['lower_quartile_percent']:+.2f} to {value['upper_quartile_percent']:+.2f}"
            )
            parts.append(f"{name.replace('_', ' ')} {value['median_percent']:+.2f} % ({quartiles})")
    return ", ".join([*parts, f"{found['rounds']} rounds"])


def share_of_parameters(counts: Mapping[str, float]) -> str:
    """One line with the numbers of parameters of the selector and the backbone."""
    return (
        f"{counts['selector']:,} parameters beside {counts['backbone']:,}: "
        f"{counts['share_percent']:.4f} %"
    )
