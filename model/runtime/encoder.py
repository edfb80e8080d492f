"""The encoder that serves: token ids or texts to float32 embeddings, through ONNX Runtime."""

import threading
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from s2sent.model.artifact.manifest import POOLING_MASK, TOKEN_PLACES, TOKENIZER, UNPADDED_MODEL
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.input_errors import UnusableInput
from s2sent.model.runtime.providers import PROVIDERS, Device
from s2sent.model.runtime.sessions import (
    SessionsByDepth,
    memory_returning_options,
    open_sessions,
    outputs_of,
    run_bound,
)
from s2sent.model.runtime.tokenizer import Tokenizer

POOLED_OUTPUT = "pooled_embedding"  # before normalisation
BLOCK_WEIGHTS_OUTPUT = "block_weights"  # of the selector, [n, blocks, dim]; not in every graph

# Tokens of a text above which it runs alone on a CPU, and its attention goes through it in blocks
# (`model.export.cpu.long_attention`): all its scores at one time would take gigabytes.
LONG_TEXT = 1024

# Inputs of graphs without padding (`model.export.gpu.unpadded`), int32: the places of the tokens in
# the batch, flattened, then those of padding [n, longest]; and 0, then the packed token after the
# last one of each text [n + 1].
TOKEN_OFFSETS, TEXT_ENDS = "token_offset", "cumulative_sequence_length"
# By how much a component of a vector of length 1 may differ between the two forms at the start.
UNPADDED_TOLERANCE = {"fp16": 5e-3, "fp32": 1e-3}

LEAST_NORM = 1e-12  # that a vector is divided by, as in torch

# Padded tokens of a run up to which its session keeps the run's memory for the next run: of runs
# side by side, which come in numbers, and of runs with all threads.
KEPT_TOKENS = 1024
KEPT_TOKENS_ALONE = 256


