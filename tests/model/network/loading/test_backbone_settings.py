"""The settings of a checkpoint name neither code nor other files: what would is refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from s2sent.model.network.encoder import build_plain_encoder, load_encoder
from s2sent.model.network.loading import backbone_settings
from s2sent.model.network.loading.checkpoint import CheckpointError
from tests.support.hostile_checkpoint import edit_json, plain_checkpoint, with_pickle

SETTINGS = "sentence_bert_config.json"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_checkpoint(tmp_path_factory.mktemp("plain") / "checkpoint")


@pytest.fixture
def checkpoint(plain: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(plain, tmp_path / "checkpoint"))


@pytest.mark.parametrize("key", ["model_kwargs", "model_args"])
@pytest.mark.parametrize("file", [SETTINGS, "sentence_roberta_config.json"])
def test_no_setting_lets_a_pickle_run(
    checkpoint: Path, tmp_path: Path, key: str, file: str
) -> None:
    """Whatever the file and the key are called, and also without the setting."""
    with_pickle(checkpoint, tmp_path / "trace")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_encoder(checkpoint)
    (checkpoint / SETTINGS).unlink()
    (checkpoint / file).write_text(json.dumps({key: {"weights_only": False}}))
    named = rf"{file} has {key}\.weights_only = false, .* remove it"
    for load in (load_encoder, build_plain_encoder):
        with pytest.raises(CheckpointError, match=named):
            load(checkpoint)
    assert not (tmp_path / "trace").exists()


REFUSED: dict[str, dict[str, Any]] = {
    "model_kwargs.weights_only": {"model_kwargs": {"weights_only": 0}},
    "model_args.use_safetensors": {"model_args": {"use_safetensors": False}},
    "model_kwargs.quantization_config": {"model_kwargs": {"quantization_config": {}}},
    "model_kwargs.output_loading_info": {"model_kwargs": {"output_loading_info": True}},
    "model_kwargs.state_dict": {"model_kwargs": {"state_dict": {}}},
    "model_kwargs.adapter_kwargs": {"model_kwargs": {"adapter_kwargs": {"a": 1}}},
    "model_kwargs.trust_remote_code": {"model_kwargs": {"trust_remote_code": True}},
    "model_kwargs.torch_dtype": {"model_kwargs": {"torch_dtype": "load"}},
    "model_kwargs": {"model_kwargs": ["weights_only"]},
    "processor_kwargs.tokenizer_file": {"processor_kwargs": {"tokenizer_file": "/etc/passwd"}},
    "tokenizer_args.trust_remote_code": {"tokenizer_args": {"trust_remote_code": True}},
    "tokenizer_args._from_auto": {"tokenizer_args": {"_from_auto": True}},
    "config_kwargs.model_type": {"config_kwargs": {"model_type": "bert"}},
    "config_args.trust_remote_code": {"config_args": {"trust_remote_code": True}},
    "tokenizer_name_or_path": {"tokenizer_name_or_path": "someone/else"},
    "transformer_task": {"transformer_task": "fill-mask"},
    "backend": {"backend": "onnx"},
    "cache_dir": {"cache_dir": "/tmp"},  # noqa: S108 - a name that is refused
    "processing_kwargs": {"processing_kwargs": {"text": {"max_length": 3}}},
    "modality_config.text.method": {"modality_config": {"text": {"method": "save_pretrained"}}},
    "module_output_name": {"module_output_name": "sentence_embedding"},
    "surprise": {"surprise": None},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_is_not_on_the_list_is_refused_by_name(checkpoint: Path, name: str) -> None:
    edit_json(checkpoint / SETTINGS, **REFUSED[name])
    with pytest.raises(
        CheckpointError, match=rf"{SETTINGS} has {name} = .*: remove it, or"
    ) as told:
        load_encoder(checkpoint)
    assert "\n" not in str(told.value)


def test_the_settings_of_a_backbone_in_a_folder_of_its_own_are_read(checkpoint: Path) -> None:
    """As sentence-transformers writes it where the first module is not saved in the root."""
    inner = checkpoint / "deep" / "0_Transformer"
    inner.mkdir(parents=True)
    for file in [each for each in checkpoint.iterdir() if each.is_file()]:
        if file.name not in ("modules.json", "config_sentence_transformers.json"):
            file.rename(inner / file.name)
    modules = json.loads((checkpoint / "modules.json").read_text())
    modules[0]["path"] = "deep/0_Transformer"
    (checkpoint / "modules.json").write_text(json.dumps(modules))
    assert load_encoder(checkpoint).encode("a").shape == (32,)
    edit_json(inner / SETTINGS, model_args={"weights_only": False})
    with pytest.raises(CheckpointError, match=r"model_args\.weights_only"):
        load_encoder(checkpoint)


def test_a_module_of_another_folder_is_refused(checkpoint: Path, plain: Path) -> None:
    modules = json.loads((checkpoint / "modules.json").read_text())
    for path in (str(plain), "../elsewhere", "a/../../b"):
        modules[0]["path"] = path
        (checkpoint / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(CheckpointError, match="module in .*, which is not in the folder"):
            load_encoder(checkpoint)


ALLOWED: dict[str, dict[str, Any]] = {
    "what an old version writes": {"max_seq_length": 24, "do_lower_case": True},
    "explicit safety": {
        "model_args": {"weights_only": True, "use_safetensors": True, "trust_remote_code": False}
    },
    "an attention of torch": {"model_kwargs": {"attn_implementation": "eager"}},
    "precision": {"model_args": {"torch_dtype": "float32"}},
    "the tokenizer": {"tokenizer_args": {"model_max_length": 24, "padding_side": "right"}},
    "nothing": {"tokenizer_name_or_path": None, "config_args": {}, "processing_kwargs": {}},
}


@pytest.mark.parametrize("settings", ALLOWED)
def test_settings_that_models_have_still_load(checkpoint: Path, settings: str) -> None:
    edit_json(checkpoint / SETTINGS, **ALLOWED[settings])
    assert load_encoder(checkpoint).encode("a").shape == (32,)


KERNEL = "someone/kernel"


NAMES = [KERNEL, "flash_attention_2", f"paged|{KERNEL}", {"": KERNEL}, 7, [KERNEL]]
PLACES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "config.json": lambda named: named,
    "config.json, deeper": lambda named: {"text_config": {"x": named}},
    "config.json, in a list": lambda named: {"x": [[named]]},
    f"{SETTINGS}, of the model": lambda named: {"model_kwargs": named},
    f"{SETTINGS}, of the configuration": lambda named: {"config_args": named},
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("field", ["_attn_implementation", "attn_implementation"])
def test_an_attention_that_is_not_torchs_is_refused(
    checkpoint: Path, field: str, place: str
) -> None:
    """One sentence for every name and place, before transformers reads it."""
    path = checkpoint / place.partition(",")[0]
    before = path.read_bytes()
    for value in NAMES:
        path.write_bytes(before)
        edit_json(path, **PLACES[place]({field: value}))
        for load in (load_encoder, build_plain_encoder):
            with pytest.raises(CheckpointError, match=rf"{field} = .* run code: remove the field"):
                load(checkpoint)


def test_no_other_name_of_the_attention_field_leads_to_a_kernel(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither through a configuration's table of names, nor where the text looked harmless."""
    edit_json(
        checkpoint / "config.json", attribute_map={"x": "_attn_implementation_internal"}, x=KERNEL
    )
    with pytest.raises(CheckpointError, match="attribute_map = .* run code: remove the field"):
        load_encoder(checkpoint)
    monkeypatch.setattr(backbone_settings, "refuse_kernels", lambda _path: None)
    for load in (load_encoder, build_plain_encoder, backbone_settings.read_config):
        with pytest.raises(CheckpointError, match="_attn_implementation = .* run code: remove the"):
            load(checkpoint)


