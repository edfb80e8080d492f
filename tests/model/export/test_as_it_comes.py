"""A sentence-transformers model as it comes: its poolings, head, prompts, and what is refused."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Normalize, Pooling
from transformers import AutoConfig, AutoModel, AutoTokenizer

from s2sent.model.artifact.reader import Artifact
from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.options import ExportError
from s2sent.model.network.encoder import build_encoder, load_encoder, pooling_mode
from s2sent.model.network.loading.checkpoint import CheckpointError
from s2sent.model.network.pooled import PooledEncoder
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.runtime.encoder import OnnxEncoder
from tests.support.few import FEW
from tests.support.tiny import tiny_backbone

WIDTH, DIM = 32, 8
TEXTS = ["the cat sings", "a", "Two happy Dogs read books in the green city at night " * 3]
MODES = Pooling.POOLING_MODES


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_backbone(tmp_path_factory.mktemp("as_it_comes"), width=WIDTH, num_layers=2)


def saved(folder: Path, backbone: Path, *behind: Any, **settings: Any) -> Path:
    """A checkpoint that the library alone has written."""
    transformer = Transformer(str(backbone))
    transformer.max_seq_length = 24
    SentenceTransformer(modules=[transformer, *behind], **settings).save(str(folder))
    return folder


def a_head() -> list[torch.nn.Module]:
    """Modules behind six poolings, in an order that is not the usual one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dense = Dense(6 * WIDTH, DIM, activation_function=torch.nn.Tanh())
    return [Pooling(WIDTH, MODES), Normalize(), LayerNorm(6 * WIDTH), dense]


