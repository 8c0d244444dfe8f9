"""Settings of the service, read from the environment; the only reader of the environment."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ByteSize, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from models.errors import InvalidInputError
from service.engine.loading import read_precisions

PREFIX = "GRAMOPHONE_"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s,]+")
_NON_SETTINGS = frozenset({"GRAMOPHONE_API_KEY", "GRAMOPHONE_DATA"})
"""Variables with the prefix that are no settings: a client's key, and the folder of public data for tests."""

Names = Annotated[tuple[str, ...], NoDecode]
"""Names in one variable, which a validator splits."""

Duration = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A time in seconds that ends."""


class Settings(BaseSettings):
    """Settings of the service; each is an environment variable, its name after `GRAMOPHONE_`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", use_attribute_docstrings=True
    )

    registry: str | Path = "registry"
    """folder of published models, or URL such as `s3://bucket/prefix`"""
    registry_cache: Path | None = None
    """folder where models of a remote registry are kept, so that they are fetched once and the service can start
    while that is out of reach, and copies of those served from a folder; unset means `gramophone` in
    `$XDG_CACHE_HOME` or `~/.cache`"""
    copy_models: bool = True
    """whether models of a registry in a folder are served from copies in `GRAMOPHONE_REGISTRY_CACHE`, so that files
    copied over them do not end the service; `false` saves the disk space, for folders in which nobody overwrites
    files"""
    models: Names = ()
    """models to load, with commas between, such as `ngram,lstm@3`; none means every model"""
    default_model: str | None = None
    """model of a request that names none; unset means the one that the registry remembers, which `gramophone models
    default` tells and changes; where that is not served, the only model, else `mixture`, else the first by name"""
    device: str = Field(default="cpu", pattern=r"^(cpu|auto|cuda(:\d{1,3})?)$")
    """where models compute: `cpu`, `cuda`, `cuda:1`; `auto` takes `cuda` if there is one"""
    precision: str = "auto"
    """what networks compute in: `float32`, `int8`, or `auto`, which takes `int8` on a CPU where that was found to
    cost little when the model was published; for some models other than for the rest:
    `auto,lstm=int8,gru@3=float32`"""
    memory_budget: ByteSize | None = Field(default=None, gt=0)
    """memory that all models together may take, in bytes or such as `2GiB`; a model that does not fit is not
    loaded, and none is unloaded for it"""
    watch_interval_s: float = Field(default=5.0, ge=0)
    """how often the registry is looked at for new versions and moved aliases, which are then loaded and served; 0
    is never"""
    num_threads: int | None = Field(default=None, ge=1)
    """threads that torch computes with; unset leaves its choice"""
    workers: int = Field(default=1, ge=1, le=256)
    """processes that serve behind the port; one that dies is started again. Of several, each has the limits and the
    memory that other settings give (`GRAMOPHONE_MEMORY_BUDGET`, `GRAMOPHONE_MAX_QUEUED_REQUESTS`, …), and a share
    of the cores unless `GRAMOPHONE_NUM_THREADS` is set"""
    pin_workers: bool = False
    """whether each of several workers stays on one core of its own"""
    host: str = "127.0.0.1"
    """address to listen on"""
    port: int = Field(default=8000, ge=0, le=65535)
    """port to listen on; 0 takes a free one"""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """least severe message that is logged"""
    log_format: Literal["json", "console"] = "console"
    """how log lines look"""
    log_texts: bool = False
    """whether log lines may hold the beginning of what clients send"""
    otlp_endpoint: str | None = Field(default=None, pattern=r"^https?://[^/\s]+(/\S*)?$")
    """collector to send a trace of every request to by OTLP over HTTP, such as `http://collector:4318`; needs the
    extra `otel`"""
    api_keys_file: Path | None = None
    """file of API keys, a line each, from `gramophone keys create`; read again when it changes"""
    api_keys: Names = ()
    """such lines themselves, with spaces between"""
    cors_origins: Names = ()
    """origins whose pages may ask from a browser, with commas between, such as `https://app.example.org`; `*` means
    any"""
    allowed_hosts: Names = ()
    """names in `Host`, with commas between, by which the service may be asked; it always may by addresses, and `*`
    means any name. Unset means any, too, but for a service without keys on a loopback address: that answers to
    names without a dot only, so that no web page reaches it by a name of its own"""
    max_connections: int = Field(default=4096, ge=1)
    """open connections at most; requests on others are answered 503. Each takes two of the files that the system
    lets a process open (`ulimit -Hn`), so with fewer of those there are fewer connections"""
    max_header_bytes: int = Field(default=32768, ge=1024)
    """size of a request's line and headers at most"""
    keep_alive_timeout_s: int = Field(default=75, ge=1)
    """time an idle connection is kept open for another request"""
    body_timeout_s: Duration = 30.0
    """time for a whole request to arrive; one that takes longer is answered 408"""
    send_timeout_s: Duration = 30.0
    """after so long in which a client has taken nothing of an answer that waits for it, its connection is cut
    off"""
    max_unsent_bytes: ByteSize = Field(default=ByteSize(256 * 2**20), ge=1)
    """memory that answers may take which clients are slow to read, in bytes or such as `2GiB`; past it those are
    cut off that have been slow for longest"""
    max_body_bytes: int = Field(default=16 * 2**20, ge=1)
    """size of a request's body at most"""
    max_tokens_per_sequence: int = Field(default=65536, ge=1)
    """tokens of one text together with its context at most"""
    max_texts_per_request: int = Field(default=4096, ge=1)
    """texts, contexts or candidates in one request at most"""
    max_top_k: int | None = Field(default=None, ge=1)
    """next tokens ranked in one request at most; unset means the vocabulary"""
    max_new_tokens: int = Field(default=4096, ge=1)
    """tokens generated in one request at most"""
    max_queued_requests: int = Field(default=1024, ge=1)
    """requests waiting or under way at most; others are answered 429"""
    max_queued_tokens: int = Field(default=4_000_000, ge=1)
    """tokens to read and generate in all requests waiting or under way at most, taking four bytes of a body for
    one; others are answered 429"""
    prefix_cache_bytes: int = Field(default=64 * 2**20, ge=0)
    """memory for what is kept of texts that were read before, by model: its states after them, and for a fourth of
    it what it said to those who type; 0 keeps nothing"""
    max_states: int = Field(default=65_536, ge=1)
    """states of texts kept for decoders, `/v1/states`, at most; more are answered 429"""
    max_state_bytes: ByteSize = Field(default=ByteSize(512 * 2**20), ge=1)
    """memory that these states may take, in bytes or such as `2GiB`"""
    state_ttl_s: Duration = 300.0
    """after so long without use a state is forgotten"""
    max_users: int = Field(default=1000, ge=1)
    """users whose accepted words autocomplete remembers; who was not heard of for longest is forgotten first"""
    max_user_words: int = Field(default=1000, ge=1)
    """words remembered of each, with four times as many pairs of neighbours; they take 1 to 4 MB"""
    process_name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,63}$")
    """name of this process in the handles of states, by which a proxy can send requests to it; unset makes one
    up"""
    request_timeout_ms: int = Field(default=60_000, ge=1)
    """after which a request is given up and answered 504"""
    hang_timeout_s: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    """after so long without a turn of its event loop or of its models, which take milliseconds, one of several
    workers is killed and another started; of a lone process `/health/live` is 503 where a model computes so long
    without end; 0 is never"""
    drain_timeout_s: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    """time for requests under way to finish when the service stops"""

    @field_validator("registry", "registry_cache", "host", "api_keys_file", mode="before")
    @classmethod
    def _is_not_empty(cls, value: Any) -> Any:
        if isinstance(value, str) and not value.strip():
            raise ValueError(
                "it must not be empty: give a value, or leave the variable unset for the default"
            )
        return value

    @field_validator("precision")
    @classmethod
    def _is_precision(cls, value: str) -> str:
        try:
            read_precisions(value)
        except InvalidInputError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("otlp_endpoint")
    @classmethod
    def _holds_no_password(cls, value: str | None) -> str | None:
        if value is not None and "@" in value:
            raise ValueError("a user and a password go into OTEL_EXPORTER_OTLP_HEADERS: URLs are logged")
        return value

    @field_validator("models", "cors_origins", "allowed_hosts", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(name.strip() for name in value.split(",") if name.strip())
        return value

    @field_validator("api_keys", mode="before")
    @classmethod
    def _split_at_spaces(cls, value: Any) -> Any:
        return tuple(value.removeprefix("\ufeff").split()) if isinstance(value, str) else value

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and _ORIGIN.fullmatch(origin) is None:
                raise ValueError(f"{origin!r} is no origin: give scheme://host or scheme://host:port, or *")
        return origins


def read_settings(**overrides: Any) -> Settings:
    """Read the settings from the environment, overridden by arguments that are not None.

    Raises:
        InvalidInputError: a value is invalid, or the environment has a GRAMOPHONE_ variable of
            another name.
    """
    known = {PREFIX + name.upper() for name in Settings.model_fields} | _NON_SETTINGS
    unknown = sorted(name for name in os.environ if name.upper().startswith(PREFIX) and name not in known)  # noqa: TID251 - the one reader
    if unknown:
        raise InvalidInputError(
            f"the environment has {', '.join(unknown)}, which is no setting; the settings are "
            f"{', '.join(sorted(known - _NON_SETTINGS))}",
            parameter=unknown[0],
        )
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = PREFIX + str(first["loc"][0]).upper()
        value_text = repr(first["input"])
        shown = "…" if "@" in value_text else value_text  # text before an @ may be a password
        message_text = first["msg"].removeprefix("Value error, ")
        message = f"{name} is {shown}: {message_text[:1].lower()}{message_text[1:]}"
        raise InvalidInputError(message, parameter=name) from None


def described_settings() -> Iterator[tuple[str, Any, str]]:
    """Yield each setting's variable, its default, `""` if there is none, and its meaning."""
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None or field.default == () else field.default
        yield PREFIX + name.upper(), default, " ".join((field.description or "").split())
