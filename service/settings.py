"""What can be configured, and the only reader of the environment."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from models.errors import InvalidInputError

PREFIX = "GRAMOPHONE_"
_OTHERS = frozenset({"GRAMOPHONE_DATA"})
"""Variables of ours that are no setting of the service: where the tests find public data."""


class Settings(BaseSettings):
    """The service's settings; each is an environment variable of its name with `GRAMOPHONE_` before."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    registry: Path = Field(default=Path("registry"), description="folder of published models")
    models: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="models to load, with commas between, such as `ngram,lstm@3`; none means every model",
    )
    default_model: str | None = Field(
        default=None,
        description="model of a request that names none; unset means `mixture` if it is there, "
        "else the first by name",
    )
    device: Literal["cpu", "cuda", "auto"] = Field(
        default="cpu", description="where models compute; `auto` takes `cuda` if there is one"
    )
    precision: Literal["auto", "float32", "int8"] = Field(
        default="auto",
        description="what networks compute in; `auto` takes `int8` on a CPU where that was found to cost little "
        "when the model was published",
    )
    num_threads: int | None = Field(
        default=None, ge=1, description="threads that torch computes with; unset leaves its choice"
    )
    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe message that is logged"
    )
    log_format: Literal["json", "console"] = Field(default="console", description="how log lines look")
    max_body_bytes: int = Field(default=16 * 2**20, ge=1, description="size of a request's body at most")
    max_tokens_per_sequence: int = Field(
        default=65536, ge=1, description="tokens of one text together with its context at most"
    )
    max_texts_per_request: int = Field(
        default=4096, ge=1, description="texts, contexts or candidates in one request at most"
    )
    max_top_k: int | None = Field(
        default=None,
        ge=1,
        description="next tokens ranked in one request at most; unset means the vocabulary",
    )
    max_new_tokens: int = Field(default=4096, ge=1, description="tokens generated in one request at most")
    max_queued_requests: int = Field(
        default=1024, ge=1, description="requests waiting or under way at most; others are answered 429"
    )
    request_timeout_ms: int = Field(
        default=60_000, ge=1, description="after which a request is given up and answered 504"
    )
    drain_timeout_s: float = Field(
        default=30.0, ge=0, description="time for requests under way to finish when the service stops"
    )

    @field_validator("models", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(name.strip() for name in value.split(",") if name.strip())
        return value


def read_settings(**overrides: Any) -> Settings:
    """The settings of the environment; what is given here and is not None goes first.

    Raises:
        InvalidInputError: a value is wrong, or the environment has a GRAMOPHONE_ variable of
            another name.
    """
    known = {PREFIX + name.upper() for name in Settings.model_fields} | _OTHERS
    unknown = sorted(name for name in os.environ if name.upper().startswith(PREFIX) and name not in known)  # noqa: TID251 - the one reader
    if unknown:
        raise InvalidInputError(
            f"the environment has {', '.join(unknown)}, which is no setting; the settings are "
            f"{', '.join(sorted(known - _OTHERS))}",
            parameter=unknown[0],
        )
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = PREFIX + str(first["loc"][0]).upper()
        message = f"{name} is {first['input']!r}: {first['msg'][:1].lower()}{first['msg'][1:]}"
        raise InvalidInputError(message, parameter=name) from None


def settings_table() -> str:
    """The settings as a Markdown table, for the README."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = field.default
        shown = "" if default is None or default == () else f"`{default}`"
        rows.append(f"| `{PREFIX}{name.upper()}` | {shown} | {field.description} |")
    return "\n".join(rows) + "\n"
