"""One run, from a recipe to a checkpoint that scored what it scored in training.

    recipe + corpus -> encoder, loss -> sentence-transformers' trainer, STS-B dev every so often
                    -> the best step's weights -> saved, loaded again, scored again -> output

While it runs, the state lies in ``<output>.partial``; a run that was interrupted goes on from
there, and ends where it would have ended. Started by torchrun, the processes share each batch.
"""

import json
import logging
import os
import shutil
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import Tensor, nn
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState

from model.network.encoder import build_encoder, build_plain_encoder, find_selector
from model.network.prompt import build_prompt_encoder, view_tasks
from model.network.selector import S2SentSelector
from model.network.template import TemplateError
from training.backbones import origin, resolve, width_of
from training.corpus import Corpus, read_corpus
from training.errors import ConfigError, DataError, Interrupted
from training.evaluation.encoders import load_checkpoint, torch_encode
from training.evaluation.geometry import block_weights
from training.evaluation.sts import DEV_FILE, SentencePairs, read_sentence_pairs, spearman
from training.objectives.losses import columns, make_loss
from training.objectives.teacher import teachers_embeddings
from training.progress import Progress
from training.recipe import Distillation, PairDistillation, PromptBERT, Recipe
from training.record import read_record, write_record

log = logging.getLogger(__name__)

DEV_TOLERANCE = 0.01  # Spearman x 100: other batch shapes move cosines in the last bits
DEV_METRIC = "eval_stsb_dev"  # Spearman x 100 of cosine
PRECISION_VARIABLE = "ACCELERATE_MIXED_PRECISION"  # transformers sets it for bf16
RECIPE_FILE = "recipe.json"  # in <output>.partial: what is being trained there
HEAD_FILE = "objective.safetensors"  # the loss's own weights, beside the encoder's


@dataclass(frozen=True)
class Outcome:
    """What a run came to: its best dev score and step, the way there, the checkpoint's record."""

    dev: float
    step: int
    curve: list[tuple[int, float]]  # (step, Spearman x 100), before the first step too
    seconds: float  # of training and looking at dev
    record: dict[str, Any]
    stopped: bool = False  # a signal came with the last step: the run is whole, go no further


def train(
    recipe: Recipe,
    data: Path,
    output: Path,
    *,
    cache: Path | None = None,
    resume: bool = False,
    callbacks: Sequence[TrainerCallback] = (),
) -> Outcome:
    """Carry out a recipe: train on ``data/corpus``, choose on ``data/sts``, save to ``output``.

    ``cache`` keeps a teacher's embeddings between runs. ``resume`` goes on with what an
    interrupted run of the same recipe left in ``<output>.partial``. ``callbacks`` are told what the
    trainer does. Raises a `TrainingError` for a
    recipe, data or backbone that cannot be used, when ``output`` exists, and `Interrupted` when
    SIGINT or SIGTERM ended the run after saving its state.
    """
    partial = output.with_name(output.name + ".partial")
    _require_free(output, partial, resume=resume)
    dev = read_sentence_pairs(data / "sts" / DEV_FILE)
    corpus = read_corpus(data / "corpus", recipe.corpus, kind=recipe.objective.example_kind)
    log.info("corpus: %s rows, sha256 %s", corpus.counts, corpus.sha256[:12])
    _require_rows(corpus, recipe)

    torch.manual_seed(recipe.seed)  # decides the first weights of the selector and of a head
    encoder = new_encoder(recipe)
    teacher = None
    if isinstance(recipe.objective, Distillation | PairDistillation):
        teacher = teachers_embeddings(
            recipe.objective.teachers, corpus, cache, bf16=recipe.training.precision == "bf16"
        )
    loss = make_loss(encoder, recipe, teacher, gather=_processes() > 1)
    os.environ.pop(PRECISION_VARIABLE, None)  # an earlier run's; it would outvote this recipe
    trainer = _trainer(recipe, encoder, loss, corpus, dev, partial)
    os.environ.pop(PRECISION_VARIABLE, None)  # nor is it for processes that this one starts
    for callback in callbacks:
        trainer.add_callback(callback)  # type: ignore[no-untyped-call]  # transformers is partly typed
    _claim(partial, recipe, corpus, resume=resume)
    started = time.monotonic()
    with _stopping(trainer) as stop, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="mtime may not be reliable")  # numbers will do
        trainer.train(resume_from_checkpoint=resume and _has_state(partial))
    if trainer.interrupted_at is not None:
        raise Interrupted(
            f"Interrupted at step {trainer.interrupted_at} of {trainer.state.max_steps}: "
            "run the same command with --resume to go on."
        )
    outcome = _outcome(recipe, corpus, trainer, time.monotonic() - started, stopped=stop.asked)
    if trainer.is_world_process_zero():
        _save(encoder, output, outcome, dev)
        shutil.rmtree(partial)
    return outcome


