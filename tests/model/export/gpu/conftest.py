"""Artifacts of the families, and what they are converted to for a GPU."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from s2sent.model.artifact.reader import Artifact
from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.gpu.conversion import convert_for_gpu
from s2sent.model.network.encoder import build_encoder
from s2sent.model.network.selector_config import SelectorConfig
from tests.support.few import FEW, FEW_SENTENCES
from tests.support.tiny import tiny_backbone


@pytest.fixture(scope="session")
def source_of(
    tmp_path_factory: pytest.TempPathFactory, decoder_artifact: Artifact, exits_artifact: Artifact
) -> Any:
    """Artifacts that can stop early, by family; one with gates for exits, and a decoder."""
    made = {"llama": decoder_artifact, "exits": exits_artifact}

    def source(family: str) -> Artifact:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            config = SelectorConfig.preset("default", width=32, reduction=4, num_blocks=2)
            backbone = tiny_backbone(folder / "backbone", family, num_layers=3)
            build_encoder(backbone, config, max_seq_length=64).save(str(folder / "checkpoint"))
            options = replace(FEW, depths=(2,))
            made[family] = export_checkpoint(folder / "checkpoint", folder / "artifact", options)
        return made[family]

    return source


@pytest.fixture(scope="session")
def converted(source_of: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the artifact of a family is converted to, by precision; each is made once."""

    @cache
    def convert(family: str, precision: str) -> Artifact:
        target = tmp_path_factory.mktemp("converted") / precision
        return convert_for_gpu(source_of(family), target, precision, sentences=FEW_SENTENCES)

    return convert
