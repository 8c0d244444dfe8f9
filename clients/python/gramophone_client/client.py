"""Synchronous and asynchronous client of the service, with common method definitions.

A method is a function that builds its request; the descriptor `Method` makes it a method, plain or awaitable,
that returns the parsed reply.
"""

import asyncio
import functools
import io
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from types import MethodType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload
from urllib.parse import quote

import httpx
from typing_extensions import Self, Unpack

from gramophone_client.calls import (
    LAST_EVENT,
    MAX_ERROR_BYTES,
    AutocompleteOptions,
    Call,
    CheckOptions,
    Contexts,
    ContinuationOptions,
    CorrectOptions,
    GenerateOptions,
    LatticeOptions,
    NamedText,
    PhraseEntry,
    QualityOptions,
    ReplyReader,
    RerankOptions,
    RestoreOptions,
    ScoreOptions,
    Slots,
    TuneOptions,
    WordListEntry,
    check_version,
    invalid_request,
    json_reply,
    line_reply,
    read_floats,
    read_stream_event,
    retry_delay_s,
    transport_errors,
)
from gramophone_client.types import (
    AdvanceReply,
    AutocompleteReply,
    CheckReply,
    CorrectedTextResult,
    CorrectReply,
    DeletedReply,
    ErrorBody,
    ForgottenReply,
    FreeReply,
    GenerateReply,
    LatticeResult,
    LatticesReply,
    ModelCard,
    ModelList,
    NextReply,
    NextTextReply,
    NextTokenReply,
    NextWordReply,
    OpenStatesReply,
    QualityReply,
    RankedListResult,
    RerankReply,
    RestoredTextResult,
    RestoreReply,
    ScoreReply,
    SequenceScoreResult,
    TextQualityResult,
    UserCorrection,
    UserPair,
    UserReply,
    UserWord,
    UserWords,
    WeightedEntry,
    WordListReply,
    WordListsReply,
)

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", httpx.Client, httpx.AsyncClient)
T = TypeVar("T")
C_co = TypeVar("C_co", covariant=True)
_BINARY = {"accept": "application/octet-stream"}
_LINES = {"content-type": "application/x-ndjson"}


class MethodGroup(Generic[C_co]):
    """Methods of a client on one topic.

    Args:
        client: client that sends the requests.
    """

    def __init__(self, client: C_co) -> None:
        self.client = client


class Method(Generic[P, R]):
    """Client method that returns a reply; awaitable on the asynchronous client."""

    def __init__(self, call: Callable[Concatenate[Any, P], Call[R]]) -> None:
        self._call = call

    @overload
    def __get__(self, caller: "Client | MethodGroup[Client]", owner: type) -> Callable[P, R]: ...
    @overload
    def __get__(
        self, caller: "AsyncClient | MethodGroup[AsyncClient]", owner: type
    ) -> Callable[P, Awaitable[R]]: ...
    def __get__(self, caller: Any, owner: type) -> Any:
        """Bind to a client."""
        return _bound(self._call, caller, "fetch")


class LinesMethod(Generic[P, R]):
    """Client method that yields results as they arrive; for `async for` on the asynchronous client."""

    def __init__(self, call: Callable[Concatenate[Any, P], Call[R]]) -> None:
        self._call = call

    @overload
    def __get__(self, caller: "Client | MethodGroup[Client]", owner: type) -> Callable[P, Iterator[R]]: ...
    @overload
    def __get__(
        self, caller: "AsyncClient | MethodGroup[AsyncClient]", owner: type
    ) -> Callable[P, AsyncIterator[R]]: ...
    def __get__(self, caller: Any, owner: type) -> Any:
        """Bind to a client."""
        return _bound(self._call, caller, "fetch_lines")


def _bound(call: Callable[..., Any], caller: Any, fetch: str) -> Callable[..., Any]:
    """Return a method with the signature and docstring of `call`; without a client, `call` for documentation."""
    if caller is None:
        return call
    client = caller.client if isinstance(caller, MethodGroup) else caller
    bound = MethodType(call, caller)

    @functools.wraps(bound)
    def method(*args: Any, **kwargs: Any) -> Any:
        return getattr(client, fetch)(bound(*args, **kwargs))

    return method


