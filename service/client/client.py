"""Synchronous and asynchronous clients of the service, with the same methods."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from service.client.calls import (
    Call,
    CheckOptions,
    Contexts,
    GenerateOptions,
    LineReader,
    NamedText,
    QualityOptions,
    RerankOptions,
    ScoreOptions,
    TuneOptions,
    check_call,
    ensure_success,
    generate_call,
    log_probs_call,
    model_call,
    models_call,
    next_token_call,
    next_word_call,
    quality_call,
    quality_lines_call,
    read_floats,
    read_quality_line,
    read_ranked_line,
    read_score_line,
    read_stream_event,
    request_headers,
    rerank_call,
    rerank_lines_call,
    retry_delay_s,
    score_call,
    score_lines_call,
    transport_error,
    tune_call,
)
from service.client.resources import (
    AsyncStates,
    AsyncUsers,
    AutocompleteOptions,
    States,
    Users,
    autocomplete_call,
)
from service.schemas import replies
from service.schemas.replies import AutocompleteReply, CheckReply, QualityReply, TextQualityResult

R = TypeVar("R")


class AsyncClient:
    """Client for asyncio, with the methods of `Client`.

    Args:
        base_url: URL of the service, such as `http://localhost:8000`.
        api_key: API key sent with every request, if the service requires one.
        headers: further headers, such as `X-Gramophone-Session`, by which a proxy routes a session to one process.
        timeout_s: seconds to wait for an answer, or for the next part of one.
        max_retries: retries of a request that an overloaded or unready service refused.
        transport: transport of httpx, for tests.

    Every method raises GramophoneError.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        max_retries: int = 2,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers=request_headers(api_key, headers),
            timeout=timeout_s,
            transport=transport,
        )
        self._max_retries = max_retries

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def url(self) -> str:
        """Base URL of the service."""
        return str(self._http.base_url)

    @property
    def states(self) -> AsyncStates:
        """Methods for states kept by the service, for decoders."""
        return AsyncStates(self._fetch, self._send)

    @property
    def users(self) -> AsyncUsers:
        """Methods for the users of autocomplete and their accepted words."""
        return AsyncUsers(self._fetch)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def next_token(
        self, context: Contexts, *, top_k: int = 10, entropy: bool = True, model: str | None = None
    ) -> replies.NextTokenReply:
        """Return the most probable tokens after each context; faster on large vocabularies without the entropy."""
        return await self._fetch(next_token_call(context, top_k, entropy=entropy, model=model))

    async def next_word(
        self, context: str | Sequence[str], *, top_k: int = 10, model: str | None = None
    ) -> replies.NextWordReply:
        """Return the most probable words of one or more tokens after each context."""
        return await self._fetch(next_word_call(context, top_k, model))

    async def log_probs(self, context: Contexts, *, model: str | None = None) -> "memoryview[float]":
        """Return the log-probability of every next token, float32 [B, V]."""
        return read_floats(await self._send(log_probs_call(context, model)))

    async def score(
        self,
        texts: Sequence[str] | None = None,
        *,
        token_ids: Sequence[Sequence[int]] | None = None,
        context: str | Sequence[int] = "",
        **options: Unpack[ScoreOptions],
    ) -> replies.ScoreReply:
        """Score texts or sequences of token ids."""
        return await self._fetch(score_call(texts, token_ids, context, options))

    async def score_lines(
        self, items: Iterable[Mapping[str, Any]], **options: Unpack[ScoreOptions]
    ) -> AsyncIterator[replies.SequenceScoreResult | replies.ErrorBody]:
        """Yield a score, or an error, for each object with `text` or `token_ids`, in order."""
        async for line in self._lines(score_lines_call(items, options)):
            yield read_score_line(line)

    async def rerank(
        self, lists: Sequence[Mapping[str, Any]], **options: Unpack[RerankOptions]
    ) -> replies.RerankReply:
        """Re-rank lists of candidates."""
        return await self._fetch(rerank_call(lists, options))

    async def rerank_lines(
        self, lists: Iterable[Mapping[str, Any]], **options: Unpack[RerankOptions]
    ) -> AsyncIterator[replies.RankedListResult | replies.ErrorBody]:
        """Yield each re-ranked list, or an error, in order; for thousands of lists."""
        async for line in self._lines(rerank_lines_call(lists, options)):
            yield read_ranked_line(line)

    async def tune(
        self, lists: Sequence[Mapping[str, Any]], **options: Unpack[TuneOptions]
    ) -> dict[str, Any]:
        """Tune the weights of re-ranking on lists with a `reference`, and evaluate them."""
        return await self._fetch(tune_call(lists, options))

    async def generate(
        self, prompt: str | Sequence[int] = "", **options: Unpack[GenerateOptions]
    ) -> replies.GenerateReply:
        """Generate continuations of a prompt."""
        return await self._fetch(generate_call(prompt, options, stream=False))

    async def stream(
        self, prompt: str | Sequence[int] = "", **options: Unpack[GenerateOptions]
    ) -> AsyncIterator[replies.GenerateReply]:
        """Yield a continuation token by token; closing the iterator stops it."""
        async for line in self._lines(generate_call(prompt, options, stream=True)):
            if (event := read_stream_event(line)) is not None:
                yield event

    async def autocomplete(self, text: str, **options: Unpack[AutocompleteOptions]) -> AutocompleteReply:
        """Return completions of the last word of a text, or the next words."""
        return await self._fetch(autocomplete_call(text, options))

    async def check(self, text: str, **options: Unpack[CheckOptions]) -> CheckReply:
        """Return the probable errors of a text, with suggestions."""
        return await self._fetch(check_call(text, options))

    async def quality(self, texts: Sequence[NamedText], **options: Unpack[QualityOptions]) -> QualityReply:
        """Score texts by bits per word and byte, under one model or two."""
        return await self._fetch(quality_call(texts, options))

    async def quality_lines(
        self, items: Iterable[Mapping[str, Any]], **options: Unpack[QualityOptions]
    ) -> AsyncIterator[TextQualityResult | replies.ErrorBody]:
        """Yield the quality, or an error, of each object with `text` and optionally `id`, in order; for corpora."""
        async for line in self._lines(quality_lines_call(items, options)):
            yield read_quality_line(line)

    async def models(self) -> replies.ModelList:
        """List the models of the service."""
        return await self._fetch(models_call())

    async def model(self, address: str) -> replies.ModelCard:
        """Return the description of one model."""
        return await self._fetch(model_call(address))

    async def _fetch(self, call: Call[R]) -> R:
        return call.reply.validate_json((await self._send(call)).content)

    async def _send(self, call: Call[Any], *, stream: bool = False) -> httpx.Response:
        attempt = 0
        while True:
            try:
                response = await self._http.send(call.request(self._http), stream=stream)
                if not response.is_success:
                    await response.aread()
            except httpx.TransportError as error:
                raise transport_error(error) from error
            delay_s = retry_delay_s(response, attempt, self._max_retries)
            if delay_s is None:
                return ensure_success(response)
            attempt += 1
            await asyncio.sleep(delay_s)

    async def _lines(self, call: Call[Any]) -> AsyncIterator[str]:
        response = await self._send(call, stream=True)
        try:
            reader = LineReader()
            async for chunk in response.aiter_bytes():
                for line in reader.push(chunk):
                    yield line
        except httpx.TransportError as error:
            raise transport_error(error) from error
        finally:
            await response.aclose()


