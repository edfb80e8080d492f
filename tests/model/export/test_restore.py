"""An artifact gives its checkpoint back, weight for weight, or a sentence says why it cannot."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

from s2sent.model.artifact.errors import ArtifactError
from s2sent.model.artifact.manifest import CONFIG, PARAMETERS
from s2sent.model.artifact.reader import Artifact
from s2sent.model.artifact.template import Template
from s2sent.model.artifact.writer import seal
from s2sent.model.export.checkpoint import encode, export_checkpoint
from s2sent.model.export.int8.rounding import round_weights
from s2sent.model.export.options import Precision
from s2sent.model.export.restore import RestoreError, restore_checkpoint
from s2sent.model.network.encoder import (
    build_plain_encoder,
    find_selector,
    get_selector,
    load_encoder,
)
from s2sent.training.__main__ import main
from s2sent.training.backbones import width_of
from s2sent.training.errors import EncoderError
from s2sent.training.files.record import write_record
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.recipe.recipe import recipe_from
from tests.support.few import FEW
from tests.support.tiny import tiny_backbone

TEXTS = ["the cat sings", "a", "two happy dogs read books in the green city at night"]
# Of transformers' module of ModernBERT.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")

UNREAD = "pooler."  # BERT's, which no graph reads


def restored(artifact: Artifact, folder: Path) -> SentenceTransformer:
    restore_checkpoint(artifact, folder)
    return load_encoder(folder)


def assert_same_weights(one: SentenceTransformer, other: SentenceTransformer) -> None:
    weights, others = one.state_dict(), other.state_dict()
    assert [*weights] == [*others]
    differing = [name for name in weights if not torch.equal(weights[name], others[name])]
    assert [name for name in differing if UNREAD not in name] == []


def test_gates_of_every_exit_come_back(
    exits_checkpoint: Path, exits_artifact: Artifact, tmp_path: Path
) -> None:
    encoder = restored(exits_artifact, tmp_path / "restored")
    before = load_encoder(exits_checkpoint)
    assert_same_weights(encoder, before)
    assert get_selector(encoder).config == get_selector(before).config
    for depth in (2, 3, 4, None):
        assert (encode(encoder, TEXTS, depth) == encode(before, TEXTS, depth)).all()


def test_only_a_checkpoint_is_overwritten(exits_artifact: Artifact, tmp_path: Path) -> None:
    shutil.copytree(exits_artifact.path, tmp_path / "artifact")
    with pytest.raises(ArtifactError, match=r"holds .* and no modules\.json, so it is not over"):
        restore_checkpoint(exits_artifact, tmp_path / "artifact", overwrite=True)
    assert Artifact.open(tmp_path / "artifact").manifest == exits_artifact.manifest
    for _ in range(2):
        restore_checkpoint(exits_artifact, tmp_path / "checkpoint", overwrite=True)


def test_weight_int8_gives_the_rounded_weights(exits_checkpoint: Path, tmp_path: Path) -> None:
    """Of every depth, and of tables that stay int8 in the graph."""
    options = replace(FEW, precision="weight-int8", depths=(2, 3, 4))
    artifact = export_checkpoint(exits_checkpoint, tmp_path / "artifact", options)
    encoder = restored(artifact, tmp_path / "restored")
    rounded = round_weights(load_encoder(exits_checkpoint)).state_dict()
    for name, value in encoder.state_dict().items():
        if UNREAD not in name:
            torch.testing.assert_close(value, rounded[name], rtol=1e-6, atol=0)


@pytest.mark.parametrize("family", ["roberta", "distilbert", "electra", "modernbert"])
def test_other_families_come_back(family: str, tmp_path: Path) -> None:
    """Their exports join, pack or trace other forms, and equal weights become one."""
    plain = build_plain_encoder(
        tiny_backbone(tmp_path / "backbone", family), pooling="cls", max_seq_length=48
    )
    plain.save(str(tmp_path / "checkpoint"), create_model_card=False)
    artifact = export_checkpoint(tmp_path / "checkpoint", tmp_path / "artifact", FEW)
    assert_same_weights(restored(artifact, tmp_path / "restored"), plain)


def test_a_graph_of_standard_operators_comes_back(tiny_checkpoint: Path, tmp_path: Path) -> None:
    options = replace(FEW, standard_operators=True)
    artifact = export_checkpoint(tiny_checkpoint, tmp_path / "artifact", options)
    encoder = restored(artifact, tmp_path / "restored")
    assert_same_weights(encoder, load_encoder(tiny_checkpoint))


def test_what_stands_beside_the_weights_comes_back(tmp_path: Path) -> None:
    encoder = build_plain_encoder(
        tiny_backbone(tmp_path / "backbone"), max_seq_length=24, normalize=False
    )
    encoder.prompts = {"query": "the query: "}
    encoder.default_prompt_name = "query"
    encoder.save(str(tmp_path / "checkpoint"), create_model_card=False)
    write_record(tmp_path / "checkpoint", {"seed": 7})
    artifact = export_checkpoint(tmp_path / "checkpoint", tmp_path / "artifact", FEW)
    again = restored(artifact, tmp_path / "restored")
    assert (again.prompts["query"], again.default_prompt_name) == ("the query: ", "query")
    assert (again.max_seq_length, len(again)) == (24, 2)  # without Normalize
    assert find_selector(again) is None
    record = json.loads((tmp_path / "restored" / "training.json").read_text())
    assert record == artifact.manifest.training


def test_a_recipe_goes_on_from_it(exits_artifact: Artifact, tmp_path: Path) -> None:
    """The selector of the recipe's encoder starts as that of the artifact."""
    encoder = restored(exits_artifact, tmp_path / "restored")
    recipe = recipe_from(
        {
            "seed": 1,
            "backbone": {"name": str(tmp_path / "restored")},
            "selector": {"reduction": 4},
            "elastic": {"depths": [2, 3, 4], "dimensions": [8]},
            "corpus": [{"source": "captions"}],
            "objective": {"name": "simcse"},
        },
        "a recipe",
    )
    started = get_selector(new_encoder(recipe)).state_dict()
    for name, value in get_selector(encoder).state_dict().items():
        assert torch.equal(value, started[name])


