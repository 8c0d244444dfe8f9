"""Requests of the client, the parsing of replies, and the client's errors; no input or output here.

Errors raised by the client:

GramophoneError
├ BadRequestError      400, 408, 413: the request is wrong; `param` names the field
├ AccessError          401, 403: the key is missing, unknown, or not allowed to do this
├ NotFoundError        404: no such model, state or user
├ StateElsewhereError  409: another process has the state; the message names it
├ SupersededError      409: a newer request of the same session replaced this one
├ OverloadedError      429, after all retries
├ UnavailableError     503, after all retries: not ready, or shutting down
├ DeadlineError        504: out of time
├ ServerError          every other status
└ UnreachableError     no answer at all
"""

import json
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypedDict, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from service.schemas.replies import (
    CheckReply,
    ErrorBody,
    ErrorReply,
    GenerateReply,
    ModelCard,
    ModelList,
    NextTokenReply,
    NextWordReply,
    QualityReply,
    RankedListResult,
    RerankReply,
    ScoreReply,
    SequenceScoreResult,
    TextQualityResult,
)


class GramophoneError(Exception):
    """Base of the errors of a client.

    Attributes:
        status: HTTP status; 0 if there was no answer.
        type: kind of error, such as `invalid_request_error`.
        param: name of the wrong field; None if the error concerns none.
        code: stable, machine-readable name of the error; None if it has none.
        request_id: identifier of the request in the service's log; None if unknown.
    """

    def __init__(self, error: ErrorBody, *, status: int, request_id: str | None = None) -> None:
        super().__init__(error.message)
        self.status = status
        self.type = error.type
        self.param = error.param
        self.code = error.code
        self.request_id = request_id


class BadRequestError(GramophoneError):
    """Invalid request."""


class AccessError(GramophoneError):
    """API key missing, unknown, or not allowed to do this."""


class NotFoundError(GramophoneError):
    """Unknown model, state or user."""


class StateElsewhereError(GramophoneError):
    """State kept by another process; its handle begins with the name of that process."""


class SupersededError(GramophoneError):
    """Request replaced by a newer one of the same session."""


class OverloadedError(GramophoneError):
    """Service overloaded, after all retries."""


class UnavailableError(GramophoneError):
    """Model not ready, or service shutting down."""


class DeadlineError(GramophoneError):
    """Deadline of the request exceeded."""


class ServerError(GramophoneError):
    """Failure of the service."""


class UnreachableError(GramophoneError):
    """No answer from the service."""


_ERRORS_BY_STATUS: dict[int, type[GramophoneError]] = {
    400: BadRequestError,
    401: AccessError,
    403: AccessError,
    404: NotFoundError,
    408: BadRequestError,
    409: StateElsewhereError,
    413: BadRequestError,
    429: OverloadedError,
    503: UnavailableError,
    504: DeadlineError,
}

# errors that share a status
_ERRORS_BY_CODE: dict[str | None, type[GramophoneError]] = {"superseded": SupersededError}

# the status of a stream is sent before its errors: they are distinguished by their codes
_STREAM_ERRORS: dict[str | None, type[GramophoneError]] = {
    "deadline_exceeded": DeadlineError,
    "draining": UnavailableError,
}

_ERROR_REPLY = TypeAdapter(ErrorReply)


def response_error(response: httpx.Response) -> GramophoneError:
    """Return the error of an unsuccessful response that has been read."""
    try:
        error = _ERROR_REPLY.validate_json(response.content).error
    except ValidationError:  # the answer is that of a proxy, not of the service
        error = ErrorBody(response.text[:200], "http_error", None, None)
    kind = _ERRORS_BY_CODE.get(error.code) or _ERRORS_BY_STATUS.get(response.status_code, ServerError)
    return kind(error, status=response.status_code, request_id=response.headers.get("x-request-id"))


def stream_error(payload: str) -> GramophoneError:
    """Return the error in the last event of a failed stream."""
    error = _ERROR_REPLY.validate_json(payload).error
    return _STREAM_ERRORS.get(error.code, ServerError)(error, status=200)


def transport_error(error: httpx.TransportError) -> UnreachableError:
    """Convert an error of the transport."""
    body = ErrorBody(f"{type(error).__name__}: {error}", "connection_error", None, None)
    return UnreachableError(body, status=0)


R = TypeVar("R")
Contexts: TypeAlias = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
_RETRIED_STATUSES = frozenset({429, 503})
_MAX_RETRY_DELAY_S = 30.0
_DONE = "[DONE]"


class ScoreOptions(TypedDict, total=False):
    """Options of POST /v1/score."""

    model: str
    bos: bool
    eos: bool
    detail: str


