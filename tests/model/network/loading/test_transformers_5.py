"""Folders that transformers 5 saved: read as it reads them, or refused by name.

`EXPECTED` is printed by `python -m tests.support.transformers_5` under transformers 5.24.0,
sentence-transformers 6.2.0 and torch 2.13.0.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.network.encoder import build_plain_encoder, load_encoder
from s2sent.model.network.loading.checkpoint import CheckpointError
from s2sent.model.network.loading.transformers_5 import readable
from s2sent.model.runtime.encoder import OnnxEncoder
from tests.support.few import FEW
from tests.support.transformers_5 import DECODER, FOLDERS, TEXT, a_folder, both, kinds, rope

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")

EXPECTED = {
    "qwen3": [-0.19653, 0.054795, 0.183131, -0.276939],
    "llama": [-0.410874, -0.003435, 0.084892, -0.293862],
    "mistral": [-0.384966, -0.165028, 0.127744, -0.287809],
    "phi3": [-0.082528, -0.040116, 0.087255, -0.138644],
    "gpt_neox": [0.09248, -0.091089, -0.231779, 0.309581],
    "gemma3_text": [-0.029109, 0.056295, 0.34938, -0.236446],
    "modernbert": [0.008443, -0.036324, 0.49165, -0.216226],
}


@pytest.mark.parametrize("family", FOLDERS)
def test_rotary_positions_and_windows_are_those_of_transformers_5(
    family: str, tmp_path: Path
) -> None:
    encoder: Any = load_encoder(a_folder(tmp_path, family))
    np.testing.assert_allclose(encoder.encode([TEXT])[0, :4], EXPECTED[family], atol=2e-6)
    assert encoder[0].auto_model.name_or_path == str(tmp_path / "model")


@pytest.mark.parametrize("family", ["qwen3", "modernbert"])
def test_the_artifact_and_what_is_saved_keep_them(family: str, tmp_path: Path) -> None:
    folder = a_folder(tmp_path, family)
    artifact = export_checkpoint(folder, tmp_path / "artifact", FEW)
    vector = OnnxEncoder(artifact).encode([TEXT])[0]
    np.testing.assert_allclose(vector[:4], EXPECTED[family], atol=1e-5)
    load_encoder(folder).save(str(tmp_path / "again"), create_model_card=False)
    again = load_encoder(tmp_path / "again").encode([TEXT])[0]
    np.testing.assert_allclose(again[:4], EXPECTED[family], atol=2e-6)


def test_a_backbone_to_train_has_them_too(tmp_path: Path) -> None:
    encoder = build_plain_encoder(a_folder(tmp_path, "qwen3"))
    np.testing.assert_allclose(encoder.encode([TEXT])[0, :4], EXPECTED["qwen3"], atol=2e-6)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("modernbert", {"layer_types": kinds("gllgg")}, r"at uneven places \(layer_types\)"),
        ("modernbert", {"layer_types": kinds("llll")}, r"at uneven places \(layer_types\)"),
        (
            "modernbert",
            {"rope_parameters": both(rope(), rope(kind="linear", factor=2.0))},
            "scales the rotary positions of a modernbert's local blocks",
        ),
        ("llama", {"is_causal": False}, r"lets a llama see both sides \(is_causal = false\)"),
        (
            "llama",
            {"rope_parameters": rope(kind="proportional")},
            r"scales the rotary positions of a llama \(rope_type 'proportional'\)",
        ),
        (
            "llama",
            {"rope_parameters": rope(partial_rotary_factor=0.5)},
            r"the partial_rotary_factor 0\.5 for a llama",
        ),
        (
            "qwen3",
            {"rope_parameters": both(rope(), rope(1e4))},
            "gives the blocks of a qwen3 different rotary positions",
        ),
        (
            "phi3",
            {"rope_parameters": FOLDERS["phi3"]["rope_parameters"] | {"factor": 2.0}},
            r"a longrope factor of 2\.0 for 256 of 32",
        ),
    ],
)
def test_what_transformers_4_cannot_do_is_refused_by_name(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = a_folder(tmp_path, family, **changes)
    with pytest.raises(CheckpointError, match=message) as raised:
        load_encoder(folder)
    assert str(raised.value).startswith(f"{folder / 'config.json'} ")
    assert str(raised.value).endswith("choose another model, or one that transformers 4 saved.")


def test_a_gemma_that_sees_both_sides_is_refused(tmp_path: Path) -> None:
    config = {"model_type": "gemma", **DECODER, "use_bidirectional_attention": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"\(use_bidirectional_attention = true\)"):  # noqa: SIM117
        with readable(str(tmp_path)):
            pass


@pytest.mark.parametrize("name", ["TokenizersBackend", "LlamaTokenizer", "GemmaTokenizer"])
def test_a_tokenizer_is_its_tokenizer_json(name: str, tmp_path: Path) -> None:
    """transformers 4 would put other special tokens around a text of Llama's or Gemma's class."""
    folder = a_folder(tmp_path, "qwen3")
    before = load_encoder(folder).tokenizer("the cat")["input_ids"]
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": name}))
    tokenizer = load_encoder(folder).tokenizer
    assert tokenizer("the cat")["input_ids"] == before
    assert type(tokenizer) is PreTrainedTokenizerFast
    assert tokenizer.additional_special_tokens == ["<unk>"]


def test_a_folder_of_transformers_4_is_read_as_it_is(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "qwen3")
    load_encoder(folder).save(str(tmp_path / "again"), create_model_card=False)
    with readable(str(tmp_path / "again")) as path:
        assert path == str(tmp_path / "again")


def test_a_type_that_only_transformers_5_knows_is_refused_with_the_release(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "qwen3", model_type="nomic_bert")
    with pytest.raises(
        CheckpointError, match=r"transformers 4\.\S+ does not know \(5\.24\.0 saved"
    ):
        load_encoder(folder)