@pytest.mark.parametrize(
    ("precision", "said"),
    [("fp16", "is fp16"), ("int8", "is int8")],
)
def test_weights_that_were_not_trained_are_refused(
    precision: Precision, said: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    options = replace(FEW, precision=precision)
    artifact = export_checkpoint(tiny_checkpoint, tmp_path / "artifact", options)
    with pytest.raises(RestoreError, match=f"{said}.* fp32 or weight-int8 artifact in one file"):
        restore_checkpoint(artifact, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"towers": ({"name": "one"},)}, "of twins"),
        ({"pooling": "mean+cls"}, "of several poolings"),
        ({"template": Template((1,), (2,), None, "", "none")}, "of an encoder with a template"),
    ],
)
def test_encoders_of_other_parts_are_refused(
    fields: dict[str, Any], said: str, tiny_artifact: Artifact, tmp_path: Path
) -> None:
    manifest = replace(tiny_artifact.manifest, **fields)
    with pytest.raises(RestoreError, match=said):
        restore_checkpoint(replace(tiny_artifact, manifest=manifest), tmp_path / "restored")


@pytest.mark.parametrize(
    "changes",
    [
        {"_attn_implementation": "someone/kernel"},
        {"text_config": {"attn_implementation": "someone/kernel"}},
        {"auto_map": {"AutoConfig": "mine.Config"}, "model_type": "mine"},
        {"transformers_weights": "../other.safetensors"},
    ],
)
def test_a_configuration_that_would_run_code_is_refused(
    changes: dict[str, Any], tiny_artifact: Artifact, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_artifact.path, tmp_path / "artifact"))
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | changes))
    sealed = seal(folder, tiny_artifact.manifest)
    with pytest.raises(RestoreError, match=rf"^{folder}\S* (has|is a model of the type 'mine')"):
        restore_checkpoint(sealed, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_a_layer_behind_the_pooling_is_refused(tmp_path: Path) -> None:
    encoder = build_plain_encoder(tiny_backbone(tmp_path / "backbone"), max_seq_length=32)
    encoder.insert(2, Dense(32, 16))
    encoder.save(str(tmp_path / "checkpoint"), create_model_card=False)
    artifact = export_checkpoint(tmp_path / "checkpoint", tmp_path / "artifact", FEW)
    with pytest.raises(
        RestoreError, match="(?i)train from the checkpoint that it was exported from"
    ):
        restore_checkpoint(artifact, tmp_path / "restored")


def resealed(artifact: Artifact, folder: Path, parameters: str | None) -> Artifact:
    """A copy with another parameters.json, or without any."""
    shutil.copytree(artifact.path, folder)
    (folder / PARAMETERS).unlink()
    if parameters is not None:
        (folder / PARAMETERS).write_text(parameters)
    return seal(folder, artifact.manifest)


def test_an_artifact_of_an_earlier_version_is_refused(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    artifact = resealed(tiny_artifact, tmp_path / "artifact", None)
    with pytest.raises(
        RestoreError, match=r"has no parameters\.json.*: export the checkpoint again"
    ):
        restore_checkpoint(artifact, tmp_path / "restored")


@pytest.mark.parametrize(
    "changes",
    [
        {"tensor": "of no graph"},
        {"start": 1_000_000},
        {"start": "0"},
        {"transposed": None, "tensor": []},
    ],
)
def test_a_damaged_place_is_refused(
    changes: dict[str, Any], tiny_artifact: Artifact, tmp_path: Path
) -> None:
    places = json.loads(tiny_artifact.read(PARAMETERS))
    name = next(iter(places))
    places[name] |= changes
    artifact = resealed(tiny_artifact, tmp_path / "artifact", json.dumps(places))
    with pytest.raises(RestoreError, match=rf"what parameters\.json says of {name} does not fit"):
        restore_checkpoint(artifact, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_a_place_of_other_values_is_refused(tiny_artifact: Artifact, tmp_path: Path) -> None:
    """Each of the first block's projections is named in place of the one before it."""
    places = json.loads(tiny_artifact.read(PARAMETERS))
    own = [name for name in places if "layer.0.attention.self" in name and "weight" in name]
    moved = {name: places[other] for name, other in zip(own, [*own[1:], own[0]], strict=True)}
    artifact = resealed(tiny_artifact, tmp_path / "artifact", json.dumps(places | moved))
    with pytest.raises(RestoreError, match="gives other embeddings"):
        restore_checkpoint(artifact, tmp_path / "restored")


@pytest.mark.parametrize("content", ["no JSON", "[]"])
def test_a_file_of_no_places_is_refused(
    content: str, tiny_artifact: Artifact, tmp_path: Path
) -> None:
    artifact = resealed(tiny_artifact, tmp_path / "artifact", content)
    with pytest.raises(ArtifactError, match=r"parameters\.json .*Export the checkpoint again"):
        restore_checkpoint(artifact, tmp_path / "restored")


def test_a_converted_graph_has_no_places_of_another(
    tiny_artifact: Artifact, gpu_artifact: Artifact
) -> None:
    assert PARAMETERS in tiny_artifact.manifest.files
    assert PARAMETERS not in gpu_artifact.manifest.files


def test_weights_in_another_form_are_refused(tmp_path: Path) -> None:
    """T5's graph has a table by distance that its export computed from its buckets."""
    build_plain_encoder(tiny_backbone(tmp_path / "backbone", "t5"), max_seq_length=32).save(
        str(tmp_path / "checkpoint"), create_model_card=False
    )
    artifact = export_checkpoint(tmp_path / "checkpoint", tmp_path / "artifact", FEW)
    with pytest.raises(
        RestoreError, match="(?i)train from the checkpoint that it was exported from"
    ):
        restore_checkpoint(artifact, tmp_path / "restored")


def test_a_checkpoint_that_embeds_otherwise_is_refused(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    """Its configuration has another epsilon than the layer norms of its graph."""
    config = json.dumps({**tiny_artifact.config, "layer_norm_eps": 0.1}).encode()
    artifact = replace(tiny_artifact, contents={**tiny_artifact.contents, CONFIG: config})
    with pytest.raises(RestoreError, match="gives other embeddings"):
        restore_checkpoint(artifact, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_the_command_restores_and_replaces_only_when_asked(
    tiny_artifact: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["restore", str(tiny_artifact.path), str(tmp_path / "restored")]
    with pytest.raises(SystemExit, match="0"):
        main(asked)
    assert "max |diff|" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(asked)
    assert "exists" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main([*asked, "--overwrite"])
    with pytest.raises(ArtifactError, match="exists"):
        restore_checkpoint(tiny_artifact, tmp_path / "restored")


def test_an_artifact_in_place_of_a_checkpoint_is_named(
    tiny_artifact: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `export`, and by a recipe that names it as its backbone."""
    with pytest.raises(SystemExit, match="2"):
        main(["export", str(tiny_artifact.path), str(tmp_path / "again")])
    assert "is an artifact. Restore its checkpoint" in capsys.readouterr().err
    with pytest.raises(EncoderError, match="is an artifact. Restore its checkpoint"):
        width_of(str(tiny_artifact.path))
