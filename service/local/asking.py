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
from service.engine.hosted import LoadedModel
from service.engine.job import Work, iter_outputs, run_to_completion
from service.schemas.autocomplete import AutocompleteRequest, autocomplete_reply
from service.schemas.check import CheckRequest, check_reply
from service.schemas.generate import GenerateRequest, generate_reply
from service.schemas.next_token import NextTokenRequest, next_token_reply, next_word_reply
from service.schemas.rerank_query import read_rerank_query
from service.schemas.score import ScoreRequest, score_result, score_totals
from service.schemas.wire import parse_json
from service.use_cases import autocomplete as completing
from service.use_cases import candidate_features
from service.use_cases import check as checking
from service.use_cases import generate as generating
from service.use_cases.choices import Continuation, TokenEvent
from service.use_cases.limits import Limits
from service.use_cases.next_token import rank_next_tokens
from service.use_cases.next_word import rank_next_words
from service.use_cases.rerank import RerankOptions
from service.use_cases.rerank_lines import RerankLine, RerankOutcome, read_batch, rerank_batch
from service.use_cases.score import score as score_texts
from service.use_cases.scoring_models import ModelChoice, ScoringModels

Json = dict[str, Any]
_UNLIMITED = Limits(
    max_texts=sys.maxsize,
    max_tokens_per_sequence=sys.maxsize,
    max_new_tokens=sys.maxsize,
    max_reply_entries=sys.maxsize,
)


def load_published(registry: Address, address: str, device: str, precision: str) -> LoadedModel:
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
    parsed = parse_json(NextTokenRequest, _request_body(request))
    command = parsed.command(_UNLIMITED)
    if parsed.unit == "word":
        words = run_to_completion(rank_next_words(loaded, command, _UNLIMITED))
        return dataclasses.asdict(next_word_reply(loaded, words))
    return dataclasses.asdict(
        next_token_reply(loaded, run_to_completion(rank_next_tokens(loaded, command, _UNLIMITED)))
    )


def autocomplete(loaded: LoadedModel, request: Mapping[str, Any]) -> Json:
    """As POST /v1/autocomplete, with no user known."""
    command = parse_json(AutocompleteRequest, _request_body(request)).command()
    done = run_to_completion(completing.autocomplete(loaded, command, _UNLIMITED))
    return dataclasses.asdict(autocomplete_reply(loaded, done))


def check(loaded: LoadedModel, registry: Address, request: Mapping[str, Any]) -> Json:
    """As POST /v1/check."""
    calibration = CalibrationStore(registry).read(loaded.address)
    command = parse_json(CheckRequest, _request_body(request)).command(loaded, calibration, _UNLIMITED)
    found = run_to_completion(checking.check(loaded, command, _UNLIMITED))
    return dataclasses.asdict(check_reply(loaded, command, calibration, found))


def score(loaded: LoadedModel, request: Mapping[str, Any]) -> Json:
    """As POST /v1/score."""
    parsed = parse_json(ScoreRequest, _request_body(request))
    options = parsed.options()
    scores = run_to_completion(score_texts(loaded, parsed.items(_UNLIMITED), options, _UNLIMITED))
    results = [score_result(loaded, score, options.detail) for score in scores]
    return dataclasses.asdict(dataclasses.replace(score_totals(loaded, scores), results=results))


def generate(loaded: LoadedModel, request: Mapping[str, Any]) -> Json:
    """As POST /v1/generate, unstreamed."""
    command = parse_json(GenerateRequest, _request_body(request)).command(_UNLIMITED)
    done = run_to_completion(generating.generate(loaded, command, _UNLIMITED))
    return dataclasses.asdict(generate_reply(loaded, done, alternatives=0))


def stream_text(loaded: LoadedModel, request: Mapping[str, Any]) -> Iterator[str]:
    """The text of a continuation as it comes.

    Raises:
        InvalidInputError: the request is wrong, or not for this model; raised here, not by the iterator.
    """
    command = parse_json(GenerateRequest, _request_body(request)).command(_UNLIMITED)
    pieces = _stream_pieces(
        generating.generate(loaded, dataclasses.replace(command, stream=True), _UNLIMITED)
    )
    first = next(pieces)  # there is always one: the end of a choice, if no other
    return itertools.chain([first], pieces)


def _stream_pieces(work: Work[TokenEvent | Continuation, generating.GenerateResult]) -> Iterator[str]:
    for item in iter_outputs(work):
        if isinstance(item.value, TokenEvent):
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
        return load_published(registry, address, device, precision)

    return choice.resolve(loaded)


def compute_features(models: ScoringModels, lists: Sequence[CandidateList]) -> ListFeatures:
    """The features that models compute of all candidates.

    Raises:
        InvalidInputError: a list cannot be scored.
    """
    return run_to_completion(candidate_features.compute_features(models, lists, _UNLIMITED))


class RerankJob(NamedTuple):
    """What `gramophone rerank` was asked to do: with which models, and how."""

    models: ScoringModels
    options: RerankOptions


def prepare_rerank(settings: Mapping[str, Any], registry: Address, device: str, precision: str) -> RerankJob:
    """Read settings as the query string of POST /v1/rerank holds them, None for what is not set, and load the models.

    Raises:
        InvalidInputError: a setting is wrong, or there is no such profile.
        LanguageModelError: there is no such registry or model, or it is damaged.
    """
    read = read_rerank_query({name: value for name, value in settings.items() if value is not None})
    profile = None if read.profile is None else ProfileStore(registry).read(read.profile)
    options = read.options(profile)
    return RerankJob(load_models(registry, read.choice(profile), device, precision), options)


def rerank_lists(
    models: ScoringModels, lists: Iterable[RerankLine], options: RerankOptions
) -> Iterator[RerankOutcome]:
    """Re-rank lists, some at a time; for one that cannot be, the error why."""
    lines = iter(lists)
    while batch := run_to_completion(read_batch(lines)):
        yield from run_to_completion(rerank_batch(models, batch, options, _UNLIMITED))


def _request_body(request: Mapping[str, Any]) -> bytes:
    """JSON, so that the command line's values pass the very checks that a client's pass."""
    try:
        return json.dumps(request, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidInputError("the text is not UTF-8: convert it first, for example with iconv") from None
