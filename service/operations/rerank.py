"""Re-ranking of candidates and documents, and tuning of its weights."""

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from typing_extensions import override

from models.errors import InvalidInputError, LanguageModelError
from models.reranking.features import is_reserved
from models.reranking.ranking import Profile
from service.engine.job import Work
from service.hosting.loaded_model import LoadedModel
from service.operations.operation import BYTES_PER_TOKEN, Call, Cost, LinesOperation, Operation
from service.schemas.replies import DocumentsReply, to_json
from service.schemas.wire import parse_json
from service.use_cases.rerank import RankedList, list_chunks, rank_documents, rerank, rerank_reply_chunks
from service.use_cases.rerank_request import (
    DocumentsRequest,
    RerankItem,
    RerankRequest,
    RerankSettings,
    read_rerank_query,
    rerank_items,
)
from service.use_cases.tune import TuneReply, TuneRequest, tune

_DOCUMENTS, _LISTS = (re.compile(rb'"(?:%b)"\s*:' % names) for names in (b"documents|query", b"lists"))
"""Names of fields in JSON; within a string, the quotation marks are escaped."""


class Rerank(LinesOperation[RerankItem, RankedList]):
    """Order lists of candidates by Σ weight · feature; the language model's score is one of the features.

    A body with `query` and `documents`, as for Jina's and Cohere's services, orders documents by the probability of
    the query after each.

    With `Content-Type: application/x-ndjson`, each line of the body is one of the `lists`; options are in the query
    string, with pairs as in `weights=lm=0.5,am=1`, `mixture=a=0.3,b=0.7` and `models=old=small@3`, and `phrases` as a
    JSON array. The reply has one line per list, in order: a result, or `{"error": …}`. If the service fails midway, the
    last line is an error.

    Other programs' list formats get the same reply: `text/x-NAME-nbest` for moses, srilm, kaldi and fairseq;
    `application/x-NAME+json` for mlm-scoring, hyporadise, nemo-manifest, vosk, azure, google, aws and sockeye. A
    candidate that cannot be read is left out, and its error is in `problems` of its list's line.
    """

    request, settings = RerankRequest | DocumentsRequest, RerankSettings
    may_run_inline = True

    def __init__(self, call: Call, given: RerankSettings) -> None:
        self.items = given.items(call.limits) if isinstance(given, RerankRequest) else []
        super().__init__(call)
        self.given = given
        self._resolve = cache(call.resolve)  # a model counts as used once
        if given.profile is None:
            self._find_job(None)

    @override
    def prepare(self) -> Iterator[Callable[[], Any]]:
        given, found = self.given, list[Profile]()
        if (name := given.profile) is not None:
            yield lambda: found.append(self.call.resources.profiles.read(name))  # the registry may be remote
            self._find_job(found[0])
        if given.slots:
            yield self._replace_members
        if self.job.phrases:
            yield lambda: self.job.phrases.automaton
        if self.job.is_pairwise:  # its kernels take a second to compile at first
            yield lambda: importlib.import_module("models.reranking.metrics.ngram_overlap")

    def _find_job(self, profile: Profile | None) -> None:
        self.job = self.given.job(profile, self._resolve)
        self.models = tuple(self.job.models.all)
        if self.job.models.parts:
            self.call.annotate(model=self.job.models.parts[0].address)
        if self.job.tuned_on:
            self.call.annotate(tuned_on=", ".join(self.job.tuned_on))

    @override
    def _replace_members(self) -> None:
        def resolve(*asked: Any, **options: Any) -> LoadedModel:
            return self._resolve(*asked, **options).with_slots(self.given.slots)

        self.job = self.given.job(self.job.profile, resolve)
        self.models = tuple(self.job.models.all)

    @override
    @classmethod
    def parse(cls, body: bytes) -> RerankRequest | DocumentsRequest:
        if _DOCUMENTS.search(body) and not _LISTS.search(body):
            return parse_json(DocumentsRequest, body)
        return parse_json(RerankRequest, body)

    @override
    @classmethod
    def of(cls, call: Call, given: Any) -> Operation[Any]:
        return RankDocuments(call, given) if isinstance(given, DocumentsRequest) else cls(call, given)

    @override
    @classmethod
    def parse_settings(cls, query: Mapping[str, str]) -> RerankSettings:
        return read_rerank_query(query)

    @override
    def cost(self) -> Cost:
        lists = [item.given for item in self.items]
        longest = max((len(given.candidates) for given in lists), default=0)
        context = max((len(given.context) + len(given.continuation or "") for given in lists), default=0)
        count = sum(len(given.candidates) for given in lists)
        compared = longest if self.job.is_pairwise else 0
        # a context is read with each candidate: both are tokenised together
        reread = count * (context // BYTES_PER_TOKEN)
        return Cost(self.call.num_tokens, reread=reread, compared=count * compared)

    @override
    def parse_lines(self, body: bytes, form: str) -> Iterator[RerankItem | InvalidInputError]:
        extra = self.job.models.extra
        return rerank_items(body, form, self.call.limits, reserved=lambda name: is_reserved(name, extra))

    @property
    @override
    def address(self) -> str:
        return self.job.models.main_address or ""

    @override
    def size(self, item: RerankItem) -> int:
        return len(item.given.candidates)

    @override
    def run(self) -> Work[Any, Sequence[RankedList]]:
        return rerank(self.job, self.items, self.call.limits, states=self.call.states)

    @override
    def answer(self, items: Sequence[RerankItem]) -> Work[Any, Sequence[RankedList | LanguageModelError]]:
        return rerank(self.job, items, self.call.limits, states=self.call.states, name=lambda _: "")

    @override
    def reply(self, result: Sequence[RankedList]) -> Iterator[bytes]:
        return rerank_reply_chunks(result, self.job, self.call.limits)

    @override
    def line(self, result: RankedList) -> Iterable[bytes]:
        return list_chunks(result, self.job, tuned_on=self.job.tuned_on)


class RankDocuments(Operation[DocumentsReply]):
    """Order documents by the probability of a query after each."""

    def __init__(self, call: Call, given: DocumentsRequest) -> None:
        self.given = given
        super().__init__(call, call.resolve(given.model))

    @override
    def cost(self) -> Cost:
        query, count = len(self.given.query) // BYTES_PER_TOKEN, len(self.given.documents)
        return Cost(self.call.num_tokens, reread=count * query, entries=count)

    @override
    def run(self) -> Work[Any, DocumentsReply]:
        return rank_documents(self.models[0], self.given, self.call.limits)

    @override
    def reply(self, result: DocumentsReply) -> bytes:
        return to_json(result)


class Tune(Operation[TuneReply]):
    """Tune weights for /v1/rerank on lists with references, and estimate their gain on held-out lists.

    If the gain over the first pass is not significant, the reply recommends the first pass. The request yields to all
    other requests and takes seconds to minutes, so set `timeout_ms` and check the service's own limit.
    """

    request = TuneRequest

    def __init__(self, call: Call, given: TuneRequest) -> None:
        self.given = given
        self._scoring = given.resolve_models(call.resolve)
        super().__init__(call, *self._scoring.all)

    @override
    def cost(self) -> Cost:
        return Cost(self.call.num_tokens, bulk=True)

    @override
    def run(self) -> Work[Any, TuneReply]:
        return tune(self._scoring, self.given, self.call.limits)

    @override
    def reply(self, result: TuneReply) -> bytes:
        return to_json(result)