@pytest.fixture(scope="module")
def everything(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with every pooling, a head, prompts, one of them by default."""
    return saved(
        tmp_path_factory.mktemp("everything"),
        backbone,
        *a_head(),
        prompts={"query": "one man: ", "document": ""},
        default_prompt_name="query",
    )


@pytest.fixture(scope="module")
def artifact(everything: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return export_checkpoint(everything, tmp_path_factory.mktemp("artifact") / "tiny", FEW)


@pytest.mark.parametrize("mode", MODES)
@torch.no_grad()
def test_each_pooling_is_the_librarys(backbone: Path, tmp_path: Path, mode: Any) -> None:
    """With padding, of texts of different lengths."""
    library = SentenceTransformer(
        str(saved(tmp_path / "plain", backbone, Pooling(WIDTH, mode))), device="cpu"
    )
    inputs = {
        name: value
        for name, value in library.tokenize(TEXTS).items()
        if isinstance(value, torch.Tensor)
    }
    pooled = PooledEncoder(load_encoder(tmp_path / "plain"))(**inputs)[1]
    np.testing.assert_allclose(pooled.numpy(), library.encode(TEXTS), atol=1e-5)


def test_head_and_prompts_are_served_as_the_library_encodes(
    everything: Path, artifact: Artifact
) -> None:
    """Every pooling side by side, modules behind them in any order, and the default prompt."""
    manifest = artifact.manifest
    assert (manifest.dim, manifest.normalize, manifest.max_seq_length) == (DIM, False, 24)
    assert manifest.pooling == "+".join(MODES)
    assert (manifest.prompts["query"], manifest.default_prompt_name) == ("one man: ", "query")
    library, served = SentenceTransformer(str(everything), device="cpu"), OnnxEncoder(artifact)
    expected = library.encode(TEXTS)
    np.testing.assert_allclose(served.encode(TEXTS, normalize=False), expected, atol=1e-5)
    alone = np.concatenate([served.encode([text], normalize=False) for text in TEXTS])
    np.testing.assert_allclose(alone, expected, atol=1e-5)
    assert np.abs(library.encode(TEXTS, prompt="") - expected).max() > 1e-3
    flags = json.loads((artifact.path / "1_Pooling/config.json").read_text())
    assert sum(is_on is True for is_on in flags.values()) == len(MODES)


def test_lower_case_of_the_checkpoint_is_kept(backbone: Path, tmp_path: Path) -> None:
    """The tokenizer's own normaliser keeps capitals here; the checkpoint's setting lowers them."""
    cased = tmp_path / "cased"
    shutil.copytree(backbone, cased)
    tokenizer = json.loads((cased / "tokenizer.json").read_text())
    tokenizer["normalizer"] = None
    (cased / "tokenizer.json").write_text(json.dumps(tokenizer))
    plain = saved(tmp_path / "plain", cased, Pooling(WIDTH))
    settings = plain / "sentence_bert_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"do_lower_case": True}))
    served = OnnxEncoder(export_checkpoint(plain, tmp_path / "artifact", FEW))
    upper, lower = served.encode(["THE CAT", "the cat"])
    np.testing.assert_allclose(upper, lower, atol=1e-6)


def test_more_tokens_than_positions_are_never_read(backbone: Path, tmp_path: Path) -> None:
    """A checkpoint may promise more than its table of positions has rows."""
    plain = saved(tmp_path / "plain", backbone, Pooling(WIDTH))
    settings = plain / "sentence_bert_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"max_seq_length": 4096}))
    assert load_encoder(plain).max_seq_length == 130


GPT2 = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 64}
LAYERS = {"hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2}
GEMMA = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}


@pytest.mark.filterwarnings("ignore:Exporting aten:UserWarning")  # of indices that are not below 0
@pytest.mark.parametrize(
    ("family", "padding", "options"),
    [
        ("bert", "right", {**LAYERS, "num_attention_heads": 2, "type_vocab_size": 1}),
        ("gpt2", "left", GPT2),  # which counts the positions of padding on the left, too
        ("gpt_neox", "right", {**LAYERS, "num_attention_heads": 2}),  # rotary, and not fused
        ("gemma", "right", {**LAYERS, **GEMMA}),  # the same, and norms without a mean
    ],
)
def test_other_families_have_the_librarys_vectors(
    backbone: Path, tmp_path: Path, family: str, padding: str, options: dict[str, Any]
) -> None:
    names = ["input_ids", "attention_mask", *["token_type_ids"] * (family == "bert")]
    tokenizer: Any = AutoTokenizer.from_pretrained(  # type: ignore[no-untyped-call]  # as below
        backbone, padding_side=padding, model_input_names=names
    )
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer), pad_token_id=0, **options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made: Any = AutoModel.from_config(config)  # type: ignore[no-untyped-call]  # transformers is partly typed
        for matrix in (each for each in made.parameters() if each.dim() > 1):
            torch.nn.init.normal_(matrix, std=0.2)
    for part in (made, tokenizer):
        part.save_pretrained(tmp_path / "backbone")
    plain = saved(tmp_path / "plain", tmp_path / "backbone", Pooling(WIDTH), Normalize())
    few = replace(FEW, allow_unfused_attention=True)
    served = OnnxEncoder(export_checkpoint(plain, tmp_path / "artifact", few))
    library = SentenceTransformer(str(plain), device="cpu")
    for text in TEXTS:
        np.testing.assert_allclose(served.encode([text]), library.encode([text]), atol=1e-5)


def test_an_older_checkpoint_may_have_no_settings(backbone: Path, tmp_path: Path) -> None:
    plain = saved(tmp_path / "plain", backbone, Pooling(WIDTH))
    (plain / "config_sentence_transformers.json").unlink()
    library = SentenceTransformer(str(plain), device="cpu")
    np.testing.assert_allclose(load_encoder(plain).encode(TEXTS), library.encode(TEXTS), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"truncation_side": "left"},
            "has truncation_side 'left' .* service cuts texts on the rig",
        ),
        ({"split_special_tokens": True}, "split_special_tokens True, .* reads special tokens"),
        (
            {"model_max_length": 2},
            "cannot be served: max_seq_length 2 leaves no room beside 2 spec",
        ),
    ],
)
def test_a_tokenizer_that_the_service_reads_otherwise_is_refused(
    backbone: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    plain = saved(tmp_path / "plain", backbone, Pooling(WIDTH))
    edited("tokenizer_config.json", **changes)(plain)
    with pytest.raises(ExportError, match=message):
        export_checkpoint(plain, tmp_path / "artifact", FEW)
    assert not (tmp_path / "artifact").exists()


def test_what_only_an_export_takes_is_refused_elsewhere(everything: Path) -> None:
    encoder = load_encoder(everything)
    with pytest.raises(CheckpointError, match="with Normalize, LayerNorm, Dense behind, and this"):
        pooling_mode(encoder)
    with pytest.raises(CheckpointError, match="pools the maximum of its tokens cannot stop early"):
        PooledEncoder(encoder, depths=[1])


def test_a_selector_takes_no_other_pooling(backbone: Path, tmp_path: Path) -> None:
    config = SelectorConfig(width=WIDTH, num_blocks=2)
    build_encoder(backbone, config).save(str(tmp_path / "fused"))
    edited("2_Pooling/config.json", pooling_mode="max")(tmp_path / "fused")
    with pytest.raises(CheckpointError, match="pools max behind a selector, which pools by mean"):
        load_encoder(tmp_path / "fused")


def edited(path: str, **changes: Any) -> Callable[[Path], None]:
    """An edit of a JSON file of a checkpoint."""

    def edit(folder: Path) -> None:
        settings = json.loads((folder / path).read_text())
        (folder / path).write_text(json.dumps(settings | changes))

    return edit


def only_an_adapter(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")


def another_vocabulary(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["beyond"] = 4_999
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def a_slow_tokenizer(folder: Path) -> None:
    """Of bytes, which transformers has in Python alone."""
    (folder / "tokenizer.json").unlink()
    settings = json.dumps({"tokenizer_class": "ByT5Tokenizer"})
    (folder / "tokenizer_config.json").write_text(settings)


def a_weight_that_is_none(folder: Path) -> None:
    """In a query, where torch's attention gives finite numbers all the same."""
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("query.weight"))
    weights[name][0, 0] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def no_padding_token(folder: Path) -> None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**settings, "pad_token": None}))