def _user_path(user: str) -> str:
    return f"/v1/autocomplete/users/{quote(user, safe='')}"


def _list_path(name: str) -> str:
    return f"/v1/wordlists/{quote(name, safe='')}"


def _count(context: Contexts) -> int:
    """Count contexts: one text, one list of token ids, or a list of either."""
    return 1 if isinstance(context, str) or not context or isinstance(context[0], int) else len(context)


def _post(path: str, kind: type[R], body: Mapping[str, Any], **counts: int) -> Call[R]:
    return Call("POST", path, json_reply(kind, **counts), body)


def _field(kind: type[Any], name: str) -> Callable[[bytes, object], list[Any]]:
    """Return a parser of JSON replies of a kind into one of their fields."""
    return lambda *reply: [getattr(parsed, name) for parsed in json_reply(kind)(*reply)]


def _lines(
    path: str,
    read: Callable[[bytes, object], list[R]],
    items: Iterable[Mapping[str, Any]],
    query: Mapping[str, Any],
) -> Call[R]:
    """Send one line per item, with the options in the query string."""
    body = "\n".join(map(json.dumps, items)).encode()
    return Call("POST", path, read, body, _LINES, query, last_line=b"")


def _entry_line(entry: WordListEntry) -> bytes:
    if isinstance(entry, tuple):
        text, weight = entry
        entry = {"text": text, "weight": weight}
    value = entry.model_dump() if isinstance(entry, WeightedEntry) else entry
    # shorter than with escapes; the service refuses surrogates
    return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass") + b"\n"


def _query_options(options: RerankOptions | CorrectOptions | LatticeOptions) -> dict[str, Any]:
    """Convert options to a query string, mappings and lists to pairs or JSON."""
    query: dict[str, Any] = dict(options)
    models = query.get("models", ())
    weights = {f"lm:{model['name']}": model["weight"] for model in models if "weight" in model}
    if weights and "profile" in query and "weights" not in query:
        message = "lines cannot combine a profile with weights of models; give all weights in weights"
        raise invalid_request(message, param="models")
    if weights or "weights" in query:
        classes = (phrase.get("class") for phrase in query.get("phrases", ()))
        default = {"lm": 1.0, **{f"phrases:{name}" if name else "phrases": 10.0 for name in classes}}
        query["weights"] = _comma_pairs({**query.get("weights", default), **weights})
    if models:
        query["models"] = _comma_pairs({model["name"]: model["model"] for model in models})
    query |= {name: json.dumps(query[name]) for name in ("phrases", "corrections") if name in query}
    if "mixture" in query:
        query["mixture"] = _comma_pairs({part["model"]: part["weight"] for part in query["mixture"]})
    return query


def _comma_pairs(values: Mapping[str, object]) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())


class States(MethodGroup[C_co]):
    """Requests for states stored by the service, for decoders. Every method raises GramophoneError."""

    @Method
    def open(
        self,
        context: Contexts = "",
        *,
        model: str | None = None,
        bos: bool = True,
        phrases: Sequence[PhraseEntry] = (),
    ) -> Call[OpenStatesReply]:
        """Store the state after each context; `advance` reports the value of the phrases."""
        favoured = {"phrases": phrases} if phrases else {}
        body = {"context": context, "model": model, "bos": bos, **favoured}
        return _post("/v1/states", OpenStatesReply, body, states=_count(context))

    @Method
    def advance(
        self,
        continuations: Sequence[ContinuationOptions],
        *,
        next_token_ids: Sequence[int] = (),
        free: Iterable[str] = (),
    ) -> Call[AdvanceReply]:
        """Score continuations, store the states after them, then free the states in `free`."""
        body = {"continuations": continuations, "next_token_ids": list(next_token_ids), "free": list(free)}
        return _post("/v1/states/advance", AdvanceReply, body, results=len(continuations))

    @Method
    def next(self, states: Sequence[str], *, token_ids: Sequence[int] | None = None) -> Call[NextReply]:
        """Return the log-probabilities of the given tokens, or of all tokens, after each state."""
        body = {"states": states, "token_ids": token_ids}
        return _post("/v1/states/next", NextReply, body, logprobs=len(states))

    @Method
    def log_probs(
        self, states: Sequence[str], *, token_ids: Sequence[int] | None = None
    ) -> "Call[memoryview[float]]":
        """Return the result of `next` as float32 [B, K]."""
        return Call(
            "POST", "/v1/states/next", read_floats, {"states": states, "token_ids": token_ids}, _BINARY
        )

    @Method
    def free(self, states: Iterable[str]) -> Call[int]:
        """Free states; return the number freed."""
        return Call("POST", "/v1/states/free", _field(FreeReply, "freed"), {"states": list(states)})


