"""Requests, replies, options and errors of the client, without I/O.

Errors raised by the client:

GramophoneError
├ BadRequestError      400, 408, 413: the request is invalid; `param` names the field
├ AccessError          401, 403: the key is missing, unknown, or lacks the scope
├ NotFoundError        404: no such model, state, user or word list
├ StateElsewhereError  409: another process has the state; the message names it
├ SupersededError      409: a newer request of the same session replaced this one
├ OverloadedError      429, after all retries
├ UnavailableError     503, after all retries: not ready, or shutting down
├ DeadlineError        504: time limit exceeded
├ VersionError         any status: the service has another major version
├ ServerError          every other status, or a reply that cannot be parsed
└ UnreachableError     no response
"""

import json
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

from gramophone_client.types import ErrorBody, ErrorReply, GenerateReply, WeightedEntry

__version__ = "0.1.0"
"""Version of the client; its first number is that of the services it can use."""

_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)

R = TypeVar("R")

_RETRIED_STATUSES = frozenset({429, 503})
_MAX_RETRY_DELAY_S = 30.0
MAX_LINE_BYTES = 64 << 20
"""Maximum bytes of a reply's line; more are an error."""
MAX_REPLY_BYTES = 2 << 30
"""Maximum bytes of a reply without lines; more are an error."""
MAX_ERROR_BYTES = 1 << 16
"""Bytes read of an unsuccessful reply."""
LAST_EVENT = b"data: [DONE]"
"""Last line of an event stream, unless an error precedes it."""

Contexts: TypeAlias = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]

Slots: TypeAlias = Mapping[str, Sequence[str] | Mapping[str, float]]
"""Members of the model's classes, such as `{"city": ["Ulm"]}` for the token `$city`."""

Phrase = TypedDict(
    "Phrase", {"text": str, "weight": NotRequired[float], "class": NotRequired[str]}
)  # `class` cannot be a field of a class
"""Phrase, such as a name that the model does not know."""

StoredPhrases = TypedDict("StoredPhrases", {"wordlist": str, "class": NotRequired[str]})
"""Stored word list, whose entries count as phrases."""

PhraseEntry: TypeAlias = Phrase | StoredPhrases
"""Phrase, or stored phrases."""

NamedText: TypeAlias = str | Mapping[str, Any]
"""A string, or a mapping with `text` and `id`."""

DictionaryEntry: TypeAlias = str | Mapping[str, Any]
"""A string, or a mapping with `text` and `weight`, or with `wordlist`, the name of a stored list."""

WordListEntry: TypeAlias = str | tuple[str, float] | Mapping[str, Any] | WeightedEntry
"""A string, a string and its weight, or a mapping or an exported entry with `text` and `weight`."""


class StoredWords(TypedDict):
    """Stored word list, whose entries count as if they were given."""

    wordlist: str


class GramophoneError(Exception):
    """Base class of the client's errors.

    Attributes:
        status: HTTP status; 0 without a response.
        type: kind of error, such as `invalid_request_error`.
        param: name of the invalid field, if any.
        code: stable, machine-readable name of the error, if any.
        request_id: identifier of the request in the service's log, if known.
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
    """API key is missing, unknown, or lacks the required scope."""


class NotFoundError(GramophoneError):
    """Unknown model, state, user or word list."""


class StateElsewhereError(GramophoneError):
    """State stored by another process; the handle begins with that process's name."""


class SupersededError(GramophoneError):
    """Request replaced by a newer request of the same session."""


class OverloadedError(GramophoneError):
    """Service overloaded, after all retries."""


class UnavailableError(GramophoneError):
    """Model not ready, or service shutting down, after all retries."""


class DeadlineError(GramophoneError):
    """Deadline of the request exceeded."""


class VersionError(GramophoneError):
    """Service of another major version than the client's."""


class ServerError(GramophoneError):
    """Failure of the service."""


class UnreachableError(GramophoneError):
    """No response from the service."""


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

# errors that share a status, or occur in a stream after its status was sent
_ERRORS_BY_CODE: dict[str | None, type[GramophoneError]] = {
    "deadline_exceeded": DeadlineError,
    "draining": UnavailableError,
    "superseded": SupersededError,
}