SETTINGS = "config_sentence_transformers.json"
LENGTH = "sentence_bert_config.json"
BAD = {
    "weight": (a_weight_that_is_none, r"no finite number, in .*query\.weight: train or fetch"),
    "padding": (no_padding_token, r"cannot embed a text \(.*padding token.*\): correct its"),
    "width": (
        edited("4_Dense/config.json", out_features=DIM + 1),
        r"cannot be loaded|gives vectors of 8 numbers and its modules say 9",
    ),
    "length": (edited(LENGTH, max_seq_length="64"), r"the max_seq_length '64', and it must be"),
    "no length": (edited(LENGTH, max_seq_length=0), r"the max_seq_length 0, and it must be"),
    "prompts": (edited(SETTINGS, prompts={"query": 3}), r"prompts that are no texts by their"),
    "default": (edited(SETTINGS, default_prompt_name="x"), r"cannot be used \(Default prompt name"),
    "similarity": (edited(SETTINGS, similarity_fn_name="x"), r"cannot be used \('x' is not a"),
    "settings": (
        lambda f: (f / SETTINGS).write_text("[]"),
        r"transformers\.json holds no JSON obj",
    ),
    "config": (lambda f: (f / "config.json").write_text("null"), r"config\.json holds no JSON obj"),
    "numbers": (lambda f: (f / "modules.json").write_text("[1]"), r"no list of modules"),
    "no type": (
        lambda f: (f / "modules.json").write_text('[{"type": null, "path": ""}]'),
        r"no list of modules",
    ),
    "slow": (a_slow_tokenizer, r"has no fast tokenizer, which serving needs: convert"),
    "adapter": (only_an_adapter, r"holds an adapter .* merge_and_unload"),
    "pooling": (lambda f: (f / "1_Pooling/config.json").unlink(), r"1_Pooling.* cannot be read"),
    "vocabulary": (another_vocabulary, r"5000 ids and an embedding table of \d+ rows: take both"),
    "code": (
        edited("config.json", model_type="mine", auto_map={"AutoModel": "mine.Model"}),
        r"type 'mine', .* brings code of its own, which is never run: choose",
    ),
    "activation": (
        edited("4_Dense/config.json", activation_function="os.getcwd"),
        r"activation_function os\.getcwd, which is none of torch\.nn's",
    ),
    "tokens": (
        edited("4_Dense/config.json", module_input_name="token_embeddings"),
        r"a Dense from or to token_embeddings",
    ),
    "modules": (lambda f: (f / "modules.json").write_text("[{}]"), r"no list of modules"),
}


@pytest.mark.parametrize("bad", BAD)
def test_what_cannot_be_exported_is_one_sentence(
    everything: Path, tmp_path: Path, bad: str
) -> None:
    """And nothing half-made stays."""
    spoil, message = BAD[bad]
    shutil.copytree(everything, tmp_path / "bad")
    spoil(tmp_path / "bad")
    with pytest.raises(CheckpointError, match=message) as raised:
        export_checkpoint(tmp_path / "bad", tmp_path / "artifact", FEW)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "artifact").exists()
