"""Ask a published model in this process: the service's schemas and use cases, without HTTP."""

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from models.checkpoint.calibrations import CalibrationStore
from models.checkpoint.load import load_checkpoint
from models.checkpoint.profiles import ProfileStore
from models.checkpoint.registry import Address, open_registry
from models.errors import InvalidInputError
from models.reranking.features import ListFeatures
from models.reranking.lists import CandidateList
from service.engine.host import LoadedModel
from service.engine.job import Work, items, result_of
from service.schemas.autocomplete import AutocompleteRequest, autocomplete_reply
from service.schemas.check import CheckRequest, check_reply
from service.schemas.generate import GenerateRequest, generate_reply
from service.schemas.next_token import NextTokenRequest, next_token_reply, next_word_reply
from service.schemas.rerank_query import read_query
from service.schemas.score import ScoreRequest, score_result, score_totals
from service.schemas.wire import parse_json
from service.use_cases import autocomplete as completing
from service.use_cases import candidate_features
from service.use_cases import check as checking
from service.use_cases import generate as generating
from service.use_cases.continuation import Continuation, Piece
from service.use_cases.limits import Limits
from service.use_cases.next_token import next_tokens
from service.use_cases.next_word import next_words
from service.use_cases.rerank import RerankOptions
from service.use_cases.rerank_lines import Line, Outcome, next_lines, outcomes
from service.use_cases.score import score as score_texts
from service.use_cases.scoring_models import ModelChoice, ScoringModels

Json = dict[str, Any]
_UNLIMITED = Limits(
    max_texts=sys.maxsize,
    max_tokens_per_sequence=sys.maxsize,
    max_new_tokens=sys.maxsize,
    max_reply_entries=sys.maxsize,
)


def load(registry: Address, address: str, device: str, precision: str) -> LoadedModel:
    """Load a published model.

    Raises:
        LanguageModelError: there is no such registry or model, or it is damaged.
    """
    store = open_registry(registry)
    version = store.resolve(address)
    checkpoint = load_checkpoint(store.fetch(version), device=device, precision=precision)
    return LoadedModel(version.address, checkpoint)


def next_token(loaded: LoadedModel, request: Mapping[str, Any]) -> Json:
    """As POST /v1/next-token."""
    parsed = parse_json(NextTokenRequest, _body(request))
    command = parsed.command(_UNLIMITED)
    if parsed.unit == "word":
        words = result_of(next_words(loaded, command, _UNLIMITED))
        return dataclasses.asdict(next_word_reply(loaded, words))
    return dataclasses.asdict(next_token_reply(loaded, result_of(next_tokens(loaded, command, _UNLIMITED))))


def autocomplete(loaded: LoadedModel, request: Mapping[str, Any]) -> Json:
    """As POST /v1/autocomplete, with no user known."""
    command = parse_json(AutocompleteRequest, _body(request)).command()
    done = result_of(completing.autocomplete(loaded, command, _UNLIMITED))
    return dataclasses.asdict(autocomplete_reply(loaded, done))


def check(loaded: LoadedModel, registry: Address, request: Mapping[str, Any]) -> Json:
    """As POST /v1/check."""
    calibration = CalibrationStore(registry).read(loaded.address)
    command = parse_json(CheckRequest, _body(request)).command(loaded, calibration, _UNLIMITED)
    found = result_of(checking.check(loaded, command, _UNLIMITED))
    return dataclasses.asdict(check_reply(loaded, command, calibration, found))


def score(loaded: LoadedModel, request: Mapping[str, Any]) -> Json:
    """As POST /v1/score."""
    parsed = parse_json(ScoreRequest, _body(request))
    options = parsed.options()
    scores = result_of(score_texts(loaded, parsed.items(_UNLIMITED), options, _UNLIMITED))
    results = [score_result(loaded, score, options.detail) for score in scores]
    return dataclasses.asdict(dataclasses.replace(score_totals(loaded, scores), results=results))


def generate(loaded: LoadedModel, request: Mapping[str, Any]) -> Json:
    """As POST /v1/generate, unstreamed."""
    command = parse_json(GenerateRequest, _body(request)).command(_UNLIMITED)
    done = result_of(generating.generate(loaded, command, _UNLIMITED))
    return dataclasses.asdict(generate_reply(loaded, done, alternatives=0))


def generate_pieces(loaded: LoadedModel, request: Mapping[str, Any]) -> Iterator[str]:
    """The text of a continuation as it comes.

    Raises:
        InvalidInputError: the request is wrong, or not for this model; raised here, not by the iterator.
    """
    command = parse_json(GenerateRequest, _body(request)).command(_UNLIMITED)
    pieces = _pieces(generating.generate(loaded, dataclasses.replace(command, stream=True), _UNLIMITED))
    first = next(pieces)  # there is always one: the end of a choice, if no other
    return itertools.chain([first], pieces)


def _pieces(work: Work[Piece | Continuation, generating.Generated]) -> Iterator[str]:
    for item in items(work):
        if isinstance(item.value, Piece):
            yield item.value.text
        elif isinstance(item.value, Continuation):
            yield item.value.rest


def load_models(registry: Address, choice: ModelChoice, device: str, precision: str) -> ScoringModels:
    """Load the models that are to score candidates, each once; an address of None cannot be loaded here.

    Raises:
        LanguageModelError: there is no such registry or model, it is damaged, or parts cannot be mixed.
    """

    @cache
    def loaded(address: str | None) -> LoadedModel:
        if address is None:
            raise InvalidInputError("name the model", parameter="model")
        return load(registry, address, device, precision)

    return choice.resolve(loaded)


def features_of(models: ScoringModels, lists: Sequence[CandidateList]) -> ListFeatures:
    """The features that models compute of all candidates.

    Raises:
        InvalidInputError: a list cannot be scored.
    """
    return result_of(candidate_features.features_of(models, lists, _UNLIMITED))


class RerankAsked(NamedTuple):
    """What `gramophone rerank` was asked to do: with which models, and how."""

    models: ScoringModels
    options: RerankOptions


def asked_to_rerank(
    settings: Mapping[str, Any], registry: Address, device: str, precision: str
) -> RerankAsked:
    """Read settings as the query string of POST /v1/rerank holds them, None for what is not set, and load the models.

    Raises:
        InvalidInputError: a setting is wrong, or there is no such profile.
        LanguageModelError: there is no such registry or model, or it is damaged.
    """
    read = read_query({name: value for name, value in settings.items() if value is not None})
    profile = None if read.profile is None else ProfileStore(registry).read(read.profile)
    options = read.options(profile)
    return RerankAsked(load_models(registry, read.choice(profile), device, precision), options)


def rerank_lists(models: ScoringModels, lists: Iterable[Line], options: RerankOptions) -> Iterator[Outcome]:
    """Re-rank lists, some at a time; for one that cannot be, the error why."""
    lines = iter(lists)
    while batch := result_of(next_lines(lines)):
        yield from result_of(outcomes(models, batch, options, _UNLIMITED))


def _body(request: Mapping[str, Any]) -> bytes:
    """JSON, so that the command line's values pass the very checks that a client's pass."""
    try:
        return json.dumps(request, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidInputError("the text is not UTF-8: convert it first, for example with iconv") from None
