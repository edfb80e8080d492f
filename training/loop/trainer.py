"""The trainer of a recipe: its arguments, its checkpoints, and the loss's own weights.

Under torchrun the processes share each batch.
"""

import atexit
import logging
import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.sampler import BatchSamplers
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PrinterCallback, TrainerState
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME

from s2sent.training.corpus import Corpus
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.sts import SentencePairs
from s2sent.training.loop.batches import LengthBatches
from s2sent.training.loop.callbacks import Progress, Saves, SettingsKept
from s2sent.training.loop.dev import DEV_METRIC, dev_evaluator, fitting
from s2sent.training.loop.processes import num_processes
from s2sent.training.loop.tokens import TokenisedTexts
from s2sent.training.loop.unfinished import folder_of, saving
from s2sent.training.loop.weights import (
    BEST_FILE,
    WEIGHTS_FILE,
    Weights,
    copied,
    load_weights,
    save_weights,
    take,
    trained_weights,
)
from s2sent.training.objectives.from_recipe import column_tasks, columns
from s2sent.training.recipe.recipe import Recipe

log = logging.getLogger(__name__)

MAX_GRADIENT_NORM = 1.0  # of all trained weights together
SELECTOR_WEIGHTS = r"spatial_selection\.|projections\..*\.(down|up)"
SHORT = 128  # tokens


@dataclass(frozen=True)
class Reporting:
    """The trackers that get losses and scores, by transformers' names; a folder for their files."""

    trackers: Sequence[str]
    folder: Path


