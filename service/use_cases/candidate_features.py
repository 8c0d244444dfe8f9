"""Model features of reranking candidates, by one model or a mixture, and further models.

Several main models are mixed linearly at every token, so they must share vocabulary, tokenizer and
direction. Each further model has its own features, such as `lm:old`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from models.arrays import TokenIds
from models.errors import InvalidInputError, UnsupportedParameterError
from models.language_model import (
    LOG_ZERO,
    count_words,
    is_self_normalised,
)
from models.reranking.candidates import CandidateList
from models.reranking.features import (
    LM,
    NUM_TOKENS,
    NUM_UNKNOWN,
    NUM_WORDS,
    ListFeatures,
    check_model_names,
    feature_name,
    offsets_of,
)
from models.vocabulary import UNK as UNKNOWN
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.engine.state_store import StoredState
from service.use_cases.candidate_texts import DistinctTexts, RaggedTexts, find_distinct_texts, tokenise_texts
from service.use_cases.inputs import Limits, to_text_order
from service.use_cases.sequence_scoring import score_ragged_texts

MAX_MODELS = 8
"""Maximum number of parts of a mixture, and of further models."""


@dataclass(frozen=True, slots=True)
class ScoringModels:
    """Models that score candidates.

    Attributes:
        parts: the main model, whose score is the feature `lm`; or several, whose probabilities are mixed at every
            token; or none, without such features.
        mixture_weights: of the parts; positive, summing to 1.
        extra: further models, by their names in features, such as `old` in `lm:old`.

    Raises:
        InvalidInputError: there are too many models; the weights are no distribution over the parts; the parts do not
            read texts as the same tokens; or a name is invalid.
    """

    parts: tuple[LoadedModel, ...]
    mixture_weights: tuple[float, ...] = (1.0,)
    extra: Mapping[str, LoadedModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_model_counts(len(self.parts), len(self.extra))
        check_model_names(list(self.extra), parameter="models")
        if len(self.parts) > 1:
            check_mixture_weights(self.mixture_weights)
            for index, part in enumerate(self.parts[1:], start=1):
                _check_compatible(self.parts[0], part, index)

    @property
    def all(self) -> tuple[LoadedModel, ...]:
        """Every model, the parts first."""
        return (*self.parts, *self.extra.values())

    def check_score_mode(self, mode: str) -> None:
        """Refuse unnormalised scores of models that were not trained for them, and of mixtures.

        Raises:
            UnsupportedParameterError: a model or the mixture does not support them.
        """
        if mode == "normalised":
            return
        if len(self.parts) > 1:
            raise UnsupportedParameterError(
                f"score_mode is {mode!r}, but only probabilities can be mixed; use 'normalised'",
                parameter="score_mode",
            )
        for loaded in self.all:
            if not is_self_normalised(loaded.model):
                raise UnsupportedParameterError(
                    f"score_mode is {mode!r}, but model {loaded.address} was not trained for unnormalised scores "
                    "(train.self_normalise or train.loss=nce); use 'normalised'",
                    parameter="score_mode",
                )


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Choice of the scoring models, by their addresses.

    Attributes:
        main: parts of the main model, each with its weight; None for the service's default model.
        extra: names of further models and their addresses.

    Raises:
        InvalidInputError: there are too many, weights are no distribution, or a name is invalid.
    """

    main: tuple[tuple[str | None, float], ...] = ((None, 1.0),)
    extra: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        check_model_counts(len(self.main), len(self.extra))
        check_model_names([name for name, _ in self.extra], parameter="models")
        if self.main:
            check_mixture_weights([weight for _, weight in self.main])

    def resolve(self, resolve: Callable[[str | None], LoadedModel]) -> ScoringModels:
        """Resolve the addresses to models.

        Args:
            resolve: finds a model by its address.

        Raises:
            InvalidInputError: the parts of a mixture cannot be mixed.
        """
        parts = tuple(resolve(address) for address, _ in self.main)
        weights = tuple(weight for _, weight in self.main)
        return ScoringModels(parts, weights, {name: resolve(address) for name, address in self.extra})


