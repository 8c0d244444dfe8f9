"""Model features of reranking candidates, by a model or mixture, and by further models."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeAlias

import numpy as np
from typing_extensions import TypeVar

from models.arrays import Float64s, Int64s, TokenIds
from models.calls import Work, map_in_steps
from models.errors import InputError, UnsupportedError
from models.files import count_words
from models.language_model import UNK as UNKNOWN
from models.language_model import is_self_normalised
from models.normaliser import Writing
from models.phrases import NO_PHRASES, PhraseList
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
from models.scoring.candidate_texts import (
    DistinctTexts,
    RaggedTexts,
    find_distinct_texts,
    reads_forms,
    tokenise_texts,
)
from models.scoring.sequences import score_ragged_texts
from models.text_model import Limits, TextModel, TextState, to_text_order

M_co = TypeVar("M_co", bound=TextModel, default=TextModel, covariant=True)
S_co = TypeVar("S_co", bound=TextState, default=TextState, covariant=True)
MAX_MODELS = 8
"""Maximum parts of a mixture, and of further models."""

ScoreMode = Literal["normalised", "unnormalised"]
"""Kind of `lm` score: a log-probability, or a self-normalised model's score without its normalising sum."""

TokenScores: TypeAlias = tuple[TokenIds, Float64s]
"""Tokens [T] of one candidate in text order, and their log-probabilities by the main model [T]."""

_TextScores: TypeAlias = tuple[RaggedTexts, Float64s]
"""Scores of U texts by a model or a mixture: their ids, and the log-probability of each id."""


@dataclass(frozen=True, slots=True)
class ScoringModels(Generic[M_co]):
    """Models that score candidates.

    Attributes:
        parts: main model, of `lm`; several are mixed linearly at every token; empty without such features.
        mixture_weights: positive weights of the parts, summing to 1.
        extra: further models by name in features, such as `old` in `lm:old`.
        form: form of the texts for pretrained models.
    """

    parts: tuple[M_co, ...]
    mixture_weights: tuple[float, ...] = (1.0,)
    extra: Mapping[str, M_co] = field(default_factory=dict)
    form: Writing = "asis"

    @property
    def all(self) -> tuple[M_co, ...]:
        """Every model, the parts first."""
        return (*self.parts, *self.extra.values())

    @property
    def main_address(self) -> str | None:
        """Address of the main model, or of its parts with weights; None without one."""
        if not self.parts:
            return None
        if len(self.parts) == 1:
            return self.parts[0].address
        weighted = zip(self.mixture_weights, self.parts, strict=True)
        return " + ".join(f"{weight:g} {part.address}" for weight, part in weighted)


def scoring_models(
    main: Sequence[tuple[str | None, float]],
    extra: Sequence[tuple[str, str]],
    resolve: Callable[[str | None], M_co],
    form: Writing = "asis",
) -> ScoringModels[M_co]:
    """Resolve addresses to the models that score.

    Args:
        main: address and weight of each part of the main model; None for the service's default model.
        extra: names of further models and their addresses.
        resolve: finds a model by address.
        form: form of the texts for pretrained models.

    Raises:
        InputError: there are too many models, the weights are no distribution over the parts, the
            parts tokenise differently, or a name is invalid.
    """
    for param, count in (("mixture", len(main)), ("models", len(extra))):
        if count > MAX_MODELS:
            raise InputError.of(param, f"has {count} models; at most {MAX_MODELS} are accepted")
    check_model_names([name for name, _ in extra], param="models")
    weights = tuple(weight for _, weight in main)
    is_distribution = all(weight > 0 for weight in weights) and math.isclose(sum(weights), 1.0, abs_tol=1e-6)
    if main and not is_distribution:
        raise InputError(
            f"the weights of mixture are {list(weights)}; they must be positive and sum to 1",
            param="mixture",
        )
    parts = tuple(resolve(address) for address, _ in main)
    models = ScoringModels(parts, weights, {name: resolve(address) for name, address in extra}, form)
    for index, part in enumerate(parts[1:], start=1):
        _check_compatible(parts[0], part, index)
    return models


