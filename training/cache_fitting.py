"""Fit a cache model (window, θ, half-life, λ, prior) on held-out text, read as one stream."""

import dataclasses
import math
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray
from models.cache import kernels
from models.cache.config import CacheConfig, CacheKind
from models.cache.history import History
from models.cache.kernels import SimilarityDecay, padded_width, to_unit_vectors
from models.cache.model import score_with_history
from models.errors import InvalidInputError
from models.language_model import (
    LanguageModel,
    Want,
    feature_size,
    perplexity,
    read_sequences,
)
from models.vocabulary import BOS
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import CHUNK_TOKENS, CorpusScores, running_text
from training.mixture_weights import fit_weights
from training.progress import Progress

_FLATNESSES = (0.0, 6.0, 8.0, 11.0, 14.0, 18.0, 24.0, 32.0)
"""Candidate values of θ; the useful range hardly depends on the model, because features are compared by cosine."""

_HALF_LIVES = (1 / 8, 1 / 4, 1 / 2)
"""Candidate half-lives of a continuous cache, as shares of the window."""

_UNIGRAM_HALF_LIVES = 1 / math.sqrt(2) ** np.arange(19, -1, -1)
"""Candidate half-lives of a unigram cache, as shares of the window."""

_PRIORS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Candidate values of μ, as shares of the median evidence."""

_FIRST_PRIOR = 0.03
"""Share of μ used to choose θ and the half-life."""


class CacheGrid(NamedTuple):
    """Grid of cache shapes: every θ with every half-life.

    Attributes:
        flatnesses: values of θ [F].
        half_lives: half-lives in tokens [H]; None for no decay.
    """

    flatnesses: tuple[float, ...]
    half_lives: tuple[float | None, ...]


class CacheGridScores(NamedTuple):
    """Scores of a text's predicted tokens by a model and by a grid of caches.

    Attributes:
        targets: the model's scores [N].
        shares: share of each token in the cache's total weight, by grid value [N, F, H], float32.
        evidence: total weight of the cache [N, F, H], float32; 0 for an empty cache.
        grid: the values of θ and the half-life.
        kind: kind of the caches.
        window: window of the caches, in tokens.
    """

    targets: CorpusScores
    shares: FloatArray
    evidence: FloatArray
    grid: CacheGrid
    kind: CacheKind
    window: int

    def of(self, config: CacheConfig) -> tuple[FloatArray, FloatArray]:
        """Return the shares and the evidence [N each] of one cache of the grid."""
        row = self.grid.flatnesses.index(config.flatness)
        column = self.grid.half_lives.index(config.half_life)
        shares, evidence = (scores[:, row, column] for scores in (self.shares, self.evidence))
        return np.ascontiguousarray(shares), np.ascontiguousarray(evidence)


class ChosenCache(NamedTuple):
    """The best cache for a model, with the results of all candidates.

    Attributes:
        config: parameters of the cache.
        log_probs: natural-log probabilities of the predicted tokens, mixed with the cache [N].
        tried: for metrics.json: the half-lives, and the perplexities per token at the best weight by θ and
            half-life, and by μ at the best θ and half-life.
    """

    config: CacheConfig
    log_probs: npt.NDArray[np.float32]
    tried: Mapping[str, Any]


def score_with_caches(
    model: LanguageModel[Any],
    corpus: EncodedCorpus,
    *,
    window: int,
    grid: CacheGrid | None = None,
    progress: Progress,
) -> CacheGridScores:
    """Score a text in one pass, as a stream, with a model and with caches over its features.

    Args:
        model: model of any family.
        corpus: text encoded with the model's tokenizer.
        window: number of tokens in each cache.
        grid: cache shapes; None for the default search grid.
        progress: counts tokens.

    Raises:
        InvalidInputError: the window is out of range, or there is no token to predict.
    """
    width = feature_size(model)
    want = Want(scores=True, state=True, features=width > 0)
    kind: CacheKind = "continuous" if width else "unigram"
    CacheConfig(kind=kind, window=window, half_life=None, weight=0.5)  # validates the window before reading
    if grid is None and width:
        grid = CacheGrid(_FLATNESSES, (*(window * share for share in _HALF_LIVES), None))
    elif grid is None:
        grid = CacheGrid((0.0,), (*(window * _UNIGRAM_HALF_LIVES).tolist(), None))
    decay = SimilarityDecay.of(*grid, window=window)
    text = running_text(corpus)
    state = model.advance(model.empty_state(1), np.array([BOS]))
    history = History.empty(window=window, width=padded_width(width))
    log_probs, shares, evidence = [], [], []
    progress.start(f"scoring with the {model.family} and a {kind} cache, stream context", corpus.num_tokens)
    for start in range(0, len(text), CHUNK_TOKENS):
        chunk = text[start : start + CHUNK_TOKENS]
        inner = read_sequences(model, state, chunk[None], np.asarray([len(chunk)]), want)
        state = inner.state
        features = inner.features[0] if width else np.zeros((len(chunk), 0), np.float32)
        reading = score_with_history(history, chunk, to_unit_vectors(features), decay=decay)
        history = reading.history
        predicted = chunk != BOS  # [T]
        log_probs.append(inner.log_probs[0, predicted])
        shares.append(reading.shares[predicted])
        evidence.append(reading.evidence[predicted])
        progress.advance(int(predicted.sum()))
    progress.finish()
    if not log_probs:
        raise InvalidInputError("the held-out text has no token to fit a cache on", parameter="valid")
    targets = CorpusScores(np.concatenate(log_probs), text[text != BOS], None)
    return CacheGridScores(targets, np.concatenate(shares), np.concatenate(evidence), grid, kind, window)


def grid_of(config: CacheConfig) -> CacheGrid:
    """Return the grid of a single cache."""
    return CacheGrid((config.flatness,), (config.half_life,))


def choose_cache(readings: CacheGridScores, log_probs: npt.NDArray[np.float32]) -> ChosenCache:
    """Choose the cache and weight that maximise a text's likelihood when mixed with given log-probabilities.

    θ and the half-life are chosen from a grid, then μ; EM fits λ for each candidate.

    Args:
        readings: scores of the caches.
        log_probs: log-probabilities of the tokens by the wrapped model, which may differ from the scored one [N].

    Raises:
        InvalidInputError: the text has a single token, so the cache is always empty.
    """
    if not (readings.evidence[:, 0, 0] > 0).any():
        raise InvalidInputError("the held-out text has one token; a cache needs two", parameter="valid")
    grid, count = readings.grid, len(log_probs)
    rows = [
        [_try_cache(readings, log_probs, flatness, half_life, _FIRST_PRIOR) for half_life in grid.half_lives]
        for flatness in grid.flatnesses
    ]
    best = max((trial for row in rows for trial in row), key=itemgetter(2))
    flatness, half_life = best[0].flatness, best[0].half_life
    prior_trials = [_try_cache(readings, log_probs, flatness, half_life, share) for share in _PRIORS]
    config, cached, _ = max([best, *prior_trials], key=itemgetter(2))
    tried = {
        "half_lives": list(grid.half_lives),
        "perplexities_by_flatness": {
            f"{flatness:g}": [perplexity(total, count) for _, _, total in row]
            for flatness, row in zip(grid.flatnesses, rows, strict=True)
        },
        "perplexities_by_prior": {
            f"{tried_config.prior:g}": perplexity(total, count) for tried_config, _, total in prior_trials
        },
    }
    return ChosenCache(config, cached, tried)


def mix_with_cache(
    log_probs: npt.NDArray[np.float32], readings: CacheGridScores, config: CacheConfig
) -> npt.NDArray[np.float32]:
    """Mix log-probabilities [N] with the scores of a cache of the grid."""
    mixed = np.empty(len(log_probs), dtype=np.float32)
    own = np.ascontiguousarray(log_probs)
    kernels.mix_targets(own, *readings.of(config), config.weight, config.prior, mixed)
    return mixed


def _try_cache(
    readings: CacheGridScores,
    log_probs: npt.NDArray[np.float32],
    flatness: float,
    half_life: float | None,
    prior_share: float,
) -> tuple[CacheConfig, npt.NDArray[np.float32], float]:
    """Fit a cache's weight by EM; its prior is `prior_share` times the median evidence.

    Returns:
        The cache, the log-probabilities of the text with it [N], and their sum.
    """
    config = CacheConfig(
        kind=readings.kind, window=readings.window, flatness=flatness, half_life=half_life, weight=0.5
    )
    remembered = readings.of(config)
    known = remembered[1] > 0
    own, shares, evidence = (values[known].astype(np.float64) for values in (log_probs, *remembered))
    prior = prior_share * float(np.median(evidence)) if len(evidence) else 0.0
    trust = evidence / (evidence + prior)
    with np.errstate(divide="ignore"):
        both = np.stack([own, np.log(trust * shares + (1 - trust) * np.exp(own))], axis=1)
    config = dataclasses.replace(config, weight=fit_weights(both)[1], prior=prior)
    cached = mix_with_cache(log_probs, readings, config)
    return config, cached, float(cached.sum(dtype=np.float64))