class GenerateOptions(TypedDict, total=False):
    """Options of POST /v1/generate."""

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
    """One request, and the parser of its reply.

    Attributes:
        method: HTTP method.
        path: path below the base URL.
        reply: parser of the reply's JSON, or of each line of it.
        body: body, written as JSON unless it is bytes.
        headers: headers beside those of the client.
        query: query string of the URL.
    """

    method: str
    path: str
    reply: TypeAdapter[R]
    body: Mapping[str, Any] | bytes | None = None
    headers: Mapping[str, str] | None = None
    query: Mapping[str, Any] | None = None

    def request(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """Build the request for a client to send."""
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
    """POST /v1/next-token with `unit` set to `word`."""
    body = {"context": context, "top_k": top_k, "unit": "word", "model": model}
    return Call("POST", "/v1/next-token", _NEXT_WORD, body)


def log_probs_call(context: Contexts, model: str | None) -> Call[Any]:
    """POST /v1/next-token for full distributions."""
    headers = {"accept": "application/octet-stream"}
    return Call("POST", "/v1/next-token", _ANY, {"context": context, "model": model}, headers)


def score_call(
    texts: Sequence[str] | None,
    token_ids: Sequence[Sequence[int]] | None,
    context: str | Sequence[int],
    options: ScoreOptions,
) -> Call[ScoreReply]:
    """POST /v1/score."""
    sequences = {"texts": texts} if token_ids is None else {"token_ids": token_ids}
    return Call("POST", "/v1/score", _SCORE, {**sequences, "context": context, **options})


def score_lines_call(
    items: Iterable[Mapping[str, Any]], options: ScoreOptions
) -> Call[SequenceScoreResult | ErrorReply]:
    """POST /v1/score with a line for each item."""
    return lines_call("/v1/score", _SCORE_LINE, items, options)


def lines_call(
    path: str, line: TypeAdapter[R], items: Iterable[Mapping[str, Any]], query: Mapping[str, Any]
) -> Call[R]:
    """POST one line for each item, with the options in the query string."""
    body = "\n".join(map(json.dumps, items)).encode()
    return Call("POST", path, line, body, {"content-type": "application/x-ndjson"}, query)


def generate_call(
    prompt: str | Sequence[int], options: GenerateOptions, *, stream: bool
) -> Call[GenerateReply]:
    """POST /v1/generate."""
    return Call("POST", "/v1/generate", _GENERATE, {"prompt": prompt, "stream": stream, **options})


def request_headers(api_key: str | None, extra: Mapping[str, str] | None) -> dict[str, str]:
    """Return the headers of every request of a client."""
    return {**(extra or {}), **({} if api_key is None else {"authorization": f"Bearer {api_key}"})}


def ensure_success(response: httpx.Response) -> httpx.Response:
    """Return a successful response.

    Raises:
        GramophoneError: the response, which has been read, is not successful.
    """
    if response.is_success:
        return response
    raise response_error(response)


def retry_delay_s(response: httpx.Response, attempt: int, max_retries: int) -> float | None:
    """Return the delay before the next attempt; None if this attempt is final."""
    if response.status_code not in _RETRIED_STATUSES or attempt >= max_retries:
        return None
    retry_after = response.headers.get("retry-after", "")
    return min(float(retry_after) if retry_after.isdecimal() else 0.5 * 2.0**attempt, _MAX_RETRY_DELAY_S)


class LineReader:
    """Splitter of a streamed body into lines; only line feeds end lines, as JSON may hold other line breaks."""

    def __init__(self) -> None:
        self._rest = b""

    def push(self, chunk: bytes) -> list[str]:
        """Return the lines completed by this chunk."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [line.decode() for line in lines]


def read_stream_event(line: str) -> GenerateReply | None:
    """Parse a line of an event stream; None for empty lines, comments and `[DONE]`.

    Raises:
        GramophoneError: the service failed in the middle of the stream.
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
    """Parse the log-probabilities [B, V] of a binary reply."""
    values = array("f", response.content)
    if sys.byteorder == "big":
        values.byteswap()
    batch, width = map(int, response.headers["x-shape"].split(","))
    return memoryview(values).cast("B").cast("f", (batch, width))


def read_score_line(line: str) -> SequenceScoreResult | ErrorBody:
    """Parse a line of scores."""
    return result_or_error(_SCORE_LINE.validate_json(line))


def result_or_error(parsed: R | ErrorReply) -> R | ErrorBody:
    """Return the result parsed from a line, or the error in its place."""
    return parsed.error if isinstance(parsed, ErrorReply) else parsed


_CHECK = TypeAdapter(CheckReply)
_QUALITY = TypeAdapter(QualityReply)
_QUALITY_LINE: TypeAdapter[TextQualityResult | ErrorReply] = TypeAdapter(TextQualityResult | ErrorReply)

NamedText: TypeAlias = str | Mapping[str, Any]
"""A text, or a mapping with `text` and `id`."""


class _Span(TypedDict):
    start: int
    end: int
    suggestions: Sequence[str | Mapping[str, Any]]


class CheckOptions(TypedDict, total=False):
    """Options of POST /v1/check."""

    model: str
    threshold: float
    precision: float
    max_suggestions: int
    candidates: Sequence[_Span]
    dictionary: Sequence[str]
    error_rate: float
    max_edits: int
    timeout_ms: int


class QualityOptions(TypedDict, total=False):
    """Options of POST /v1/quality."""

    model: str
    against: str


def check_call(text: str, options: CheckOptions) -> Call[CheckReply]:
    """POST /v1/check."""
    return Call("POST", "/v1/check", _CHECK, {"text": text, **options})


def quality_call(texts: Sequence[NamedText], options: QualityOptions) -> Call[QualityReply]:
    """POST /v1/quality."""
    return Call("POST", "/v1/quality", _QUALITY, {"texts": texts, **options})


def quality_lines_call(
    items: Iterable[Mapping[str, Any]], options: QualityOptions
) -> Call[TextQualityResult | ErrorReply]:
    """POST /v1/quality with a line for each item."""
    return lines_call("/v1/quality", _QUALITY_LINE, items, options)


def read_quality_line(line: str) -> TextQualityResult | ErrorBody:
    """Parse a line of the quality of texts."""
    return result_or_error(_QUALITY_LINE.validate_json(line))


_RERANK = TypeAdapter(RerankReply)
_RANKED_LINE: TypeAdapter[RankedListResult | ErrorReply] = TypeAdapter(RankedListResult | ErrorReply)
_TUNE: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


class MixturePart(TypedDict):
    """Model of a mixture, and its weight at every token."""

    model: str
    weight: float


class _Named(TypedDict):
    model: str
    name: str


class FurtherModel(_Named, total=False):
    """Additional model, with features of its own such as `lm:NAME`."""

    weight: float


class RerankOptions(TypedDict, total=False):
    """Options of POST /v1/rerank."""

    model: str
    mixture: Sequence[MixturePart]
    models: Sequence[FurtherModel]
    weights: Mapping[str, float]
    profile: str
    length_exponent: float
    posterior_scale: float
    mbr: Literal["wer", "chrf", "bleu"]
    confidences: bool
    detail: Literal["none", "token", "word"]
    bos: bool
    eos: bool
    score_mode: Literal["normalised", "unnormalised"]
    drop_duplicates: bool
    top: int
    commit_eos: bool
    timeout_ms: int


class TuneOptions(TypedDict, total=False):
    """Options of POST /v1/rerank/tune."""

    metric: Literal["wer", "cer", "bleu", "chrf"]
    normaliser: str
    model: str
    mixture: Sequence[MixturePart]
    models: Sequence[FurtherModel]
    given_only: bool
    features: Sequence[str]
    length_exponents: Sequence[float]
    folds: int
    seed: int
    restarts: int
    resamples: int
    max_p_value: float
    bootstrap_samples: int
    timeout_ms: int


def rerank_call(lists: Sequence[Mapping[str, Any]], options: RerankOptions) -> Call[RerankReply]:
    """POST /v1/rerank."""
    return Call("POST", "/v1/rerank", _RERANK, {"lists": lists, **options})


def rerank_lines_call(
    lists: Iterable[Mapping[str, Any]], options: RerankOptions
) -> Call[RankedListResult | ErrorReply]:
    """POST /v1/rerank with a line for each list.

    Raises:
        BadRequestError: models have weights beside a profile's, which a query string cannot express.
    """
    return lines_call("/v1/rerank", _RANKED_LINE, lists, _query_options(options))


def tune_call(lists: Sequence[Mapping[str, Any]], options: TuneOptions) -> Call[dict[str, Any]]:
    """POST /v1/rerank/tune."""
    return Call("POST", "/v1/rerank/tune", _TUNE, {"lists": lists, **options})


def read_ranked_line(line: str) -> RankedListResult | ErrorBody:
    """Parse a line of re-ranked lists."""
    return result_or_error(_RANKED_LINE.validate_json(line))


def _query_options(options: RerankOptions) -> dict[str, Any]:
    """Convert options to a query string; mappings and lists are written as pairs."""
    query: dict[str, Any] = dict(options)
    models = options.get("models", ())
    weights = {f"lm:{model['name']}": model["weight"] for model in models if "weight" in model}
    if weights and "profile" in options and "weights" not in options:
        message = "models have weights beside a profile's: lines take either, so give all of them as weights"
        raise BadRequestError(ErrorBody(message, "invalid_request_error", "models", None), status=0)
    if weights or "weights" in options:
        query["weights"] = _comma_pairs({**options.get("weights", {"lm": 1.0}), **weights})
    if models:
        query["models"] = _comma_pairs({model["name"]: model["model"] for model in models})
    if "mixture" in options:
        query["mixture"] = _comma_pairs({part["model"]: part["weight"] for part in options["mixture"]})
    return query


def _comma_pairs(values: Mapping[str, object]) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())
