"""Settings of the service; no other module reads the environment."""

import os
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from models.errors import InputError
from service.hosting.loading import read_precisions

PREFIX = "GRAMOPHONE_"
_NON_SETTINGS = frozenset({"GRAMOPHONE_API_KEY", "GRAMOPHONE_DATA"})
"""Variables with the prefix that are not settings: a client's API key, and the folder of public test data."""

_SERVICE_LINK = re.compile(
    r"GRAMOPHONE(_\w+)?_(SERVICE_(HOST|PORT(_\w+)?)=.*|PORT_\d+_\w+=.*|PORT=(tcp|udp|sctp)://.*)"
)
"""Variables, with their values, that Kubernetes sets in every pod for a Service whose name begins with `gramophone`."""

Duration = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""Finite time in seconds."""


def _split(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return value


def _split_at_spaces(value: Any) -> Any:
    return tuple(value.removeprefix("\ufeff").split()) if isinstance(value, str) else value


def _check_filled(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise ValueError("it must not be empty; unset the variable to use the default")
    return value


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
"""Names in one variable, separated by commas."""

_FILLED = BeforeValidator(_check_filled)
File = Annotated[Path | None, _FILLED]
"""Path of a file or folder; None if unset."""


def _form(pattern: str, fault: str) -> AfterValidator:
    """Return a validator of the form of each name; the error begins with the name."""

    def check(names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if re.fullmatch(pattern, name) is None:
                raise ValueError(f"{name!r} {fault}")
        return names

    return AfterValidator(check)


_LANGUAGES = _form(
    r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*=[A-Za-z0-9][A-Za-z0-9._@-]*",
    "is not a language and a model; use CODE=MODEL, such as en-US=novels",
)
_DICTIONARIES = _form(r"[A-Za-z0-9][A-Za-z0-9._-]*=.+\.dic", "is not a dictionary; use NAME=FILE.dic")
_ORIGINS = _form(
    r"\*|[a-z][a-z0-9+.-]*://[^/\s,]+", "is not an origin; use scheme://host, scheme://host:port or *"
)


class Settings(BaseSettings):
    """Settings of the service; the environment variable is `GRAMOPHONE_` and the field name in capitals."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", use_attribute_docstrings=True
    )

    registry: Annotated[str | Path, _FILLED] = "registry"
    """Folder of published models, or a URL such as `s3://bucket/prefix`"""
    registry_cache: File = None
    """Folder for models downloaded from a remote registry, which the service can use while the registry is unreachable,
    and for copies of models from a local registry (`GRAMOPHONE_COPY_MODELS`); default: `gramophone` in
    `$XDG_CACHE_HOME` or `~/.cache`"""
    copy_models: bool = True
    """`true` serves models of a local registry from copies in `GRAMOPHONE_REGISTRY_CACHE`, so overwriting their files
    cannot crash the service; `false` saves the disk space and is safe if published files are never overwritten"""
    models: Names = ()
    """Models to load, separated by commas, such as `ngram,lstm@3`; unset loads every model"""
    default_model: str | None = None
    """Model of requests that name none; unset uses the registry's default (`gramophone models default`) if it is
    served, else the only model, else `mixture`, else the first by name"""
    languages: Annotated[Names, _LANGUAGES] = ()
    """Languages of LanguageTool's API (`/v2/check`) and the model of each, separated by commas, such as
    `en-US=novels,de-DE=zeitung@champion`; unset uses the default model for `en-US`"""
    dictionaries: Annotated[Names, _DICTIONARIES] = ()
    """Hunspell dictionaries of words that are right, for `/v1/check` by name and for LanguageTool's API by language,
    separated by commas, such as `en_US=/usr/share/hunspell/en_US.dic`; the `.aff` file is beside it. Requires the extra
    `dictionary`"""
    device: str = Field("cpu", pattern=r"^(cpu|auto|cuda(:\d{1,3})?)$")
    """Device that models compute on: `cpu`, `cuda` or `cuda:1`; `auto` uses `cuda` if available"""
    precision: str = "auto"
    """Number format of networks: `float32`, `int8`, `bfloat16` for pretrained models, or `auto`: `int8` on a CPU if the
    loss of accuracy measured at publication was small; single models may differ: `auto,lstm=int8,gru@3=float32`"""
    memory_budget: ByteSize | None = Field(None, gt=0)
    """Maximum memory of all models together, in bytes or with a unit such as `2GiB`; a model that does not fit is not
    loaded, and no other model is unloaded for it; unset means no limit"""
    watch_interval_s: float = Field(5.0, ge=0)
    """Seconds between polls of the registry; new versions and moved aliases are loaded and served; 0 disables it"""
    num_threads: int | None = Field(None, ge=1)
    """Maximum number of threads of a network's computation; unset uses the cores that
    affinity and quota allow, or the worker's share of them"""
    workers: int = Field(1, ge=1, le=256)
    """Number of processes that serve the port; one that dies is restarted. Memory and request limits such as
    `GRAMOPHONE_MEMORY_BUDGET` and `GRAMOPHONE_MAX_QUEUED_REQUESTS` apply to each worker"""
    pin_workers: bool = False
    """`true` pins each worker to one core; only used if `GRAMOPHONE_WORKERS` is above 1"""
    host: Annotated[str, _FILLED] = "127.0.0.1"
    """Address to listen on"""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 picks a free one"""
    tls_certificate: File = None
    """PEM file of the server's certificate and the intermediate ones; with `GRAMOPHONE_TLS_KEY` the service speaks
    HTTPS instead of HTTP. SIGHUP reads both files again"""
    tls_key: File = None
    """PEM file of the certificate's private key, without a password"""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity of messages that are logged"""
    log_format: Literal["json", "console"] = "console"
    """Format of log lines: `json` for machines, `console` for people"""
    log_texts: bool = False
    """`true` allows log lines to contain the beginning of request bodies"""
    otlp_endpoint: str | None = Field(None, pattern=r"^https?://[^/\s]+(/\S*)?$")
    """Collector that receives a trace of every request by OTLP over HTTP, such as `http://collector:4318`; requires the
    extra `otel`. Unset uses OpenTelemetry's own `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT`
    if one is set"""
    api_keys_file: File = None
    """File of API keys from `gramophone keys create`, one per line; reloaded when it changes"""
    api_keys: Annotated[Names, BeforeValidator(_split_at_spaces)] = ()
    """API keys in the format of `GRAMOPHONE_API_KEYS_FILE`, separated by spaces"""
    cors_origins: Annotated[Names, _ORIGINS] = ()
    """Origins whose pages may send requests from a browser, separated by commas, such as `https://app.example.org`;
    `*` allows any"""
    allowed_hosts: Names = ()
    """Accepted names in the `Host` header, separated by commas; IP addresses are always accepted, and `*` allows any
    name. Unset allows any name, except for a service without keys on a loopback address: it accepts only names
    without a dot and `*.localhost`, which protects it from DNS rebinding"""
    max_connections: int = Field(4096, ge=1)
    """Maximum open connections; requests on further ones get 503. Each needs two file descriptors, so a low hard limit
    (`ulimit -Hn`) reduces the maximum"""
    max_header_bytes: int = Field(32768, ge=1024)
    """Maximum bytes of a request's line and headers; larger ones get 431"""
    keep_alive_timeout_s: int = Field(75, ge=1)
    """Seconds that an idle connection stays open for another request"""
    body_timeout_s: Duration = 30.0
    """Seconds for a complete request to arrive; a slower one gets 408"""
    send_timeout_s: Duration = 30.0
    """Seconds without progress after which the connection of a client that does not read its reply is reset"""
    max_unsent_bytes: ByteSize = Field(ByteSize(256 * 2**20), ge=1)
    """Maximum memory of replies that clients are slow to read, in bytes or with a unit such as `2GiB`; above it, the
    connections that have been slow for longest are reset"""
    max_body_bytes: int = Field(16 * 2**20, ge=1)
    """Maximum bytes of a request's body; a larger one gets 413"""
    max_held_body_bytes: ByteSize = Field(ByteSize(128 * 2**20), ge=1)
    """Maximum memory of the bodies of all unanswered requests, in bytes or with a unit such as `2GiB`; above it, bodies
    of more than 64 KiB get 429, except within the share of their API key"""
    max_tokens_per_sequence: int = Field(65536, ge=1)
    """Maximum tokens of one text and its context together; a longer sequence gets 400"""
    max_texts_per_request: int = Field(4096, ge=1)
    """Maximum texts, contexts or candidates in one request; more get 400"""
    max_top_k: int | None = Field(None, ge=1)
    """Maximum `top_k` of a request; a larger value gets 400; unset means the size of the vocabulary"""
    max_new_tokens: int = Field(4096, ge=1)
    """Maximum `max_tokens` of a request, the tokens to generate; a larger value gets 400"""
    max_queued_requests: int = Field(1024, ge=1)
    """Maximum requests queued or running; further ones get 429. Each API key, and its bulk and interactive requests
    apart, gets an equal share even if others have borrowed it"""
    max_queued_tokens: int = Field(4_000_000, ge=1)
    """Maximum tokens to read and generate in all queued and running requests, estimated at four bytes of the body per
    token and counted up to half of the maximum for a request; further requests get 429. Shared as
    `GRAMOPHONE_MAX_QUEUED_REQUESTS`; a key's only request may have more"""
    prefix_cache_bytes: int = Field(64 * 2**20, ge=0)
    """Maximum bytes of each model's prefix cache; half of them cache next-token distributions for autocomplete.
    The least recently used entries are evicted; 0 disables the cache"""
    max_states: int = Field(65_536, ge=1)
    """Maximum states that decoders store through `/v1/states`; further ones get 429. A key that stores more than its
    share loses the least recently used ones if another key needs its share"""
    max_state_bytes: ByteSize = Field(ByteSize(512 * 2**20), ge=1)
    """Maximum memory of stored states, in bytes or with a unit such as `2GiB`; shared as `GRAMOPHONE_MAX_STATES`"""
    state_ttl_s: Duration = 300.0
    """Seconds after its last use at which a stored state expires"""
    users: Annotated[str | None, _FILLED] = None
    """SQLite file of the words that users of autocomplete accept, shared by workers; `:memory:` forgets them when
    the service stops; unset uses `gramophone/users.sqlite` in `$XDG_DATA_HOME` or `~/.local/share`"""
    user_ttl_s: Duration = 180 * 24 * 3600.0
    """Seconds without use (half a year by default), while the service runs, after which a user's words are deleted"""
    max_users: int = Field(1000, ge=1)
    """Maximum users of one API key whose accepted words are stored; above it, those of the key's users unused for
    longest are deleted, never another key's. A user takes up to 2.4 MB of the file, most far less"""
    max_user_words: int = Field(1000, ge=1)
    """Maximum words stored per user, with four times as many pairs (1 to 4 MB by default); the rarest are dropped"""
    wordlists: File = None
    """Folder of the word lists stored through `/v1/wordlists`, shared by workers; default: `gramophone/wordlists` in
    `$XDG_DATA_HOME` or `~/.local/share`"""
    max_wordlists: int = Field(100, ge=1)
    """Maximum word lists of one API key; further ones get 400"""
    max_wordlist_bytes: ByteSize = Field(ByteSize(64 * 2**20), ge=1)
    """Maximum bytes of a word list as it is sent, in bytes or with a unit such as `1GiB`; a larger one gets 413. Its
    file takes about four times as much"""
    process_name: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]{1,63}$")
    """Name of this process in state handles, which a proxy can use to route requests; unset generates one"""
    request_timeout_ms: int = Field(60_000, ge=1)
    """Time limit of a request in milliseconds; after it the reply is 504"""
    hang_timeout_s: float = Field(30.0, ge=0, allow_inf_nan=False)
    """Seconds without progress of the event loop or of a model computation (normally milliseconds) after which a worker
    is killed and restarted; a single process reports 503 at `/health/live` while a model computation hangs; 0
    disables the check"""
    drain_timeout_s: float = Field(30.0, ge=0, allow_inf_nan=False)
    """Seconds that running requests have to finish when the service stops"""

    @field_validator("port", mode="before")
    @classmethod
    def _is_no_service_link(cls, value: Any) -> Any:
        return cls.model_fields["port"].default if _SERVICE_LINK.fullmatch(f"{PREFIX}PORT={value}") else value

    @field_validator("precision")
    @classmethod
    def _is_precision(cls, value: str) -> str:
        try:
            read_precisions(value)
        except InputError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("otlp_endpoint")
    @classmethod
    def _holds_no_password(cls, value: str | None) -> str | None:
        if value is not None and "@" in value:
            raise ValueError("it is logged; set credentials in OTEL_EXPORTER_OTLP_HEADERS")
        return value


