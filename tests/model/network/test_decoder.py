"""Causal language models as encoders: which token is read, and that it sees nothing behind it."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from s2sent.model.network.encoder import (
    build_prompt_encoder,
    find_template,
    get_selector,
    load_encoder,
)
from s2sent.model.network.pooled import PooledEncoder
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.template import TemplateError
from s2sent.model.network.transformer import padding_id
from tests.support.tiny import DECODERS, tiny_backbone, tiny_decoder

TEMPLATE = 'This sentence : "{}" means in one word:"[REP1], it can be summarized as:"'
TEXTS = ["A man plays the guitar.", "no", "Two dogs run in the street, and a cat eats.", "three"]
TOLERANCE = 1e-5  # what fp32 kernels may differ by between batch shapes
SCOPES: dict[str, dict[str, Any]] = {
    "token": {"num_frequencies": 2},
    "prefix": {},
    "all": {},
}


def selector(scope: str = "token", **options: Any) -> SelectorConfig:
    chosen = SCOPES[scope] | {"squeeze_scope": scope, "input_norm": "rms", "reduction": 2}
    return SelectorConfig(width=32, **chosen | options)


@pytest.fixture(scope="module")
def backbones(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("decoders")
    made = {family: tiny_decoder(folder / family, family) for family in DECODERS}
    return made | {"bert": tiny_backbone(folder / "bert")}


@pytest.fixture(scope="module")
def encoder_of(backbones: dict[str, Path]) -> Callable[..., Any]:
    """Encoders by family and options, built once: a test leaves them as they are."""

    @cache
    def build(
        family: str = "llama",
        config: SelectorConfig | None = None,
        template: str = TEMPLATE,
        **options: Any,
    ) -> Any:
        torch.manual_seed(0)
        chosen = {"pooling": "last_token", "clean_up": "none", **options}
        encoder = build_prompt_encoder(backbones[family], config, [template], **chosen)
        if config:
            for parameter in get_selector(encoder).parameters():
                torch.nn.init.normal_(parameter, std=0.5)  # the gate depends on its input
        return encoder

    return build


families = pytest.mark.parametrize("family", DECODERS)
scopes = pytest.mark.parametrize("scope", SCOPES)


@families
def test_the_vector_is_the_state_of_the_token_that_is_read(
    encoder_of: Callable[..., Any], backbones: dict[str, Path], family: str
) -> None:
    """By hand, on the text written out; Rep1 ends the first stage, the last token the second."""
    tokenizer = AutoTokenizer.from_pretrained(backbones[family])  # type: ignore[no-untyped-call]  # transformers is partly typed
    parts = [*TEMPLATE.replace("{}", "\0no\0").replace("[REP1]", "\0").split("\0")]
    ids = [tokenizer(part)["input_ids"] for part in parts]
    backbone = encoder_of(family)[0].auto_model
    with torch.no_grad():
        states = backbone(torch.tensor([sum(ids, [])])).last_hidden_state[0]
    rep1 = len(ids[0]) + len(ids[1]) + len(ids[2]) - 1
    for pooling, place in (("last_token", -1), ("rep1", rep1)):
        found = encoder_of(family, pooling=pooling).encode("no")
        np.testing.assert_allclose(found, states[place].numpy(), atol=TOLERANCE)
    mean = encoder_of(family, pooling="mean").encode("no")
    np.testing.assert_allclose(mean, states.mean(0).numpy(), atol=TOLERANCE)


@families
@scopes
def test_a_vector_does_not_depend_on_its_batch(
    encoder_of: Callable[..., Any], family: str, scope: str
) -> None:
    encoder = encoder_of(family, selector(scope))
    together = encoder.encode(TEXTS)
    alone = np.stack([encoder.encode(text) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=TOLERANCE)


@pytest.mark.parametrize("scope", ["token", "prefix"])
@pytest.mark.parametrize("input_norm", ["none", "rms", "length"])
def test_rep1_never_sees_what_stands_behind_it(
    encoder_of: Callable[..., Any], scope: str, input_norm: str
) -> None:
    """Another suffix changes no bit of Rep1 in the forward of both; a squeeze over all would."""
    config = selector(scope, input_norm=input_norm)
    assert torch.equal(*(rep1_in_training(encoder_of, config, end) for end in (" as:", " of a")))
    leaky = selector("all", input_norm=input_norm)
    assert not torch.equal(*(rep1_in_training(encoder_of, leaky, end) for end in (" as:", " of a")))


def rep1_in_training(
    encoder_of: Callable[..., Any], config: SelectorConfig, end: str
) -> torch.Tensor:
    template = f'"{{}}" means:"[REP1] so{end}'
    encoder = encoder_of(config=config, template=template, pooling="rep1")
    features = encoder.preprocess(TEXTS, task="view_1")
    assert features["input_ids"].shape[1] > encoder.preprocess(TEXTS)["input_ids"].shape[1]
    with torch.no_grad():
        vectors: torch.Tensor = encoder(features)["sentence_embedding"]
    return vectors


def test_rep1_is_embedded_without_the_second_stage(encoder_of: Callable[..., Any]) -> None:
    encoder = encoder_of(config=selector("prefix"), pooling="rep1")
    template = find_template(encoder)
    assert template is not None
    assert template.read == -1
    assert template.length < encoder[0].template_ids[0].length
    with torch.no_grad():
        trained = encoder(encoder.preprocess(TEXTS, task="view_1"))["sentence_embedding"]
    np.testing.assert_allclose(encoder.encode(TEXTS), trained.numpy(), atol=TOLERANCE)


@pytest.mark.parametrize("norm", ["rms", "length"])
def test_each_token_is_scaled_before_the_blocks_are_fused(
    encoder_of: Callable[..., Any], norm: str
) -> None:
    options: dict[str, Any] = {"input_norm": norm, "spatial_selection": "avg"}
    config = SelectorConfig(width=32, **options)
    encoder = encoder_of(config=config)
    with torch.no_grad():
        features = encoder[0](encoder.preprocess(["no"]))
    blocks = [state[0, -1] for state in features["all_layer_embeddings"][-3:]]
    size = [block.norm() / (32**0.5 if norm == "rms" else 1) for block in blocks]
    expected = sum(block / length for block, length in zip(blocks, size, strict=True)) / 3
    np.testing.assert_allclose(encoder.encode("no"), expected.numpy(), atol=TOLERANCE)


@scopes
@pytest.mark.parametrize("pooling", ["last_token", "rep1", "mean"])
def test_pooling_before_fusing_gives_the_same(
    encoder_of: Callable[..., Any], scope: str, pooling: str
) -> None:
    """`PooledEncoder`, which is exported, on rows that the template's tokens are in."""
    if pooling == "mean" and scope != "all":
        pytest.skip("no token is read")
    encoder = encoder_of(config=selector(scope), pooling=pooling)
    features = encoder.preprocess(TEXTS)
    with torch.no_grad():
        found, *_ = PooledEncoder(encoder)(features["input_ids"], features["attention_mask"])
    np.testing.assert_allclose(found.numpy(), encoder.encode(TEXTS), atol=TOLERANCE)


