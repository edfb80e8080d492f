"""Unusual folders are exported as sentence-transformers embeds them, or refused in one sentence."""

import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel

from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.options import ExportError, ExportOptions
from s2sent.model.export.parity import parity_sentences, sentences_for
from s2sent.model.network.encoder import load_encoder
from s2sent.model.network.loading.checkpoint import CheckpointError
from s2sent.model.runtime.encoder import OnnxEncoder
from tests.support.plain_checkpoint import saved
from tests.support.tiny import tiny_backbone

SHAPE: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 2, "max_position_embeddings": 64}
TEXTS = ["the cat sings", "Two happy Dogs read books in the green city at night " * 3]
FEW = ExportOptions(sentences=parity_sentences()[:4], allow_unfused_attention=True)


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("stored", "settings"),
    [
        (torch.float32, {"model_args": {"torch_dtype": "bfloat16"}}),
        (torch.bfloat16, {"model_args": {"torch_dtype": "auto"}}),
        (torch.float32, {"model_kwargs": {"dtype": "float16"}}),
        (torch.float16, {}),
        (torch.bfloat16, {}),
    ],
)
def test_weights_are_read_as_float32_whatever_they_are_stored_as(
    stored: torch.dtype, settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = saved(tmp_path, "bert", 64, **SHAPE)
    weights = {name: w.to(stored) for name, w in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    edit(folder / "config.json", dtype=str(stored).removeprefix("torch."))
    edit(folder / "sentence_bert_config.json", **settings)
    served = OnnxEncoder(export_checkpoint(folder, tmp_path / "artifact", FEW))
    library = SentenceTransformer(str(folder), model_kwargs={"dtype": torch.float32})
    np.testing.assert_allclose(served.encode(TEXTS), library.encode(TEXTS), atol=1e-5)
    assert {each.dtype for each in load_encoder(folder).parameters()} == {torch.float32}


DECODER = SHAPE | {"num_key_value_heads": 1, "head_dim": 16}
V1 = SHAPE | {"type_vocab_size": 0, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2}
DISTILBERT = {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 2}
DISTILBERT |= {"max_position_embeddings": 64}


def with_token_types(folder: Path, family: str, options: dict[str, Any]) -> Path:
    """A folder whose tokenizer makes token_type_ids."""
    made = saved(folder, family, 64, **options)
    names = ["input_ids", "token_type_ids", "attention_mask"]
    edit(made / "tokenizer_config.json", model_input_names=names)
    return made


@pytest.mark.filterwarnings("ignore:Exporting aten:UserWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("gemma", DECODER),
        ("deberta", V1),
        ("mpnet", SHAPE | {"pad_token_id": 1}),
        ("deberta-v2", SHAPE | {"type_vocab_size": 2}),
    ],
)
def test_token_types_that_a_backbone_ignores_are_left_out(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    folder = with_token_types(tmp_path, family, options)
    served = OnnxEncoder(export_checkpoint(folder, tmp_path / "artifact", FEW))
    assert served.artifact.manifest.inputs == ("input_ids", "attention_mask")
    expected = SentenceTransformer(str(folder)).encode(TEXTS, batch_size=1)
    np.testing.assert_allclose(served.encode(TEXTS), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(
    ("family", "options"),
    [("distilbert", DISTILBERT), ("modernbert", SHAPE | {"cls_token_id": 0}), ("mt5", T5)],
)
def test_token_types_that_a_backbone_does_not_take_are_the_tokenizers_fault(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    folder = with_token_types(tmp_path, family, options)
    told = f"a tokenizer that makes token_type_ids, which a {family} does not take: correct"
    with pytest.raises(CheckpointError, match=told):
        export_checkpoint(folder, tmp_path / "artifact", FEW)


def test_pruned_heads_are_exported_with_standard_operators_alone(tmp_path: Path) -> None:
    folder = saved(tmp_path, "bert", 64, **SHAPE)
    pruned = AutoModel.from_pretrained(folder)
    pruned.prune_heads({0: [1]})
    pruned.save_pretrained(folder)
    with pytest.raises(ExportError, match="bert has pruned heads, .* with --standard-operators"):
        export_checkpoint(folder, tmp_path / "refused", FEW)
    plain = replace(FEW, standard_operators=True)
    served = OnnxEncoder(export_checkpoint(folder, tmp_path / "artifact", plain))
    expected = SentenceTransformer(str(folder)).encode(TEXTS)
    np.testing.assert_allclose(served.encode(TEXTS), expected, atol=1e-5)


BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 64}
BART |= {f"{part}_attention_heads": 2 for part in ("encoder", "decoder")}
BART |= {f"{part}_ffn_dim": 48 for part in ("encoder", "decoder")}
DBRX: dict[str, Any] = {"d_model": 32, "n_heads": 2, "n_layers": 2, "max_seq_len": 64}
DBRX |= {"ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 1}}
DBRX |= {"attn_config": {"kv_n_heads": 1}}
EXPERTS = DECODER | {"num_experts_per_tok": 1, "moe_intermediate_size": 16}
NEVER: dict[str, tuple[dict[str, Any], str]] = {
    "bart": (BART, "cannot be traced"),
    "cohere": (DECODER, "cannot be run"),
    "dbrx": (DBRX, "chooses experts"),
    "mamba": ({"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, "cannot be optimised"),
    "mixtral": (EXPERTS | {"num_local_experts": 4}, "chooses experts"),
    "qwen2_moe": (EXPERTS | {"num_experts": 4}, "chooses experts"),
    "xmod": (SHAPE | {"languages": ["en_XX"], "default_language": "en_XX"}, "cannot be run"),
}


def test_experts_that_no_block_has_are_no_reason(tmp_path: Path) -> None:
    folder = saved(tmp_path, "qwen2_moe", 64, **EXPERTS, num_experts=4, mlp_only_layers=[0, 1])
    served = OnnxEncoder(export_checkpoint(folder, tmp_path / "artifact", FEW))
    expected = SentenceTransformer(str(folder)).encode(TEXTS, batch_size=1)
    np.testing.assert_allclose(served.encode(TEXTS), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # as many as the libraries have
@pytest.mark.parametrize("family", NEVER)
def test_what_a_library_raises_is_one_sentence_with_the_family_the_step_and_the_cure(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the log keeps what it raised."""
    options, step = NEVER[family]
    folder = saved(tmp_path, family, 64, **options)
    with caplog.at_level(logging.INFO), pytest.raises(ExportError) as raised:
        export_checkpoint(folder, tmp_path / "artifact", FEW)
    told = str(raised.value)
    assert family in told
    assert step in told
    assert "choose a backbone" in told
    assert "--standard-operators" not in told  # with which none of these can be exported either
    assert "\n" not in told
    assert (raised.value.__cause__ is not None) == step.startswith("cannot")
    kept = [record.exc_info for record in caplog.records if record.exc_info]
    assert [info and info[1] for info in kept] == [raised.value.__cause__][: len(kept)]
    assert len(kept) == step.startswith("cannot")
    assert not (tmp_path / "artifact").exists()


def test_a_backbone_without_a_table_of_tokens_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, "canine", 64, **SHAPE)
    with pytest.raises(CheckpointError, match="is a canine, which has no table of embeddings"):
        export_checkpoint(folder, tmp_path / "artifact", FEW)


def test_the_integer_bert_is_exported_without_its_integers(tmp_path: Path) -> None:
    folder = saved(tmp_path, "ibert", 64, **SHAPE)
    served = OnnxEncoder(export_checkpoint(folder, tmp_path / "artifact", FEW))
    expected = SentenceTransformer(str(folder)).encode(TEXTS)
    np.testing.assert_allclose(served.encode(TEXTS), expected, atol=1e-5)


def test_a_bare_backbone_is_told_how_to_get_a_pooling_before_torch_is_loaded(
    tmp_path: Path,
) -> None:
    backbone = tiny_backbone(tmp_path / "backbone")
    code = (
        "import sys\nfrom s2sent.training.__main__ import main\n"
        f"try: main(['export', {str(backbone)!r}, {str(tmp_path / 'artifact')!r}])\n"
        "finally: print('torch' in sys.modules)"
    )
    run = subprocess.run(  # this interpreter
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert run.stdout.strip() == "False"
    assert "holds a backbone alone" in run.stderr
    assert f"SentenceTransformer('{backbone}').save(NEW_FOLDER)" in run.stderr
    assert run.returncode != 0
    with pytest.raises(CheckpointError, match="holds a backbone alone, and nothing says how"):
        load_encoder(backbone)


@pytest.mark.parametrize("lacks", ["model.safetensors", "tokenizer.json", "model_type", "auto_map"])
def test_no_pooling_is_offered_to_what_the_library_cannot_load_either(
    lacks: str, tmp_path: Path
) -> None:
    backbone = tiny_backbone(tmp_path / "backbone")
    config = json.loads((backbone / "config.json").read_text())
    if lacks == "model_type":
        config.pop(lacks)
    elif lacks == "auto_map":  # code of its own in place of the library's
        config[lacks] = {"AutoModel": "own.Model"}
    else:
        (backbone / lacks).unlink()
    (backbone / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"modules.json cannot be read"):
        load_encoder(backbone)


GLYPHS = [chr(number) for number in range(0x4E00, 0x4E00 + 200)]
UNKNOWN = "[UNK]"
VOCABULARY = {name: at for at, name in enumerate(["[PAD]", UNKNOWN, "[CLS]", "[SEP]", *GLYPHS])}
VOCABULARIES = {
    "unknown": models.WordPiece(VOCABULARY, unk_token=UNKNOWN),
    "dropped": models.BPE(VOCABULARY, []),
}


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_parity_is_checked_on_texts_that_a_vocabulary_has(kind: str, tmp_path: Path) -> None:
    """Letters that it has not are one unknown token each word, or none at all."""
    folder = saved(tmp_path, "bert", 64, **SHAPE)
    tokenizer = Tokenizer(VOCABULARIES[kind])
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        "[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)]
    )
    known = {
        each
        for text in sentences_for(tokenizer)
        for each in tokenizer.encode(text, add_special_tokens=False).ids
    }
    assert len(known) > 150
    tokenizer.save(str(folder / "tokenizer.json"))
    edit(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    served = OnnxEncoder(export_checkpoint(folder, tmp_path / "artifact"))
    texts = ["".join(GLYPHS[:9]), "".join(GLYPHS)]
    expected = SentenceTransformer(str(folder)).encode(texts)
    np.testing.assert_allclose(served.encode(texts), expected, atol=1e-5)


def test_padding_is_not_taken_for_letters_that_a_vocabulary_lacks() -> None:
    """A tokenizer that has padded a batch before goes on to do so."""
    letters = sorted({letter for text in parity_sentences() for letter in text})
    tokenizer = Tokenizer(models.BPE({each: at for at, each in enumerate(letters)}, []))
    tokenizer.enable_padding(length=2_000)
    assert sentences_for(tokenizer) == parity_sentences()


@pytest.mark.parametrize("depths", [(1, 2), (2, 3)])
def test_norms_ahead_of_the_blocks_stop_early_in_half_precision(
    depths: tuple[int, ...], tmp_path: Path
) -> None:
    options = {**SHAPE, "num_hidden_layers": 4, "pad_token_id": 1}
    folder = saved(tmp_path, "roberta-prelayernorm", 64, **options)
    asked = replace(FEW, precision="fp16", depths=depths)
    served = OnnxEncoder(export_checkpoint(folder, tmp_path / "artifact", asked))
    expected = SentenceTransformer(str(folder)).encode(TEXTS)
    np.testing.assert_allclose(served.encode(TEXTS), expected, atol=5e-3)
