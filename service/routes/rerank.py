"""POST /v1/rerank with JSON, JSON lines or other programs' list formats, and POST /v1/rerank/tune."""

import asyncio
import importlib
import re
from functools import cache, partial

from fastapi import Request
from starlette.responses import Response

from models.reranking.features import is_reserved
from models.reranking.formats.reader import FORMATS, format_name_of_media_type
from service.middleware.guarded_request import guarded
from service.routes.endpoints import EndpointRouter, Lines
from service.routes.request import (
    BYTES_PER_TOKEN,
    COMPARISONS_PER_TOKEN,
    Services,
    owner_of,
    read_body,
    read_request,
    refuse_query_options,
    request_options,
    resolve_model,
    run_request,
    runs_inline,
    services_of,
)
from service.routes.streaming import lines_response
from service.schemas.replies import DocumentsReply, RankedListResult, RerankReply, to_json
from service.schemas.wire import parse_json
from service.use_cases.rerank import list_chunks, rank_documents, rerank, rerank_reply_chunks
from service.use_cases.rerank_request import (
    CandidateListIn,
    DocumentsRequest,
    RerankJob,
    RerankRequest,
    RerankSettings,
    read_rerank_query,
    rerank_items,
)
from service.use_cases.states import OwnedStateStore
from service.use_cases.tune import TuneReply, TuneRequest, tune

router = EndpointRouter()
_DOCUMENTS, _LISTS = (re.compile(rb'"(?:%b)"\s*:' % names) for names in (b"documents|query", b"lists"))
"""Names of fields in JSON; within a string, the quotation marks are escaped."""


@router.endpoint(
    "POST",
    "/v1/rerank",
    tag="Re-rank",
    body=RerankRequest | DocumentsRequest,
    reply=RerankReply | DocumentsReply,
    lines=Lines(
        CandidateListIn,
        RankedListResult,
        RerankSettings,
        {"weights": "lm=0.5,am=1", "mixture": "ngram=0.3,lstm=0.7", "models": "old=ngram"},
        tuple(
            media_type for form in FORMATS.values() for media_type in form.media_types if form.name != "jsonl"
        ),
    ),
)
async def rerank_lists(request: Request) -> Response:
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
    services = services_of(request)
    format_name = format_name_of_media_type(request.headers.get("content-type", ""))
    if format_name is not None:
        return await _rerank_stream(request, services, format_name)
    refuse_query_options(request, RerankSettings)
    body = await request.body()
    wire = await read_body(request, _parse_lists_or_documents)
    if isinstance(wire, DocumentsRequest):
        loaded = resolve_model(request, wire.model)
        work_each = len(wire.query) // BYTES_PER_TOKEN
        terms = request_options(request, wire, body, count=len(wire.documents), work_each=work_each)
        return await run_request(request, rank_documents(loaded, wire, services.limits), to_json, terms)
    items = wire.items(services.limits)
    job = await _job(request, services, wire)
    states = OwnedStateStore(services.states, owner_of(request))
    work = rerank(job, items, services.limits, states=states)
    lists = [item.given for item in items]
    context_length = max((len(given.context) + len(given.continuation or "") for given in lists), default=0)
    longest = max((len(given.candidates) for given in lists), default=0)
    comparison_work = longest // COMPARISONS_PER_TOKEN if job.is_pairwise else 0
    terms = request_options(
        request,
        wire,
        body,
        count=sum(len(given.candidates) for given in lists),
        work_each=context_length // BYTES_PER_TOKEN + comparison_work,
    )
    models = job.models.all
    all_inline = bool(models) and all(runs_inline(loaded, body) for loaded in models)
    inline = all_inline and not job.is_pairwise and not terms.bulk
    return await run_request(
        request,
        work,
        lambda ranked: rerank_reply_chunks(ranked, job, services.limits),
        terms,
        inline=inline,
    )


def _parse_lists_or_documents(body: bytes) -> RerankRequest | DocumentsRequest:
    if _DOCUMENTS.search(body) and not _LISTS.search(body):
        return parse_json(DocumentsRequest, body)
    return parse_json(RerankRequest, body)


async def _job(request: Request, services: Services, settings: RerankSettings) -> RerankJob:
    """Resolve the models and profile of settings; load the kernels that they require."""
    profile = None
    if settings.profile is not None:
        # on a thread, because the registry may be remote
        profile = await asyncio.to_thread(services.profiles.read, settings.profile)
    resolve = cache(partial(resolve_model, request))  # a model counts as used once
    job = settings.job(profile, resolve)
    if settings.slots:
        job = await asyncio.to_thread(
            settings.job,
            profile,
            lambda *asked, **options: resolve(*asked, **options).with_slots(settings.slots),
        )
    if job.phrases:
        await asyncio.to_thread(lambda: job.phrases.automaton)
    if job.is_pairwise:
        # its kernels take a second to compile at first
        await asyncio.to_thread(importlib.import_module, "models.reranking.metrics.ngram_overlap")
    if job.models.parts:
        guarded(request.scope).annotate(model=job.models.parts[0].address)
    if job.tuned_on:
        guarded(request.scope).annotate(tuned_on=", ".join(job.tuned_on))
    return job


async def _rerank_stream(request: Request, services: Services, format_name: str) -> Response:
    settings = read_rerank_query(request.query_params)
    job = await _job(request, services, settings)
    body = await request.body()
    lines = rerank_items(
        body, format_name, services.limits, reserved=lambda name: is_reserved(name, job.models.extra)
    )
    states = OwnedStateStore(services.states, owner_of(request))
    return await lines_response(
        request,
        body,
        lines,
        lambda batch: rerank(job, batch, services.limits, states=states, name=lambda _: ""),
        lambda ranked: list_chunks(ranked, job, tuned_on=job.tuned_on),
        model=job.models.main_address or "",
        wire=settings,
        size=lambda item: len(item.given.candidates),
    )


@router.endpoint("POST", "/v1/rerank/tune", tag="Re-rank", body=TuneRequest, reply=TuneReply)
async def tune_weights(request: Request) -> Response:
    """Tune weights for /v1/rerank on lists with references, and estimate their gain on held-out lists.

    If the gain over the first pass is not significant, the reply recommends the first pass. The request yields to all
    other requests and takes seconds to minutes, so set `timeout_ms` and check the service's own limit.
    """
    services, body, wire = await read_request(request, TuneRequest)
    models = wire.resolve_models(lambda address: resolve_model(request, address))

    terms = request_options(request, wire, body, bulk=True)
    return await run_request(request, tune(models, wire, services.limits), to_json, terms)
