"""Fixtures for all tests: one tiny checkpoint and its artifact, built once a session."""

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before any test imports ONNX Runtime
# The tests' networks are tiny: several threads take longer than one, in torch and in BLAS.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

from s2sent.model.artifact.reader import Artifact

# A machine may be as slow as it likes.
settings.register_profile("slow", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slow")

gc.disable()  # what is imported stays: garbage is looked for when all is


def pytest_collection_finish() -> None:
    """Exports collect garbage; what is imported by then is not looked through again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _sessions_of_one_thread() -> Iterator[None]:
    """Of ONNX Runtime, where nobody asks for more: the others spin for work that never comes."""
    import onnxruntime as ort

    make = ort.InferenceSession.__init__

    def of_one_thread(
        self: Any, model: Any, sess_options: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        options = sess_options or ort.SessionOptions()
        options.intra_op_num_threads = options.intra_op_num_threads or 1
        make(self, model, options, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ort.InferenceSession, "__init__", of_one_thread)
        yield


@pytest.fixture(scope="module", params=[1, 2], ids=["one-process", "http-processes"])
def each_form(request: pytest.FixtureRequest) -> Iterator[None]:
    """Servers of `tests.support.server_process` run in one process, then in several.

    A fixture with a scope of its own that starts a server asks for it, so that it starts two.
    """
    from tests.support.server_process import ServerProcess

    before = ServerProcess.form
    ServerProcess.form = ("--http-processes", str(request.param))
    yield
    ServerProcess.form = before


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A four-block BERT, 32 wide, with a random selector, as sentence-transformers saves it."""
    from s2sent.model.network.encoder import build_encoder
    from s2sent.model.network.selector_config import SelectorConfig
    from tests.support.tiny import tiny_backbone

    folder = tmp_path_factory.mktemp("tiny")
    config = SelectorConfig.preset("default", width=32, reduction=4)
    encoder = build_encoder(tiny_backbone(folder / "backbone"), config, max_seq_length=64)
    encoder.save(str(folder / "checkpoint"))
    return folder / "checkpoint"


@pytest.fixture(scope="session")
def tiny_artifact(tiny_checkpoint: Path) -> Artifact:
    """The checkpoint's fp32 artifact."""
    from s2sent.model.export.checkpoint import export_checkpoint
    from tests.support.few import FEW

    target = tiny_checkpoint.parent / "artifact"
    return export_checkpoint(tiny_checkpoint, target, replace(FEW, name="tiny"))


@pytest.fixture(scope="session")
def gpu_artifact(tiny_artifact: Artifact) -> Artifact:
    """The tiny artifact converted for a GPU, in float32."""
    from s2sent.model.export.gpu.conversion import convert_for_gpu
    from tests.support.few import FEW_SENTENCES

    target = tiny_artifact.path.parent / "gpu"
    return convert_for_gpu(tiny_artifact, target, "fp32", sentences=FEW_SENTENCES)


@pytest.fixture(scope="session")
def exits_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A six-block BERT, 32 wide, with gates for exits, whose weights differ clearly by text."""
    import torch

    from s2sent.model.network.encoder import build_encoder, get_selector
    from s2sent.model.network.selector_config import SelectorConfig
    from tests.support.tiny import tiny_backbone

    folder = tmp_path_factory.mktemp("exits")
    backbone = tiny_backbone(folder / "backbone", num_layers=6)
    config = SelectorConfig.preset("default", width=32, reduction=4, exits=(2, 3, 4))
    encoder = build_encoder(backbone, config, max_seq_length=64)
    generator = torch.Generator().manual_seed(1)
    for parameter in get_selector(encoder).parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    encoder.save(str(folder / "checkpoint"))
    return folder / "checkpoint"


@pytest.fixture(scope="session")
def exits_artifact(exits_checkpoint: Path) -> Artifact:
    """The checkpoint's fp32 artifact, which can stop after blocks 2, 3 and 4."""
    from s2sent.model.export.checkpoint import export_checkpoint
    from tests.support.few import FEW

    options = replace(FEW, name="tiny-exits", depths=(2, 3, 4))
    return export_checkpoint(exits_checkpoint, exits_checkpoint.parent / "artifact", options)


@pytest.fixture(scope="session")
def decoder_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A four-block Llama, 32 wide, that is read at the last token of its template."""
    from tests.support.decoder_checkpoint import SCOPES, a_decoder, a_selector

    folder = tmp_path_factory.mktemp("decoder")
    return a_decoder(folder, a_selector(**SCOPES["token"]))


@pytest.fixture(scope="session")
def decoder_artifact(decoder_checkpoint: Path) -> Artifact:
    """The decoder's fp32 artifact, which can stop after block 3."""
    from s2sent.model.export.checkpoint import export_checkpoint
    from tests.support.few import FEW

    target = decoder_checkpoint.parent / "fp32"
    return export_checkpoint(decoder_checkpoint, target, replace(FEW, depths=(3,)))


@pytest.fixture(scope="session")
def prompt_backbones(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny backbones that a template can stand before, by family; and one without positions."""
    from tests.support.prompt_encoders import FAMILIES
    from tests.support.tiny import tiny_backbone

    folder = tmp_path_factory.mktemp("backbones")
    return {family: tiny_backbone(folder / family, family) for family in (*FAMILIES, "distilbert")}


@pytest.fixture(scope="session")
def prompt_encoder_of(prompt_backbones: dict[str, Path]) -> Callable[..., Any]:
    """Encoders by family, selector and options, built once: a test leaves them as they are."""
    import torch

    from s2sent.model.network.encoder import build_prompt_encoder
    from tests.support.prompt_encoders import TEMPLATES

    @cache
    def build(family: str, selector: Any = None, **options: Any) -> Any:
        torch.manual_seed(0)  # of the selector's first weights
        return build_prompt_encoder(prompt_backbones[family], selector, TEMPLATES, **options)

    return build
