"""Prompts that are attended to and left out of the pooling give sentence-transformers' vectors."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from transformers import AutoConfig
from typer.testing import CliRunner

from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.from_onnx.conversion import export_given_graph
from s2sent.model.export.gpu.conversion import convert_for_gpu
from s2sent.model.export.int8.conversion import convert_to_int8
from s2sent.model.export.parity import ParityError
from s2sent.model.export.restore import restore_checkpoint
from s2sent.model.network.encoder import build_encoder, load_encoder
from s2sent.model.network.loading.checkpoint import CheckpointError
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.model.runtime.input_errors import UnusableInput
from s2sent.service.__main__ import app
from s2sent.service.bulk.embedders.local import LocalEmbedder
from s2sent.service.bulk.job import BulkError, Options
from tests.support.few import FEW, FEW_SENTENCES
from tests.support.given_graphs import given_graph
from tests.support.server_process import running_server
from tests.support.tiny import _byte_level_tokenizer, _save, tiny_backbone

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")

WIDTH, TOKENS = 64, 48
PROMPTS = {"query": "what is in the house: ", "document": "the book reads: "}
LONG = "two happy dogs read books in the green city at night " * 4
TEXTS = ["the cat sings", "a cat", LONG, "The child plays with three cats, and a bird sings."]
QWEN = {"hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 32}
QWEN |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256}


def save_model(folder: Path, family: str, modes: Any = "mean", prompts: Any = PROMPTS) -> Path:
    """A model of sentence-transformers with two prompts, which it does not pool."""
    backbone = folder.with_name(f"{folder.name}-backbone")
    if family == "qwen3":  # pads on the left; without special tokens around a text
        tokenizer = _byte_level_tokenizer(TOKENS)
        tokenizer.add_special_tokens({"pad_token": "<pad>"})
        ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        _save(backbone, AutoConfig.for_model(family, **ids, **QWEN), tokenizer, seed=0)
    else:
        tiny_backbone(backbone, family, width=WIDTH, num_layers=2)
    modules = [
        Transformer(str(backbone), max_seq_length=TOKENS),
        Pooling(WIDTH, pooling_mode=modes, include_prompt=False),
        Normalize(),
    ]
    SentenceTransformer(modules=modules, prompts=prompts).save(str(folder), create_model_card=False)
    return folder


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def model(family: str) -> Path:
        if family not in made:
            made[family] = save_model(tmp_path_factory.mktemp(family) / "saved", family)
        return made[family]

    return model


@pytest.fixture(scope="module")
def packed(
    model_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> OnnxEncoder:
    return export(model_of("bert"), tmp_path_factory.mktemp("packed") / "artifact", "packed")


def library_of(model: Path) -> Any:
    return SentenceTransformer(str(model), device="cpu")


def worst_cosine(rows: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    return float(np.sum(rows * expected, axis=1).min())


FORMS: dict[str, dict[str, Any]] = {
    "packed": {},
    "padded": {"standard_operators": True, "allow_unfused_attention": True},
    "depths": {"depths": (1,)},
    "int8": {"precision": "int8"},
    "fp16": {"precision": "fp16"},
    "for a GPU": {},
    "int8 of an artifact": {},
}
LEAST = {"int8": 0.995, "int8 of an artifact": 0.995, "fp16": 0.9999}


def export(model: Path, target: Path, form: str) -> OnnxEncoder:
    artifact = export_checkpoint(model, target, replace(FEW, **FORMS[form]))
    if form == "for a GPU":
        artifact = convert_for_gpu(
            artifact, target.with_name("gpu"), "fp32", sentences=FEW_SENTENCES
        )
    if form == "int8 of an artifact":
        artifact = convert_to_int8(artifact, target.with_name("int8"), sentences=FEW_SENTENCES)
    return OnnxEncoder(artifact)


@pytest.mark.parametrize(
    ("family", "form"),
    [
        *product(("bert", "modernbert", "qwen3"), ("packed", "int8", "for a GPU")),
        *product(("bert",), ("padded", "depths", "fp16", "int8 of an artifact")),
    ],
)
def test_each_form_gives_the_librarys_vectors(
    model_of: Callable[[str], Path], family: str, form: str, tmp_path: Path
) -> None:
    """With each prompt, alone and in batches; pooled with its prompt a text is another one."""
    model, least = model_of(family), LEAST.get(form, 0.999999)
    served, library = export(model, tmp_path / "artifact", form), library_of(model)
    for name, prompt in PROMPTS.items():
        expected = library.encode(TEXTS, prompt_name=name)
        for size in (1, len(TEXTS)):
            right = worst_cosine(served.encode(TEXTS, prompt_name=name, batch_size=size), expected)
            assert right >= least
        assert worst_cosine(served.encode([prompt + text for text in TEXTS]), expected) < right
    assert worst_cosine(served.encode(TEXTS), library.encode(TEXTS)) >= least


def test_each_pooling_is_the_librarys(tmp_path: Path) -> None:
    """That of the first token takes the first one behind the prompt."""
    model = save_model(tmp_path / "saved", "bert", Pooling.POOLING_MODES)
    served = export(model, tmp_path / "artifact", "packed")
    for name in PROMPTS:
        expected = library_of(model).encode(TEXTS, prompt_name=name)
        np.testing.assert_allclose(served.encode(TEXTS, prompt_name=name), expected, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_graph_of_its_own_gives_the_librarys_vectors(pooling: str, tmp_path: Path) -> None:
    folder = tmp_path / "given"
    encoder = given_graph(folder, pooling=pooling)
    encoder.set_pooling_include_prompt(False)
    encoder.prompts = {**PROMPTS}
    for name, changes in (
        ("1_Pooling/config.json", {"include_prompt": False}),
        ("config_sentence_transformers.json", {"prompts": PROMPTS}),
    ):
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | changes))
    served = OnnxEncoder(export_given_graph(folder, tmp_path / "made"))
    for name in PROMPTS:
        expected = encoder.encode(TEXTS, prompt_name=name)
        np.testing.assert_allclose(served.encode(TEXTS, prompt_name=name), expected, atol=1e-5)


ENDLESS = {"short": "the cat: ", "endless": "what is in the house: " * TOKENS}


@pytest.mark.parametrize("family", ["bert", "qwen3"])
def test_a_shortest_prompt_that_fills_the_row_is_not_exported(family: str, tmp_path: Path) -> None:
    model = save_model(tmp_path / "saved", family, prompts={"endless": ENDLESS["endless"]})
    said = (
        r"the prompt 'endless' has \d+ tokens with the special ones, and max_seq_length is 48,"
        r" which leaves no room for a text: shorten the prompt, or export with --max-seq-length"
    )
    with pytest.raises(ParityError, match=said):
        export(model, tmp_path / "artifact", "packed")
    assert not (tmp_path / "artifact").exists()


def test_a_text_behind_a_prompt_that_fills_the_row_is_refused(tmp_path: Path) -> None:
    """The library pools the special token at the end alone: one vector for all texts."""
    model = save_model(tmp_path / "saved", "bert", prompts=ENDLESS)
    served = export(model, tmp_path / "artifact", "packed")
    said = r"nput 0 stands behind a prompt that has \d+ tokens .* is 48. Choose another prompt"
    with pytest.raises(UnusableInput, match=said):
        served.encode(TEXTS, prompt_name="endless")
    with running_server(served.artifact.path) as server:
        answers = {
            name: server.client.post("/embed", json={"inputs": TEXTS, "prompt_name": name})
            for name in ENDLESS
        }
    assert {name: each.status_code for name, each in answers.items()} == {
        "short": 200,
        "endless": 422,
    }
    assert re.search(said, answers["endless"].text)
    options = Options(prompt_name="endless")
    with pytest.raises(BulkError, match=r"^Every text stands behind a prompt that has \d+ tokens"):
        LocalEmbedder(served.artifact.path, options, threads=1)


def test_a_text_of_which_nothing_is_pooled_is_refused(tmp_path: Path) -> None:
    """The library gives zeros. A prompt's last space, where it is a token, is the first word's."""
    model = save_model(tmp_path / "saved", "qwen3", prompts=ENDLESS)
    served, library = export(model, tmp_path / "artifact", "packed"), library_of(model)
    assert not library.encode("a", prompt_name="short").any()
    with pytest.raises(UnusableInput, match="input 0 has no tokens to pool. Leave it out."):
        served.encode(["a"], prompt_name="short")


def test_a_restored_checkpoint_leaves_them_out(packed: OnnxEncoder, tmp_path: Path) -> None:
    restore_checkpoint(packed.artifact, tmp_path / "restored")
    rows = library_of(tmp_path / "restored").encode(TEXTS, prompt_name="query")
    np.testing.assert_allclose(rows, packed.encode(TEXTS, prompt_name="query"), atol=1e-5)


def test_a_selector_refuses_them(tmp_path: Path) -> None:
    backbone = tiny_backbone(tmp_path / "backbone", width=WIDTH, num_layers=2)
    encoder = build_encoder(backbone, SelectorConfig(width=WIDTH, num_blocks=2))
    encoder.set_pooling_include_prompt(False)
    encoder.prompts = {**PROMPTS}
    encoder.save(str(tmp_path / "saved"))
    with pytest.raises(CheckpointError, match="include_prompt=False.*set include_prompt to true"):
        load_encoder(tmp_path / "saved")


@pytest.mark.parametrize("flags", [(), ("--http-processes", "2")])
def test_the_service_gives_the_librarys_vectors(
    model_of: Callable[[str], Path], packed: OnnxEncoder, flags: Sequence[str]
) -> None:
    """By every route, and from its cache: a text with another prompt is another entry."""
    library, artifact = library_of(model_of("bert")), packed.artifact
    unknown = [text.replace("cat", "\u732b") for text in TEXTS]
    expected = {name: library.encode(unknown, prompt_name=name) for name in PROMPTS}
    with running_server(artifact.path, "--cache-bytes", "1000000", *flags) as server:

        def ask(path: str, **body: Any) -> Any:
            response = server.client.post(path, json=body)
            assert response.status_code == 200, response.text
            return response.json()

        for name in (*PROMPTS, *PROMPTS):
            rows = ask("/embed", inputs=unknown, prompt_name=name)
            np.testing.assert_allclose(rows, expected[name], atol=1e-5)
            data = ask("/v1/embeddings", model="m", input=unknown, input_type=name)["data"]
            rows = [each["embedding"] for each in data]
            np.testing.assert_allclose(rows, expected[name], atol=1e-5)
        ranked = ask("/similarity", inputs={"queries": unknown[:1], "documents": unknown})[0]
        scores = [each["score"] for each in sorted(ranked, key=lambda each: each["index"])]
        np.testing.assert_allclose(scores, expected["document"] @ expected["query"][0], atol=1e-5)
        answer = ask("/embed", inputs=unknown[:1], prompt_name="query", details=True)
        assert answer["details"]["texts"][0]["unknown"] == 1


def test_the_bulk_command_gives_the_librarys_vectors(
    model_of: Callable[[str], Path], packed: OnnxEncoder, tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    command = ["embed", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "out")]
    options = ["--artifact", str(packed.artifact.path), "--prompt-name", "query", "--format", "npy"]
    result = CliRunner().invoke(app, [*command, *options])
    assert result.exit_code == 0, result.output
    rows = np.load(tmp_path / "out/embeddings.npy")
    expected = library_of(model_of("bert")).encode(TEXTS, prompt_name="query")
    np.testing.assert_allclose(rows, expected, atol=1e-5)