@pytest.mark.parametrize("value", [None, "eager", "sdpa", {"text_config": "sdpa"}])
def test_an_attention_of_torch_may_be_named(checkpoint: Path, value: Any) -> None:
    edit_json(checkpoint / "config.json", _attn_implementation=value)
    assert load_encoder(checkpoint).encode("a").shape == (32,)


@pytest.mark.parametrize("place", [{}, {"text_config": {}}])
def test_a_quantized_backbone_is_a_sentence(checkpoint: Path, place: dict[str, Any]) -> None:
    settings = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    nested = {"text_config": settings} if place else settings
    edit_json(checkpoint / "config.json", **nested)
    for load in (load_encoder, build_plain_encoder):
        with pytest.raises(
            CheckpointError, match=r"quantized \(bitsandbytes\).*: choose the model"
        ):
            load(checkpoint)


def test_an_adapter_is_refused_as_a_backbone_too(checkpoint: Path) -> None:
    edit_json(checkpoint / "adapter_config.json", auto_mapping={"parent_library": "evil"})
    for load in (load_encoder, build_plain_encoder):
        with pytest.raises(CheckpointError, match="holds an adapter"):
            load(checkpoint)


def test_code_that_a_backbone_brings_is_neither_run_nor_asked_about(
    checkpoint: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    (checkpoint / "mine.py").write_text(f"import os\nos.mkdir({str(trace)!r})\n")
    edit_json(checkpoint / "config.json", auto_map={"AutoConfig": "mine.C", "AutoModel": "mine.M"})
    edit_json(
        checkpoint / "tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.T", "mine.T"]}
    )
    assert load_encoder(checkpoint).encode("a").shape == (32,)
    edit_json(checkpoint / "config.json", model_type="mine")
    for load in (load_encoder, build_plain_encoder):
        with pytest.raises(CheckpointError, match="never run"):
            load(checkpoint)
    assert not trace.exists()


@pytest.mark.parametrize("activation", ["Nonsense", "x.y", "MultiheadAttention", "Optional", ""])
def test_an_activation_that_is_none_is_a_sentence(checkpoint: Path, activation: str) -> None:
    dense_behind(checkpoint, f"torch.nn.modules.activation.{activation}")
    with pytest.raises(CheckpointError, match=r"activation_function .* none of torch\.nn's"):
        load_encoder(checkpoint)