class OnnxEncoder:
    """An artifact, or the folder of one, that embeds texts or batches of token ids.

    Safe to call from several threads; `run` blocks and releases the GIL while a session works.
    Raises `model.runtime.providers.ProviderUnavailable` when ``device`` cannot be used, and
    `model.artifact.errors.ArtifactError` for a folder that is no artifact.

    With ``concurrent_runs`` above 1, runs on a CPU are expected side by side and each gets one
    thread, which uses the cores better than threads that work in step; a run with ``all_threads``
    gets ``intra_op_num_threads``. That takes a second session, with packed matrices of its own.

    On a GPU attention leaves padding out where the artifact has such graphs and they give what the
    padded ones give; ``warning`` says why not. ``unpadded`` False forbids it.

    On a GPU runs wait for each other: two at once in a session of ONNX Runtime 1.31.1 gave vectors
    of zeros and failed in NonZero (benchmarks/journal/2026-11-27-gpu.md).
    """

    def __init__(
        self,
        artifact: Artifact | str | Path,
        *,
        device: Device = "cpu",
        intra_op_num_threads: int = 0,
        concurrent_runs: int = 1,
        unpadded: bool = True,
    ) -> None:
        if not isinstance(artifact, Artifact):
            artifact = Artifact.open(Path(artifact))
        manifest = artifact.manifest
        self.artifact = artifact
        self.dim = manifest.dim
        self.max_seq_length = manifest.max_seq_length
        self.tokenizer = Tokenizer(
            artifact.read(TOKENIZER),
            manifest.max_seq_length,
            manifest.template,
            pools_prompts=manifest.pools_prompts,
        )
        self.provider = PROVIDERS[device][0]
        self._by_depth: dict[int | None, Any] = {}  # sessions, of an artifact with a graph for each
        if manifest.is_for_gpu or device != "cpu":
            opener = SessionsByDepth(artifact, device, threads=intra_op_num_threads)
            self._by_depth = opener.open()
            sessions = [self._by_depth[None]]
        else:
            threads = [intra_op_num_threads]
            if concurrent_runs > 1 and intra_op_num_threads > 1:
                threads.append(1)
            sessions = open_sessions(artifact, threads=threads)
        self._all_threads_session, self._one_thread_session = sessions[0], sessions[-1]
        self.has_block_weights = BLOCK_WEIGHTS_OUTPUT in outputs_of(sessions[0])
        self._returning_memory = memory_returning_options()
        self._has_device_memory = device != "cpu"
        self._gpu_is_free = threading.Lock()
        # RoBERTa and MPNet derive positions from the padding id, so it must be the backbone's own.
        self._pad_id = int(artifact.config.get("pad_token_id") or 0)
        self._input_names: Collection[str] = manifest.inputs
        self.warning = ""
        if unpadded and self._has_device_memory and UNPADDED_MODEL in manifest.files:
            self.warning = self._leave_padding_out(opener)
            self._all_threads_session = self._one_thread_session = self._by_depth[None]

    def run(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        all_threads: bool = True,
        depth: int | None = None,
    ) -> NDArray[np.float32]:
        """Embed token id sequences, special tokens included, as `TokenizedText` has them.

        Returns pooled embeddings [n, dim], row i for sequence i, not normalised. Sequences are
        padded to the longest, so close lengths save work; no row depends on the others. Set
        ``all_threads`` where no other run is expected meanwhile. ``depth``, of the manifest's
        ``all_depths``, stops after that block; None runs all. Raises ValueError for another depth.
        """
        return self._run(POOLED_OUTPUT, sequences, all_threads=all_threads, depth=depth)

    def block_weights(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        all_threads: bool = True,
        depth: int | None = None,
    ) -> NDArray[np.float32]:
        """The selector's weights [n, blocks, dim], shallowest first; arguments as of `run`.

        `Manifest.fused_blocks` has the numbers of the blocks. Raises ValueError where the graph
        does not give them (``has_block_weights``).
        """
        if not self.has_block_weights:
            raise ValueError(f"the graph of {self.artifact.path} has no {BLOCK_WEIGHTS_OUTPUT}.")
        weights = self._run(BLOCK_WEIGHTS_OUTPUT, sequences, all_threads=all_threads, depth=depth)
        fused = len(self.artifact.manifest.fused_blocks(depth))
        return weights[:, -fused:]  # an exit may fuse fewer blocks than the full depth

    def _run(
        self, output: str, rows: Sequence[Sequence[int]], *, all_threads: bool, depth: int | None
    ) -> NDArray[np.float32]:
        manifest = self.artifact.manifest
        if depth == manifest.full_depth:
            depth = None
        if depth is not None and depth not in manifest.depths:
            known = ", ".join(map(str, manifest.all_depths))
            raise ValueError(f"depth is {depth}; the artifact can stop at {known}.")
        run = partial(self._run_together, output, all_threads=all_threads, depth=depth)
        if self._has_device_memory or max(map(len, rows)) <= LONG_TEXT:
            return run(rows)
        parts = _long_ones_alone(rows)
        values = np.concatenate([run([rows[place] for place in part]) for part in parts])
        return values[np.argsort(np.concatenate(parts))]

    def _run_together(
        self, output: str, rows: Sequence[Sequence[int]], *, all_threads: bool, depth: int | None
    ) -> NDArray[np.float32]:
        """One run of the graph."""
        inputs = self.inputs(rows)
        session = self._all_threads_session if all_threads else self._one_thread_session
        if self._by_depth:
            session = self._by_depth[depth]
        elif depth is not None:
            inputs["depth"] = np.array(depth)
        if self._has_device_memory:
            with self._gpu_is_free:
                return run_bound(session, output, inputs)
        kept = KEPT_TOKENS if session is self._one_thread_session else KEPT_TOKENS_ALONE
        options = self._returning_memory if inputs["input_ids"].size > kept else None
        values: NDArray[np.float32] = session.run([output], inputs, options)[0]
        return values

    def return_memory(self) -> None:
        """Give back what runs side by side keep on a CPU; takes one run of a short text."""
        if not self._has_device_memory:
            inputs = self.inputs([self.tokenizer.tokenize(["a"])[0].input_ids])
            self._one_thread_session.run([POOLED_OUTPUT], inputs, self._returning_memory)

    def inputs(self, sequences: Sequence[Sequence[int]]) -> dict[str, NDArray[Any]]:
        """The graph's inputs for ``sequences``, as `padded_inputs` makes them."""
        return padded_inputs(sequences, self._input_names, self._pad_id)

    def _leave_padding_out(self, opener: SessionsByDepth) -> str:
        """Use the graphs without padding if they are right; returns why not, or nothing."""
        before = self._by_depth, self._input_names
        ids = self.tokenizer.tokenize([self.artifact.canary.text])[0].input_ids
        longest = (ids * self.max_seq_length)[: min(self.max_seq_length, 128)]
        batch = [ids, longest, ids[:1], longest[:-1], ids, ids[:2]]
        tolerance = UNPADDED_TOLERANCE[self.artifact.manifest.precision]
        try:
            unpadded = opener.open(unpadded=True)
            expected = {depth: self.run(batch, depth=depth) for depth in unpadded}
            self._by_depth = unpadded
            self._input_names = (*self._input_names, TOKEN_OFFSETS, TEXT_ENDS)
            off = np.max(
                [
                    _largest_difference(self.run(batch, depth=depth), rows)
                    for depth, rows in expected.items()
                ]
            )
            if off <= tolerance:  # NaN, which np.max keeps, is not
                return ""
            why = f"a component is off by {off:.2g}, the limit is {tolerance:g}"
        except Exception as error:  # ONNX Runtime raises classes of its own
            why = str(error)
        self._by_depth, self._input_names = before
        return f"attention runs with padding: {why}"

    def encode(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 32,
        normalize: bool = True,
        depth: int | None = None,
        prompt_name: str | None = None,
    ) -> NDArray[np.float32]:
        """Embed texts offline: rows [n, dim] in the order of ``texts``; ``depth`` as in `run`.

        Before each stands the prompt of this name, by default the model's default one. Batches are
        made of texts of close lengths.
        A vector of zeros stays one.
        Raises UnusableInput for a text without tokens to pool.
        """
        prompt = self.artifact.manifest.prompt(prompt_name)
        rows = [row.input_ids for row in self.tokenizer.tokenize(texts, prompt=prompt)]
        for index, row in enumerate(rows):
            if not row:
                raise UnusableInput(index, "has no tokens to pool. Leave it out.")
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        embeddings = np.empty((len(rows), self.dim), dtype=np.float32)
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            embeddings[indices] = self.run([rows[index] for index in indices], depth=depth)
        if normalize:
            lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
            embeddings /= np.maximum(lengths, LEAST_NORM)
        return embeddings