class Trainer(SentenceTransformerTrainer):
    """The library's trainer, which treats the loss's own weights like the encoder's.

    It saves, restores, clips and shares them. The best step's weights are in memory; a checkpoint
    holds them too, and no other is needed to go on from it.
    """

    _best: Weights = {}
    _logged: tuple[float, int] | None = None  # the sum of losses, and the step, at the last log
    texts: TokenisedTexts

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Make no model card: `training.json` is the record, and a card would query a hub."""

    def get_data_collator(self, model: Any, args: Any, processing_class: Any = None) -> Any:
        """The library's, which tokenises each text once."""
        collator = super().get_data_collator(model, args, processing_class)
        collator.preprocess_fn = self.texts = TokenisedTexts(model.preprocess)
        return collator

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """The loss of one step, after which the gradients of all trained weights are clipped.

        The library clears, averages over processes and clips the encoder's gradients alone; here
        those of the loss's own weights are treated the same way.
        """
        if self._logged is None:
            self._logged = 0.0, self.state.global_step
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

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log what the library does, with the loss as it is: the library rounds it to 0.0001."""
        if "loss" in logs and self._logged is not None:
            total, step = self._logged
            self._logged = self._total_loss_scalar, self.state.global_step
            logs["loss"] = (self._logged[0] - total) / (self._logged[1] - step)
        super().log(logs, start_time)

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
        save_weights(self._trained_weights(), folder / WEIGHTS_FILE)
        if self._best and self.state.best_global_step != self.state.global_step:
            save_weights(self._best, folder / BEST_FILE)

    def _load_from_checkpoint(self, checkpoint_path: str, model: Any = None) -> None:
        of_step = load_weights(Path(checkpoint_path, WEIGHTS_FILE))
        take(self._trained_weights(), of_step)
        best = Path(checkpoint_path, BEST_FILE)
        self._best = load_weights(best) if best.is_file() else of_step

    def _determine_best_metric(self, metrics: Any, trial: Any) -> bool:
        better = bool(super()._determine_best_metric(metrics, trial))  # type: ignore[no-untyped-call]  # transformers is partly typed
        if better:
            self.state.best_global_step = self.state.global_step
            self._best = copied(self._trained_weights())
        return better

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with saving(Path(str(self.args.output_dir), folder_of(self.state.global_step))):
            super()._save_checkpoint(*args, **kwargs)  # type: ignore[no-untyped-call]  # transformers is partly typed

    def state_files(self) -> list[str]:
        """The files of a checkpoint that resuming reads; `_save` writes the first one."""
        ranks = [f"_{rank}" for rank in range(num_processes())] if num_processes() > 1 else [""]
        random = [f"rng_state{rank}.pth" for rank in ranks]
        return [WEIGHTS_FILE, OPTIMIZER_NAME, SCHEDULER_NAME, *random, TRAINER_STATE_NAME]

    def take_last_step(self, checkpoint: Path) -> bool:
        """Take the state and the weights of a run whose last step ``checkpoint`` is.

        False where steps are left: the library would train one more of those that are done.
        """
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        if state.global_step < state.max_steps:
            return False
        self.state = state
        self._load_from_checkpoint(str(checkpoint))
        return True

    def use_best_weights(self) -> None:
        """Give the encoder the weights of the best step, if one had a score."""
        take(self._trained_weights() if self._best else {}, self._best)

    def _trained_weights(self) -> Weights:
        return trained_weights(self.model, cast(nn.Module, self.loss))

    def _own_weights(self) -> dict[str, Tensor]:
        """The loss's parameters that are not the encoder's."""
        encoder = {id(value) for value in self.model.parameters()}
        named = cast(nn.Module, self.loss).named_parameters()
        return {name: value for name, value in named if id(value) not in encoder}


def new_trainer(
    recipe: Recipe,
    encoder: SentenceTransformer,
    loss: nn.Module,
    corpus: Corpus,
    dev: SentencePairs,
    partial: Path,
    save_minutes: float,
    reporting: Reporting,
) -> Trainer:
    """The trainer of a recipe, which saves its state in ``partial`` every ``save_minutes``.

    Raises `ConfigError`.
    """
    encoder.max_seq_length = fitting(encoder, recipe.training.max_seq_length)
    progress = Progress(DEV_METRIC, recipe.training.batch_size)
    trainer: Trainer = Trainer(
        model=encoder,
        args=on_one_device(_arguments(recipe, encoder, partial, reporting)),
        train_dataset=columns(corpus, recipe.objective),
        loss=loss,
        evaluator=dev_evaluator(recipe, dev),
        callbacks=[progress, SettingsKept(encoder.config), Saves(save_minutes)],
    )
    if torch.distributed.is_initialized():  # its threads must end before the interpreter does
        atexit.register(trainer.accelerator.state.destroy_process_group)
    if num_processes() == 1 and recipe.training.reads_all(sum(corpus.counts.values())):
        texts = corpus.texts()
        log.info("tokenising %d texts", len(texts))
        for task in dict.fromkeys(column_tasks(recipe.objective).values()) or [None]:
            trainer.texts.read_ahead(texts, task)
    trainer.remove_callback(PrinterCallback)  # type: ignore[no-untyped-call]  # transformers is partly typed
    return trainer


def _arguments(
    recipe: Recipe, encoder: SentenceTransformer, partial: Path, reporting: Reporting
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
        router_mapping=column_tasks(recipe.objective),
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
        save_strategy="no",  # `Saves` does, and a new one takes the place of the last
        save_total_limit=1,
        metric_for_best_model=DEV_METRIC,
        greater_is_better=True,
        logging_strategy="steps",
        logging_steps=min(10, training.eval_every),
        logging_nan_inf_filter=False,  # it would wait for the device in every step
        disable_tqdm=True,
        report_to=[*reporting.trackers],
        **_folder_of_trackers(reporting.folder),
    )


def _folder_of_trackers(folder: Path) -> dict[str, Any]:
    """Where trackers write: an argument of transformers 4, a variable that transformers 5 reads."""
    if hasattr(SentenceTransformerTrainingArguments, "logging_dir"):
        return {"logging_dir": str(folder)}
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder)
    return {}


def on_one_device(
    arguments: SentenceTransformerTrainingArguments,
) -> SentenceTransformerTrainingArguments:
    """Use the first of several GPUs, where the library would give each a batch, and say so."""
    if arguments.n_gpu > 1:
        log.warning(
            "%d GPUs are visible and one is used: start `torchrun --nproc-per-node %d -m"
            " s2sent.training fit ...` to share each batch among them.",
            arguments.n_gpu,
            arguments.n_gpu,
        )
        arguments._n_gpu = 1
    return arguments


def _share(batch_size: int) -> int:
    """The number of rows of each batch that this process gets."""
    processes = num_processes()
    if batch_size % processes:
        raise ConfigError(
            f"[training] batch_size = {batch_size} cannot be shared by {processes} processes: "
            "make it a multiple."
        )
    return batch_size // processes
