"""Every kind of checkpoint loads with sentence-transformers where this project is not there."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from s2sent.model.network.encoder import build_encoder, build_plain_encoder, build_prompt_encoder
from s2sent.model.network.selector_config import SelectorConfig
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
import traceback
from pathlib import Path
import numpy as np
from sentence_transformers import SentenceTransformer
texts = sys.argv[1:]
for first in sorted(Path().glob("*/*.first")):
    second = first.with_suffix(".second")
    try:
        encoder = SentenceTransformer(str(first), trust_remote_code=True, device="cpu")
        encoder.save(str(second))
        again = SentenceTransformer(str(second), trust_remote_code=True, device="cpu")
        np.save(second / "vectors.npy", np.stack([encoder.encode(texts), again.encode(texts)]))
    except Exception:
        first.with_suffix(".error").write_text(traceback.format_exc())
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


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder a kind: KIND.first is saved here, KIND.second where this project is not."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for kind in KINDS:
        encoder = kind(folder / kind.__name__ / "made")
        encoder.save(
            str(folder / kind.__name__ / f"{kind.__name__}.first"), create_model_card=False
        )
        np.save(folder / kind.__name__ / "expected.npy", encoder.encode(TEXTS))
    environment = {**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-P", "-W", "ignore", "-c", OTHER_PROCESS, *TEXTS]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("kind", [kind.__name__ for kind in KINDS])
def test_a_checkpoint_lives_where_this_project_is_not_installed(kind: str, elsewhere: Path) -> None:
    """Loaded and saved there, loaded again there, and back here."""
    folder = elsewhere / kind
    error = folder / f"{kind}.error"
    assert not error.exists(), error.read_text()
    expected = np.load(folder / "expected.npy")
    for vectors in np.load(folder / f"{kind}.second" / "vectors.npy"):
        assert np.abs(vectors - expected).max() <= TOLERANCE
    for saved in ("first", "second"):
        here = load_checkpoint(folder / f"{kind}.{saved}").encode(TEXTS)
        assert np.abs(here - expected).max() <= TOLERANCE


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