@families
def test_a_checkpoint_gives_the_same_vectors(
    encoder_of: Callable[..., Any], tmp_path: Path, family: str
) -> None:
    encoder = encoder_of(family, selector("prefix"), pooling="rep1", clean_up="statement")
    encoder.save(str(tmp_path), create_model_card=False)
    loaded = load_encoder(tmp_path)
    np.testing.assert_array_equal(loaded.encode(TEXTS), encoder.encode(TEXTS))
    assert find_template(loaded) == find_template(encoder)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ('He said "no"', "He said 'no'"),
        ("Why not?", "Why not."),
        ("three dogs ", "three dogs."),
        ("Yes.", "Yes."),
        ("", ""),
    ],
)
def test_sentences_are_cleaned_up_at_inference_only(
    encoder_of: Callable[..., Any], text: str, cleaned: str
) -> None:
    plain, cleaning = encoder_of(), encoder_of(clean_up="statement")
    ids = [encoder.preprocess([text])["input_ids"] for encoder in (plain, cleaning)]
    assert torch.equal(ids[1], plain.preprocess([cleaned])["input_ids"])
    assert torch.equal(cleaning.preprocess([text], task="view_1")["input_ids"], ids[0])


def test_rows_are_padded_on_the_right_whatever_the_tokenizer_says(
    encoder_of: Callable[..., Any],
) -> None:
    """The tiny tokenizers pad on the left and have no padding token, so the end token fills up."""
    encoder = encoder_of()
    features = encoder.preprocess(TEXTS)
    lengths = features["attention_mask"].sum(1)
    assert (features["attention_mask"].diff(dim=1) <= 0).all()
    assert torch.equal(features["read_positions"], lengths - 1)
    assert features["position_ids"][0].tolist() == [*range(int(lengths.max()))]
    assert encoder.tokenizer.padding_side == "right"
    assert features["input_ids"][1, -1] == encoder.tokenizer.eos_token_id


def test_a_tokenizer_with_nothing_to_pad_with_is_refused(backbones: dict[str, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(backbones["gpt2"])  # type: ignore[no-untyped-call]  # transformers is partly typed
    tokenizer.eos_token = None
    with pytest.raises(TemplateError, match="neither a padding nor an end token.*set pad_token"):
        padding_id(tokenizer)


@pytest.mark.parametrize(
    ("family", "template", "options", "message"),
    [
        ("llama", "means[REP1] so", {}, "must have one {} for the sentence: correct it"),
        ("llama", "{} means {} so", {}, "must have one {} for the sentence: correct it"),
        ("llama", "[REP1] {} so", {}, r"must have \[REP1\] once, behind {}.*: correct it"),
        ("llama", "{} so", {"pooling": "rep1"}, r"must have \[REP1\] where rep1 ends: add it"),
        ("llama", "{} [MASK]", {"pooling": "mask"}, "has no mask token.*choose a backbone"),
        ("llama", "word " * 99 + "{}", {}, "of the 128 tokens.*leaves no room for a sentence"),
        ("bert", TEMPLATE, {}, "whose tokens see both sides.*choose a causal model"),
        ("llama", TEMPLATE, {"clean_up": "all"}, "clean_up is 'all': choose one of none"),
    ],
)
def test_what_cannot_be_read_is_refused(
    encoder_of: Callable[..., Any],
    family: str,
    template: str,
    options: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(TemplateError, match=message):
        encoder_of(family, template=template, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"squeeze_scope": "prefix", "mask": "none"}, "leave out squeeze_scope='prefix'"),
        ({"squeeze_scope": "token"}, "has only the 3 frequencies of its blocks: choose fewer"),
    ],
)
def test_a_scope_that_cannot_be_squeezed_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SelectorConfig(width=32, **options)
