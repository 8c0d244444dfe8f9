"""POST /v1/rerank."""

import asyncio
from collections.abc import Iterator, Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.reranking.features import is_reserved
from models.reranking.formats import format_of_media_type
from models.reranking.mbr import load_compiled
from models.reranking.profiles import Profile
from service.routes.facts import note
from service.routes.line_streams import ending_in_error, error_line
from service.routes.openapi import body_of, replies_of
from service.routes.openapi_lines import LINES_TYPE
from service.routes.serving import (
    BYTES_PER_TOKEN,
    ClosingStream,
    Sequences,
    Services,
    begin,
    is_quick,
    owner_of,
    refuse_options_of_lines,
    resolve,
    run,
    services_of,
    terms_of,
)
from service.schemas.replies import RerankReply
from service.schemas.rerank import RerankRequest, RerankSettings, items_in, rerank_items
from service.schemas.rerank_query import read_query
from service.schemas.rerank_replies import address_of, list_pieces, reply_pieces
from service.schemas.wire import parse_json
from service.use_cases.rerank import RankedList, RerankItem, RerankOptions, rerank
from service.use_cases.rerank_lines import Outcome, rerank_lines
from service.use_cases.scoring_models import ScoringModels
from service.use_cases.states import Place

router = APIRouter()
_OUR_LINES = "jsonl"
_COMPARED_PER_TOKEN = 16
"""Candidates that one is compared with in the time that a token is read in, roughly."""


@router.post(
    "/v1/rerank", responses=replies_of(RerankReply, LINES_TYPE), openapi_extra=body_of(RerankRequest)
)
async def rerank_lists(request: Request) -> Response:
    """Order lists of candidates by Σ weight · feature, the language model's score among the features.

    With `Content-Type: application/x-ndjson` every line of the body is one of the `lists`; all else stands in the query
    string, `weights=lm=0.5,am=1`, `mixture=a=0.3,b=0.7` and `models=old=small@3` as pairs. The answer has one line for
    each list, in order: a result, or `{"error": …}`; should the service fail on the way, an error is the last line.

    Lists as other programs write them are answered in the same way: `text/x-moses-nbest`, `text/x-srilm-nbest`,
    `text/x-kaldi-nbest`, `application/x-mlm-scoring+json`, `application/x-hyporadise+json`.
    """
    services = services_of(request)
    form = format_of_media_type(request.headers.get("content-type", ""))
    if form is not None:
        return await _rerank_stream(request, services, form)
    refuse_options_of_lines(request, RerankSettings)
    body = await request.body()
    wire = parse_json(RerankRequest, body)
    items = wire.items(services.limits)
    profile = await _profile(services, wire)
    options = await _ready(wire.options(profile))
    models = _models(request, wire, profile)

    states = Place(services.states, owner_of(request))
    work = rerank(models, items, options, services.limits, states=states)
    terms = terms_of(request, wire, body, _read_beside(items, options))
    tables = bool(models.all) and all(is_quick(loaded, body) for loaded in models.all)
    quick = tables and not options.is_pairwise and not terms.bulk
    return await run(
        request,
        work,
        lambda ranked: reply_pieces(ranked, models, options, services.limits),
        terms,
        inline=quick,
    )


async def _ready(options: RerankOptions) -> RerankOptions:
    """The same, once the compiled code that comparing needs is there; the first time others go on meanwhile."""
    if options.is_pairwise:
        await asyncio.to_thread(load_compiled)
    return options


def _read_beside(items: Sequence[RerankItem], options: RerankOptions) -> Sequences:
    """How many candidates there are, and about how many tokens each takes to read beside its own."""
    lists = [item.given for item in items]
    around = max((len(one.context) + len(one.continuation or "") for one in lists), default=0)
    longest = max((len(one.candidates) for one in lists), default=0)
    compared = longest // _COMPARED_PER_TOKEN if options.is_pairwise else 0
    return Sequences(sum(len(one.candidates) for one in lists), around // BYTES_PER_TOKEN + compared)


async def _rerank_stream(request: Request, services: Services, form: str) -> Response:
    settings = read_query(request.query_params)
    profile = await _profile(services, settings)
    options = await _ready(settings.options(profile))
    models = _models(request, settings, profile)
    body = await request.body()
    if form == _OUR_LINES:
        lines = rerank_items(body, services.limits)
    else:
        lines = items_in(body, form, services.limits, reserved=lambda name: is_reserved(name, models.extra))

    def write(outcome: Outcome) -> Iterator[bytes]:
        if isinstance(outcome, RankedList):
            yield from list_pieces(outcome, models, options)
            yield b"\n"
        else:
            yield error_line(outcome)

    work = rerank_lines(
        models,
        lines,
        options,
        services.limits,
        write=write,
        states=Place(services.states, owner_of(request)),
    )
    stream = services.engine.stream(work, terms_of(request, settings, body, bulk=True))
    pieces = ending_in_error(await begin(request, stream))
    return ClosingStream(pieces, media_type=LINES_TYPE, headers={"x-model": address_of(models) or ""})


async def _profile(services: Services, settings: RerankSettings) -> Profile | None:
    if settings.profile is None:
        return None
    return await asyncio.to_thread(services.profiles.read, settings.profile)  # the registry may be far away


def _models(request: Request, settings: RerankSettings, profile: Profile | None) -> ScoringModels:
    models = settings.choice(profile).resolve(lambda address: resolve(request, address))
    if models.parts:
        note(request, model=models.parts[0].address)
    return models
