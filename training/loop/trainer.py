"""The trainer of a recipe: its arguments, its dev scores, and the loss's own weights.

Under torchrun the processes share each batch.
"""

import atexit
import logging
import math
import re
import statistics
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.modules import Transformer
from sentence_transformers.base.sampler import BatchSamplers
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PrinterCallback, TrainerState
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME

from s2sent.model.network.encoder import max_positions
from s2sent.training.backbones import MODULES_FILE
from s2sent.training.corpus import Corpus
from s2sent.training.errors import ConfigError, EncoderError
from s2sent.training.evaluation.depths.embeddings import encode_exits
from s2sent.training.evaluation.encoders import load_checkpoint, torch_encode
from s2sent.training.evaluation.sts import SentencePairs, spearman
from s2sent.training.loop.batches import LengthBatches
from s2sent.training.loop.callbacks import LastStep, Progress
from s2sent.training.loop.low_rank import TRAINED_FILE, has_updates, load_trained, save_trained
from s2sent.training.loop.processes import num_processes
from s2sent.training.loop.unfinished import folder_of, saving
from s2sent.training.objectives.families import family_of
from s2sent.training.recipe.recipe import Recipe

log = logging.getLogger(__name__)

DEV_METRIC = "eval_stsb_dev"  # Spearman x 100 of cosine
MAX_GRADIENT_NORM = 1.0  # of all trained weights together
SELECTOR_WEIGHTS = r"spatial_selection\.|projections\..*\.(down|up)"
SHORT = 128  # tokens
HEAD_FILE = "objective.safetensors"  # the loss's own weights, beside the encoder's


class Trainer(SentenceTransformerTrainer):
    """The library's trainer, which treats the loss's own weights like the encoder's.

    It saves, restores, clips and shares them. A failure to load the best step is an error here.
    """

    def _align_special_tokens(self) -> None:
        """Leave the backbone's settings as it was built with them.

        The library writes the tokenizer's ids of padding, beginning and end into them. RoBERTa-like
        backbones count positions from the padding id: loaded again they would read other ones.
        """

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Make no model card: `training.json` is the record, and a card would query a hub."""

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """The loss of one step, after which the gradients of all trained weights are clipped.

        The library clears, averages over processes and clips the encoder's gradients alone; here
        those of the loss's own weights are treated the same way.
        """
        own = self._own_weights().values()
        for value in own:
            value.grad = None
        with self._attention():
            loss: Tensor = super().training_step(*args, **kwargs)
        for value in own if num_processes() > 1 else ():
            if value.grad is not None:
                torch.distributed.all_reduce(value.grad)
                value.grad /= num_processes()
        nn.utils.clip_grad_norm_([*self.model.parameters(), *own], MAX_GRADIENT_NORM)
        return loss

    def _attention(self) -> AbstractContextManager[None]:
        """The plain kernel for bf16 on a CPU, where the fused one is slower with short texts.

        Forward and backward of 64 texts of 16 tokens (12 heads of 32 features) take 52 ms fused and
        7 ms plain, of 32 tokens 56 and 17, from 256 tokens on the fused kernel is ahead; a step of
        64 short texts of all-MiniLM-L6-v2 takes 0.33 s in place of 0.58.
        """
        short = (self.model.max_seq_length or SHORT + 1) <= SHORT
        plain = self.args.use_cpu and self.args.bf16 and short
        return sdpa_kernel(SDPBackend.MATH) if plain else nullcontext()

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or str(self.args.output_dir))
        if has_updates(self.model):
            save_trained(self.model, folder)
        else:
            self.model.save(str(folder), create_model_card=False)
        if own := self._own_weights():
            save_file({name: value.contiguous() for name, value in own.items()}, folder / HEAD_FILE)

    def _load_from_checkpoint(self, checkpoint_path: str, model: Any = None) -> None:
        if has_updates(self.model):
            load_trained(self.model, Path(checkpoint_path))
        else:
            saved = load_checkpoint(Path(checkpoint_path)).state_dict()
            self.model.load_state_dict(saved)
        if own := self._own_weights():
            head = load_file(Path(checkpoint_path, HEAD_FILE))
            for name, value in own.items():
                value.data.copy_(head[name])

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with saving(Path(str(self.args.output_dir), folder_of(self.state.global_step))):
            super()._save_checkpoint(*args, **kwargs)  # type: ignore[no-untyped-call]  # transformers is partly typed

    def state_files(self) -> list[str]:
        """The files of a checkpoint that resuming reads; `_save` writes the first one last."""
        model = TRAINED_FILE if has_updates(self.model) else MODULES_FILE
        head = [HEAD_FILE] if self._own_weights() else []
        ranks = [f"_{rank}" for rank in range(num_processes())] if num_processes() > 1 else [""]
        random = [f"rng_state{rank}.pth" for rank in ranks]
        return [model, *head, OPTIMIZER_NAME, SCHEDULER_NAME, *random, TRAINER_STATE_NAME]

    def take_last_step(self, checkpoint: Path) -> bool:
        """Take the state and the best weights of a run whose last step ``checkpoint`` is.

        False where steps are left: the library would train one more of those that are done.
        """
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        if state.global_step < state.max_steps:
            return False
        self.state = state
        if state.best_global_step is not None:
            self._load_best_model()
        return True

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(str(self.state.best_model_checkpoint))

    def _own_weights(self) -> dict[str, Tensor]:
        """The loss's parameters that are not the encoder's."""
        encoder = {id(value) for value in self.model.parameters()}
        named = cast(nn.Module, self.loss).named_parameters()
        return {name: value for name, value in named if id(value) not in encoder}


class DevEvaluator(SentenceEvaluator):
    """Scores STS-B dev as the saved checkpoint will: in full precision, texts cut at its own limit,
    cosines in double precision. With ``depths`` it is the mean of these depths and full depth."""

    def __init__(self, dev: SentencePairs, max_seq_length: int, depths: Sequence[int] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the library leaves it untyped
        self.dev = dev
        self.max_seq_length = max_seq_length
        self.depths = depths

    def __call__(self, model: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
        with reading(model, self.max_seq_length), _without_autocast(model):
            scores = self.by_depth(model)
        return {DEV_METRIC: statistics.fmean(scores.values())}

    def by_depth(self, model: SentenceTransformer) -> dict[int, float]:
        """Spearman x 100 at each of the depths and, last, full depth; alone, it is depth 0."""
        texts = (self.dev.first, self.dev.second)
        if not self.depths:
            encode = torch_encode(model)
            return {0: self._score(encode(texts[0]), encode(texts[1]))}
        first, second = (encode_exits(model, each, self.depths) for each in texts)
        scores = {depth: self._score(first[depth], second[depth]) for depth in first}
        log.info("dev by depth: %s", "  ".join(f"{d} {s:.2f}" for d, s in scores.items()))
        return scores

    def _score(self, first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
        """Spearman x 100; NaN of embeddings that have none, as of a training that diverged."""
        try:
            return spearman(first, second, self.dev.gold)
        except EncoderError:
            return math.nan


@contextmanager
def reading(encoder: SentenceTransformer, limit: int) -> Iterator[None]:
    """Cut texts at ``limit`` tokens within the block, or where the encoder's positions end."""
    before = encoder.max_seq_length
    encoder.max_seq_length = _fitting(encoder, limit)
    try:
        yield
    finally:
        encoder.max_seq_length = before