def _check_compatible(first: TextModel, part: TextModel, index: int) -> None:
    """Reject a part that tokenises unlike the first: mixing needs equal tokens and order."""
    why = None
    if part.model.vocabulary.fingerprint != first.model.vocabulary.fingerprint:
        why = "has another vocabulary than"
    elif part.tokenizer.fingerprint != first.tokenizer.fingerprint:
        why = "tokenises differently from"
    elif part.reads_backward != first.reads_backward:
        why = "reads in another direction than"
    if why is not None:
        raise InputError(
            f"mixture[{index}].model is {part.address}, which {why} {first.address}: their probabilities cannot be "
            "mixed at every token; give it in models, with its own weight",
            param=f"mixture[{index}].model",
        )


class StartStates(NamedTuple, Generic[S_co]):
    """States before candidates.

    Attributes:
        of_lists: index of the state before each list; None for a list after its context.
        of_models: states of each model, in order of `ScoringModels.all`.
    """

    of_lists: Sequence[int | None] = ()
    of_models: Sequence[Sequence[S_co]] = ()


class CandidateScores(NamedTuple):
    """Model scores of N candidates.

    Attributes:
        features: features of all candidates.
        tokens: returns token scores of a row's candidate; None without a main model.
    """

    features: ListFeatures
    tokens: Callable[[int], TokenScores] | None

    def tokens_from(self, first: int) -> Callable[[int], TokenScores] | None:
        """Return `tokens` with rows counted from `first`."""
        tokens = self.tokens
        return None if tokens is None else lambda row: tokens(first + row)


NO_START_STATES: StartStates = StartStates()


def score_candidates(
    models: ScoringModels,
    lists: Sequence[CandidateList],
    limits: Limits,
    *,
    bos: bool = True,
    eos: bool = True,
    score_mode: ScoreMode = "normalised",
    starts: StartStates = NO_START_STATES,
    phrases: PhraseList = NO_PHRASES,
    prefix: Callable[[int], str] = "lists[{}].".format,
) -> Work[Any, CandidateScores]:
    """Score every candidate, equal texts in equal surroundings once.

    Args:
        models: scoring models.
        lists: candidate lists, at least one.
        limits: of one text with its context.
        bos: true to put `<s>` before each candidate or its context.
        eos: true to also score `</s>` after each candidate.
        score_mode: kind of the token scores summed in `lm`.
        starts: states that replace the context of some lists.
        phrases: phrases that candidates may have.
        prefix: of `candidates` in a message about list i.

    Raises:
        ContextLengthError: a candidate with its context is too long.
        UnsupportedError: there is a context and a model reads backward, or unnormalised scores
            are requested of a model not trained for them.
    """
    check_score_mode(models, score_mode)
    distinct = yield from find_distinct_texts(lists, starts.of_lists, prefix)
    stored = starts.of_models or [()] * len(models.all)
    score_texts = partial(
        _score_texts, distinct, limits, models.form, bos=bos, eos=eos, normalised=score_mode == "normalised"
    )
    main = None
    columns: dict[str, Float64s] = {}
    if models.parts:
        main = yield from score_texts(models.parts, models.mixture_weights, stored[: len(models.parts)])
        columns |= _feature_columns(*main, "")
    for number, (name, loaded) in enumerate(models.extra.items(), start=len(models.parts)):
        scores = yield from score_texts([loaded], [1.0], [stored[number]])
        columns |= _feature_columns(*scores, name)
    words = None if main is None else main[0].words
    if words is None:
        words = np.array([count_words(text) for text in distinct.texts])
    columns[NUM_WORDS] = words.astype(np.float64)
    if phrases:
        yield from _add_phrases(columns, phrases, distinct, models)
    values = np.column_stack(list(columns.values()))[distinct.text_of]
    features = ListFeatures(tuple(columns), values, offsets_of(lists))
    if main is None:
        return CandidateScores(features, None)
    (texts, log_probs), first = main, models.parts[0]

    def tokens(row: int) -> TokenScores:
        cut = slice(*texts.offsets[distinct.text_of[row] :][:2].tolist())
        return to_text_order(first, texts.ids[cut], ends=eos), to_text_order(first, log_probs[cut], ends=eos)

    return CandidateScores(features, tokens)


