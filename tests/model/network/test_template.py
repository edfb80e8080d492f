"""An encoder with a template: what a template makes of a text, and what a checkpoint keeps."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from torch import Tensor
from transformers import AutoTokenizer

from s2sent.model.network.encoder import (
    build_encoder,
    build_prompt_encoder,
    find_template,
    load_encoder,
)
from s2sent.model.network.loading.checkpoint import CheckpointError
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.template import TemplateError, parse_template
from s2sent.model.network.transformer import TemplateTransformer, view_tasks
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
from tests.support.tiny import tiny_backbone


def tokenizer_of(backbone: Path) -> Any:
    return AutoTokenizer.from_pretrained(backbone)  # type: ignore[no-untyped-call]  # transformers is partly typed


def pieces(encoder: Any, ids: Tensor) -> str:
    return " ".join(encoder.tokenizer.convert_ids_to_tokens(ids.tolist()))


@pytest.mark.parametrize(
    ("family", "before", "after"),
    [
        ("bert", '[CLS] t ##h ##i ##s s ##e ##n {} of "', '" m ##e ##a ##n ##s [MASK] . [SEP]'),
        ("roberta", '<s> t ##h ##i ##s s ##e ##n {} of "', '" m ##e ##a ##n ##s <mask> . </s>'),
    ],
)
def test_a_sentence_stands_inside_the_template(
    prompt_encoder_of: Callable[..., Any], family: str, before: str, after: str
) -> None:
    encoder = prompt_encoder_of(family)
    (ids,) = encoder.preprocess(["a dog eats"], task="view_1")["input_ids"]
    prefix = before.replace("{}", "##t ##e ##n ##c ##e").replace("t ##h ##i ##s", "this")
    assert pieces(encoder, ids) == f"{prefix} a dog eats {after}"


@families
def test_ids_are_those_of_the_text_written_out(
    prompt_backbones: dict[str, Path], family: str
) -> None:
    """Also where a space parts the sentence from the template."""
    tokenizer = tokenizer_of(prompt_backbones[family])
    for template in (*TEMPLATES, "The sentence : ' {} ' means [MASK].", "{} [MASK]"):
        ids = parse_template(template, tokenizer, "mask")
        text = template.format("a dog eats").replace("[MASK]", tokenizer.mask_token)
        sentence = tokenizer("a dog eats", add_special_tokens=False)["input_ids"]
        assert [*ids.prefix, *sentence, *ids.suffix] == tokenizer(text)["input_ids"]


def test_a_space_before_the_sentence_goes_to_its_first_token(
    prompt_backbones: dict[str, Path],
) -> None:
    """As byte-level vocabularies have it: the prefix alone would end in a lone space."""
    tokenizer = tokenizer_of(prompt_backbones["roberta"])
    assert parse_template("The sentence : ' {} ' means [MASK].", tokenizer, "mask").space == " "
    assert parse_template('The sentence : "{}" means [MASK].', tokenizer, "mask").space == ""


@families
def test_the_sentence_is_cut_and_the_template_is_whole(
    prompt_encoder_of: Callable[..., Any], family: str
) -> None:
    encoder = prompt_encoder_of(family, max_seq_length=32)
    template = encoder[0].template_ids[0]
    features = encoder.preprocess(["dog " * 33, "cat " * 32, "cat"], task="view_1")
    lengths = features["attention_mask"].sum(1) - template.length
    assert lengths.tolist() == [32, 32, 1]
    for row, mask in zip(features["input_ids"], features["attention_mask"], strict=True):
        ids = row[mask.bool()].tolist()
        assert ids[: len(template.prefix)] == list(template.prefix)
        assert ids[-len(template.suffix) :] == list(template.suffix)


@families
def test_a_sentence_is_cut_where_the_backbone_has_no_more_positions(
    prompt_encoder_of: Callable[..., Any], family: str
) -> None:
    encoder = prompt_encoder_of(family, max_seq_length=1000)
    positions = 130 - first_position(family)  # what tiny_backbone gives
    assert encoder.preprocess(["dog " * 500])["input_ids"].shape == (1, positions)
    assert np.isfinite(encoder.encode("dog " * 500)).all()


@families
@selectors
def test_the_vector_is_the_one_at_the_mask(
    prompt_encoder_of: Callable[..., Any], family: str, selector: SelectorConfig | None
) -> None:
    encoder = prompt_encoder_of(family, selector)
    (ids,) = encoder.preprocess([TEXTS[0]])["input_ids"].tolist()
    start = first_position(family)
    expected = by_hand(encoder, ids, list(range(start, start + len(ids))))
    np.testing.assert_allclose(encoder.encode(TEXTS[0]), expected.numpy(), atol=TOLERANCE)


def test_mean_pooling_counts_the_template_too(prompt_encoder_of: Callable[..., Any]) -> None:
    encoder = prompt_encoder_of("bert", pooling="mean")
    features = encoder.preprocess(TEXTS[:1])
    with torch.no_grad():
        states = encoder[0].auto_model(input_ids=features["input_ids"]).last_hidden_state
    expected = states[0].mean(0).numpy()
    np.testing.assert_allclose(encoder.encode(TEXTS[0]), expected, atol=TOLERANCE)


def test_special_tokens_that_a_sentence_spells_out_are_text(
    prompt_encoder_of: Callable[..., Any],
) -> None:
    """Else a row had two masks."""
    encoder = prompt_encoder_of("bert")
    (ids,) = encoder.preprocess(["a [MASK] [SEP]"], task="view_1")["input_ids"]
    assert pieces(encoder, ids).count("[MASK]") == 1
    assert pieces(encoder, ids).count("[SEP]") == 1
    assert np.isfinite(encoder.encode("a [MASK] [SEP]")).all()


def test_features_that_do_not_say_which_token_is_read_are_refused(
    prompt_encoder_of: Callable[..., Any],
) -> None:
    encoder = prompt_encoder_of("bert")
    features = encoder.preprocess(TEXTS[:3])
    del features["read_positions"]
    with pytest.raises(ValueError, match="have no read_positions.*behind a TemplateTransformer"):
        encoder(features)


@pytest.mark.parametrize("end", [".", "?", '"', "'"])
def test_evaluation_ends_a_sentence_with_a_full_stop_where_it_has_no_end(
    prompt_encoder_of: Callable[..., Any], end: str
) -> None:
    encoder = prompt_encoder_of("bert")
    without, stopped, ended = encoder.preprocess(["a dog", "a dog.", f"a dog{end}"])["input_ids"]
    assert pieces(encoder, without) == pieces(encoder, stopped)
    assert pieces(encoder, ended).count("a dog " + end) == 1
    assert len(ended) == len(stopped)  # nothing was added


def test_training_and_the_option_leave_the_sentence_as_it_is(
    prompt_encoder_of: Callable[..., Any],
) -> None:
    encoder = prompt_encoder_of("bert")
    plain = prompt_encoder_of("bert", clean_up="none")
    trained = encoder.preprocess(["a dog"], task="view_1")["input_ids"]
    assert torch.equal(trained, plain.preprocess(["a dog"])["input_ids"])
    assert trained.shape[1] + 1 == encoder.preprocess(["a dog"])["input_ids"].shape[1]


def test_training_reads_two_templates_and_evaluation_the_first(
    prompt_encoder_of: Callable[..., Any],
) -> None:
    encoder = prompt_encoder_of("bert", clean_up="none")
    first, second = (view["input_ids"] for view in views(encoder, TEXTS))
    assert torch.equal(encoder.preprocess(TEXTS)["input_ids"], first)
    assert " of " in pieces(encoder, first[0])
    assert " : " in pieces(encoder, second[0])
    assert view_tasks(["a", "b", "negative"]) == {
        "a": "view_1",
        "b": "view_2",
        "negative": "view_2",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [({"task": "view"}, "the task is 'view'"), ({"prompt": "query: "}, "has no place")],
)
def test_what_a_template_cannot_do_is_refused(
    prompt_encoder_of: Callable[..., Any], options: dict[str, str], message: str
) -> None:
    encoder = prompt_encoder_of("bert")
    with pytest.raises(ValueError, match=message):
        encoder.preprocess(["a dog"], **options)
    with pytest.raises(ValueError, match="a template takes one text"):
        encoder.preprocess([("a dog", "a cat")])


@families
def test_the_template_alone_stands_where_it_stands_around_a_sentence(
    prompt_encoder_of: Callable[..., Any], family: str
) -> None:
    """Positions that the backbone itself gives to the tokens of a whole text."""
    encoder = prompt_encoder_of(family)
    template = encoder[0].template_ids[0]
    features = encoder.preprocess(["a dog eats"], task="view_1")
    seen: list[Tensor] = []
    table = encoder[0].auto_model.embeddings.position_embeddings
    handle = table.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0]))
    with torch.no_grad():
        encoder(features)
        encoder(encoder[0].alone(template, torch.tensor([3]), encoder[0].first_position))
    handle.remove()
    whole, alone = (positions.flatten().tolist() for positions in seen)
    before = len(template.prefix)
    assert alone == whole[:before] + whole[before + 3 :]


def test_a_backbone_without_a_mask_token_is_refused_by_name(tmp_path: Path) -> None:
    backbone = tiny_backbone(tmp_path / "maskless")
    tokenizer = tokenizer_of(backbone)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(backbone)
    with pytest.raises(TemplateError, match=f"{backbone} has no mask token.*: choose"):
        build_prompt_encoder(backbone, None, TEMPLATES)


@pytest.mark.parametrize("template", ["{} means", "[MASK]", "{} {} [MASK]", "[MASK] {} [MASK]"])
def test_a_template_without_one_sentence_and_one_mask_is_refused(
    prompt_backbones: dict[str, Path], template: str
) -> None:
    templates = [template, TEMPLATES[1]]
    with pytest.raises(TemplateError, match="must have one {} for the sentence"):
        build_prompt_encoder(prompt_backbones["bert"], None, templates)


def test_a_selector_of_another_width_is_refused(prompt_encoder_of: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="set width=32"):
        prompt_encoder_of("bert", SelectorConfig(width=48))


@pytest.mark.parametrize(
    ("family", "selector", "pooling"),
    [("bert", SELECTOR, "mask"), ("roberta", SELECTOR, "mean"), ("roberta", None, "mask")],
)
def test_a_checkpoint_gives_the_same_vectors(
    prompt_encoder_of: Callable[..., Any],
    tmp_path: Path,
    family: str,
    selector: SelectorConfig | None,
    pooling: str,
) -> None:
    """Through `load_encoder`, and through the class with which the trainer reloads."""
    encoder = prompt_encoder_of(family, selector, pooling=pooling, max_seq_length=20)
    encoder.save(str(tmp_path), create_model_card=False)
    expected = encoder.encode(TEXTS)
    np.testing.assert_array_equal(load_encoder(tmp_path).encode(TEXTS), expected)
    reloaded = SentenceTransformer(str(tmp_path), trust_remote_code=True)
    np.testing.assert_array_equal(reloaded.encode(TEXTS), expected)


def test_a_checkpoint_keeps_templates_full_stop_and_length(
    prompt_backbones: dict[str, Path], tmp_path: Path
) -> None:
    templates = ["{} : [MASK]", "[MASK] is {}"]
    encoder = build_prompt_encoder(
        prompt_backbones["bert"], None, templates, max_seq_length=20, clean_up="none"
    )
    encoder.save(str(tmp_path), create_model_card=False)
    transformer = load_encoder(tmp_path)[0]
    assert isinstance(transformer, TemplateTransformer)
    assert transformer.templates == templates
    assert transformer.max_seq_length == 20
    assert transformer.clean_up == "none"


def rewrite(file: Path, changes: dict[str, Any]) -> None:
    """Change values of a JSON file; None removes one."""
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def test_checkpoints_with_and_without_templates_are_told_apart(
    prompt_backbones: dict[str, Path], prompt_encoder_of: Callable[..., Any], tmp_path: Path
) -> None:
    prompt, plain = tmp_path / "prompt", tmp_path / "plain"
    prompt_encoder_of("bert", SELECTOR).save(str(prompt), create_model_card=False)
    build_encoder(prompt_backbones["bert"], SELECTOR).save(str(plain), create_model_card=False)
    assert find_template(load_encoder(prompt)) == prompt_encoder_of("bert")[0].template
    assert find_template(load_encoder(plain)) is None
    with pytest.raises(CheckpointError, match=r"modules\.json cannot be read"):
        load_encoder(tmp_path)


def test_a_token_that_no_template_reads_is_refused(
    prompt_encoder_of: Callable[..., Any], tmp_path: Path
) -> None:
    prompt_encoder_of("bert").save(str(tmp_path), create_model_card=False)
    rewrite(tmp_path / "sentence_bert_config.json", {"read": "none"})
    with pytest.raises(CheckpointError, match="pools the token that a template reads"):
        load_encoder(tmp_path)


@families
@selectors
def test_a_vector_does_not_depend_on_its_batch(
    prompt_encoder_of: Callable[..., Any], family: str, selector: SelectorConfig | None
) -> None:
    encoder = prompt_encoder_of(family, selector)
    together = encoder.encode(TEXTS)
    alone = np.stack([encoder.encode(text) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=TOLERANCE)
    np.testing.assert_allclose(encoder.encode(TEXTS[::-1])[::-1], together, atol=TOLERANCE)


def test_templates_share_the_backbone_they_are_built_from(
    prompt_backbones: dict[str, Path],
) -> None:
    transformer = Transformer.load(str(prompt_backbones["bert"]))
    wrapped = TemplateTransformer.from_transformer(transformer, TEMPLATES)
    assert wrapped.auto_model is transformer.auto_model