class Client:
    """Synchronous client of the service.

    Args:
        base_url: URL of the service, such as `http://localhost:8000`.
        api_key: API key sent with every request, if the service requires one.
        headers: further headers, such as `X-Gramophone-Session`, by which a proxy routes a session to one process.
        timeout_s: seconds to wait for an answer, or for the next part of one.
        max_retries: retries of a request that an overloaded or unready service refused.
        transport: transport of httpx, for tests.

    Every method raises GramophoneError.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        max_retries: int = 2,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(
            base_url=base_url,
            headers=request_headers(api_key, headers),
            timeout=timeout_s,
            transport=transport,
        )
        self._max_retries = max_retries

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Base URL of the service."""
        return str(self._http.base_url)

    @property
    def states(self) -> States:
        """Methods for states kept by the service, for decoders."""
        return States(self._fetch, self._send)

    @property
    def users(self) -> Users:
        """Methods for the users of autocomplete and their accepted words."""
        return Users(self._fetch)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def next_token(
        self, context: Contexts, *, top_k: int = 10, entropy: bool = True, model: str | None = None
    ) -> replies.NextTokenReply:
        """Return the most probable tokens after each context; faster on large vocabularies without the entropy."""
        return self._fetch(next_token_call(context, top_k, entropy=entropy, model=model))

    def next_word(
        self, context: str | Sequence[str], *, top_k: int = 10, model: str | None = None
    ) -> replies.NextWordReply:
        """Return the most probable words of one or more tokens after each context."""
        return self._fetch(next_word_call(context, top_k, model))

    def log_probs(self, context: Contexts, *, model: str | None = None) -> "memoryview[float]":
        """Return the log-probability of every next token, float32 [B, V]."""
        return read_floats(self._send(log_probs_call(context, model)))

    def score(
        self,
        texts: Sequence[str] | None = None,
        *,
        token_ids: Sequence[Sequence[int]] | None = None,
        context: str | Sequence[int] = "",
        **options: Unpack[ScoreOptions],
    ) -> replies.ScoreReply:
        """Score texts or sequences of token ids."""
        return self._fetch(score_call(texts, token_ids, context, options))

    def score_lines(
        self, items: Iterable[Mapping[str, Any]], **options: Unpack[ScoreOptions]
    ) -> Iterator[replies.SequenceScoreResult | replies.ErrorBody]:
        """Yield a score, or an error, for each object with `text` or `token_ids`, in order."""
        for line in self._lines(score_lines_call(items, options)):
            yield read_score_line(line)

    def rerank(
        self, lists: Sequence[Mapping[str, Any]], **options: Unpack[RerankOptions]
    ) -> replies.RerankReply:
        """Re-rank lists of candidates."""
        return self._fetch(rerank_call(lists, options))

    def rerank_lines(
        self, lists: Iterable[Mapping[str, Any]], **options: Unpack[RerankOptions]
    ) -> Iterator[replies.RankedListResult | replies.ErrorBody]:
        """Yield each re-ranked list, or an error, in order; for thousands of lists."""
        for line in self._lines(rerank_lines_call(lists, options)):
            yield read_ranked_line(line)

    def tune(self, lists: Sequence[Mapping[str, Any]], **options: Unpack[TuneOptions]) -> dict[str, Any]:
        """Tune the weights of re-ranking on lists with a `reference`, and evaluate them."""
        return self._fetch(tune_call(lists, options))

    def generate(
        self, prompt: str | Sequence[int] = "", **options: Unpack[GenerateOptions]
    ) -> replies.GenerateReply:
        """Generate continuations of a prompt."""
        return self._fetch(generate_call(prompt, options, stream=False))

    def stream(
        self, prompt: str | Sequence[int] = "", **options: Unpack[GenerateOptions]
    ) -> Iterator[replies.GenerateReply]:
        """Yield a continuation token by token; closing the iterator stops it."""
        for line in self._lines(generate_call(prompt, options, stream=True)):
            if (event := read_stream_event(line)) is not None:
                yield event

    def autocomplete(self, text: str, **options: Unpack[AutocompleteOptions]) -> AutocompleteReply:
        """Return completions of the last word of a text, or the next words."""
        return self._fetch(autocomplete_call(text, options))

    def check(self, text: str, **options: Unpack[CheckOptions]) -> CheckReply:
        """Return the probable errors of a text, with suggestions."""
        return self._fetch(check_call(text, options))

    def quality(self, texts: Sequence[NamedText], **options: Unpack[QualityOptions]) -> QualityReply:
        """Score texts by bits per word and byte, under one model or two."""
        return self._fetch(quality_call(texts, options))

    def quality_lines(
        self, items: Iterable[Mapping[str, Any]], **options: Unpack[QualityOptions]
    ) -> Iterator[TextQualityResult | replies.ErrorBody]:
        """Yield the quality, or an error, of each object with `text` and optionally `id`, in order; for corpora."""
        for line in self._lines(quality_lines_call(items, options)):
            yield read_quality_line(line)

    def models(self) -> replies.ModelList:
        """List the models of the service."""
        return self._fetch(models_call())

    def model(self, address: str) -> replies.ModelCard:
        """Return the description of one model."""
        return self._fetch(model_call(address))

    def _fetch(self, call: Call[R]) -> R:
        return call.reply.validate_json(self._send(call).content)

    def _send(self, call: Call[Any], *, stream: bool = False) -> httpx.Response:
        attempt = 0
        while True:
            try:
                response = self._http.send(call.request(self._http), stream=stream)
                if not response.is_success:
                    response.read()
            except httpx.TransportError as error:
                raise transport_error(error) from error
            delay_s = retry_delay_s(response, attempt, self._max_retries)
            if delay_s is None:
                return ensure_success(response)
            attempt += 1
            time.sleep(delay_s)

    def _lines(self, call: Call[Any]) -> Iterator[str]:
        response = self._send(call, stream=True)
        try:
            reader = LineReader()
            for chunk in response.iter_bytes():
                yield from reader.push(chunk)
        except httpx.TransportError as error:
            raise transport_error(error) from error
        finally:
            response.close()
