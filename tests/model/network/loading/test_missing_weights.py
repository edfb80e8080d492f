"""A weight that a checkpoint lacks is refused by name, in place of one that is random."""

import json
import logging
import re
import shutil
from collections.abc import Callable
from logging.handlers import BufferingHandler
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling

from s2sent.model.network.encoder import (
    build_encoder,
    build_plain_encoder,
    build_prompt_encoder,
    load_encoder,
)
from s2sent.model.network.loading.checkpoint import CheckpointError
from s2sent.model.network.selector_config import SelectorConfig
from tests.support.tiny import tiny_backbone, tiny_decoder

Weights = dict[str, torch.Tensor]
TEXTS = ["the dog", "two men"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Transformer, Pooling, LayerNorm and Dense."""
    folder = tmp_path_factory.mktemp("whole")
    modules = [
        Transformer(str(tiny_backbone(folder / "backbone", num_layers=2))),
        Pooling(32),
        LayerNorm(32),
        Dense(32, 8),
    ]
    SentenceTransformer(modules=modules).save(str(folder / "saved"), create_model_card=False)
    return folder / "saved"


def changed(file: Path, change: Callable[[str], str | None], *, as_pickle: bool = False) -> None:
    """Give the weights in ``file`` the names that ``change`` gives; None leaves one out."""
    new = {change(name): value for name, value in load_file(file).items()}
    weights: Weights = {name: value for name, value in new.items() if name is not None}
    file.unlink()
    if as_pickle:
        torch.save(weights, file.with_name("pytorch_model.bin"))
    else:
        save_file(weights, file, metadata={"format": "pt"})


def without(pattern: str) -> Callable[[str], str | None]:
    return lambda name: None if re.search(pattern, name) else name


LACKING: dict[str, tuple[Callable[[str], str | None], str]] = {
    "a prefix": (
        lambda name: f"module.{name}",
        r"embeddings\.LayerNorm\.bias.* and \d+ more, .*the files have module\.embeddings",
    ),
    "another prefix": (lambda name: f"encoder.bert.{name}", r"more, which would be random"),
    "a block": (without(r"layer\.1\."), r"weights encoder\.layer\.1\.\S+, .* more"),
    "a matrix": (
        without(r"layer\.0\.attention\.self\.query\.weight"),
        r"the weights encoder\.layer\.0\.attention\.self\.query\.weight, which would be random",
    ),
    "a bias": (
        without(r"layer\.0\.output\.dense\.bias"),
        r"encoder\.layer\.0\.output\.dense\.bias",
    ),
    "words": (without("word_embeddings"), r"the weights embeddings\.word_embeddings\.weight, whi"),
    "positions": (without("position_embeddings"), r"embeddings\.position_embeddings\.weight"),
    "everything but a pooler": (without("^(?!pooler)"), r"embeddings\.LayerNorm\.bias"),
}


@pytest.mark.parametrize("lacking", LACKING)
@pytest.mark.parametrize("as_pickle", [False, True])
def test_a_missing_weight_of_the_backbone_is_refused_by_name(
    checkpoint: Path, tmp_path: Path, lacking: str, as_pickle: bool
) -> None:
    change, message = LACKING[lacking]
    folder = Path(shutil.copytree(checkpoint, tmp_path / "saved"))
    changed(folder / "model.safetensors", change, as_pickle=as_pickle)
    config = SelectorConfig(width=32, num_blocks=2)
    for load in (load_encoder, build_plain_encoder, lambda f: build_encoder(f, config)):
        with pytest.raises(CheckpointError, match=message) as told:
            load(folder)
        assert "\n" not in str(told.value)


def test_the_library_s_list_of_weights_is_not_printed_as_well(
    checkpoint: Path, tmp_path: Path
) -> None:
    """Nor where only the pooler is missing, of which it says that the model is to be trained."""
    folder = Path(shutil.copytree(checkpoint, tmp_path / "saved"))
    said = BufferingHandler(capacity=1_000)
    log = logging.getLogger("transformers")
    log.addHandler(said)
    try:
        changed(folder / "model.safetensors", without("pooler"))
        load_encoder(folder)
        changed(folder / "model.safetensors", without("word_embeddings"))
        with pytest.raises(CheckpointError):
            load_encoder(folder)
    finally:
        log.removeHandler(said)
    assert [record.getMessage() for record in said.buffer] == []


def test_a_block_that_only_the_configuration_has_is_missing(
    checkpoint: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "saved"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(CheckpointError, match=r"encoder\.layer\.2\."):
        load_encoder(folder)


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("2_LayerNorm/model.safetensors", "bias"),
        ("3_Dense/model.safetensors", "weight"),
        ("3_Dense/model.safetensors", "bias"),
    ],
)
@pytest.mark.parametrize("as_pickle", [False, True])
def test_a_missing_weight_of_a_module_is_refused_by_name(
    checkpoint: Path, tmp_path: Path, file: str, pattern: str, as_pickle: bool
) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "saved"))
    changed(folder / file, without(pattern), as_pickle=as_pickle)
    with pytest.raises(CheckpointError, match=rf"Missing key\(s\) in state_dict: \S*{pattern}"):
        load_encoder(folder)


def test_a_missing_weight_of_a_selector_is_refused_by_name(tmp_path: Path) -> None:
    config = SelectorConfig(width=32, num_blocks=2)
    build_encoder(tiny_backbone(tmp_path / "backbone"), config).save(str(tmp_path / "saved"))
    changed(tmp_path / "saved/1_S2SentSelector/model.safetensors", without("expand.weight"))
    with pytest.raises(CheckpointError, match=r"Missing key.*spatial_selection\.expand\.weight"):
        load_encoder(tmp_path / "saved")


def test_a_template_s_backbone_is_checked_too(tmp_path: Path) -> None:
    backbone = tiny_decoder(tmp_path / "decoder", num_layers=2)
    template = ['This sentence : "{}" means in one word:"']
    build_prompt_encoder(backbone, None, template, pooling="last_token").save(
        str(tmp_path / "saved")
    )
    for folder in (backbone, tmp_path / "saved"):
        changed(folder / "model.safetensors", without("layers.1.mlp.up_proj"))
    with pytest.raises(CheckpointError, match=r"weights layers\.1\.mlp\.up_proj\.weight, which"):
        load_encoder(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"weights layers\.1\.mlp\.up_proj\.weight, which"):
        build_prompt_encoder(backbone, None, template, pooling="last_token")


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
def test_a_pooler_may_be_missing_and_a_head_left_over(tmp_path: Path, family: str) -> None:
    """As in the files of a masked language model, whose weights stand below its family's name."""
    backbone = tiny_backbone(tmp_path / "backbone", family, num_layers=2)
    expected = build_plain_encoder(backbone).encode(TEXTS)
    file = backbone / "model.safetensors"
    changed(file, lambda name: None if "pooler" in name else f"{family}.{name}")
    weights = load_file(file) | {"lm_head.dense.weight": torch.zeros(2, 2)}
    save_file(weights, file, metadata={"format": "pt"})
    assert (build_plain_encoder(backbone).encode(TEXTS) == expected).all()


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("family", ["t5", "distilbert", "electra", "modernbert", "deberta-v2"])
def test_whole_backbones_of_other_families_lack_nothing(tmp_path: Path, family: str) -> None:
    encoder = build_plain_encoder(tiny_backbone(tmp_path / family, family, num_layers=2))
    assert encoder.encode(TEXTS).shape == (2, 32)
