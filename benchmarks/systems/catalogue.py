"""Every system that can be compared, by name; which of them a run takes by default."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.systems.models import Models
from benchmarks.systems.ours import http_alone, our_service, plain_fastapi, raw_limit
from benchmarks.systems.peers import infinity, libraries, text_embeddings_inference
from benchmarks.systems.system import DEFAULT_ARTIFACT, Check, System
from s2sent.model.artifact.reader import Artifact

INT8_MIN_COSINE = 0.99
NOT_BY_DEFAULT = ("infinity-torch", "fastapi", "raw-default")
SYSTEMS = (
    *("s2sent", "tei", "plain-fastapi", "infinity-optimum", "infinity-torch", "raw"),
    *("s2sent-int8", "tei-int8", "plain-fastapi-int8", "raw-int8", "http"),
    *("s2sent-default", "raw-default", "fastapi", "encode", "fastembed"),
)
BY_DEFAULT = tuple(name for name in SYSTEMS if name not in NOT_BY_DEFAULT)


def all_systems(
    models: Models, check_texts: list[str], peers: Path, tei: str, serve_options: Sequence[str] = ()
) -> list[System]:
    """Every system in the order of `SYSTEMS`.

    ``peers`` holds one environment for each other Python project; ``tei`` is the router of
    text-embeddings-inference.
    """
    minilm = Check(check_texts, models.reference)
    canary = Artifact.open(DEFAULT_ARTIFACT).canary
    default = Check([canary.text], np.array([canary.embedding], dtype=np.float32))
    rounded = replace(minilm, min_cosine=INT8_MIN_COSINE)
    of_int8 = [
        our_service(models.int8, rounded, suffix="int8", options=serve_options),
        raw_limit(models.int8, rounded, suffix="int8"),
        plain_fastapi(models.int8, rounded, suffix="int8"),
    ]
    found = [
        our_service(models.artifact, minilm, options=serve_options, open_loop=True),
        our_service(DEFAULT_ARTIFACT, default, suffix="default", options=serve_options),
        raw_limit(models.artifact, minilm),
        raw_limit(DEFAULT_ARTIFACT, default, suffix="default"),
        plain_fastapi(models.artifact, minilm),
        http_alone(),
        *text_embeddings_inference(models, minilm, tei),
        *infinity(models, minilm, peers),
        *libraries(models, minilm, peers),
    ]
    found += of_int8
    by_name = {system.name: system for system in found}
    return [by_name[name] for name in SYSTEMS]
