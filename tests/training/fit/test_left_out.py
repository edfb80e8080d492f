"""Training from a checkpoint says what of it a recipe leaves out, and why."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Normalize, Pooling

from s2sent.model.network.encoder import build_encoder, build_prompt_encoder
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.recipe.objectives import PromptBERT
from s2sent.training.recipe.recipe import Recipe


def saved(folder: Path, backbone: Path, *behind: Any, limit: int = 32, **settings: Any) -> Path:
    transformer = Transformer(str(backbone))
    transformer.max_seq_length = limit
    modules = [transformer, *behind]
    SentenceTransformer(modules=modules, **settings).save(str(folder), create_model_card=False)
    return folder


def said(recipe: Recipe, folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    """What is logged when a new encoder is made from ``folder``."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "s2sent.training"):
        new_encoder(replace(recipe, backbone=replace(recipe.backbone, name=str(folder))))
    return caplog.text


def test_pooling_head_prompts_and_similarity_are_named_with_the_reason(
    recipe: Recipe, backbone: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = saved(
        tmp_path / "whole",
        backbone,
        Pooling(32, "cls"),
        LayerNorm(32),
        Dense(32, 16),
        Normalize(),
        prompts={"query": "query: ", "document": ""},
        default_prompt_name="query",
        similarity_fn_name="dot",
    )
    told = said(recipe, folder, caplog)
    assert f"{folder} is trained without its cls pooling" in told
    assert "([backbone] has pooling = 'mean': set pooling = 'cls' to keep it)" in told
    assert "its LayerNorm (a recipe trains what the backbone gives)" in told
    assert "its Dense 32 -> 16 (a recipe trains what the backbone gives)" in told
    assert "its prompts query (the default) (a recipe trains without prompts)" in told
    assert "its similarity dot (a recipe trains cosines)" in told
    cls = replace(recipe, backbone=replace(recipe.backbone, pooling="cls"))
    assert "its cls pooling" not in said(cls, folder, caplog)


def test_several_poolings_and_another_length_are_named(
    recipe: Recipe, backbone: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = saved(tmp_path / "two", backbone, Pooling(32, ("cls", "max")), limit=24)
    told = said(recipe, folder, caplog)
    assert "its cls and max pooling ([backbone] has pooling = 'mean')" in told
    assert "its max_seq_length 24 ([backbone] has 32)" in told


def test_a_selector_that_does_not_go_on_and_a_template_are_named(
    recipe: Recipe, backbone: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fused = tmp_path / "fused"
    build_encoder(backbone, SelectorConfig(width=32, reduction=4), max_seq_length=32).save(
        str(fused)
    )
    assert said(recipe, fused, caplog) == ""
    assert "without its selector (" in said(replace(recipe, selector=None), fused, caplog)
    assert "without its selector (" in said(
        replace(recipe, selector={"reduction": 8}), fused, caplog
    )
    prompt = tmp_path / "prompt"
    build_prompt_encoder(backbone, None, ['"{}" is [MASK].']).save(str(prompt))
    told = said(replace(recipe, selector=None), prompt, caplog)
    assert "its template (set template in [backbone] to keep it)" in told
    assert "its pooling of one token ([backbone] has pooling = 'mean')" in told
    again = replace(
        recipe,
        selector=None,
        objective=PromptBERT(),
        backbone=replace(recipe.backbone, pooling="mask"),
    )
    assert "its template" not in said(again, prompt, caplog)


def test_a_pooling_that_is_none_is_named_too(
    recipe: Recipe, backbone: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = saved(tmp_path / "odd", backbone, Pooling(32), Normalize())
    settings = folder / "1_Pooling/config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"pooling_mode": 0}))
    assert "its 0 pooling" in said(recipe, folder, caplog)


def test_a_backbone_and_a_checkpoint_that_are_kept_whole_say_nothing(
    recipe: Recipe, backbone: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = saved(tmp_path / "plain", backbone, Pooling(32), Normalize())
    for folder in (backbone, plain):
        assert said(recipe, folder, caplog) == ""
