"""GGUF files as backbones: a tiny one is written here, and opened as transformers opens any."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

from s2sent.training import gguf
from s2sent.training.backbones import resolve, width_of
from s2sent.training.errors import EncoderError
from tests.support.tiny import tiny_decoder

TENSORS = {  # GGUF's names of the parts of a llama block
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path: Path, backbone: Path) -> Path:
    """The llama in ``backbone`` as a GGUF file, its weights in float32."""
    network = AutoModel.from_pretrained(backbone)
    tokenizer = AutoTokenizer.from_pretrained(backbone)  # type: ignore[no-untyped-call]  # transformers is partly typed
    config, vocabulary = network.config, tokenizer.get_vocab()
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(vocabulary, key=vocabulary.__getitem__))
    writer.add_token_merges(merges_of(backbone))
    writer.add_bos_token_id(tokenizer.eos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    for name, value in network.state_dict().items():
        writer.add_tensor(gguf_name(name), as_gguf(name, value, config))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file):
        step()
    writer.write_tensors_to_file()
    writer.close()
    return path


def merges_of(backbone: Path) -> list[str]:
    merges = json.loads((backbone / "tokenizer.json").read_text())["model"]["merges"]
    return [" ".join(pair) if isinstance(pair, list) else pair for pair in merges]


def gguf_name(name: str) -> str:
    if name in ("embed_tokens.weight", "norm.weight"):
        return {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}[
            name
        ]
    _, block, part = name.removesuffix(".weight").split(".", 2)
    return f"blk.{block}.{TENSORS[part]}.weight"


def as_gguf(name: str, value: torch.Tensor, config: Any) -> NDArray[np.float32]:
    """llama.cpp pairs neighbouring rows in its rotary embedding, transformers the two halves."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for part, count in heads.items():
        if part in name:
            rows = value.reshape(count, 2, -1, value.shape[1])
            value = rows.swapaxes(1, 2).reshape(value.shape)
    return value.contiguous().numpy().astype(np.float32)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_decoder(tmp_path_factory.mktemp("gguf") / "tiny")


def test_a_gguf_file_is_converted_once_and_gives_the_same_states(
    backbone: Path, tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", backbone)
    folder = resolve(str(file), cache=tmp_path / "cache")
    assert width_of(folder) == 32
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [gguf.key_of(file)]
    ids = AutoTokenizer.from_pretrained(backbone)("the old dog eats", return_tensors="pt")  # type: ignore[no-untyped-call]  # transformers is partly typed
    found, expected = (
        AutoModel.from_pretrained(source)(**ids).last_hidden_state for source in (folder, backbone)
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    read = AutoTokenizer.from_pretrained(folder)  # type: ignore[no-untyped-call]  # transformers is partly typed
    assert (
        read("the old dog eats", add_special_tokens=False)["input_ids"]
        == ids["input_ids"][0].tolist()
    )
    assert resolve(str(file), cache=tmp_path / "cache") == folder


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "other.gguf", "mamba")
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file):
        step()
    writer.close()
    with pytest.raises(EncoderError, match="the architecture mamba: use a GGUF file of llama, "):
        resolve(str(tmp_path / "other.gguf"), cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("content", [b"", b"no GGUF at all, but long enough for a header " * 9])
def test_what_is_no_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "no.gguf").write_bytes(content)
    with pytest.raises(EncoderError, match="is no GGUF file .*: fetch it again"):
        resolve(str(tmp_path / "no.gguf"), cache=tmp_path / "cache")