def new_encoder(recipe: Recipe) -> SentenceTransformer:
    """The encoder a recipe starts from, ready for training: its pipeline ends in the pooling.

    Raises `ConfigError` where the selector does not fit the backbone.
    """
    folder = resolve(recipe.backbone.name)
    config = recipe.selector_config(width_of(folder))
    limit = recipe.backbone.max_seq_length
    try:
        if isinstance(recipe.objective, PromptBERT):
            encoder = build_prompt_encoder(
                folder,
                config,
                recipe.objective.templates,
                pooling=recipe.backbone.pooling,
                max_seq_length=limit,
            )
        elif config is None:
            encoder = build_plain_encoder(
                folder, pooling=recipe.backbone.pooling, max_seq_length=limit, normalize=False
            )
        else:
            encoder = build_encoder(folder, config, max_seq_length=limit, normalize=False)
    except TemplateError as error:
        raise ConfigError(str(error)) from error
    except ValueError as error:
        raise ConfigError(f"[selector] does not fit {recipe.backbone.name}: {error}") from error
    if (selector := find_selector(encoder)) is not None:
        _start_gate(selector, recipe)
    if recipe.training.freeze_backbone:
        if not list(selector.parameters() if selector else ()):
            raise ConfigError("[training] freeze_backbone leaves nothing to train: add a selector.")
        encoder[0].requires_grad_(requires_grad=False)
    return encoder


class Trainer(SentenceTransformerTrainer):
    """sentence-transformers' trainer, which treats a loss's own weights like the encoder's, and
    never swallows a failure to load the best step."""

    interrupted_at: int | None = None  # the step after which a signal ended the run

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """No model card: `training.json` says what was done, and nothing else is asked of a hub."""

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """One step's loss; the loss's own gradients are cleared and shared, as the encoder's are.

        The library clears, and averages over processes, those of the encoder alone.
        """
        own = self._own_weights().values()
        for value in own:
            value.grad = None
        loss: Tensor = super().training_step(*args, **kwargs)
        for value in own if _processes() > 1 else ():
            if value.grad is not None:
                torch.distributed.all_reduce(value.grad)
                value.grad /= _processes()
        return loss

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or str(self.args.output_dir))
        self.model.save(str(folder), create_model_card=False)
        if own := self._own_weights():
            save_file({name: value.contiguous() for name, value in own.items()}, folder / HEAD_FILE)

    def _load_from_checkpoint(self, checkpoint_path: str, model: Any = None) -> None:
        saved = load_checkpoint(Path(checkpoint_path)).state_dict()
        self.model.load_state_dict(saved)
        if own := self._own_weights():
            head = load_file(Path(checkpoint_path, HEAD_FILE))
            for name, value in own.items():
                value.data.copy_(head[name])

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(str(self.state.best_model_checkpoint))

    def _own_weights(self) -> dict[str, Tensor]:
        """The loss's parameters that are not the encoder's."""
        encoder = {id(value) for value in self.model.parameters()}
        named = cast(nn.Module, self.loss).named_parameters()
        return {name: value for name, value in named if id(value) not in encoder}