class Users(MethodGroup[C_co]):
    """Requests for users of autocomplete and their accepted words. Every method raises GramophoneError."""

    @Method
    def accept(
        self, user: str, text: str, *, context: str | None = None, typed: str | None = None
    ) -> Call[UserReply]:
        """Learn words and pairs from a text that a user has accepted after a context.

        `typed` is what the user had typed in place of its first word, if typed letters were replaced.
        """
        body = {"text": text, "context": context} | ({} if typed is None else {"typed": typed})
        return _post(f"{_user_path(user)}/accepted", UserReply, body)

    @Method
    def export(self, user: str) -> Call[UserWords]:
        """Return the words, pairs and corrections stored for a user."""
        return Call("GET", _user_path(user), json_reply(UserWords))

    @Method
    def restore(
        self,
        user: str,
        words: Sequence[UserWord],
        pairs: Sequence[UserPair] = (),
        corrections: Sequence[UserCorrection] = (),
    ) -> Call[UserReply]:
        """Replace the words, pairs and corrections of a user."""
        body = {
            "words": [word.model_dump() for word in words],
            "pairs": [pair.model_dump() for pair in pairs],
        }
        if corrections:  # earlier releases do not know them
            body["corrections"] = [one.model_dump() for one in corrections]
        return Call("PUT", _user_path(user), json_reply(UserReply), body)

    @Method
    def forget(self, user: str) -> Call[bool]:
        """Delete a user's words; return True if any were stored."""
        return Call("DELETE", _user_path(user), _field(ForgottenReply, "forgotten"))

    @Method
    def forget_word(self, user: str, word: str) -> Call[UserReply]:
        """Delete one word of a user, its pairs, and corrections of and to it."""
        # dots too: a word of two would lead to the user's own path
        path = f"{_user_path(user)}/words/{quote(word, safe='').replace('.', '%2E')}"
        return Call("DELETE", path, json_reply(UserReply))


class WordLists(MethodGroup[C_co]):
    """Requests for stored word lists, which other requests name. Every method raises GramophoneError."""

    @Method
    def put(
        self,
        name: str,
        entries: Iterable[WordListEntry],
        *,
        casing: Literal["exact", "ignore"] = "ignore",
        language: str | None = None,
    ) -> Call[WordListReply]:
        """Store a list, in place of one of this name; the weights of equal entries are added up."""
        body = io.BytesIO()
        body.writelines(map(_entry_line, entries))
        query = {"casing": casing} if language is None else {"casing": casing, "language": language}
        return Call("PUT", _list_path(name), json_reply(WordListReply), body.getvalue(), _LINES, query)

    @Method
    def list(self) -> Call[WordListsReply]:
        """Describe the lists, sorted by name."""
        return Call("GET", "/v1/wordlists", json_reply(WordListsReply))

    @Method
    def get(self, name: str) -> Call[WordListReply]:
        """Describe a list."""
        return Call("GET", _list_path(name), json_reply(WordListReply))

    @LinesMethod
    def entries(self, name: str) -> Call[WeightedEntry]:
        """Yield the entries of a list, which `put` accepts."""
        return Call("GET", f"{_list_path(name)}/entries", json_reply(WeightedEntry), last_line=b"")

    @Method
    def delete(self, name: str) -> Call[bool]:
        """Delete a list; return True if it was stored."""
        return Call("DELETE", _list_path(name), _field(DeletedReply, "deleted"))


