"""Tiny random backbones with their tokenizers, for tests that need an encoder of a real family.

Any English text works: words outside the vocabulary are spelled letter by letter.
"""

import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerFast

FAMILIES = ("bert", "roberta", "mpnet", "distilbert")
DECODERS = ("llama", "gpt2")
OWN_OPTIONS: dict[str, dict[str, Any]] = {
    "deberta-v2": {  # as DeBERTa v3 has them
        "relative_attention": True,
        "position_buckets": 8,
        "max_relative_positions": 32,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "modernbert": {"global_attn_every_n_layers": 3, "local_attention": 16, "cls_token_id": 0},
}

WORDS = (
    "the a an of to and in is on that it for was with as at by from this have not are but had his "
    "they she you we which one all were her there been their has would what will no if more when "
    "man woman child dog cat bird plays runs eats reads writes sings house street city river music "
    "guitar water food book train car ball game day night red green old young happy two three"
)

_BERT_SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
# RoBERTa and MPNet number their positions from the padding's id, 1.
_ROBERTA_SPECIALS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}


def tiny_backbone(
    path: Path,
    family: str = "bert",
    *,
    width: int = 32,
    num_layers: int = 4,
    max_positions: int = 128,
    seed: int = 0,
    std: float = 0.2,
    **settings: Any,
) -> Path:
    """Write a random encoder of `family` and its tokenizer to `path`; the same bytes for a seed.

    ``settings`` are of its configuration.
    """
    specials = _BERT_SPECIALS if family in ("bert", "distilbert", "electra") else _ROBERTA_SPECIALS
    tokenizer = _tokenizer(family, specials, max_positions)
    own: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
        "max_position_embeddings": max_positions + 2,
        **_shape(family, width, num_layers),
    }
    return _save(path, AutoConfig.for_model(family, **{**own, **settings}), tokenizer, seed, std)


def _save(
    path: Path, config: Any, tokenizer: PreTrainedTokenizerFast, seed: int, std: float = 0.2
) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone: PreTrainedModel = AutoModel.from_config(config)  # type: ignore[no-untyped-call]  # transformers is partly typed
        for parameter in backbone.parameters():
            if parameter.dim() > 1:  # the usual 0.02 leaves so small a network almost constant
                torch.nn.init.normal_(parameter, std=std)
    backbone.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def tiny_decoder(
    path: Path,
    family: str = "llama",
    *,
    width: int = 32,
    num_layers: int = 4,
    max_positions: int = 128,
    seed: int = 0,
) -> Path:
    """Write a random causal model of `family` and its tokenizer to `path`; the same for a seed.

    The tokenizer is byte-level, pads on the left and has no padding token, as those of many
    language models.
    """
    tokenizer = _byte_level_tokenizer(max_positions)
    config = AutoConfig.for_model(
        family,
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        max_position_embeddings=max_positions,
        **_shape(family, width, num_layers),
        **({"num_key_value_heads": 1} if family == "llama" else {"n_inner": 2 * width}),
    )
    return _save(path, config, tokenizer, seed)


def _byte_level_tokenizer(max_positions: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 2, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers is partly typed
        tokenizer_object=tokenizer,
        model_max_length=max_positions,
        model_input_names=["input_ids", "attention_mask"],
        padding_side="left",
        **{"eos_token": "<|end|>"},
    )


def _shape(family: str, width: int, num_layers: int) -> dict[str, Any]:
    if family == "distilbert":
        return {"dim": width, "hidden_dim": 2 * width, "n_layers": num_layers, "n_heads": 2}
    if family == "t5":
        sizes = {"d_model": width, "d_kv": width // 2, "d_ff": 2 * width}
        return sizes | {"num_layers": num_layers, "num_heads": 2}
    return {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 2,
        **OWN_OPTIONS.get(family, {}),
    }


def _tokenizer(
    family: str, specials: dict[str, str], max_positions: int
) -> PreTrainedTokenizerFast:
    characters = [*string.ascii_lowercase, *string.digits]
    pieces = [*specials.values(), *characters, *(f"##{c}" for c in characters)]
    pieces += [*string.punctuation, *(word for word in WORDS.split() if word not in characters)]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=specials["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    cls, sep = specials["cls"], specials["sep"]
    tokenizer.post_processor = TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
    )
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers is partly typed
        tokenizer_object=tokenizer,
        model_max_length=max_positions,
        model_input_names=inputs if family in ("bert", "electra") else [inputs[0], inputs[2]],
        **{f"{name}_token": token for name, token in specials.items()},
    )
