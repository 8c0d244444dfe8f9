"""Weights of a request's models, by how well each predicts the text.

Each word is assumed to be written with one model: before it, with probability `_SWITCH`, the model
is drawn anew by the request's weights (fixed share: Herbster and Warmuth 1998, Tracking the best
expert). Words are split at white space, because the models' tokens may differ, and an unknown
word counts with the probability of its spelling.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import Float64s, Int64s
from models.calls import Work, map_in_steps
from models.checking.checker import Checker
from models.checking.sentences import Word
from models.completion.prefix import PrefixSplit
from models.completion.token_trie import NO_TOKENS
from models.prefix_cache import Evidence, NextTokenEntry, context_key
from models.scoring.sequences import score_sequence_list
from models.text_model import EncodedText, TextModel

_SWITCH = 0.05
"""Probability that the model is drawn anew before a word; the same one may be drawn again."""

_WINDOW_WORDS, _WINDOW_CHARS = 16, 512
"""End of the typed text that is scored for the weights: earlier words have hardly any effect."""

_WORDS_PER_STEP = 1000
_WORD = re.compile(r"\S+")


class WeightedModel(NamedTuple):
    """A loaded model and its weight before the text, relative to the other models'."""

    loaded: TextModel
    weight: float = 1.0


def shares(weights: Sequence[float], models: Sequence[WeightedModel]) -> dict[str, float] | None:
    """Return the weights [M] by the models' addresses; None for a single model."""
    if len(models) == 1:
        return None
    found: dict[str, float] = {}
    for model, weight in zip(models, weights, strict=True):
        found[model.loaded.address] = found.get(model.loaded.address, 0.0) + weight
    return found


def word_starts(text: str) -> Int64s:
    """Return the starts of a text's words, split at white space [N]."""
    return np.array([found.start() for found in _WORD.finditer(text)], np.int64)


def words_at(starts: Int64s, positions: npt.ArrayLike) -> Int64s:
    """Return the index of each position's word [K]; words begin at `starts` [N]."""
    return np.maximum(np.searchsorted(starts, positions, side="right") - 1, 0)


def sum_by_word(starts: Int64s, positions: npt.ArrayLike, values: npt.ArrayLike) -> Float64s:
    """Sum values at positions of a text by the words that begin at `starts` [N]."""
    words = words_at(starts, positions)
    return np.bincount(words, values, minlength=len(starts)).astype(np.float64)


def sum_spellings(checker: Checker, words: Sequence[Word], starts: Int64s) -> Work[Any, Float64s]:
    """Sum log-probabilities of unknown words' spellings by the words that begin at `starts` [N]."""
    unknown = [word for word in words if not word.known]
    spellings = yield from map_in_steps(
        unknown, lambda word: checker.log_spelling(word.text), size=lambda word: len(word.text)
    )
    return sum_by_word(starts, [word.start for word in unknown], spellings)


def weights_before(prior: Float64s, log_probs: Float64s) -> Work[Any, Float64s]:
    """Return weights before each word, given the words before, and after the last [N + 1, M].

    Other requests run in between: a text may have many words.

    Args:
        prior: weights before the text, summing to 1 [M].
        log_probs: ln P(word | earlier text) by each model [M, N].
    """
    weights = [prior]
    for likelihoods in _scaled(log_probs):
        if not len(weights) % _WORDS_PER_STEP:
            yield None
        posterior = weights[-1] * likelihoods
        weights.append((1 - _SWITCH) * posterior / posterior.sum() + _SWITCH * prior)
    return np.array(weights)


def weights_given_text(prior: Float64s, log_probs: Float64s) -> Work[Any, Float64s]:
    """Return weights at each word, given the whole text [N, M]; see `weights_before`."""
    ratios = _scaled(log_probs)
    weights = (yield from weights_before(prior, log_probs))[:-1] * ratios
    after = np.ones(len(prior))
    for word in reversed(range(len(weights))):
        if not word % _WORDS_PER_STEP:
            yield None
        weights[word] *= after
        ahead = ratios[word] * after
        after = (1 - _SWITCH) * ahead + _SWITCH * (prior @ ahead)
        after /= after.max()
    smoothed: Float64s = weights / weights.sum(axis=1, keepdims=True)
    return smoothed


def _scaled(log_probs: Float64s) -> Float64s:
    """Return each word's probability by each model, relative to the best's [N, M]; 1 if all are 0."""
    best = log_probs.max(axis=0)
    nowhere = np.isneginf(best)
    scaled: Float64s = np.exp(np.where(nowhere, 0.0, log_probs) - np.where(nowhere, 0.0, best)).T
    return scaled


def normalised_weights(models: Sequence[WeightedModel]) -> Float64s:
    """Return weights before the text, summing to 1 [M]."""
    weights: Float64s = np.array([model.weight for model in models], np.float64)
    weights /= weights.sum()
    # with zeros, an impossible word could leave no weight
    np.maximum(weights, 1e-100, out=weights)
    return weights


def weights_after(
    models: Sequence[WeightedModel],
    splits: Sequence[PrefixSplit],
    entries: Sequence[NextTokenEntry],
    text: str,
    before: str = "",
) -> Work[Any, Float64s]:
    """Return weights after a typed text without the beginning of its last word [M].

    The text before it may differ, as the models' tokens do: the weights are of the text up to the first
    beginning, times the probability of the rest up to each model's own.

    Args:
        models: two or more models.
        splits: text as split for each.
        entries: cached results of each for its part of the text; the evidence is added to them.
        text: the text.
        before: lines before it that the entries have read.
    """
    prior = normalised_weights(models)
    start = min(split.start for split in splits)
    first = max(start - _WINDOW_CHARS, 0)
    starts = word_starts(text[first:start])[-_WINDOW_WORDS:]
    if not len(starts):
        starts = np.array([start - first])
    # the last part is between the beginnings
    bounds = np.append(starts, start - first) - starts[0]
    log_probs = []
    for model, split, entry in zip(models, splits, entries, strict=True):
        evidence = entry.evidence
        if evidence is None or evidence.start != start:
            window = text[first + starts[0] : len(split.context)]
            evidence = Evidence(start, (yield from _log_probs(model.loaded, window, bounds)))
            model.loaded.next_token_cache.put(
                context_key(split.context, before), entry._replace(evidence=evidence)
            )
        log_probs.append(evidence.log_probs)
    scores = np.array(log_probs)
    weights: Float64s = (yield from weights_before(prior, scores[:, :-1]))[-1]
    weights *= _scaled(scores[:, -1:])[0]
    weights /= weights.sum()
    return weights


def _log_probs(loaded: TextModel, text: str, starts: Int64s) -> Work[Any, Float64s]:
    """Return the log-probability of each part of a text that begins at `starts` [N]."""
    sentence = loaded.checker.splitter.sentence(text)
    if not len(sentence.ids):
        return np.zeros(len(starts))
    scores = yield from score_sequence_list(loaded, [EncodedText(NO_TOKENS, sentence.ids)], bos=True)
    log_probs = sum_by_word(starts, sentence.begins, scores[0])
    return log_probs + (yield from sum_spellings(loaded.checker, sentence.words, starts))