def check_model_counts(num_parts: int, num_further: int) -> None:
    """Refuse more models than the limit of one request.

    Raises:
        InvalidInputError: there are too many.
    """
    for parameter, count in (("mixture", num_parts), ("models", num_further)):
        if count > MAX_MODELS:
            raise InvalidInputError(
                f"{parameter} has {count} models; at most {MAX_MODELS} are accepted", parameter=parameter
            )


def check_mixture_weights(weights: Sequence[float]) -> None:
    """Refuse weights that do not make a mixture.

    Raises:
        InvalidInputError: one is not positive, or they do not sum to 1.
    """
    if not all(weight > 0 for weight in weights) or not math.isclose(sum(weights), 1.0, abs_tol=1e-6):
        raise InvalidInputError(
            f"the weights of mixture are {list(weights)}; they must be positive and sum to 1",
            parameter="mixture",
        )


def _check_compatible(first: LoadedModel, part: LoadedModel, index: int) -> None:
    """Refuse a part with other tokens than the first: mixing needs the same tokens in the same order."""
    why = None
    if part.model.vocabulary.fingerprint != first.model.vocabulary.fingerprint:
        why = "has another vocabulary than"
    elif part.tokenizer.fingerprint != first.tokenizer.fingerprint:
        why = "cuts texts into tokens otherwise than"
    elif part.reads_backward != first.reads_backward:
        why = "reads in another direction than"
    if why is not None:
        raise InvalidInputError(
            f"mixture[{index}].model is {part.address}, which {why} {first.address}: their probabilities cannot be "
            "mixed at every token; give it in models, with a weight of its own",
            parameter=f"mixture[{index}].model",
        )


ScoreMode = Literal["normalised", "unnormalised"]
"""Kind of `lm` score: a log-probability, or a self-normalised model's score without its normalising sum."""

LogProbs: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringOptions:
    """Options of scoring candidates.

    Attributes:
        bos: whether `<s>` precedes each, or its context.
        eos: whether to score `</s>` after each too.
        score_mode: the token scores summed in `lm`.
    """

    bos: bool = True
    eos: bool = True
    score_mode: ScoreMode = "normalised"


class StartStates(NamedTuple):
    """States before candidates.

    Attributes:
        of_lists: index of the state before each list; None for a list after its context.
        of_models: the states of each model, in the order of `ScoringModels.all`.
    """

    of_lists: Sequence[int | None] = ()
    of_models: Sequence[Sequence[StoredState]] = ()


class TokenScores(NamedTuple):
    """Main model's scores of the tokens of one candidate, in text order.

    Attributes:
        ids: the scored tokens [T].
        log_probs: of each [T].
    """

    ids: TokenIds
    log_probs: LogProbs


class CandidateScores(NamedTuple):
    """Model scores of N candidates.

    Attributes:
        features: of all candidates.
        tokens: token scores of one candidate, by its row; None without a main model.
    """

    features: ListFeatures
    tokens: Callable[[int], TokenScores] | None


class _TextScores(NamedTuple):
    """Scores of U texts by a model or a mixture: their ids, and the log-probability of each id."""

    texts: RaggedTexts
    log_probs: LogProbs


NO_START_STATES = StartStates()
_DEFAULT_OPTIONS = ScoringOptions()


def compute_features(
    models: ScoringModels,
    lists: Sequence[CandidateList],
    limits: Limits,
    options: ScoringOptions = _DEFAULT_OPTIONS,
) -> Work[Any, ListFeatures]:
    """Compute the features of all candidates; a use case.

    Raises:
        ContextLengthError: a candidate with its context has too many tokens.
        UnsupportedParameterError: there is a context, and a model reads from right to left; or unnormalised scores
            are requested of a model not trained for them.
    """
    return (yield from score_candidates(models, lists, limits, options)).features