def _score_texts(
    distinct: DistinctTexts,
    limits: Limits,
    form: Writing,
    parts: Sequence[TextModel],
    weights: Sequence[float],
    stored: Sequence[Sequence[TextState]],
    *,
    bos: bool,
    eos: bool,
    normalised: bool,
) -> Work[Any, _TextScores]:
    """Score texts by a model, or by a mixture's parts, which have equal tokens."""
    given = distinct.written(form) if reads_forms(parts[0]) else distinct
    texts = yield from tokenise_texts(parts[0], given, limits, eos=eos, starts=stored[0])
    total = None
    for part, weight, starts in zip(parts, weights, stored, strict=True):
        scores = yield from score_ragged_texts(
            part, texts, distinct.list_of, bos=bos, starts=starts, normalised=normalised
        )
        log_probs = scores.astype(np.float64)
        if len(parts) > 1:
            log_probs += np.log(weight)
        total = log_probs if total is None else np.logaddexp(total, log_probs, out=total)
    assert total is not None  # noqa: S101 - there is a part
    return texts, total


def _add_phrases(
    columns: dict[str, Float64s],
    phrases: PhraseList,
    distinct: DistinctTexts,
    models: ScoringModels,
) -> Work[Any, None]:
    """Add phrases' features in U texts, and count their words in the models' features."""
    found = yield from map_in_steps(distinct.texts, phrases.find, size=len)
    texts = np.repeat(np.arange(len(found)), [len(of_text) for of_text in found])
    flat = np.array([index for of_text in found for index in of_text], np.int64)
    occurring, which = np.unique(flat, return_inverse=True)
    for name, values in zip(phrases.features, phrases.values(occurring.tolist()).T, strict=True):
        columns[name] = np.bincount(texts, values[which], len(found)).astype(np.float64)
    is_scored = np.array([setting.continuation is None for setting in distinct.settings])[distinct.setting_of]
    texts, which = texts[is_scored[texts]], which[is_scored[texts]]
    mains = [("", models.parts[0])] if models.parts else []
    for model, loaded in (*mains, *models.extra.items()):
        unknown = yield from map_in_steps(
            occurring.tolist(), partial(phrases.unknown, tokenizer=loaded.tokenizer), size=lambda _: 0
        )
        log_shares, num_unknown = np.array(unknown, np.float64).reshape(-1, 2)[which].T
        np.add.at(columns[feature_name(LM, model)], texts, log_shares)
        unk = columns[feature_name(NUM_UNKNOWN, model)]
        np.subtract.at(unk, texts, num_unknown)
        np.maximum(unk, 0.0, out=unk)


def _feature_columns(texts: RaggedTexts, log_probs: Float64s, name: str) -> dict[str, Float64s]:
    """Compute the features of one model for U texts."""
    return {
        feature_name(LM, name): _ragged_sums(log_probs, texts.offsets),
        feature_name(NUM_TOKENS, name): np.diff(texts.offsets).astype(np.float64),
        feature_name(NUM_UNKNOWN, name): _ragged_sums((texts.ids == UNKNOWN).astype(float), texts.offsets),
    }


def _ragged_sums(values: Float64s, offsets: Int64s) -> Float64s:
    sums = np.zeros(len(offsets) - 1)
    filled = np.flatnonzero(np.diff(offsets))
    if filled.size:
        # reduceat is wrong for empty segments
        sums[filled] = np.add.reduceat(values, offsets[filled])
    return sums


def check_score_mode(models: ScoringModels, mode: ScoreMode) -> None:
    """Reject unnormalised scores of mixtures, and of models not trained for them.

    Raises:
        UnsupportedError: the message names the mode and the model.
    """
    if mode == "normalised":
        return
    if len(models.parts) > 1:
        raise UnsupportedError.of(
            "score_mode", f"is {mode!r}, but only probabilities can be mixed; use 'normalised'"
        )
    for loaded in models.all:
        if not is_self_normalised(loaded.model):
            raise UnsupportedError.of(
                "score_mode",
                f"is {mode!r}, but model {loaded.address} was not trained for unnormalised scores "
                "(train.self_normalise or train.loss=nce); use 'normalised'",
            )
