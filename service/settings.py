"""Every setting of the service: one class, which `service.settings_loading` makes.

`service.settings_reference` makes the flags of ``s2sent serve`` and the table in docs/settings.md
from the fields below, so a setting is described in one place.
"""

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AnyHttpUrl,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

ENV_PREFIX = "S2SENT_"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
DEFAULT_ARTIFACT = Path(__file__).resolve().parent.parent / "artifacts" / "default"


class SettingsError(Exception):
    """The settings cannot be used; ``problems`` has one sentence for each reason."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def _setting(default: Any, group: str, description: str, **bounds: Any) -> Any:
    """A field with its default, its bounds, its heading in ``--help`` and its one line of help."""
    source = (
        {"default_factory": default} if isinstance(default, _ByDevice) else {"default": default}
    )
    return Field(**source, description=description, json_schema_extra={"group": group}, **bounds)


@dataclass(frozen=True)
class _ByDevice:
    """A default that depends on the field ``device``, which must stand before it."""

    cpu: int | str
    gpu: int | str

    def __call__(self, values: dict[str, Any]) -> int | str:
        device = values.get("device", "cpu")  # not there when it was refused itself
        return self.cpu if device == "cpu" else self.gpu

    def __str__(self) -> str:
        return f"{self.cpu}, on a GPU {self.gpu}"


class Settings(BaseSettings):
    """What the service was told, checked and frozen."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, frozen=True, extra="forbid"
    )

    host: str = _setting(
        "127.0.0.1", "Server", "Address to listen on; :: for every one, 0.0.0.0 for IPv4 alone."
    )
    port: int = _setting(8080, "Server", "TCP port; 0 takes a free one.", ge=0, le=65_535)
    max_body_bytes: int = _setting(
        8_388_608, "Server", "Largest request body; above it 413.", ge=1_024, le=268_435_456
    )
    max_held_body_bytes: int = _setting(
        67_108_864, "Server", "Memory for the bodies of all requests; above it 429 to large ones.",
        ge=65_536, le=1_099_511_627_776,
    )  # fmt: skip
    max_unsent_bytes: int = _setting(
        134_217_728, "Server", "Memory for long answers that are not yet sent; above it 429.",
        ge=65_536, le=1_099_511_627_776,
    )  # fmt: skip
    max_concurrent_requests: int = _setting(
        512, "Server", "Requests worked on at one time; above it 429.", ge=1, le=65_536
    )
    request_timeout_seconds: float = _setting(
        60.0, "Server", "Time a request may take, waiting included; above it 504.", gt=0, le=3_600
    )
    http_processes: int = _setting(
        0, "Server", "HTTP processes before one engine; 0: on a CPU 1, on a GPU its cores less 2.",
        ge=0, le=64,
    )  # fmt: skip
    drain_timeout_seconds: float = _setting(
        30.0, "Server", "Time given to accepted requests after SIGTERM.", ge=0, le=3_600
    )
    keep_alive_seconds: int = _setting(
        75, "Server", "Time an idle connection stays open; above a load balancer's own.",
        ge=1, le=3_600,
    )  # fmt: skip
    cors_allow_origins: Annotated[tuple[str, ...], NoDecode] = _setting(
        (), "Server", "Origins browsers may call from, separated by commas; * for any."
    )
    playground: Literal["auto", "on", "off"] = _setting(
        "auto", "Server",
        "Whether /playground and the scripts of /docs are served; auto: on loopback.",
    )  # fmt: skip

    artifact: Path = _setting(DEFAULT_ARTIFACT, "Model", "Folder of the exported model to serve.")
    model: str | None = _setting(
        None, "Model", "A model to serve in place of artifact: a folder, hub id or pypi: name."
    )
    served_name: str | None = _setting(
        None, "Model", "Name of the model in answers; by default the artifact's own."
    )
    device: Literal["cpu", "cuda"] = _setting("cpu", "Model", "Where the encoder runs.")
    precision: Literal["as_is", "int8", "fp16", "fp32", "auto"] = _setting(
        _ByDevice("as_is", "fp16"), "Model",
        "What the artifact is converted to at the start; auto: int8 if that is possible, or fp16.",
    )  # fmt: skip
    int8_cache: Path | None = _setting(
        None, "Model", "Folder that keeps conversions; by default s2sent/int8 in ~/.cache."
    )
    threads: int = _setting(
        0, "Model", "Threads of the encoder; 0 counts the cores this process may use.", ge=0, le=512
    )
    concurrent_runs: int = _setting(
        0, "Model", "Batches run side by side; 0 for one per thread, at most 16, on a GPU 1.",
        ge=0, le=64,
    )  # fmt: skip
    auto_truncate: bool = _setting(
        True, "Model", "Cut texts that are too long when a request does not say; if not, 422."
    )
    default_depth: int | None = _setting(
        None, "Model", "Last block to run where a request does not say; by default all.",
        ge=1, le=1_024,
    )  # fmt: skip
    default_dimensions: int | None = _setting(
        None, "Model", "Components of an embedding where a request does not say; by default all.",
        ge=1, le=65_536,
    )  # fmt: skip
    max_windows: int = _setting(
        16, "Model", "Windows of a long text where a request asks for them; the rest is cut.",
        ge=1, le=1_024,
    )  # fmt: skip

    max_client_batch_size: int = _setting(
        2_048, "Batching", "Texts in one request; above it 413.", ge=1, le=65_536
    )
    max_batch_tokens: int = _setting(
        _ByDevice(1_024, 16_384), "Batching", "Padded tokens (rows x longest row) in one run.",
        ge=16, le=1_048_576,
    )  # fmt: skip
    max_batch_texts: int = _setting(
        _ByDevice(128, 1_024), "Batching", "Rows in one run.", ge=1, le=4_096
    )
    max_queue_tokens: int = _setting(
        _ByDevice(65_536, 1_048_576), "Batching", "Tokens that may wait in a lane; above it 429.",
        ge=16, le=16_777_216,
    )  # fmt: skip
    interactive_texts: int = _setting(
        16, "Batching", "Texts up to which a request is interactive by default, above it bulk.",
        ge=0, le=65_536,
    )  # fmt: skip
    bulk_share: float = _setting(
        0.1, "Batching", "Bulk's share of the tokens that run while interactive texts wait too.",
        ge=0.01, le=0.99,
    )  # fmt: skip
    cache_bytes: int = _setting(
        0, "Batching", "Memory for embeddings that may come again; 0 keeps none.",
        ge=0, le=1_099_511_627_776,
    )  # fmt: skip
    stall_timeout_seconds: float = _setting(
        60.0, "Batching", "A single run longer than this turns /ready red.", gt=0, le=3_600
    )
    api_keys: Annotated[tuple[Annotated[SecretStr, Field(min_length=1)], ...], NoDecode] = _setting(
        (), "Access", "Accepted API keys, separated by commas; none leaves the service open."
    )
    api_keys_file: Path | None = _setting(
        None, "Access", "File of API keys as digests, read again when it changes."
    )
    require_keys: bool = _setting(
        False, "Access", "Whether the service refuses to start without API keys."
    )
    metrics_require_key: bool = _setting(False, "Access", "Whether /metrics also needs a key.")

    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "Logging", "Least severe level that is written."
    )
    log_requests: bool = _setting(True, "Logging", "Whether each request writes one line.")
    otlp_endpoint: AnyHttpUrl | None = _setting(
        None, "Logging", "Base URL of an OTLP/HTTP collector; without it no traces are made."
    )

    @property
    def processor(self) -> Literal["cpu", "gpu"]:
        """What the device is: what suits one GPU provider suits the other."""
        return "cpu" if self.device == "cpu" else "gpu"

    @property
    def serves_playground(self) -> bool:
        """Whether the pages may have scripts."""
        if self.playground == "auto":
            return self.host in LOOPBACK
        return self.playground == "on"

    @property
    def requires_key(self) -> bool:
        """Whether a caller needs an API key."""
        return bool(self.api_keys or self.api_keys_file)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each variable of API keys that is empty, as a secret that was not set."""
        if self.requires_key:
            return ()
        keys = [environment_name(field) for field in ("api_keys", "api_keys_file")]
        return tuple(
            f"{name} is empty, so the service asks for no key. Set it, or unset it to serve without"
            f" keys; {environment_name('require_keys')}=true refuses to start so."
            for name in keys
            if any(given.upper() == name and not value for given, value in os.environ.items())
        )

    @field_validator("api_keys", "cors_allow_origins", mode="before")
    @classmethod
    def _split_at_commas(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str):
            return value
        parts = [part.strip() for part in value.strip().removesuffix(",").split(",")]
        if info.field_name == "api_keys" and value and not all(parts):
            raise ValueError(
                f"key {parts.index('') + 1} of {len(parts)} is empty. Write keys with a comma"
                " between them, or nothing for no keys"
            )
        return tuple(filter(None, parts))

    @field_validator("cors_allow_origins")
    @classmethod
    def _origins_are_what_browsers_send(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """Each is a scheme, a host and perhaps a port (RFC 6454, section 6.2), or ``*``."""
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is no origin. Write it as https://host or https://host:port, in"
                    " lower case and without a path, or * for any"
                )
        return origins

    @field_validator("served_name", "host")
    @classmethod
    def _is_text(cls, value: str | None) -> str | None:
        """Bytes of the environment that are not UTF-8 are read as lone surrogates."""
        if value and any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError("it is not UTF-8. Write it in UTF-8")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.max_batch_texts > self.max_batch_tokens:
            raise ValueError(
                f"max_batch_texts is {self.max_batch_texts} and max_batch_tokens only "
                f"{self.max_batch_tokens}: a text has at least one token. Raise max_batch_tokens."
            )
        if self.max_queue_tokens < self.max_batch_tokens:
            raise ValueError(
                f"max_queue_tokens is {self.max_queue_tokens}, below max_batch_tokens "
                f"{self.max_batch_tokens}: a full batch could never wait. Raise max_queue_tokens."
            )
        if self.precision == "int8" and self.device != "cpu":
            raise ValueError(
                f"precision is int8 and device is {self.device}: int8 is for a CPU. Set device to"
                " cpu, or precision to fp16 or fp32."
            )
        if self.precision in ("fp16", "fp32") and self.device == "cpu":
            raise ValueError(
                f"precision is {self.precision} and device is cpu: it is for a GPU. Set precision"
                " to as_is, int8 or auto, or device to cuda."
            )
        if self.concurrent_runs > 1 and self.device != "cpu":
            raise ValueError(
                f"concurrent_runs is {self.concurrent_runs} and device is {self.device}: on a GPU"
                " two at once give wrong embeddings. Set concurrent_runs to 1."
            )
        if self.require_keys and not self.requires_key:
            raise ValueError("require_keys is set without API keys. Set api_keys or api_keys_file.")
        if self.metrics_require_key and not self.requires_key:
            raise ValueError(
                "metrics_require_key is set without api_keys. Set them or api_keys_file as well."
            )
        return self


def environment_name(field: str) -> str:
    """The variable that sets a field, e.g. ``S2SENT_PORT``."""
    return f"{ENV_PREFIX}{field.upper()}"
