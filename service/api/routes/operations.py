"""The routes /info, /health, /ping, /ready and /metrics, for operators, probes and Prometheus."""

from typing import Any, get_args

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from s2sent.model.artifact.manifest import Role
from s2sent.service import errors
from s2sent.service.api.embedding import Service, service_of
from s2sent.service.api.openapi import failures, success
from s2sent.service.api.responses import JSON
from s2sent.service.errors import NotReady
from s2sent.service.telemetry.metrics import package_version

router = APIRouter(tags=["operations"])


class Info(BaseModel):
    """Answer of /info: text-embeddings-inference's keys first, then ours."""

    model_config = ConfigDict(protected_namespaces=())

    model_id: str
    model_sha: str | None
    model_dtype: str
    served_model_name: str
    model_type: dict[str, Any] = Field(description='{"embedding": {"pooling": ...}}')
    max_concurrent_requests: int
    max_input_length: int = Field(
        description="Tokens of a text, special tokens included, those of a template not."
    )
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    sha: str | None
    docker_label: str | None
    dim: int = Field(description="Components of an embedding.")
    depths: list[int] = Field(description="Blocks after which a request may stop.")
    full_depth: int | None = Field(description="Blocks of the encoder, the depth of most requests.")
    comparable_depths: list[int] = Field(
        description="Depths whose embeddings can be compared with each other; none if empty."
    )
    default_depth: int | None = Field(description="Depth of a request without one; null for full.")
    default_dimensions: int | None = Field(description="Likewise of dimensions; null for dim.")
    normalize: bool = Field(description="Whether embeddings have length 1 by default.")
    prompts: dict[str, str] = Field(description="Text put before inputs, by prompt_name.")
    default_prompt_name: str | None = Field(description="The prompt of a request without one.")
    roles: dict[Role, str | None] = Field(
        description="The prompt that input_type chooses; null where the model has none for it."
    )
    precision: str = Field(
        description="fp32, fp16, weight-int8 (weights only) or int8 (products too)."
    )
    min_cosine: float | None = Field(
        description="Least cosine to the model before rounding, at any depth; null if unknown."
    )
    provider: str = Field(description="ONNX Runtime's execution provider.")
    fingerprint: str = Field(description="SHA-256 of the artifact's manifest.")
    threads: int = Field(description="Threads of the encoder.")
    unknown_id: int | None = Field(
        description="The token of what the vocabulary lacks; null where it lacks nothing."
    )
    warnings: list[str] = Field(description="What is probably set wrong, in a sentence each.")
    block_weights: bool = Field(description="Whether /explain gives the selector's block weights.")


class Status(BaseModel):
    """Answer of /health and /ready."""

    status: str


@router.head("/info", include_in_schema=False)
@router.get(
    "/info",
    summary="The model and the limits",
    responses={
        **failures(
            errors.Unauthorized, errors.QuotaExceeded, errors.InternalError, errors.NotReady
        ),
        200: success(Info, "The model that is served and the limits it is served with."),
    },
)
async def info(request: Request) -> Response:
    """The served model and the limits of the service."""
    return Response(_info(service_of(request)).model_dump_json(), media_type=JSON)


@router.api_route("/ping", methods=["GET", "HEAD"], include_in_schema=False)
@router.head("/health", include_in_schema=False)
@router.get(
    "/health",
    summary="Whether the process is alive",
    responses={200: success(Status, "The process is alive."), **failures(errors.InternalError)},
)
async def health(_request: Request) -> Response:
    """Alive: the process answers. /ready says whether it can embed."""
    return Response(b'{"status":"alive"}', media_type=JSON)


@router.head("/ready", include_in_schema=False)
@router.get(
    "/ready",
    summary="Whether requests should be sent here",
    responses={
        200: success(Status, "The model is loaded, warmed up and verified."),
        **failures(errors.InternalError, errors.NotReady),
    },
)
async def ready(request: Request) -> Response:
    """Ready: the model is loaded and verified, and the engine accepts requests."""
    readiness = service_of(request).engine.readiness()
    if not readiness.ready:
        raise NotReady(f"Not ready: {readiness.reason}.", retry_after_seconds=1)
    return Response(b'{"status":"ready"}', media_type=JSON)


@router.head("/metrics", include_in_schema=False)
@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    responses={
        200: {
            "description": "Prometheus' text format, or OpenMetrics where Accept asks for it.",
            "content": {
                media_type: {"schema": {"type": "string"}}
                for media_type in ("text/plain", "application/openmetrics-text")
            },
        },
        **failures(errors.Unauthorized, errors.QuotaExceeded, errors.InternalError),
    },
    response_class=Response,
)
async def metrics(request: Request) -> Response:
    """The metrics, at most a second old."""
    accept = request.headers.get("accept", "")
    body, content_type = await service_of(request).exposition.text(accept)
    return Response(body, headers={"Content-Type": content_type})


def _info(service: Service) -> Info:
    settings, engine, manifest = service.settings, service.engine, service.manifest
    return Info(
        model_id=manifest.name,
        model_sha=engine.artifact.fingerprint,
        model_dtype="float16" if manifest.precision == "fp16" else "float32",
        served_model_name=service.model_name,
        model_type={"embedding": {"pooling": manifest.pooling}},
        max_concurrent_requests=settings.max_concurrent_requests,
        max_input_length=manifest.max_input_length,
        max_batch_tokens=settings.max_batch_tokens,
        max_batch_requests=settings.max_batch_texts,
        max_client_batch_size=settings.max_client_batch_size,
        auto_truncate=settings.auto_truncate,
        tokenization_workers=engine.tokenizer_threads,
        version=package_version(),
        sha=None,
        docker_label=None,
        dim=manifest.dim,
        depths=list(manifest.depths),
        full_depth=manifest.full_depth,
        comparable_depths=list(manifest.comparable_depths),
        default_depth=settings.default_depth,
        default_dimensions=settings.default_dimensions,
        normalize=True,
        prompts=manifest.prompts,
        default_prompt_name=manifest.default_prompt_name,
        roles={role: manifest.role_prompt_name(role) for role in get_args(Role)},
        precision=manifest.precision,
        min_cosine=manifest.min_cosine,
        provider=engine.model.provider,
        fingerprint=engine.artifact.fingerprint,
        threads=engine.threads,
        unknown_id=engine.model.tokenizer.unknown_id,
        warnings=list(settings.warnings),
        block_weights=engine.model.has_block_weights,
    )