def _fitting(encoder: SentenceTransformer, limit: int) -> int:
    rows = (max_positions(part) for part in encoder.modules() if isinstance(part, Transformer))
    return min([limit, *(each for each in rows if each is not None)])


@contextmanager
def _without_autocast(encoder: SentenceTransformer) -> Iterator[None]:
    """Undo, within the block, the autocast that accelerate puts around ``encoder``."""
    wrapped = vars(encoder).pop("forward", None)
    try:
        yield
    finally:
        if wrapped is not None:
            vars(encoder)["forward"] = wrapped


def dev_evaluator(recipe: Recipe, dev: SentencePairs) -> DevEvaluator:
    """What scores a recipe's encoder on STS-B dev."""
    depths = recipe.elastic.depths if recipe.elastic else ()
    return DevEvaluator(dev, recipe.backbone.max_seq_length, depths)


def new_trainer(
    recipe: Recipe,
    encoder: SentenceTransformer,
    loss: nn.Module,
    corpus: Corpus,
    dev: SentencePairs,
    partial: Path,
) -> Trainer:
    """The trainer of a recipe, which keeps its state in ``partial``. Raises `ConfigError`."""
    encoder.max_seq_length = _fitting(encoder, recipe.training.max_seq_length)
    trainer: Trainer = Trainer(
        model=encoder,
        args=_arguments(recipe, encoder, partial),
        train_dataset=family_of(recipe).columns(corpus, recipe),
        loss=loss,
        evaluator=dev_evaluator(recipe, dev),
        callbacks=[Progress(DEV_METRIC, recipe.training.batch_size), LastStep()],
    )
    if torch.distributed.is_initialized():  # its threads must end before the interpreter does
        atexit.register(trainer.accelerator.state.destroy_process_group)
    trainer.remove_callback(PrinterCallback)  # type: ignore[no-untyped-call]  # transformers is partly typed
    return trainer


def _arguments(
    recipe: Recipe, encoder: SentenceTransformer, partial: Path
) -> SentenceTransformerTrainingArguments:
    training = recipe.training
    on_gpu = torch.cuda.is_available()
    rates = {}
    learns = any(re.search(SELECTOR_WEIGHTS, name) for name, _ in encoder.named_parameters())
    if training.selector_learning_rate and learns:
        rates = {SELECTOR_WEIGHTS: training.selector_learning_rate}
    return SentenceTransformerTrainingArguments(
        output_dir=str(partial),
        seed=recipe.seed,
        max_steps=training.steps or -1,
        num_train_epochs=1,
        per_device_train_batch_size=_share(training.batch_size),
        dataloader_drop_last=True,
        learning_rate=training.learning_rate,
        learning_rate_mapping=rates,
        router_mapping=dict(family_of(recipe).COLUMN_TASKS),
        lr_scheduler_type="linear",
        warmup_steps=training.warmup_steps,
        batch_sampler=LengthBatches if training.group_by_length else BatchSamplers.BATCH_SAMPLER,
        weight_decay=0.0,
        max_grad_norm=0.0,  # `Trainer.training_step` clips
        bf16=training.precision == "bf16",
        use_cpu=not on_gpu,
        ddp_backend=("nccl" if on_gpu else "gloo") if num_processes() > 1 else None,
        eval_strategy="steps",
        eval_steps=training.eval_every,
        eval_on_start=True,
        save_strategy="steps",
        save_steps=training.eval_every,
        save_total_limit=2,  # the best one, and the last one to resume from
        load_best_model_at_end=True,
        metric_for_best_model=DEV_METRIC,
        greater_is_better=True,
        logging_strategy="steps",
        logging_steps=min(10, training.eval_every),
        disable_tqdm=True,
        report_to=[],
    )


def _share(batch_size: int) -> int:
    """The number of rows of each batch that this process gets."""
    processes = num_processes()
    if batch_size % processes:
        raise ConfigError(
            f"[training] batch_size = {batch_size} cannot be shared by {processes} processes: "
            "make it a multiple."
        )
    return batch_size // processes