def _largest_difference(rows: NDArray[np.float32], others: NDArray[np.float32]) -> float:
    """Of the components of two arrays' rows, each row with the length 1."""
    first, second = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (rows, others))
    return float(np.abs(first - second).max())


def _long_ones_alone(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """The places of sequences that run together: each long one by itself, the others as one."""
    short = [place for place, ids in enumerate(sequences) if len(ids) <= LONG_TEXT]
    long = [[place] for place, ids in enumerate(sequences) if len(ids) > LONG_TEXT]
    return [short, *long] if short else long


def padded_inputs(
    sequences: Sequence[Sequence[int]], names: Collection[str], pad_id: int
) -> dict[str, NDArray[Any]]:
    """The inputs ``names`` of a graph: int64 [n, longest] each, padded on the right.

    `token_places` is int64 [tokens], the places of the tokens in the batch, flattened. Ids below 0
    are of tokens that are not pooled, for graphs with a `POOLING_MASK`.
    """
    lengths = [len(sequence) for sequence in sequences]
    if min(lengths) == max(lengths):
        input_ids = np.array(sequences, dtype=np.int64)
        attention_mask = np.ones(input_ids.shape, dtype=np.int64)
    else:
        is_token = np.arange(max(lengths)) < np.array(lengths)[:, None]  # [n, longest] bool
        input_ids = np.full(is_token.shape, pad_id, dtype=np.int64)
        input_ids[is_token] = np.concatenate([np.asarray(ids) for ids in sequences])
        attention_mask = is_token.astype(np.int64)
    inputs: dict[str, NDArray[Any]] = {"input_ids": input_ids, "attention_mask": attention_mask}
    if POOLING_MASK in names:
        inputs[POOLING_MASK] = attention_mask * (input_ids >= 0)
        inputs["input_ids"] = np.where(input_ids < 0, ~input_ids, input_ids)
    if "token_type_ids" in names:
        inputs["token_type_ids"] = np.zeros(input_ids.shape, dtype=np.int64)
    if TOKEN_OFFSETS in names:
        places = np.argsort(attention_mask.reshape(-1) == 0, kind="stable")
        inputs[TOKEN_OFFSETS] = places.astype(np.int32).reshape(attention_mask.shape)
        inputs[TEXT_ENDS] = np.cumsum([0, *lengths], dtype=np.int32)
    for name in names:
        if name.startswith(TOKEN_PLACES):
            behind = int(
                name.removeprefix(f"{TOKEN_PLACES}_behind_") if name != TOKEN_PLACES else 0
            )
            inputs[name] = np.flatnonzero(attention_mask[:, behind:])
    return inputs


def token_places(*, behind: int) -> str:
    """The input that has the places of the tokens ``behind`` a prefix that all rows have."""
    return f"{TOKEN_PLACES}_behind_{behind}" if behind else TOKEN_PLACES