def read_settings(**overrides: Any) -> Settings:
    """Read the settings from the environment, overridden by arguments that are not None.

    Raises:
        InputError: a value is invalid, or a GRAMOPHONE_ variable is not a setting.
    """
    known = [name.upper() for name in Settings.model_fields]
    unknown = {}
    for name, value in sorted(os.environ.items()):  # noqa: TID251 - the one reader
        field = name.removeprefix(PREFIX)
        if (
            name.upper().startswith(PREFIX)
            and field not in known
            and name not in _NON_SETTINGS
            and not _SERVICE_LINK.fullmatch(f"{name}={value}")
        ):
            unknown[name] = "".join(get_close_matches(field.upper().removeprefix(PREFIX), known, 1))
    if unknown:
        named = (f"{name} (did you mean {PREFIX}{near}?)" if near else name for name, near in unknown.items())
        raise InputError(
            f"the environment has {', '.join(named)}, which is not a setting; `gramophone serve --settings` lists them",
            param=next(iter(unknown)),
        )
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = PREFIX + str(first["loc"][0]).upper()
        value_text = repr(first["input"])
        # text before an @ may be a password
        shown = "…" if "@" in value_text else value_text
        message_text = first["msg"].removeprefix("Value error, ")
        message = f"{name} is {shown}: {message_text[:1].lower()}{message_text[1:]}"
        raise InputError(message, param=name) from None


def otel_variables() -> dict[str, str]:
    """Return OpenTelemetry's own variables, `OTEL_…`; empty ones count as unset."""
    return {name: value for name, value in os.environ.items() if name.startswith("OTEL_") and value.strip()}  # noqa: TID251 - the one reader


def described_settings() -> Iterator[tuple[str, Any, str]]:
    """Yield the variable, default (`""` if none) and description of each setting."""
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None or field.default == () else field.default
        yield PREFIX + name.upper(), default, " ".join((field.description or "").split())