def score_candidates(
    models: ScoringModels,
    lists: Sequence[CandidateList],
    limits: Limits,
    options: ScoringOptions,
    *,
    starts: StartStates = NO_START_STATES,
    prefix: Callable[[int], str] = "lists[{}].".format,
) -> Work[Any, CandidateScores]:
    """Score every candidate as a whole; equal texts in equal surroundings once. A use case.

    Args:
        models: the scoring models.
        lists: at least one.
        limits: of one text with its context.
        options: of scoring.
        starts: states before some lists, instead of a context.
        prefix: prefix of `candidates` in a message about list i.

    Raises:
        ContextLengthError, UnsupportedParameterError: see `compute_features`.
    """
    models.check_score_mode(options.score_mode)
    distinct = yield from find_distinct_texts(lists, starts.of_lists, prefix)
    stored = starts.of_models or [()] * len(models.all)
    main = None
    columns: dict[str, npt.NDArray[np.float64]] = {}
    if models.parts:
        main = yield from _score_mixture(models, distinct, limits, options, stored)
        columns |= _feature_columns(main, "")
    for number, (name, loaded) in enumerate(models.extra.items(), start=len(models.parts)):
        texts = yield from tokenise_texts(loaded, distinct, limits, eos=options.eos, starts=stored[number])
        columns |= _feature_columns(
            (yield from _score_model(loaded, texts, distinct, options, stored[number])), name
        )
    words = None if main is None else main.texts.words
    if words is None:
        words = np.array([count_words(text) for text in distinct.texts])
    columns[NUM_WORDS] = words.astype(np.float64)
    values = np.column_stack(list(columns.values()))[distinct.text_of]
    features = ListFeatures(tuple(columns), values, offsets_of(lists))
    if main is None:
        return CandidateScores(features, None)
    main_scores, first = main, models.parts[0]
    return CandidateScores(
        features, lambda row: _token_scores(main_scores, first, int(distinct.text_of[row]), ends=options.eos)
    )


def _score_mixture(
    models: ScoringModels,
    distinct: DistinctTexts,
    limits: Limits,
    options: ScoringOptions,
    stored: Sequence[Sequence[StoredState]],
) -> Work[Any, _TextScores]:
    """Score texts by the main model, or by the parts of a mixture, which read the same tokens."""
    first = models.parts[0]
    texts = yield from tokenise_texts(first, distinct, limits, eos=options.eos, starts=stored[0])
    total = yield from _score_model(first, texts, distinct, options, stored[0])
    if len(models.parts) == 1:
        return total
    log_probs = total.log_probs + np.log(models.mixture_weights[0])
    for number, part in enumerate(models.parts[1:], start=1):
        part_scores = yield from _score_model(part, texts, distinct, options, stored[number])
        np.logaddexp(log_probs, part_scores.log_probs + np.log(models.mixture_weights[number]), out=log_probs)
    return _TextScores(texts, log_probs)


def _score_model(
    loaded: LoadedModel,
    texts: RaggedTexts,
    distinct: DistinctTexts,
    options: ScoringOptions,
    starts: Sequence[StoredState],
) -> Work[Any, _TextScores]:
    normalised = options.score_mode == "normalised"
    scores = yield from score_ragged_texts(
        loaded, texts, distinct.list_of, bos=options.bos, starts=starts, normalised=normalised
    )
    return _TextScores(texts, scores.astype(np.float64))


def _feature_columns(scores: _TextScores, name: str) -> dict[str, npt.NDArray[np.float64]]:
    """Compute the features of one model for U texts."""
    ids, offsets = scores.texts.ids, scores.texts.offsets
    sums = _ragged_sums(scores.log_probs, offsets)
    return {
        feature_name(LM, name): np.where(np.isneginf(sums), LOG_ZERO, sums),
        feature_name(NUM_TOKENS, name): np.diff(offsets).astype(np.float64),
        feature_name(NUM_UNKNOWN, name): _ragged_sums((ids == UNKNOWN).astype(np.float64), offsets),
    }


def _ragged_sums(values: npt.NDArray[np.float64], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Sum the values of each text [U]."""
    sums = np.zeros(len(offsets) - 1)
    filled = np.flatnonzero(np.diff(offsets))
    if filled.size:
        sums[filled] = np.add.reduceat(values, offsets[filled])  # wrong for empty segments, hence `filled`
    return sums


def _token_scores(scores: _TextScores, loaded: LoadedModel, text: int, *, ends: bool) -> TokenScores:
    cut = slice(int(scores.texts.offsets[text]), int(scores.texts.offsets[text + 1]))
    ids, log_probs = scores.texts.ids[cut], scores.log_probs[cut]
    return TokenScores(to_text_order(loaded, ids, ends=ends), to_text_order(loaded, log_probs, ends=ends))
