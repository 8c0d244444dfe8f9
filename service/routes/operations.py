"""The endpoints of all operations, and of users' accepted words."""

import asyncio
from functools import partial
from typing import Annotated, Any

from fastapi import Path, Query, Request
from starlette.responses import Response

from models.completion.user_model import split_word_sequences
from models.reranking.formats.reader import FORMATS
from service.engine.job import RequestOptions
from service.operations.autocomplete import (
    NAME_PATTERN,
    NAME_RULE,
    AcceptedRequest,
    Autocomplete,
    ImportRequest,
)
from service.operations.check import Check
from service.operations.completions import CompletionReply, Completions
from service.operations.correct import Correct, CorrectLine
from service.operations.generate import Generate
from service.operations.languagetool import LanguageToolCheck
from service.operations.lattices import LatticeIn, Lattices
from service.operations.next_token import NextToken
from service.operations.rerank import Rerank
from service.operations.rerank_request import CandidateListIn
from service.operations.restore import Restore, RestoreLine
from service.operations.score import Quality, QualityLine, Score, ScoreLine
from service.operations.states import AdvanceStates, FreeRequest, NextOfStates, OpenStates
from service.operations.tokenize import (
    Detokenize,
    DetokenizeReply,
    Tokenize,
    TokenizeReply,
    TokenizerInfo,
    tokenizer_info,
)
from service.operations.tune import Tune, TuneReply
from service.routes.endpoints import FORM_TYPE, EndpointRouter, Lines
from service.routes.request import (
    json_response,
    owner_of,
    read_json,
    resolve_model,
    services_of,
    while_connected,
)
from service.schemas.replies import (
    AdvanceReply,
    CorrectedTextResult,
    CorrectReply,
    DocumentsReply,
    FreeReply,
    GenerateReply,
    LatticeResult,
    LatticesReply,
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
)
from service.schemas.suggestions import (
    AutocompleteReply,
    CheckReply,
    ForgottenReply,
    LanguageToolLanguage,
    LanguageToolReply,
    UserCorrection,
    UserPair,
    UserReply,
    UserWord,
    UserWords,
)
from service.schemas.wire import checked_name

router = EndpointRouter()
_LANGUAGETOOL: Any = LanguageToolCheck, "/v2/check", "languagetool_check", "Check", LanguageToolReply
_check_user = partial(checked_name, "user", pattern=NAME_PATTERN, rule=NAME_RULE)
_User = Annotated[
    str,
    Path(
        description="Name of a user; a user belongs to the API key that created it.",
        examples=["ann"],
        json_schema_extra={"pattern": NAME_PATTERN},
    ),
]
_OptionalAddress = Annotated[
    str | None,
    Query(
        description="`name`, `name@7` or `name@champion`; the default model if omitted.", examples=["mixture"]
    ),
]

router.operation(
    Score, "/v1/score", "score_texts", "Score", ScoreReply, lines=Lines(ScoreLine, SequenceScoreResult)
)
router.operation(
    Quality, "/v1/quality", "rate_texts", "Check", QualityReply, lines=Lines(QualityLine, TextQualityResult)
)
router.operation(
    NextToken, "/v1/next-token", "next_token", "Predict", NextTokenReply | NextTextReply | NextWordReply
)
router.operation(
    Rerank,
    "/v1/rerank",
    "rerank_lists",
    "Re-rank",
    RerankReply | DocumentsReply,
    lines=Lines(
        CandidateListIn,
        RankedListResult,
        {"weights": "lm=0.5,am=1", "mixture": "ngram=0.3,lstm=0.7", "models": "old=ngram"},
        tuple(
            media_type for form in FORMATS.values() for media_type in form.media_types if form.name != "jsonl"
        ),
    ),
)
router.operation(
    Correct,
    "/v1/correct",
    "correct_texts",
    "Re-rank",
    CorrectReply,
    lines=Lines(CorrectLine, CorrectedTextResult, {"weights": "lm=1,distance=10"}),
)
router.operation(
    Lattices,
    "/v1/lattices",
    "rescore_lattices",
    "Re-rank",
    LatticesReply,
    lines=Lines(LatticeIn, LatticeResult, {"weights": "lm=0.7,am=1"}),
)
router.operation(
    Restore,
    "/v1/restore",
    "restore_texts",
    "Restore",
    RestoreReply,
    lines=Lines(RestoreLine, RestoredTextResult),
)
router.operation(Tune, "/v1/rerank/tune", "tune_weights", "Re-rank", TuneReply)
router.operation(Generate, "/v1/generate", "generate_text", "Generate", GenerateReply)
router.operation(Completions, "/v1/completions", "create_completion", "OpenAI", CompletionReply)
router.operation(Tokenize, "/tokenize", "tokenize_text", "Tokenise", TokenizeReply)
router.operation(Detokenize, "/detokenize", "detokenize_ids", "Tokenise", DetokenizeReply)