class _HttpClient(Generic[H, T]):
    """Methods of both clients, and their connections."""

    _connect: Callable[..., H]

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        max_retries: int = 2,
        transport: T | None = None,
    ) -> None:
        key = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._http: H = self._connect(
            base_url=base_url, headers={**(headers or {}), **key}, timeout=timeout_s, transport=transport
        )
        self._max_retries = max_retries

    @Method
    def next_token(
        self,
        context: Contexts,
        *,
        top_k: int | None = None,
        token_ids: Sequence[int] | None = None,
        entropy: bool = True,
        model: str | None = None,
        slots: Slots | None = None,
    ) -> Call[NextTokenReply]:
        """Return the most probable tokens after each context, 10 or the vocabulary by default, or given ones.

        `entropy=False` is faster for n-gram models.
        """
        given = {"top_k": top_k} if token_ids is None else {"token_ids": token_ids}
        candidates = {name: value for name, value in given.items() if value is not None}
        body = {"context": context, **candidates, "entropy": entropy, "model": model, "slots": slots}
        return _post("/v1/next-token", NextTokenReply, body, results=_count(context))

    @Method
    def next_text(
        self, context: str | Sequence[str], candidates: Sequence[str], *, model: str | None = None
    ) -> Call[NextTextReply]:
        """Return the log-probability of each text after each context."""
        body = {"context": context, "candidates": candidates, "model": model}
        return _post("/v1/next-token", NextTextReply, body, results=_count(context))

    @Method
    def next_word(
        self, context: str | Sequence[str], *, top_k: int = 10, model: str | None = None
    ) -> Call[NextWordReply]:
        """Return the most probable words, of one or several tokens, after each context."""
        body = {"context": context, "top_k": top_k, "unit": "word", "model": model}
        return _post("/v1/next-token", NextWordReply, body, results=_count(context))

    @Method
    def log_probs(self, context: Contexts, *, model: str | None = None) -> "Call[memoryview[float]]":
        """Return the log-probability of every next token as float32 [B, V]."""
        return Call("POST", "/v1/next-token", read_floats, {"context": context, "model": model}, _BINARY)

    @Method
    def score(
        self,
        texts: Sequence[str] | None = None,
        *,
        token_ids: Sequence[Sequence[int]] | None = None,
        context: str | Sequence[int] = "",
        **options: Unpack[ScoreOptions],
    ) -> Call[ScoreReply]:
        """Score texts or sequences of token ids."""
        sequences = {"texts": texts} if token_ids is None else {"token_ids": token_ids}
        body, count = {**sequences, "context": context, **options}, len(token_ids or texts or ())
        return _post("/v1/score", ScoreReply, body, results=count)

    @LinesMethod
    def score_lines(
        self, items: Iterable[Mapping[str, Any]], **options: Unpack[ScoreOptions]
    ) -> Call[SequenceScoreResult | ErrorBody]:
        """Yield a score, or an error, for each object with `text` or `token_ids`, in order."""
        return _lines("/v1/score", line_reply(SequenceScoreResult), items, options)

    @Method
    def rerank(
        self, lists: Sequence[Mapping[str, Any]], **options: Unpack[RerankOptions]
    ) -> Call[RerankReply]:
        """Re-rank lists of candidates."""
        return _post("/v1/rerank", RerankReply, {"lists": lists, **options}, lists=len(lists))

    @LinesMethod
    def rerank_lines(
        self, lists: Iterable[Mapping[str, Any]], **options: Unpack[RerankOptions]
    ) -> Call[RankedListResult | ErrorBody]:
        """Yield each re-ranked list, or an error, in order; for thousands of lists.

        Raises:
            BadRequestError: models have weights in addition to a profile's, which a query string cannot express.
        """
        return _lines("/v1/rerank", line_reply(RankedListResult), lists, _query_options(options))

    @Method
    def correct(
        self,
        texts: Sequence[str],
        *,
        confidences: Sequence[Sequence[float]] | None = None,
        **options: Unpack[CorrectOptions],
    ) -> Call[CorrectReply]:
        """Correct texts by phrases, forms of numbers and replacements; `confidences` are of the words of each text."""
        body = {"texts": texts, "confidences": confidences, **options}
        return _post("/v1/correct", CorrectReply, body, results=len(texts))

    @LinesMethod
    def correct_lines(
        self, items: Iterable[Mapping[str, Any]], **options: Unpack[CorrectOptions]
    ) -> Call[CorrectedTextResult | ErrorBody]:
        """Yield a corrected text, or an error, for each object with `text`, in order."""
        return _lines("/v1/correct", line_reply(CorrectedTextResult), items, _query_options(options))

    @Method
    def rescore(
        self, lattices: Sequence[Mapping[str, Any]], **options: Unpack[LatticeOptions]
    ) -> Call[LatticesReply]:
        """Find the best texts of lattices and confusion networks."""
        body = {"lattices": lattices, **options}
        return _post("/v1/lattices", LatticesReply, body, lattices=len(lattices))

    @LinesMethod
    def rescore_lines(
        self, lattices: Iterable[Mapping[str, Any]], **options: Unpack[LatticeOptions]
    ) -> Call[LatticeResult | ErrorBody]:
        """Yield the best texts of each lattice, or an error, in order."""
        return _lines("/v1/lattices", line_reply(LatticeResult), lattices, _query_options(options))

    @Method
    def restore(self, texts: Sequence[str], **options: Unpack[RestoreOptions]) -> Call[RestoreReply]:
        """Restore capitals and punctuation in texts that have neither."""
        return _post("/v1/restore", RestoreReply, {"texts": texts, **options}, results=len(texts))

    @LinesMethod
    def restore_lines(
        self, items: Iterable[Mapping[str, Any]], **options: Unpack[RestoreOptions]
    ) -> Call[RestoredTextResult | ErrorBody]:
        """Yield a text with capitals and punctuation, or an error, for each object with `text`, in order."""
        return _lines("/v1/restore", line_reply(RestoredTextResult), items, dict(options))

    @Method
    def tune(
        self, lists: Sequence[Mapping[str, Any]] | None = None, **options: Unpack[TuneOptions]
    ) -> Call[dict[str, Any]]:
        """Tune weights on lists with a `reference`, or on `lattices` with it instead, and evaluate them."""
        return _post("/v1/rerank/tune", dict[str, Any], {"lists": lists, **options})

    @Method
    def generate(
        self, prompt: str | Sequence[int] = "", **options: Unpack[GenerateOptions]
    ) -> Call[GenerateReply]:
        """Generate continuations of a prompt."""
        return _post("/v1/generate", GenerateReply, {"prompt": prompt, "stream": False, **options})

    @LinesMethod
    def stream(
        self, prompt: str | Sequence[int] = "", **options: Unpack[GenerateOptions]
    ) -> Call[GenerateReply]:
        """Yield a continuation token by token; closing the iterator cancels it."""
        body = {"prompt": prompt, "stream": True, **options}
        return Call("POST", "/v1/generate", read_stream_event, body, last_line=LAST_EVENT)

    @Method
    def autocomplete(self, text: str, **options: Unpack[AutocompleteOptions]) -> Call[AutocompleteReply]:
        """Return completions of the last word of a text, or the next words."""
        return _post("/v1/autocomplete", AutocompleteReply, {"text": text, **options})

    @Method
    def check(self, text: str, **options: Unpack[CheckOptions]) -> Call[CheckReply]:
        """Return the probable errors of a text, with suggestions."""
        return _post("/v1/check", CheckReply, {"text": text, **options})

    @Method
    def quality(self, texts: Sequence[NamedText], **options: Unpack[QualityOptions]) -> Call[QualityReply]:
        """Score texts by bits per word and byte, under one model or two."""
        return _post("/v1/quality", QualityReply, {"texts": texts, **options}, results=len(texts))

    @LinesMethod
    def quality_lines(
        self, items: Iterable[Mapping[str, Any]], **options: Unpack[QualityOptions]
    ) -> Call[TextQualityResult | ErrorBody]:
        """Yield the quality, or an error, of each object with `text` and optionally `id`, in order; for corpora."""
        return _lines("/v1/quality", line_reply(TextQualityResult), items, options)

    @Method
    def models(self) -> Call[ModelList]:
        """List the models of the service."""
        return Call("GET", "/v1/models", json_reply(ModelList))

    @Method
    def model(self, address: str) -> Call[ModelCard]:
        """Return the description of one model."""
        return Call("GET", f"/v1/models/{quote(address, safe='@')}", json_reply(ModelCard))

    @property
    def states(self) -> States[Self]:
        """Methods for states stored by the service, for decoders."""
        return States(self)

    @property
    def users(self) -> Users[Self]:
        """Methods for the users of autocomplete and their accepted words."""
        return Users(self)

    @property
    def wordlists(self) -> WordLists[Self]:
        """Methods for stored word lists."""
        return WordLists(self)

    @property
    def url(self) -> str:
        """Base URL of the service."""
        return str(self._http.base_url)


