"""POST /v1/autocomplete, the endpoints of users' accepted words, and POST /v1/check."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, TypeVar

import structlog
from fastapi import Path, Request
from starlette.responses import Response

from models.checking.calibration import Calibration
from models.checking.error_model import ErrorTable
from models.completion.user_model import UserModel, split_word_sequences
from models.errors import LanguageModelError, UsersUnavailableError
from service.hosting.loaded_model import LoadedModel
from service.routes.endpoints import FORM_TYPE, EndpointRouter
from service.routes.request import (
    BYTES_PER_TOKEN,
    Services,
    count_scored,
    json_response,
    owner_of,
    read_body,
    read_json,
    read_request,
    reply_pieces,
    request_options,
    resolve_model,
    resolve_models,
    run_request,
    runs_inline,
    services_of,
    while_connected,
)
from service.schemas.replies import to_json
from service.schemas.suggestions import (
    AutocompleteReply,
    CheckReply,
    ForgottenReply,
    LanguageToolLanguage,
    LanguageToolReply,
    UserPair,
    UserReply,
    UserWord,
    UserWords,
)
from service.schemas.wire import parse_form
from service.use_cases.accepted_words import (
    NAME_PATTERN,
    AcceptedRequest,
    ImportRequest,
    check_user_name,
)
from service.use_cases.autocomplete import (
    AutocompleteRequest,
    autocomplete,
    cached_next_tokens,
    max_search_rows,
)
from service.use_cases.check import CheckRequest, check
from service.use_cases.inputs import dictionaries_of_languages, find_dictionaries
from service.use_cases.languagetool import (
    LanguageToolRequest,
    check_languages,
    choose_languages,
)

T = TypeVar("T")
router = EndpointRouter()
_log = structlog.get_logger(__name__)
_User = Annotated[
    str,
    Path(
        description="Name of a user; a user belongs to the API key that created it.",
        examples=["ann"],
        json_schema_extra={"pattern": NAME_PATTERN},
    ),
]
_TOKENS_PER_ROW = 6
"""Work of a row of a search, of which a keystroke reads hundreds without being bulk: a user is waiting."""

_CACHED_BODY_BYTES = 4096
"""Maximum body size in bytes for which cached predictions are looked up."""


@router.endpoint(
    "POST", "/v1/autocomplete", tag="Complete", body=AutocompleteRequest, reply=AutocompleteReply
)
async def complete(request: Request) -> Response:
    """Complete the word being typed, or predict the next word or phrase.

    Probabilities are exact: they sum over all tokenisations of a word, as far as `max_steps` allows. A newer request
    of the same `session` cancels older ones.
    """
    services, body, wire = await read_request(request, AutocompleteRequest)
    models = await resolve_models(request, wire)
    loaded, alone = models[0].loaded, len(models) == 1
    for model, _ in models:
        if wire.slots:
            await asyncio.to_thread(getattr, model, "token_trie")
        if not alone and "checker" not in vars(model):  # the first use builds it
            await asyncio.to_thread(getattr, model, "checker")
    owner = owner_of(request)
    personal = _personal_model(services, owner, wire.user)
    rows = max_search_rows(models, wire)
    cached = cached_next_tokens(loaded, wire) if alone and len(body) <= _CACHED_BODY_BYTES else None
    # a keystroke within a word may need no model step
    inline = alone and not rows and (cached is not None or runs_inline(loaded, body))
    work = autocomplete(models, wire, services.limits, user=personal, cached=cached)
    terms = request_options(
        request, wire, body, count=1, work_each=_TOKENS_PER_ROW * rows, predicted_each=rows
    )
    if wire.session is not None:
        services.sessions.supersede(owner, wire.session)  # before admission, to free a queue slot
    if inline or wire.session is None:
        return await run_request(request, work, to_json, terms, inline=inline)
    answer = services.engine.run(work, terms)
    with services.sessions.newest(owner, wire.session, answer):
        return json_response(await while_connected(request.receive, answer))


def _personal_model(services: Services, owner: str, user: str | None) -> UserModel | None:
    """Return a user's personal model.

    If it cannot be read, this is logged and there is none: typing goes on.
    """
    if user is None:
        return None
    try:
        return services.users.get(owner, user)
    except UsersUnavailableError as error:
        _log.warning("completed without the user's words", reason=str(error))
        return None


@router.endpoint(
    "POST", "/v1/autocomplete/users/{user}/accepted", tag="Complete", body=AcceptedRequest, reply=UserReply
)
async def accept(request: Request, user: _User) -> Response:
    """Learn a user's accepted words and word pairs; the weight of older ones decays."""
    wire = await read_json(request, AcceptedRequest)
    learnt = split_word_sequences(wire.text, wire.context)
    users, owner = services_of(request).users, owner_of(request)
    model = await asyncio.to_thread(users.learn, owner, check_user_name(user), learnt)
    return json_response(UserReply(user, len(model), model.num_pairs))


@router.endpoint("GET", "/v1/autocomplete/users/{user}", tag="Complete", reply=UserWords)
async def export(request: Request, user: _User) -> Response:
    """Export a user's stored words and word pairs."""
    words, pairs = services_of(request).users.find(owner_of(request), user).export()
    return json_response(
        UserWords(user, [UserWord(*word) for word in words], [UserPair(*pair) for pair in pairs])
    )