@pytest.mark.parametrize("activation", [7, ["torch"], {}])
def test_an_activation_that_is_no_name_is_a_sentence(checkpoint: Path, activation: Any) -> None:
    dense_behind(checkpoint, activation)
    with pytest.raises(CheckpointError, match=r"activation_function .* none of torch\.nn's"):
        load_encoder(checkpoint)


@pytest.mark.parametrize("names", [1.5, True, None, [1], {"a": 1}])
def test_inputs_that_are_no_names_are_a_sentence(checkpoint: Path, names: object) -> None:
    edit_json(checkpoint / "tokenizer_config.json", model_input_names=names)
    for load in (load_encoder, build_plain_encoder):
        with pytest.raises(CheckpointError, match="model_input_names = .* is no list of names"):
            load(checkpoint)


def test_more_blocks_than_any_model_has_are_not_made(checkpoint: Path) -> None:
    edit_json(checkpoint / "config.json", num_hidden_layers=10**30)
    for load in (load_encoder, build_plain_encoder):
        with pytest.raises(CheckpointError, match=f"{10**30} blocks, and at most 1000 are made"):
            load(checkpoint)


def test_a_pickle_of_a_head_is_not_opened(checkpoint: Path, tmp_path: Path) -> None:
    """Nor does the sentence say how to open it, as torch's own does."""
    dense_behind(checkpoint, "torch.nn.modules.activation.Tanh")
    with_pickle(checkpoint / "2_Dense", tmp_path / "trace")
    with pytest.raises(CheckpointError, match="pickled weights .* not opened: fetch it") as raised:
        load_encoder(checkpoint)
    assert "weights_only" not in str(raised.value)
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("name", [1.5, ["a"], {"a": 1}])
def test_a_dense_of_something_that_is_no_name_is_a_sentence(checkpoint: Path, name: object) -> None:
    dense_behind(checkpoint, "torch.nn.modules.activation.Tanh")
    edit_json(checkpoint / "2_Dense" / "config.json", module_output_name=name)
    with pytest.raises(CheckpointError, match="is a Dense from or to"):
        load_encoder(checkpoint)


def dense_behind(checkpoint: Path, activation: Any) -> None:
    from sentence_transformers.base.modules import Dense

    (checkpoint / "2_Dense").mkdir()
    Dense(32, 8).save(str(checkpoint / "2_Dense"))
    edit_json(checkpoint / "2_Dense" / "config.json", activation_function=activation)
    modules = json.loads((checkpoint / "modules.json").read_text())
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    (checkpoint / "modules.json").write_text(json.dumps([*modules, dense]))


@pytest.mark.parametrize("content", ["[]", "7", "[" * 100_000])
@pytest.mark.parametrize("file", ["config.json", "modules.json", "1_Pooling/config.json", SETTINGS])
def test_json_of_another_shape_is_a_sentence(checkpoint: Path, file: str, content: str) -> None:
    (checkpoint / file).write_text(content)
    with pytest.raises(CheckpointError):
        load_encoder(checkpoint)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_file", "/etc/passwd"),
        ("tokenizer_file", "../other/tokenizer.json"),
        ("gguf_file", "other.gguf"),
        ("init_inputs", ["/etc/passwd"]),
        ("sp_model_kwargs", {"model_file": "/etc/passwd"}),
        ("sudachi_kwargs", {"sudachi_config_path": "/etc/sudachi.json"}),
    ],
)
def test_a_tokenizer_that_names_another_file_is_refused_by_name(
    checkpoint: Path, key: str, value: Any
) -> None:
    """As its settings become arguments of the tokenizer's class."""
    edit_json(checkpoint / "tokenizer_config.json", **{key: value})
    for load in (load_encoder, build_plain_encoder):
        with pytest.raises(
            CheckpointError, match=rf"tokenizer_config\.json has {key} = .*remove it"
        ):
            load(checkpoint)


def test_settings_of_a_tokenizer_that_models_have_still_load(checkpoint: Path) -> None:
    known = {
        "name_or_path": "/root/model",
        "special_tokens_map_file": "/root/.cache/map.json",
        "sp_model_kwargs": {},
        "init_inputs": [],
    }
    edit_json(checkpoint / "tokenizer_config.json", **known)
    assert load_encoder(checkpoint).encode("a").shape == (32,)


@pytest.mark.parametrize("field", ["transformers_weights", "use_timm_backbone"])
def test_a_configuration_that_names_other_weights_is_refused(checkpoint: Path, field: str) -> None:
    edit_json(checkpoint / "config.json", text_config={field: "../other/model.safetensors"})
    with pytest.raises(CheckpointError, match=rf"config\.json has {field} = .*: remove it"):
        load_encoder(checkpoint)


def test_a_processor_of_other_media_is_refused(checkpoint: Path) -> None:
    edit_json(checkpoint / "processor_config.json", audio_tokenizer={"audio_tokenizer_class": "x"})
    with pytest.raises(CheckpointError, match=r"processor_config\.json.* other media"):
        load_encoder(checkpoint)