class Client(_HttpClient[httpx.Client, httpx.BaseTransport]):
    """Synchronous client of the service.

    Args:
        base_url: URL of the service, such as `http://localhost:8000`.
        api_key: API key, if the service requires one.
        headers: more headers, such as `X-Gramophone-Session`, by which a proxy routes a session to one process.
        timeout_s: seconds to wait for a response or its next part.
        max_retries: retries of a request that an overloaded or unready service rejects.
        transport: httpx transport, for tests.

    Every method raises GramophoneError.
    """

    _connect = httpx.Client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def fetch(self, call: Call[R]) -> R:
        """Send a call and parse its reply."""
        (result,) = self.fetch_lines(call)
        return result

    def fetch_lines(self, call: Call[R]) -> Iterator[R]:
        """Send a call and yield the results in its reply's lines."""
        with self._reply(call) as response:
            reader = ReplyReader(call, response.headers)
            for chunk in response.iter_bytes():
                yield from reader.push(chunk)
            yield from reader.finish()

    @contextmanager
    def _reply(self, call: Call[Any]) -> Iterator[httpx.Response]:
        """Send a call and yield its successful reply, to read in the context."""
        request = call.request(self._http)
        with transport_errors(request):
            for attempt in itertools.count():
                with closing(self._http.send(request, stream=True)) as response:
                    check_version(response)
                    if response.is_success:
                        yield response
                        return
                    content = next(response.iter_bytes(MAX_ERROR_BYTES), b"")
                time.sleep(retry_delay_s(response, content, attempt, self._max_retries))