def response_error(response: httpx.Response, content: bytes) -> GramophoneError:
    """Return the error of an unsuccessful response, given its content."""
    try:
        error = _adapter(ErrorReply).validate_json(content).error
    except ValidationError:  # the response of a proxy, not of the service
        text = content[:200].decode(errors="replace")  # it may claim any encoding
        error = _client_error(text or f"status {response.status_code}", "http_error")
    return _error(error, response.status_code, response.headers.get("x-request-id"))


def _error(error: ErrorBody, status: int, request_id: str | None = None) -> GramophoneError:
    kind = _ERRORS_BY_CODE.get(error.code) or _ERRORS_BY_STATUS.get(status, ServerError)
    return kind(error, status=status, request_id=request_id)


def _client_error(message: str, kind: str, param: str | None = None) -> ErrorBody:
    """Return an error not reported by the service."""
    return ErrorBody(message=message, type=kind, param=param, code=None)


def invalid_request(message: str, *, param: str) -> BadRequestError:
    """Return the error for a request that cannot be sent."""
    return BadRequestError(_client_error(message, "invalid_request_error", param), status=0)


def reply_error(message: str) -> ServerError:
    """Return the error for a successful reply that is not the service's."""
    return ServerError(_client_error(message[:400], "http_error"), status=200)


@contextmanager
def transport_errors(request: httpx.Request) -> Iterator[None]:
    """Convert errors of sending and receiving in the context to `UnreachableError`."""
    try:
        yield
    except (httpx.RequestError, httpx.InvalidURL, ValueError) as error:  # the last two by redirects
        url = request.url
        place = f"{url.scheme}://{url.netloc.decode()}{url.path}"
        message = f"no reply from {place}: {type(error).__name__}: {error}"
        raise UnreachableError(_client_error(message, "connection_error"), status=0) from error


def check_version(response: httpx.Response) -> None:
    """Check that the service has the client's major version, if it reports one.

    Raises:
        VersionError: the service has another major version.
    """
    version = response.headers.get("x-gramophone-version", __version__)
    major = __version__.partition(".")[0]
    if version.partition(".")[0] != major:
        message = (
            f"the service at {response.request.url.netloc.decode()} has version {version}, but gramophone-client "
            f"{__version__} needs a service of version {major}; install the client of the service's version"
        )
        raise VersionError(_client_error(message, "version_error"), status=response.status_code)


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """One request, and the parser of its reply.

    Attributes:
        method: HTTP method.
        path: path below the base URL.
        read: parser, given the headers, of the reply into one result, or of each line into any number.
        body: body, sent as JSON unless it is bytes.
        headers: additional headers.
        query: query string of the URL.
        last_line: last line of a complete reply; empty for any, None if it is parsed as a whole.
    """

    method: str
    path: str
    read: Callable[[bytes, Mapping[str, str]], list[R]]
    body: Mapping[str, Any] | bytes | None = None
    headers: Mapping[str, str] | None = None
    query: Mapping[str, Any] | None = None
    last_line: bytes | None = None

    def parse(self, content: bytes, headers: Mapping[str, str]) -> list[R]:
        """Parse a reply, or one of its lines, given its headers.

        Raises:
            ServerError: it cannot be parsed, such as the page of a proxy.
        """
        try:
            return self.read(content, headers)
        except (ValueError, TypeError, LookupError, OverflowError) as error:
            problem = " ".join(str(error).split())
            message = f"the reply to {self.method} {self.path} cannot be parsed: {problem}"
            raise reply_error(message) from error

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


def json_reply(kind: type[R], **counts: int) -> Callable[[bytes, object], list[R]]:
    """Return a parser of JSON replies of a kind, given the lengths of some of its lists."""

    def read(content: bytes, _headers: object) -> list[R]:
        reply = _adapter(kind).validate_json(content)
        for name, count in counts.items():
            if len(getattr(reply, name)) != count:
                raise ValueError(f"{name} has {len(getattr(reply, name))} entries for {count} in the request")
        return [reply]

    return read