@router.endpoint("GET", "/tokenizer_info", tag="Tokenise", reply=TokenizerInfo)
async def get_tokenizer_info(request: Request, model: _OptionalAddress = None) -> Response:
    """Describe a model's tokenizer: its type, control tokens and vocabulary size."""
    services, terms = services_of(request), RequestOptions(owner=owner_of(request))
    work = tokenizer_info(resolve_model(request, model), services.limits)
    return json_response(await while_connected(request.receive, services.engine.run(work, terms)))


router.operation(Autocomplete, "/v1/autocomplete", "complete", "Complete", AutocompleteReply)


@router.endpoint(
    "POST", "/v1/autocomplete/users/{user}/accepted", tag="Complete", body=AcceptedRequest, reply=UserReply
)
async def accept(request: Request, user: _User) -> Response:
    """Learn a user's accepted words and word pairs; the weight of older ones decays."""
    wire = await read_json(request, AcceptedRequest)
    learnt = split_word_sequences(wire.text, wire.context)
    users, owner = services_of(request).users, owner_of(request)
    model = await asyncio.to_thread(users.learn, owner, _check_user(user), learnt, wire.typed)
    return json_response(UserReply(user, len(model), model.num_pairs))


@router.endpoint("GET", "/v1/autocomplete/users/{user}", tag="Complete", reply=UserWords)
async def export(request: Request, user: _User) -> Response:
    """Export a user's stored words, word pairs and corrections."""
    words, pairs, corrections = services_of(request).users.find(owner_of(request), user).export()
    return json_response(
        UserWords(
            user,
            [UserWord(*word) for word in words],
            [UserPair(*pair) for pair in pairs],
            [UserCorrection(*correction) for correction in corrections],
        )
    )


@router.endpoint("PUT", "/v1/autocomplete/users/{user}", tag="Complete", body=ImportRequest, reply=UserReply)
async def restore(request: Request, user: _User) -> Response:
    """Replace a user's stored words, word pairs and corrections, for example by an export."""
    users = services_of(request).users
    model = (await read_json(request, ImportRequest)).personal(users.bounds)
    model = await asyncio.to_thread(users.put, owner_of(request), _check_user(user), model)
    return json_response(UserReply(user, len(model), model.num_pairs))


@router.endpoint("DELETE", "/v1/autocomplete/users/{user}/words/{word:path}", tag="Complete", reply=UserReply)
async def forget_word(
    request: Request,
    user: _User,
    word: Annotated[str, Path(description="The word, as it is exported.", examples=["records"])],
) -> Response:
    """Delete one word of a user, its pairs, and corrections of and to it."""
    users, owner = services_of(request).users, owner_of(request)
    model = await asyncio.to_thread(users.forget_word, owner, _check_user(user), word)
    return json_response(UserReply(user, len(model), model.num_pairs))


@router.endpoint("DELETE", "/v1/autocomplete/users/{user}", tag="Complete", reply=ForgottenReply)
async def forget(request: Request, user: _User) -> Response:
    """Delete a user's words."""
    users, owner = services_of(request).users, owner_of(request)
    forgotten = await asyncio.to_thread(users.forget, owner, _check_user(user))
    return json_response(ForgottenReply(user, forgotten))


router.operation(Check, "/v1/check", "check_text", "Check", CheckReply)
router.operation(*_LANGUAGETOOL, body_type=FORM_TYPE)
router.operation(*_LANGUAGETOOL, method="GET")


@router.endpoint("GET", "/v2/languages", tag="Check", reply=list[LanguageToolLanguage])
async def languagetool_languages(request: Request) -> Response:
    """List the languages of `/v2/check`, as LanguageTool does."""
    codes = services_of(request).languages
    return json_response([LanguageToolLanguage(code, code.partition("-")[0], code) for code in codes])


router.operation(OpenStates, "/v1/states", "open_", "States", OpenStatesReply)
router.operation(AdvanceStates, "/v1/states/advance", "advance", "States", AdvanceReply)
router.operation(NextOfStates, "/v1/states/next", "next_", "States", NextReply)


@router.endpoint("POST", "/v1/states/free", tag="States", body=FreeRequest, reply=FreeReply)
async def free(request: Request) -> Response:
    """Free states; unknown handles are ignored."""
    services, wire = services_of(request), await read_json(request, FreeRequest)
    services.limits.check_count(len(wire.states), "states")
    services.states.check_process(wire.states, param="states[]")
    freed = services.states.free(owner_of(request), wire.states)
    return json_response(FreeReply(freed))