class AsyncClient(_HttpClient[httpx.AsyncClient, httpx.AsyncBaseTransport]):
    """Asynchronous client, with the arguments and methods of `Client`. Every method raises GramophoneError."""

    _connect = httpx.AsyncClient

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def fetch(self, call: Call[R]) -> R:
        """Send a call and parse its reply."""
        (result,) = [result async for result in self.fetch_lines(call)]
        return result

    async def fetch_lines(self, call: Call[R]) -> AsyncIterator[R]:
        """Send a call and yield the results in its reply's lines."""
        async with self._reply(call) as response:
            reader = ReplyReader(call, response.headers)
            async for chunk in response.aiter_bytes():
                for result in reader.push(chunk):
                    yield result
            for result in reader.finish():
                yield result

    @asynccontextmanager
    async def _reply(self, call: Call[Any]) -> AsyncIterator[httpx.Response]:
        """Send a call and yield its successful reply, to read in the context."""
        request = call.request(self._http)
        with transport_errors(request):
            for attempt in itertools.count():
                async with aclosing(await self._http.send(request, stream=True)) as response:
                    check_version(response)
                    if response.is_success:
                        yield response
                        return
                    content = await anext(response.aiter_bytes(MAX_ERROR_BYTES), b"")
                await asyncio.sleep(retry_delay_s(response, content, attempt, self._max_retries))