def line_reply(kind: type[R]) -> Callable[[bytes, object], list[R | ErrorBody]]:
    """Return a parser of lines, each a result of a kind or an error."""

    def read(line: bytes, _headers: object) -> list[R | ErrorBody]:
        parsed = _adapter(kind | ErrorReply).validate_json(line)
        return [parsed.error if isinstance(parsed, ErrorReply) else parsed]

    return read


def retry_delay_s(response: httpx.Response, content: bytes, attempt: int, max_retries: int) -> float:
    """Return the delay between an unsuccessful response and the next attempt.

    Raises:
        GramophoneError: this attempt is the last.
    """
    if response.status_code not in _RETRIED_STATUSES or attempt >= max_retries:
        raise response_error(response, content)
    asked = _retry_after_s(response.headers.get("retry-after", ""))
    return min(0.5 * 2.0**attempt if asked is None else asked, _MAX_RETRY_DELAY_S)


def _retry_after_s(value: str) -> float | None:
    """Parse a `Retry-After` header, seconds or a date; return None for others."""
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError, OSError):
        return None


class ReplyReader(Generic[R]):
    """Parser of a reply that arrives in chunks: as a whole, or its lines.

    Lines end at line feeds only: JSON may contain other line breaks.

    Args:
        call: the call.
        headers: headers of the reply.
    """

    def __init__(self, call: Call[R], headers: Mapping[str, str]) -> None:
        self._call, self._headers = call, headers
        self._previous, self._rest = b"", bytearray()

    def push(self, chunk: bytes) -> Iterator[R]:
        """Yield the results in the lines that this chunk completes.

        Raises:
            ServerError: a line or the reply cannot be parsed or has too many bytes.
        """
        is_whole = self._call.last_line is None
        begin, *others = [chunk] if is_whole else chunk.split(b"\n")
        self._rest += begin
        if len(self._rest) > (most := MAX_REPLY_BYTES if is_whole else MAX_LINE_BYTES):
            raise reply_error(f"the {'reply' if is_whole else 'line'} has over {most} bytes")
        for next_line in others:
            line, self._rest = bytes(self._rest), bytearray(next_line)
            self._previous = line or self._previous
            yield from self._call.parse(line, self._headers)

    def finish(self) -> list[R]:
        """Return a whole reply's result; check that the last line is complete: a proxy may hide a lost connection.

        Raises:
            httpx.RemoteProtocolError: the reply ends in a line, or without its last line.
            ServerError: the whole reply cannot be parsed.
        """
        if self._call.last_line is None:
            return self._call.parse(bytes(self._rest), self._headers)
        if self._rest or self._call.last_line not in {b"", self._previous}:
            raise httpx.RemoteProtocolError("the reply ended early")
        return []


def read_stream_event(line: bytes, _headers: object) -> list[GenerateReply]:
    """Parse a line of an event stream; return nothing for empty lines, comments and `[DONE]`.

    Raises:
        GramophoneError: the service failed during the stream.
    """
    if line in {b"", LAST_EVENT} or line.startswith(b":"):  # a comment keeps the connection alive
        return []
    payload = line.removeprefix(b"data: ")
    if payload.startswith(b'{"error"'):
        raise _error(_adapter(ErrorReply).validate_json(payload).error, 200)
    return [_adapter(GenerateReply).validate_json(payload)]


def read_floats(content: bytes, headers: Mapping[str, str]) -> "list[memoryview[float]]":
    """Parse the log-probabilities [B, V] of a binary reply."""
    values = array("f", content)
    if sys.byteorder == "big":
        values.byteswap()
    batch, width = map(int, headers["x-shape"].split(","))
    return [memoryview(values).cast("B").cast("f", (batch, width))]


class _ModelOptions(TypedDict, total=False):
    model: str
    slots: Slots


class ScoreOptions(_ModelOptions, total=False):
    """Options of POST /v1/score."""

    bos: bool
    eos: bool
    detail: str
    ngram_lengths: bool


class GenerateOptions(_ModelOptions, total=False):
    """Options of POST /v1/generate."""

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
    phrases: Sequence[PhraseEntry]
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
    token_healing: bool
    timeout_ms: int


class _Span(TypedDict):
    start: int
    end: int
    suggestions: Sequence[str | Mapping[str, Any]]


