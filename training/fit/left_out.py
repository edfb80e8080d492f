"""Says what a recipe leaves out of the checkpoint that it starts from, and why.

A recipe trains a backbone: what stands behind it, before it and around it is the recipe's own.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sentence_transformers.base.modules.module import Module
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from s2sent.model.network.loading.backbone_settings import SETTINGS_FILES
from s2sent.model.network.loading.bare import MODULES_FILE
from s2sent.model.network.loading.checkpoint import (
    HEAD,
    CheckpointError,
    read_json,
    read_modules,
    read_settings,
)
from s2sent.model.network.selector import S2SentSelector
from s2sent.model.network.transformer import TemplateTransformer, TokenPooling
from s2sent.training.recipe.objectives import JTCSE, PromptBERT
from s2sent.training.recipe.recipe import Recipe

NO_LIMIT = 10**6  # tokens: a tokenizer without a limit has 10**30


def left_out(folder: Path, recipe: Recipe, *, selector_goes_on: bool) -> list[str]:
    """What of the checkpoint in ``folder`` a new encoder has not, each with the reason.

    Empty for a backbone alone, and for the towers of JTCSE, which stay as they are.
    """
    if isinstance(recipe.objective, JTCSE) or not (folder / MODULES_FILE).is_file():
        return []
    try:
        modules = read_modules(folder)
    except CheckpointError as error:
        return [f"everything but its transformer ({str(error).rstrip('.')})"]
    return [
        *_modules(folder, modules, recipe, selector_goes_on=selector_goes_on),
        *_settings(folder, recipe),
    ]


def _modules(
    folder: Path,
    modules: list[tuple[type[Module], str]],
    recipe: Recipe,
    *,
    selector_goes_on: bool,
) -> Iterator[str]:
    own = recipe.backbone.pooling
    for kind, path in modules:
        if kind is S2SentSelector and not selector_goes_on:
            yield "its selector ([selector] is another one, starts anew, or is not there)"
        templated = recipe.backbone.template or isinstance(recipe.objective, PromptBERT)
        if kind is TemplateTransformer and not templated:
            yield "its template (set template in [backbone] to keep it)"
        if kind is TokenPooling and own in ("mean", "cls"):
            yield f"its pooling of one token ([backbone] has pooling = '{own}')"
        if kind is Pooling and (modes := _pooling(folder, path)) != (own,):
            keep = f": set pooling = '{modes[0]}' to keep it" if modes == ("cls",) else ""
            yield f"its {' and '.join(modes)} pooling ([backbone] has pooling = '{own}'{keep})"
        if kind in HEAD and kind is not Normalize:
            yield f"its {_shape(folder, kind, path)} (a recipe trains what the backbone gives)"


def _settings(folder: Path, recipe: Recipe) -> Iterator[str]:
    settings = read_settings(folder)
    default = settings.get("default_prompt_name")
    prompts = {name: text for name, text in settings["prompts"].items() if text} if settings else {}
    if prompts:
        names = ", ".join(f"{name}{' (the default)' * (name == default)}" for name in prompts)
        yield f"its prompts {names} (a recipe trains without prompts)"
    if (similarity := settings.get("similarity_fn_name")) not in (None, "cosine"):
        yield f"its similarity {similarity} (a recipe trains cosines)"
    limit = _max_seq_length(folder)
    if limit not in (None, recipe.backbone.max_seq_length):
        yield f"its max_seq_length {limit} ([backbone] has {recipe.backbone.max_seq_length})"


def _pooling(folder: Path, path: str) -> tuple[str, ...]:
    modes = Pooling.load_config(str(folder), subfolder=path).get("pooling_mode", "mean")
    return tuple(map(str, modes if isinstance(modes, (list, tuple)) else [modes]))


def _shape(folder: Path, kind: type[Module], path: str) -> str:
    settings = read_json(folder / path / "config.json")
    sizes = [str(settings[key]) for key in ("in_features", "out_features") if key in settings]
    return f"{kind.__name__} {' -> '.join(sizes)}".strip()


def _max_seq_length(folder: Path) -> Any:
    """The tokens that the checkpoint reads, from the first of its files that says so."""
    names = [(name, "max_seq_length") for name in SETTINGS_FILES]
    for name, key in (*names, ("tokenizer_config.json", "model_max_length")):
        settings = read_json(folder / name) if (folder / name).is_file() else None
        limit = settings.get(key) if isinstance(settings, dict) else None
        if isinstance(limit, int) and limit < NO_LIMIT:
            return limit
    return None
