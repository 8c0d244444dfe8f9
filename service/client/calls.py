"""What the client asks and how it reads answers: no input or output happens here."""

import json
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypedDict, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter

from service.client.errors import response_error, stream_error
from service.schemas.replies import (
    ErrorBody,
    ErrorReply,
    GenerateReply,
    ModelCard,
    ModelList,
    NextTokenReply,
    NextWordReply,
    ScoreReply,
    SequenceScoreResult,
)

R = TypeVar("R")
Contexts: TypeAlias = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
_RETRIED_STATUSES = frozenset({429, 503})
_MAX_RETRY_DELAY_S = 30.0
_DONE = "[DONE]"


class ScoreOptions(TypedDict, total=False):
    """How texts are scored; see POST /v1/score."""

    model: str
    bos: bool
    eos: bool
    detail: str


class GenerateOptions(TypedDict, total=False):
    """How a text is continued; see POST /v1/generate."""

    model: str
    strategy: Literal["greedy", "sample", "beam"]
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    temperature: float
    top_k: int
    typical_p: float
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    bad_words: Sequence[str]
    n: int
    best_of: int
    num_beams: int
    length_penalty: float
    early_stopping: bool
    num_beam_groups: int
    diversity_penalty: float
    seed: int
    stop: str | Sequence[str]
    logprobs: bool | int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """One request, and what its answer holds.

    Attributes:
        method: of HTTP.
        path: below the base URL.
        reply: reads the answer's JSON, or each line's.
        body: written as JSON unless it is bytes.
        headers: beside the usual ones.
        query: of the URL.
    """

    method: str
    path: str
    reply: TypeAdapter[R]
    body: Mapping[str, Any] | bytes | None = None
    headers: Mapping[str, str] | None = None
    query: Mapping[str, Any] | None = None

    def request(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """The request, for a client to send."""
        content = json.dumps(self.body).encode() if isinstance(self.body, Mapping) else self.body
        headers = {"content-type": "application/json"} if isinstance(self.body, Mapping) else {}
        return http.build_request(
            self.method,
            self.path,
            content=content,
            headers={**headers, **(self.headers or {})},
            params=self.query,
        )


_NEXT_TOKEN = TypeAdapter(NextTokenReply)
_NEXT_WORD = TypeAdapter(NextWordReply)
_SCORE = TypeAdapter(ScoreReply)
_SCORE_LINE: TypeAdapter[SequenceScoreResult | ErrorReply] = TypeAdapter(SequenceScoreResult | ErrorReply)
_GENERATE = TypeAdapter(GenerateReply)
_MODELS = TypeAdapter(ModelList)
_MODEL = TypeAdapter(ModelCard)
_ANY: TypeAdapter[Any] = TypeAdapter(Any)


def next_token_call(
    context: Contexts, top_k: int, *, entropy: bool, model: str | None
) -> Call[NextTokenReply]:
    """POST /v1/next-token."""
    return Call(
        "POST",
        "/v1/next-token",
        _NEXT_TOKEN,
        {"context": context, "top_k": top_k, "entropy": entropy, "model": model},
    )


def next_word_call(context: str | Sequence[str], top_k: int, model: str | None) -> Call[NextWordReply]:
    """POST /v1/next-token for words."""
    asked = {"context": context, "top_k": top_k, "unit": "word", "model": model}
    return Call("POST", "/v1/next-token", _NEXT_WORD, asked)


def log_probs_call(context: Contexts, model: str | None) -> Call[Any]:
    """POST /v1/next-token for whole distributions."""
    headers = {"accept": "application/octet-stream"}
    return Call("POST", "/v1/next-token", _ANY, {"context": context, "model": model}, headers)


def score_call(
    texts: Sequence[str] | None,
    token_ids: Sequence[Sequence[int]] | None,
    context: str | Sequence[int],
    options: ScoreOptions,
) -> Call[ScoreReply]:
    """POST /v1/score."""
    what = {"texts": texts} if token_ids is None else {"token_ids": token_ids}
    return Call("POST", "/v1/score", _SCORE, {**what, "context": context, **options})


def score_lines_call(
    items: Iterable[Mapping[str, Any]], options: ScoreOptions
) -> Call[SequenceScoreResult | ErrorReply]:
    """POST /v1/score with a line for each item."""
    return lines_call("/v1/score", _SCORE_LINE, items, options)


def lines_call(
    path: str, line: TypeAdapter[R], items: Iterable[Mapping[str, Any]], query: Mapping[str, Any]
) -> Call[R]:
    """POST of a line for each item, its options in the query string."""
    body = "\n".join(map(json.dumps, items)).encode()
    return Call("POST", path, line, body, {"content-type": "application/x-ndjson"}, query)


def generate_call(
    prompt: str | Sequence[int], options: GenerateOptions, *, stream: bool
) -> Call[GenerateReply]:
    """POST /v1/generate."""
    return Call("POST", "/v1/generate", _GENERATE, {"prompt": prompt, "stream": stream, **options})


def request_headers(api_key: str | None, others: Mapping[str, str] | None) -> dict[str, str]:
    """What every request of a client carries."""
    return {**(others or {}), **({} if api_key is None else {"authorization": f"Bearer {api_key}"})}


def ensure_success(response: httpx.Response) -> httpx.Response:
    """The response, if it is a success and has been read.

    Raises:
        GramophoneError: it is not.
    """
    if response.is_success:
        return response
    raise response_error(response)


def retry_delay_s(response: httpx.Response, attempt: int, max_retries: int) -> float | None:
    """How long to wait before the next attempt; None if this one stands."""
    if response.status_code not in _RETRIED_STATUSES or attempt >= max_retries:
        return None
    asked = response.headers.get("retry-after", "")
    return min(float(asked) if asked.isdecimal() else 0.5 * 2.0**attempt, _MAX_RETRY_DELAY_S)


class LineReader:
    """Lines from the pieces a body arrives in; only a line feed ends one, as JSON may hold other breaks."""

    def __init__(self) -> None:
        self._rest = b""

    def push(self, piece: bytes) -> list[str]:
        """The lines that this piece completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [line.decode() for line in lines]


def read_stream_event(line: str) -> GenerateReply | None:
    """What a line of an event stream says; None for the empty lines between.

    Raises:
        GramophoneError: the service failed in the middle.
    """
    payload = line.removeprefix("data: ")
    if payload in {"", _DONE} or payload.startswith(":"):  # a comment keeps the connection alive
        return None
    if payload.startswith('{"error"'):
        raise stream_error(payload)
    return _GENERATE.validate_json(payload)


def models_call() -> Call[ModelList]:
    """GET /v1/models."""
    return Call("GET", "/v1/models", _MODELS)


def model_call(address: str) -> Call[ModelCard]:
    """GET /v1/models/{address}."""
    return Call("GET", f"/v1/models/{quote(address, safe='@')}", _MODEL)


def read_floats(response: httpx.Response) -> "memoryview[float]":
    """Log-probabilities [B, V] from their bytes."""
    values = array("f", response.content)
    if sys.byteorder == "big":
        values.byteswap()
    batch, width = map(int, response.headers["x-shape"].split(","))
    return memoryview(values).cast("B").cast("f", (batch, width))


def read_score_line(line: str) -> SequenceScoreResult | ErrorBody:
    """What a line of scores says."""
    return result_or_error(_SCORE_LINE.validate_json(line))


def result_or_error(read: R | ErrorReply) -> R | ErrorBody:
    """What was read of a line: its result, or the error that stands there instead."""
    return read.error if isinstance(read, ErrorReply) else read
