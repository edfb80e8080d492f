"""PromptBERT's loss: what is taken off a template's vector, and how two templates are compared.

The paper's 67.85 for untrained BERT behind the template needs bert-base-uncased: name its folder in
BERT_BASE to check it.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.modules import Normalize

from s2sent.model.network.encoder import build_encoder, build_prompt_encoder, find_selector
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.transformer import view_tasks
from s2sent.training.errors import EncoderError
from s2sent.training.evaluation.encoders import torch_encode
from s2sent.training.evaluation.sts import average, score
from s2sent.training.objectives.prompt import TemplateDenoisingLoss
from tests.support.prompt_encoders import (
    SELECTOR,
    TEMPLATES,
    TEXTS,
    TOLERANCE,
    by_hand,
    families,
    first_position,
    selectors,
    views,
)

REAL = Path(__file__).parents[4] / "shared" / "data" / "sts"


@families
@selectors
def test_what_is_taken_off_is_the_template_alone_at_shifted_positions(
    prompt_encoder_of: Callable[..., Any],
    family: str,
    selector: SelectorConfig | None,
) -> None:
    encoder = prompt_encoder_of(family, selector)
    loss = TemplateDenoisingLoss(encoder)
    start = first_position(family)
    lengths = [7, 0, 3, 7]
    for template in loss.templates:
        ids, before = [*template.prefix, *template.suffix], len(template.prefix)
        expected = [
            by_hand(
                encoder,
                ids,
                [start + place + (length if place >= before else 0) for place in range(len(ids))],
            )
            for length in lengths
        ]
        with torch.no_grad():
            found = loss.template_part(template, torch.tensor(lengths))
        torch.testing.assert_close(found, torch.stack(expected), atol=TOLERANCE, rtol=0)


@families
def test_one_length_is_embedded_once(prompt_encoder_of: Callable[..., Any], family: str) -> None:
    encoder = prompt_encoder_of(family)
    loss = TemplateDenoisingLoss(encoder)
    sizes: list[int] = []
    handle = encoder[0].register_forward_hook(
        lambda _module, _inputs, features: sizes.append(len(features["input_ids"]))
    )
    loss(views(encoder, ["a dog", "a cat", "the red car"]), torch.empty(0))
    handle.remove()
    assert sizes == [3, 2, 3, 2]


@families
@selectors
def test_the_loss_is_the_one_computed_by_hand(
    prompt_encoder_of: Callable[..., Any], family: str, selector: SelectorConfig | None
) -> None:
    """InfoNCE of tanh(W (h - d) + b) between the templates, without dropout."""
    encoder = prompt_encoder_of(family, selector)
    loss = TemplateDenoisingLoss(encoder, temperature=0.1)
    columns = views(encoder, TEXTS)
    start, embedded = first_position(family), []
    for template, column in zip(loss.templates, columns, strict=True):
        rows = []
        for row, mask in zip(column["input_ids"], column["attention_mask"], strict=True):
            ids = row[mask.bool()].tolist()
            places = list(range(start, start + len(ids)))
            before, after = len(template.prefix), len(ids) - len(template.suffix)
            kept = [*range(before), *range(after, len(ids))]
            alone = by_hand(encoder, [ids[at] for at in kept], [places[at] for at in kept])
            rows.append((by_hand(encoder, ids, places) - alone).numpy().astype(np.float64))
        embedded.append(np.stack(rows))
    weight, bias = (value.detach().numpy() for value in loss.projection.parameters())
    first, second = (np.tanh(rows @ weight.T + bias) for rows in embedded)
    first, second = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (first, second))
    logits = first @ second.T / 0.1
    expected = (np.log(np.exp(logits).sum(1)) - logits.diagonal()).mean()
    assert loss(columns, torch.empty(0)).item() == pytest.approx(expected, abs=1e-4)


def test_without_denoising_and_projection_the_plain_vectors_are_compared(
    prompt_encoder_of: Callable[..., Any],
) -> None:
    encoder = prompt_encoder_of("bert")
    loss = TemplateDenoisingLoss(encoder, denoising=False, projection=False)
    columns = views(encoder, TEXTS)
    with torch.no_grad():
        vectors = [encoder(dict(column))["sentence_embedding"] for column in columns]
        expected = loss.contrast.compute_loss_from_embeddings(vectors, torch.empty(0))
    torch.testing.assert_close(loss(columns, torch.empty(0)), expected)


def test_what_is_taken_off_passes_gradient_to_backbone_and_selector(
    prompt_encoder_of: Callable[..., Any],
) -> None:
    encoder = prompt_encoder_of("bert", SELECTOR)
    loss = TemplateDenoisingLoss(encoder)
    part = loss.template_part(loss.templates[0], torch.tensor([2, 5]))
    part.square().sum().backward()  # type: ignore[no-untyped-call]  # torch is partly typed
    layers = encoder[0].auto_model.encoder.layer
    for parameter in (layers[0].attention.self.query.weight, *find_selector(encoder).parameters()):  # type: ignore[union-attr]  # it has one
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0


def test_columns_with_one_template_are_refused(prompt_encoder_of: Callable[..., Any]) -> None:
    encoder = prompt_encoder_of("bert")
    loss = TemplateDenoisingLoss(encoder)
    with pytest.raises(ValueError, match="router_mapping"):
        loss([encoder.preprocess(TEXTS), encoder.preprocess(TEXTS)], torch.empty(0))


def test_pipelines_that_cannot_be_denoised_are_refused(
    prompt_backbones: dict[str, Path], prompt_encoder_of: Callable[..., Any]
) -> None:
    with pytest.raises(TypeError, match="has no template"):
        TemplateDenoisingLoss(build_encoder(prompt_backbones["bert"], SELECTOR))
    normalised = build_prompt_encoder(prompt_backbones["bert"], None, TEMPLATES)
    normalised.append(Normalize())
    with pytest.raises(ValueError, match="ends in Normalize"):
        TemplateDenoisingLoss(normalised)
    without_positions = prompt_encoder_of("distilbert")
    with pytest.raises(EncoderError, match="distilbert takes no position ids"):
        TemplateDenoisingLoss(without_positions)
    TemplateDenoisingLoss(without_positions, denoising=False)


def test_the_stock_trainer_trains_it(prompt_backbones: dict[str, Path], tmp_path: Path) -> None:
    """Columns meet their templates, and the loss's own projection learns too."""
    encoder: Any = build_prompt_encoder(
        prompt_backbones["bert"], SELECTOR, TEMPLATES, max_seq_length=32
    )
    loss = TemplateDenoisingLoss(encoder)
    watched = [loss.projection[0].weight, encoder[0].auto_model.embeddings.word_embeddings.weight]  # type: ignore[index]  # a Sequential
    before = [parameter.detach().clone() for parameter in watched]
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path),
        max_steps=3,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        router_mapping=view_tasks(["text", "again"]),
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = SentenceTransformerTrainer(
        model=encoder,
        args=arguments,
        train_dataset=Dataset.from_dict({"text": TEXTS * 3, "again": TEXTS * 3}),
        loss=loss,
    )
    assert np.isfinite(trainer.train().training_loss)
    assert not any(torch.equal(a, b) for a, b in zip(before, watched, strict=True))


@pytest.mark.skipif("BERT_BASE" not in os.environ, reason="BERT_BASE names no bert-base-uncased")
@pytest.mark.skipif(not REAL.is_dir(), reason="the shared data folder is not here")
@pytest.mark.timeout(3600)
def test_untrained_bert_behind_the_template_scores_the_papers_row() -> None:
    encoder = build_prompt_encoder(os.environ["BERT_BASE"], None, TEMPLATES)
    assert average(score(torch_encode(encoder), REAL)) == pytest.approx(67.85, abs=0.1)