class CheckOptions(_ModelOptions, total=False):
    """Options of POST /v1/check."""

    threshold: float
    precision: float
    max_suggestions: int
    candidates: Sequence[_Span]
    dictionary: Sequence[str | StoredWords]
    dictionaries: Sequence[str]
    error_rate: float
    max_edits: int
    timeout_ms: int


class QualityOptions(TypedDict, total=False):
    """Options of POST /v1/quality."""

    model: str
    against: str


class MixturePart(TypedDict):
    """Model of a mixture, and its weight."""

    model: str
    weight: float


class FurtherModel(TypedDict):
    """Additional model, with its own features, such as `lm:NAME`."""

    model: str
    name: str
    weight: NotRequired[float]


class Correction(TypedDict):
    """Replacement to propose, and the logarithm of its odds."""

    heard: str
    written: str
    logprob: NotRequired[float]


class _ProposalOptions(_ModelOptions, total=False):
    """Options of what is proposed."""

    phrases: Sequence[PhraseEntry]
    forms: str
    corrections: Sequence[Correction]
    weights: Mapping[str, float]
    profile: str


class CorrectOptions(_ProposalOptions, total=False):
    """Options of POST /v1/correct."""

    wordlist: str
    restore: bool | str
    timeout_ms: int


class LatticeOptions(_ProposalOptions, total=False):
    """Options of POST /v1/lattices."""

    propose: bool
    wordlist: str
    nbest: int
    alternatives: int
    posterior_scale: float
    max_tokens_per_node: int
    beam: float
    recombination_order: int


class RestoreOptions(_ModelOptions, total=False):
    """Options of POST /v1/restore."""

    words: bool
    one_per_line: bool
    timeout_ms: int


class RerankOptions(_ProposalOptions, total=False):
    """Options of POST /v1/rerank."""

    mixture: Sequence[MixturePart]
    models: Sequence[FurtherModel]
    propose: bool
    length_exponent: float
    posterior_scale: float
    mbr: Literal["wer", "chrf", "bleu"]
    confidences: bool
    detail: Literal["none", "token", "word"]
    bos: bool
    eos: bool
    score_mode: Literal["normalised", "unnormalised"]
    form: Literal["asis", "sentence-case", "sentence"]
    drop_duplicates: bool
    top: int
    commit_eos: bool
    restore: bool | str
    timeout_ms: int


class TuneOptions(TypedDict, total=False):
    """Options of POST /v1/rerank/tune."""

    lattices: Sequence[Mapping[str, Any]]
    nbest: int
    max_tokens_per_node: int
    beam: float
    recombination_order: int
    metric: Literal["wer", "cer", "bleu", "chrf"]
    normaliser: str
    model: str
    mixture: Sequence[MixturePart]
    models: Sequence[FurtherModel]
    form: Literal["asis", "sentence-case", "sentence"]
    given_only: bool
    features: Sequence[str]
    phrases: Sequence[Phrase]
    propose: bool
    forms: str
    length_exponents: Sequence[float]
    folds: int
    seed: int
    restarts: int
    resamples: int
    max_p_value: float
    bootstrap_samples: int
    timeout_ms: int


class ContinuationOptions(TypedDict):
    """Continuation of a state by POST /v1/states/advance; a copy of the state if it has neither text nor ids."""

    state: str
    text: NotRequired[str]
    token_ids: NotRequired[Sequence[int]]
    eos: NotRequired[bool]
    keep: NotRequired[bool]


class AutocompleteOptions(_ModelOptions, total=False):
    """Options of POST /v1/autocomplete."""

    before: str
    text_after: str
    keys: Sequence[str | Mapping[str, float] | Sequence[float]]
    layout: Literal["qwerty", "qwertz", "azerty"]
    limit: int
    max_words: int
    min_probability: float
    rank: Literal["probability", "savings"]
    casing: Literal["exact", "ignore"]
    fuzzy: int
    dictionary: Sequence[DictionaryEntry]
    blocklist: Sequence[str | StoredWords]
    user: str
    user_weight: float
    session: str
    no_repeats: bool
    max_steps: int
    open_vocabulary: bool
    timeout_ms: int