@router.endpoint("PUT", "/v1/autocomplete/users/{user}", tag="Complete", body=ImportRequest, reply=UserReply)
async def restore(request: Request, user: _User) -> Response:
    """Replace a user's stored words and word pairs, for example by an export."""
    users = services_of(request).users
    model = (await read_json(request, ImportRequest)).personal(users.bounds)
    model = await asyncio.to_thread(users.put, owner_of(request), check_user_name(user), model)
    return json_response(UserReply(user, len(model), model.num_pairs))


@router.endpoint("DELETE", "/v1/autocomplete/users/{user}", tag="Complete", reply=ForgottenReply)
async def forget(request: Request, user: _User) -> Response:
    """Delete a user's words."""
    users, owner = services_of(request).users, owner_of(request)
    forgotten = await asyncio.to_thread(users.forget, owner, check_user_name(user))
    return json_response(ForgottenReply(user, forgotten))


@router.endpoint("POST", "/v1/check", tag="Check", body=CheckRequest, reply=CheckReply)
async def check_text(request: Request) -> Response:
    """Find probable errors from the text on both sides of each word, and suggest corrections.

    The check finds unknown words and known words that are wrong in their context. Alternatives of a word are words of
    similar spelling, missing or extra spaces, and the request's `candidates`; models without word tokens only consider
    strings near the words with the highest surprisal.
    """
    services, body, wire = await read_request(request, CheckRequest)
    models = await resolve_models(request, wire)
    given = [model.loaded for model in models]
    calibration, errors = await asyncio.to_thread(
        _prepare, services, given, needed=wire.precision is not None
    )

    def write(checked: tuple[CheckReply, list[int]]) -> Iterator[bytes]:
        reply, num_tokens = checked
        for (model, _), number in zip(models, num_tokens, strict=True):
            count_scored(request, model, number)
        num_entries = (1 + wire.max_suggestions) * len(reply.issues)
        return reply_pieces(reply, words=len(reply.words), issues=num_entries)

    word_lists = find_dictionaries(services.dictionaries, wire.dictionaries)
    work = check(models, wire, calibration, services.limits, word_lists, errors)
    terms = request_options(
        request, wire, body, count=len(models) - 1, work_each=len(body) // BYTES_PER_TOKEN
    )
    return await run_request(request, work, write, terms)


def _prepare(
    services: Services, models: Sequence[LoadedModel], *, needed: bool = False
) -> tuple[Calibration | None, dict[str, ErrorTable | None]]:
    """Build the models' checkers; return a single model's calibration, and tables of errors by address.

    For a thread: the model thread stays free, and the registry may be remote. A damaged document is
    logged and not used, unless it is a calibration that the request needs.
    """
    _ = [model.checker for model in models]  # the first use builds it

    def read(kind: str, store: Callable[[str], T | None], address: str, *, needed: bool = False) -> T | None:
        try:
            return store(address)
        except LanguageModelError as error:
            if needed:
                raise
            _log.warning(f"{kind} not read", model=address, reason=str(error))
            return None

    tables = {one: read("table of errors", services.errors.read, one) for one in {m.address for m in models}}
    if len(models) > 1:
        return None, tables
    find = partial(services.calibrations.read, any_version=needed)
    return read("calibration", find, models[0].address, needed=needed), tables


@router.endpoint("GET", "/v2/check", tag="Check", body=LanguageToolRequest, reply=LanguageToolReply)
@router.endpoint(
    "POST", "/v2/check", tag="Check", body=LanguageToolRequest, body_type=FORM_TYPE, reply=LanguageToolReply
)
async def languagetool_check(request: Request) -> Response:
    """Find probable errors, with LanguageTool's API, for its existing clients: editors, browsers, LibreOffice.

    Positions count UTF-16 code units. The models of the languages are those of `GRAMOPHONE_LANGUAGES`, the dictionaries
    those of `GRAMOPHONE_DICTIONARIES`. GET has the fields in the query string.
    """
    services = services_of(request)
    parse, is_form = partial(parse_form, LanguageToolRequest), request.method == "POST"
    body = await request.body() if is_form else request.scope["query_string"]
    wire = await read_body(request, parse) if is_form else parse(body)
    codes = choose_languages(services.languages, wire.language)
    loaded = {code: resolve_model(request, services.languages[code]) for code in codes}
    word_lists = dictionaries_of_languages(services.dictionaries, [*codes, wire.language])
    _, errors = await asyncio.to_thread(_prepare, services, list(loaded.values()))
    count = partial(count_scored, request)
    work = check_languages(wire, loaded, services.limits, count, word_lists, errors)
    terms = request_options(request, None, body, count=len(codes) - 1, work_each=len(body) // BYTES_PER_TOKEN)
    return await run_request(
        request, work, lambda reply: reply_pieces(reply, matches=16 * len(reply.matches)), terms
    )


@router.endpoint("GET", "/v2/languages", tag="Check", reply=list[LanguageToolLanguage])
async def languagetool_languages(request: Request) -> Response:
    """List the languages of `/v2/check`, as LanguageTool does."""
    codes = services_of(request).languages
    return json_response([LanguageToolLanguage(code, code.partition("-")[0], code) for code in codes])
