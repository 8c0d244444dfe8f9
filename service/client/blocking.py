"""The client that waits."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from service.client import calls, checking, completing, reranking
from service.client.completing import Users
from service.client.errors import transport_error
from service.client.states import States
from service.schemas import replies
from service.schemas.autocomplete_replies import AutocompleteReply
from service.schemas.check_replies import CheckReply
from service.schemas.quality_replies import QualityReply, TextQualityResult

R = TypeVar("R")


class Client:
    """Talks to a service and waits for its answers.

    Args:
        base_url: where it is, such as `http://localhost:8000`.
        api_key: sent with every request, if the service asks for one.
        headers: sent too, such as `X-Gramophone-Session`, by which a proxy finds the process that remembers.
        timeout_s: how long to wait for an answer, or for the next part of one.
        max_retries: how often to try again when it is overloaded or not ready.
        transport: of httpx, for tests.

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
            headers=calls.request_headers(api_key, headers),
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
        """Where the service is."""
        return str(self._http.base_url)

    @property
    def states(self) -> States:
        """States of texts that the service keeps, for decoders."""
        return States(self._ask, self._send)

    @property
    def users(self) -> Users:
        """What users of autocomplete have accepted."""
        return Users(self._ask)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def next_token(
        self, context: calls.Contexts, *, top_k: int = 10, entropy: bool = True, model: str | None = None
    ) -> replies.NextTokenReply:
        """The most probable next tokens after each context; faster on large vocabularies without the entropy."""
        return self._ask(calls.next_token_call(context, top_k, entropy=entropy, model=model))

    def next_word(
        self, context: str | Sequence[str], *, top_k: int = 10, model: str | None = None
    ) -> replies.NextWordReply:
        """The most probable next words after each context, however they are cut into tokens."""
        return self._ask(calls.next_word_call(context, top_k, model))

    def log_probs(self, context: calls.Contexts, *, model: str | None = None) -> "memoryview[float]":
        """Every next token's log-probability, float32 [B, V]."""
        return calls.read_floats(self._send(calls.log_probs_call(context, model)))

    def score(
        self,
        texts: Sequence[str] | None = None,
        *,
        token_ids: Sequence[Sequence[int]] | None = None,
        context: str | Sequence[int] = "",
        **options: Unpack[calls.ScoreOptions],
    ) -> replies.ScoreReply:
        """Log-probabilities of texts, or of token ids."""
        return self._ask(calls.score_call(texts, token_ids, context, options))

    def score_lines(
        self, items: Iterable[Mapping[str, Any]], **options: Unpack[calls.ScoreOptions]
    ) -> Iterator[replies.SequenceScoreResult | replies.ErrorBody]:
        """A score, or an error, for each object with `text` or `token_ids`, in order."""
        for line in self._lines(calls.score_lines_call(items, options)):
            yield calls.read_score_line(line)

    def rerank(
        self, lists: Sequence[Mapping[str, Any]], **options: Unpack[reranking.RerankOptions]
    ) -> replies.RerankReply:
        """Lists of candidates in a better order."""
        return self._ask(reranking.rerank_call(lists, options))

    def rerank_lines(
        self, lists: Iterable[Mapping[str, Any]], **options: Unpack[reranking.RerankOptions]
    ) -> Iterator[replies.RankedListResult | replies.ErrorBody]:
        """Each list in a better order, or an error, in order; for thousands of lists."""
        for line in self._lines(reranking.rerank_lines_call(lists, options)):
            yield reranking.read_ranked_line(line)

    def tune(
        self, lists: Sequence[Mapping[str, Any]], **options: Unpack[reranking.TuneOptions]
    ) -> dict[str, Any]:
        """Weights to re-rank with, found on lists with a `reference`, and what they are worth."""
        return self._ask(reranking.tune_call(lists, options))

    def generate(
        self, prompt: str | Sequence[int] = "", **options: Unpack[calls.GenerateOptions]
    ) -> replies.GenerateReply:
        """A continuation."""
        return self._ask(calls.generate_call(prompt, options, stream=False))

    def stream(
        self, prompt: str | Sequence[int] = "", **options: Unpack[calls.GenerateOptions]
    ) -> Iterator[replies.GenerateReply]:
        """A continuation token by token; closing the iterator stops it."""
        for line in self._lines(calls.generate_call(prompt, options, stream=True)):
            if (event := calls.read_stream_event(line)) is not None:
                yield event

    def autocomplete(self, text: str, **options: Unpack[completing.AutocompleteOptions]) -> AutocompleteReply:
        """Completions of the word that a text ends in, or the next words."""
        return self._ask(completing.autocomplete_call(text, options))

    def check(self, text: str, **options: Unpack[checking.CheckOptions]) -> CheckReply:
        """Words of a text that are probably wrong, and what was meant."""
        return self._ask(checking.check_call(text, options))

    def quality(
        self, texts: Sequence[checking.NamedText], **options: Unpack[checking.QualityOptions]
    ) -> QualityReply:
        """How probable texts are by word and byte, under one model or two."""
        return self._ask(checking.quality_call(texts, options))

    def quality_lines(
        self, items: Iterable[Mapping[str, Any]], **options: Unpack[checking.QualityOptions]
    ) -> Iterator[TextQualityResult | replies.ErrorBody]:
        """The same, or an error, for each object with `text` and perhaps `id`, in order; for corpora."""
        for line in self._lines(checking.quality_lines_call(items, options)):
            yield checking.read_quality_line(line)

    def models(self) -> replies.ModelList:
        """The models of the service."""
        return self._ask(calls.models_call())

    def model(self, address: str) -> replies.ModelCard:
        """One model."""
        return self._ask(calls.model_call(address))

    def _ask(self, call: calls.Call[R]) -> R:
        return call.reply.validate_json(self._send(call).content)

    def _send(self, call: calls.Call[Any], *, stream: bool = False) -> httpx.Response:
        attempt = 0
        while True:
            try:
                response = self._http.send(call.request(self._http), stream=stream)
                if not response.is_success:
                    response.read()
            except httpx.TransportError as error:
                raise transport_error(error) from error
            pause_s = calls.retry_delay_s(response, attempt, self._max_retries)
            if pause_s is None:
                return calls.ensure_success(response)
            attempt += 1
            time.sleep(pause_s)

    def _lines(self, call: calls.Call[Any]) -> Iterator[str]:
        response = self._send(call, stream=True)
        try:
            reader = calls.LineReader()
            for piece in response.iter_bytes():
                yield from reader.push(piece)
        except httpx.TransportError as error:
            raise transport_error(error) from error
        finally:
            response.close()