class DevEvaluator(SentenceEvaluator):
    """STS-B dev as it is scored everywhere else here: by an encoder in full precision that reads
    texts to the checkpoint's own limit, and with cosines in double precision."""

    def __init__(self, dev: SentencePairs, max_seq_length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the library leaves it untyped
        self.dev = dev
        self.max_seq_length = max_seq_length

    def __call__(self, model: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
        encode = torch_encode(model)
        with reading(model, self.max_seq_length), _without_autocast(model):
            first, second = encode(self.dev.first), encode(self.dev.second)
        return {DEV_METRIC: spearman(first, second, self.dev.gold)}


@contextmanager
def reading(encoder: SentenceTransformer, limit: int) -> Iterator[None]:
    """Let ``encoder`` read texts to ``limit`` tokens within the block."""
    before = encoder.max_seq_length
    encoder.max_seq_length = limit
    try:
        yield
    finally:
        encoder.max_seq_length = before


@contextmanager
def _without_autocast(encoder: SentenceTransformer) -> Iterator[None]:
    """In the block ``encoder`` runs as it will be saved; accelerate has put autocast around it."""
    wrapped = vars(encoder).pop("forward", None)
    try:
        yield
    finally:
        if wrapped is not None:
            vars(encoder)["forward"] = wrapped


def _trainer(
    recipe: Recipe,
    encoder: SentenceTransformer,
    loss: nn.Module,
    corpus: Corpus,
    dev: SentencePairs,
    partial: Path,
) -> Trainer:
    training = recipe.training
    on_gpu = torch.cuda.is_available()
    rates = {}
    if training.selector_learning_rate and find_selector(encoder) is not None:
        rates = {r"(spatial|frequency)_selection\.": training.selector_learning_rate}
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(partial),
        seed=recipe.seed,
        max_steps=training.steps or -1,
        num_train_epochs=1,
        per_device_train_batch_size=_share(training.batch_size),
        dataloader_drop_last=True,
        learning_rate=training.learning_rate,
        learning_rate_mapping=rates,
        router_mapping=_tasks(recipe),
        lr_scheduler_type="linear",
        weight_decay=0.0,
        max_grad_norm=1.0,
        bf16=training.precision == "bf16",
        use_cpu=not on_gpu,
        ddp_backend=("nccl" if on_gpu else "gloo") if _processes() > 1 else None,
        eval_strategy="steps",
        eval_steps=training.eval_every,
        eval_on_start=True,
        save_strategy="steps",
        save_steps=training.eval_every,
        save_total_limit=2,  # the best, and the last for going on
        load_best_model_at_end=True,
        metric_for_best_model=DEV_METRIC,
        greater_is_better=True,
        logging_strategy="steps",
        logging_steps=min(10, training.eval_every),
        disable_tqdm=True,
        report_to=[],
    )
    encoder.max_seq_length = training.max_seq_length
    trainer: Trainer = Trainer(
        model=encoder,
        args=arguments,
        train_dataset=columns(corpus, recipe),
        loss=loss,
        evaluator=DevEvaluator(dev, recipe.backbone.max_seq_length),
        callbacks=[Progress(DEV_METRIC, training.batch_size), _LastStep()],
    )
    trainer.remove_callback(PrinterCallback)  # type: ignore[no-untyped-call]  # transformers is partly typed
    return trainer


def _tasks(recipe: Recipe) -> dict[str, str]:
    """What each column is for, where that makes a difference: which template it gets."""
    if not isinstance(recipe.objective, PromptBERT):
        return {}
    return view_tasks(("anchor", "positive"))


class _LastStep(TrainerCallback):
    """The last step is looked at and saved too, whatever ``eval_every`` divides."""

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step >= state.max_steps:
            control.should_evaluate = control.should_save = True


class _StopAtSignal(TrainerCallback):
    """Once a signal came, save after the step at hand and end."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.asked = False

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.asked and state.global_step < state.max_steps:
            self.trainer.interrupted_at = state.global_step
            control.should_save = control.should_training_stop = True


@contextmanager
def _stopping(trainer: Trainer) -> Iterator[_StopAtSignal]:
    """In the block the first SIGINT or SIGTERM ends training at a step, the second one at once."""
    stop = _StopAtSignal(trainer)
    trainer.add_callback(stop)  # type: ignore[no-untyped-call]  # transformers is partly typed

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True
        log.info("stopping after this step; once more to lose it")

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start_gate(selector: S2SentSelector, recipe: Recipe) -> None:
    """Give the gate the start that ``initial_bias`` and ``static`` ask for."""
    if not recipe.initial_bias and not recipe.static:
        return
    gate = selector.spatial_selection
    if gate is None or gate.expand.bias is None:
        raise ConfigError("[selector] initial_bias and static need a gate with biases.")
    per_block = gate.expand.bias.detach().view(selector.config.num_heads, -1)  # [N, D]
    per_block.fill_(-recipe.initial_bias)
    per_block[-1] = recipe.initial_bias
    if recipe.static:
        gate.requires_grad_(requires_grad=False)
        nn.init.zeros_(gate.expand.weight)  # so that the bias alone decides
        gate.expand.bias.requires_grad_()
    if recipe.static == "blocks":
        # Equal starts and equal gradients keep the features of a block equal.
        gate.expand.bias.register_hook(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            lambda grad: (
                grad.view_as(per_block).mean(1, keepdim=True).expand_as(per_block).flatten()
            )
        )


def _outcome(
    recipe: Recipe, corpus: Corpus, trainer: Trainer, seconds: float, *, stopped: bool
) -> Outcome:
    """What the trainer's state says, and the record that goes into the checkpoint."""
    state, every = trainer.state, recipe.training.eval_every
    scores: dict[int, float] = {
        int(entry["step"]): entry[DEV_METRIC] for entry in state.log_history if DEV_METRIC in entry
    }
    # A resumed run also looked at dev where it was interrupted.
    curve = [
        (step, score)
        for step, score in sorted(scores.items())
        if step % every == 0 or step == state.max_steps
    ]
    step = int(state.best_global_step or 0)
    record = {
        "recipe": recipe.as_table(),
        "seed": recipe.seed,
        **_beginning(recipe),
        "corpus": {"sha256": corpus.sha256, "rows": corpus.counts},
        "dev": {
            "task": "STS-B dev, Spearman x 100",
            "score": round(scores[step], 4),
            "step": step,
            "curve": [[step, round(score, 4)] for step, score in curve],
        },
    }
    return Outcome(scores[step], step, curve, seconds, record, stopped)


def _beginning(recipe: Recipe) -> dict[str, Any]:
    """Whose weights a run began with; of a checkpoint of ours its record, and its own backbone."""
    name = recipe.backbone.name
    before = read_record(Path(name))
    backbone = before.get("backbone", origin(name))
    return {"backbone": backbone, "began_from": before} if before else {"backbone": backbone}


def _save(encoder: SentenceTransformer, output: Path, outcome: Outcome, dev: SentencePairs) -> None:
    """Write the checkpoint; it appears at ``output`` only once it scored as it did in training."""
    scratch = output.with_name(output.name + ".unchecked")
    shutil.rmtree(scratch, ignore_errors=True)
    limit = int(outcome.record["recipe"]["backbone"]["max_seq_length"])
    with reading(encoder, limit):
        if outcome.record["recipe"]["objective"]["name"] != "prompt":
            encoder.append(Normalize())
        encoder.save(str(scratch), create_model_card=False)
    saved = load_checkpoint(scratch)
    encode = torch_encode(saved)
    score = spearman(encode(dev.first), encode(dev.second), dev.gold)
    if abs(score - outcome.dev) > DEV_TOLERANCE:
        raise RuntimeError(f"the saved checkpoint scores {score:.4f}, not {outcome.dev:.4f}")
    if (weights := block_weights(saved, dev.first)) is not None:
        outcome.record["mean_block_weights"] = [round(w, 4) for w in weights.mean.mean(1).tolist()]
    write_record(scratch, outcome.record)
    scratch.rename(output)
    log.info("saved %s: dev %.2f, loaded again and checked", output, score)


def _require_free(output: Path, partial: Path, *, resume: bool) -> None:
    if output.exists():
        raise ConfigError(f"{output} exists already: name a new folder, or delete it first.")
    if partial.exists() and not resume and _process() == 0:
        raise ConfigError(
            f"{partial} holds an interrupted run: go on with --resume, or delete it first."
        )


def _require_rows(corpus: Corpus, recipe: Recipe) -> None:
    """A part that does not fill one batch would be left out without a word."""
    size = recipe.training.batch_size
    for source, count in corpus.counts.items():
        if count < size:
            raise DataError(
                f"{source} gave {count} rows, fewer than a batch of {size}: "
                "raise its limit, leave it out, or lower [training] batch_size."
            )


def _claim(partial: Path, recipe: Recipe, corpus: Corpus, *, resume: bool) -> None:
    """Write down what is trained in ``partial``, or make sure that it is what is resumed."""
    if _process() != 0:
        return
    file = partial / RECIPE_FILE
    claim = {"recipe": recipe.as_table(), "corpus": corpus.sha256}
    if resume and file.is_file():
        if json.loads(file.read_text(encoding="utf-8")) != claim:
            raise ConfigError(
                f"{partial} was begun with another recipe or corpus: give it those, or delete it."
            )
        return
    partial.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(claim), encoding="utf-8")


def _has_state(partial: Path) -> bool:
    """Whether the interrupted run came as far as saving its state."""
    return any(partial.glob("checkpoint-*"))


def _process() -> int:
    """The number of this process among those that torchrun started."""
    return int(os.environ.get("RANK", "0"))


def _processes() -> int:
    """How many processes torchrun started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _share(batch_size: int) -> int:
    """The rows of a batch that this process has."""
    if batch_size % _processes():
        raise ConfigError(
            f"[training] batch_size = {batch_size} cannot be shared by {_processes()} processes: "
            "make it a multiple."
        )
    return batch_size // _processes()
