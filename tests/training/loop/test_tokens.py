"""A text is tokenised once a run, and its batches are those that the encoder makes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.data_collator import BaseDataCollator

from s2sent.model.network.encoder import build_plain_encoder, build_prompt_encoder
from s2sent.model.network.transformer import VIEWS
from s2sent.training.corpus import read_corpus
from s2sent.training.fit.train import train
from s2sent.training.loop import tokens
from s2sent.training.loop.tokens import TokenisedTexts
from s2sent.training.loop.trainer import Trainer
from s2sent.training.recipe.objectives import PromptBERT
from s2sent.training.recipe.recipe import Recipe
from tests.support.folder_contents import contents
from tests.support.tiny import tiny_backbone, tiny_decoder
from tests.support.tiny_data import SENTENCES
from tests.support.tiny_recipes import QUICK, with_objective

TEXTS: list[Any] = ["a", "the old bird sings.", "a dog", SENTENCES[4], "x" * 90, "a dog"]


def assert_same_features(encoder: SentenceTransformer, task: str | None = None) -> None:
    known = TokenisedTexts(encoder.preprocess)
    for texts in (TEXTS[:3], TEXTS[2:], TEXTS[:1]):
        expected, found = encoder.preprocess(texts, task=task), known(texts, task=task)
        assert {*expected} == {*found}
        read = expected["attention_mask"].bool()
        for name, value in expected.items():
            if not isinstance(value, torch.Tensor):
                assert found[name] == value
            elif name == "position_ids":
                assert torch.equal(found[name][read], value[read])
            else:
                assert torch.equal(found[name], value), name
                assert found[name].dtype == value.dtype


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "electra"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_features_are_those_of_the_encoder(tmp_path: Path, family: str, side: str) -> None:
    encoder = build_plain_encoder(tiny_backbone(tmp_path / family, family), max_seq_length=12)
    encoder.tokenizer.padding_side = side
    assert_same_features(encoder)


@pytest.mark.parametrize("task", VIEWS)
def test_so_are_those_in_a_template(tmp_path: Path, task: str) -> None:
    templates = PromptBERT().templates
    folder = tiny_backbone(tmp_path / "bert")
    encoder = build_prompt_encoder(folder, None, templates, max_seq_length=12)
    assert_same_features(encoder, task)


def test_so_are_those_of_a_decoder(tmp_path: Path) -> None:
    folder = tiny_decoder(tmp_path / "llama")
    encoder = build_prompt_encoder(
        folder, None, ["This sentence: {} means"], pooling="last_token", max_seq_length=12
    )
    assert_same_features(encoder, VIEWS[0])


def test_an_encoder_without_a_mask_is_asked_for_every_batch() -> None:
    def preprocess(texts: Sequence[str], **_: Any) -> dict[str, Any]:
        return {"input_ids": torch.tensor([len(text) for text in texts])}

    known = TokenisedTexts(preprocess)
    known.read_ahead(["abc"])
    assert known(["abc"])["input_ids"].tolist() == [3]


def test_a_prompt_is_read_with_the_texts(tmp_path: Path) -> None:
    encoder = build_plain_encoder(tiny_backbone(tmp_path / "bert"), max_seq_length=12)
    found = TokenisedTexts(encoder.preprocess)(TEXTS[:2], prompt="a man: ")
    assert torch.equal(
        found["input_ids"], encoder.preprocess(TEXTS[:2], prompt="a man: ")["input_ids"]
    )


@pytest.mark.parametrize("steps", [0, 1, 30])
def test_no_text_is_tokenised_twice(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """In both columns, in every epoch; ahead of a run that reads all of them, else as needed."""
    seen: list[str] = []
    init = TokenisedTexts.__init__

    def watched(self: TokenisedTexts, preprocess: tokens.Preprocess) -> None:
        def seeing(texts: list[str], **options: Any) -> dict[str, Any]:
            seen.extend(texts)
            return preprocess(texts, **options)

        init(self, seeing)

    monkeypatch.setattr(TokenisedTexts, "__init__", watched)
    recipe = replace(recipe, training=replace(QUICK, steps=steps, eval_every=100))
    train(recipe, data, tmp_path / "out")
    texts = read_corpus(data / "corpus", recipe.corpus, kind="texts").texts()
    read = [text for text in seen if text not in tokens.PROBES]
    assert len(read) == len({*read})
    assert {*read} <= {*texts}
    ahead = 2 * QUICK.batch_size  # the library takes a batch before it is needed
    assert len(read) == (len(texts) if steps != 1 else ahead)


@pytest.mark.parametrize("objective", [None, PromptBERT()])
def test_a_run_is_what_it_is_when_every_batch_is_tokenised(
    recipe: Recipe, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: Any
) -> None:
    """Byte for byte."""
    recipe = with_objective(recipe, objective) if objective else recipe
    train(recipe, data, tmp_path / "once")

    def every_batch(self: Trainer, model: Any, args: Any, processing_class: Any = None) -> Any:
        return BaseDataCollator(model.preprocess, router_mapping=args.router_mapping)

    monkeypatch.setattr(Trainer, "get_data_collator", every_batch)
    monkeypatch.setattr("s2sent.training.recipe.recipe.TrainingConfig.reads_all", lambda *_: False)
    train(recipe, data, tmp_path / "again")
    assert contents(tmp_path / "once") == contents(tmp_path / "again")
