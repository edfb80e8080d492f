"""Every kind of checkpoint loads with sentence-transformers where this project is not there."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from s2sent.model.network.checkpoint import has_template
from s2sent.model.network.encoder import build_encoder, build_plain_encoder, build_prompt_encoder
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.twins import is_twin_checkpoint
from s2sent.training.evaluation.encoders import load_checkpoint
from tests.support.decoder_checkpoint import SCOPES, a_decoder, a_selector
from tests.support.tiny import tiny_backbone
from tests.support.tiny_twins import tiny_twins

TEXTS = ["the dog", "Two men read; one sings!", "a " * 30]
TOLERANCE = 1e-5  # what the order of sums may change

OTHER_PROCESS = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("s2sent", "model", "service", "training"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Block())
import numpy as np
from sentence_transformers import SentenceTransformer
first, second, texts = sys.argv[1], sys.argv[2], sys.argv[3:]
encoder = SentenceTransformer(first, trust_remote_code=True, device="cpu")
encoder.save(second)
again = SentenceTransformer(second, trust_remote_code=True, device="cpu")
np.save(second + "/vectors.npy", np.stack([encoder.encode(texts), again.encode(texts)]))
"""


def fused(folder: Path) -> Any:
    config = SelectorConfig.preset("default", width=32, reduction=4, exits=(2,))
    return build_encoder(tiny_backbone(folder / "backbone"), config)


def plain(folder: Path) -> Any:
    return build_plain_encoder(tiny_backbone(folder / "backbone"), pooling="cls")


def prompted(folder: Path) -> Any:
    """Two templates with a mask, and a selector."""
    templates = ['This sentence of "{}" means [MASK].', '"{}" : [MASK].']
    config = SelectorConfig(width=32, num_blocks=3, reduction=2)
    return build_prompt_encoder(tiny_backbone(folder / "backbone"), config, templates)


def pooled_template(folder: Path) -> Any:
    """A template whose tokens are all pooled."""
    backbone = tiny_backbone(folder / "backbone", "roberta")
    return build_prompt_encoder(backbone, None, ['This sentence : "{}".'], pooling="mean")


def decoder(folder: Path) -> Any:
    return load_checkpoint(a_decoder(folder, a_selector(**SCOPES["token"])))


def decoder_alone(folder: Path) -> Any:
    return load_checkpoint(a_decoder(folder, None, family="gpt2"))


def twins(folder: Path) -> Any:
    return tiny_twins(folder)


KINDS = [plain, fused, prompted, pooled_template, decoder, decoder_alone, twins]


def load_elsewhere(first: Path, second: Path, folder: Path) -> np.ndarray[Any, Any]:
    """The vectors of TEXTS from ``first``, and from ``second``, where that saves it again."""
    environment = {**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-P", "-W", "ignore", "-c", OTHER_PROCESS, str(first), str(second)]
    done = subprocess.run(
        [*command, *TEXTS], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    vectors: np.ndarray[Any, Any] = np.load(second / "vectors.npy")
    return vectors


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_lives_where_this_project_is_not_installed(
    kind: Callable[[Path], Any], tmp_path: Path
) -> None:
    """Loaded and saved there, loaded again there, and back here."""
    encoder = kind(tmp_path / "made")
    encoder.save(str(tmp_path / "first"), create_model_card=False)
    expected = encoder.encode(TEXTS)
    for vectors in load_elsewhere(tmp_path / "first", tmp_path / "second", tmp_path):
        assert np.abs(vectors - expected).max() <= TOLERANCE
    for folder in ("first", "second"):
        here = load_checkpoint(tmp_path / folder).encode(TEXTS)
        assert np.abs(here - expected).max() <= TOLERANCE


FORMER = ("model.network", "s2sent.model.network")


@pytest.mark.parametrize("package", FORMER)
def test_checkpoints_that_name_this_project_s_modules_still_load(
    package: str, tmp_path: Path
) -> None:
    """As they were saved before they carried their code."""
    for kind, modules, is_kind in (
        (decoder, {"modeling_s2sent_template": f"{package}.transformer"}, has_template),
        (twins, {"modeling_s2sent_twins": f"{package}.twins"}, is_twin_checkpoint),
    ):
        encoder = kind(tmp_path / kind.__name__)
        folder = tmp_path / f"{kind.__name__}.old"
        encoder.save(str(folder), create_model_card=False)
        text = (folder / "modules.json").read_text()
        for new, old in modules.items():
            assert new in text
            text = text.replace(f'"{new}.', f'"{old}.')
        (folder / "modules.json").write_text(text)
        assert is_kind(folder)
        np.testing.assert_array_equal(load_checkpoint(folder).encode(TEXTS), encoder.encode(TEXTS))


def test_code_in_a_checkpoint_is_not_run_here(tmp_path: Path) -> None:
    for kind in (decoder, twins):
        folder = tmp_path / f"{kind.__name__}.saved"
        kind(tmp_path / kind.__name__).save(str(folder), create_model_card=False)
        for file in folder.rglob("*.py"):
            file.write_text("raise SystemExit('this code was run')")
        assert load_checkpoint(folder).encode(TEXTS).shape == (3, 32)
        modules = json.loads((folder / "modules.json").read_text())
        modules[0]["type"] = f"evil.{modules[0]['type'].partition('.')[2]}"
        (folder / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(ValueError, match=r"evil\."):
            load_checkpoint(folder)
