"""Fit a cache model (window, θ, half-life, λ, prior) on held-out text, read as one stream."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.cache import kernels
from models.cache.config import CacheConfig, CacheKind
from models.cache.history import History
from models.cache.kernels import SimilarityDecay, padded_width, to_unit_vectors
from models.cache.model import CacheModel, score_with_history
from models.errors import InvalidInputError
from models.language_model import (
    FeatureExtractor,
    LanguageModel,
    ReadWithFeatures,
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
"""Values tried for θ: those of use hardly depend on the model, as cosines do not."""

_HALF_LIVES = (1 / 8, 1 / 4, 1 / 2)
"""Values tried for the half-life of what has features, as a share of the window."""

_UNIGRAM_HALF_LIVES = 1 / math.sqrt(2) ** np.arange(19, -1, -1)
"""The same where only age counts."""

_PRIORS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Values tried for μ, as shares of what is mostly remembered."""

_FIRST_PRIOR = 0.03
"""With which θ and the half-life are chosen."""


class CacheGrid(NamedTuple):
    """Values that are tried together, each θ with each half-life.

    Attributes:
        flatnesses: values of θ [F].
        half_lives: in tokens [H]; None where nothing is forgotten.
    """

    flatnesses: tuple[float, ...]
    half_lives: tuple[float | None, ...]


class CacheScores(NamedTuple):
    """What a cache says of N tokens; see `models.cache.kernels.cache_shares`.

    Attributes:
        shares: [N], float32.
        evidence: [N], float32.
    """

    shares: FloatArray
    evidence: FloatArray


class CacheGridScores(NamedTuple):
    """What a model and caches of several shapes say of a text's predicted tokens.

    Attributes:
        targets: what the model says [N].
        shares: each token's part of all that was remembered, under each value [N, F, H], float32.
        evidence: how much that was [N, F, H], float32; 0 where it was nothing.
        grid: the values.
        kind: of the caches.
        window: of the caches, in tokens.
    """

    targets: CorpusScores
    shares: FloatArray
    evidence: FloatArray
    grid: CacheGrid
    kind: CacheKind
    window: int

    def of(self, config: CacheConfig) -> CacheScores:
        """What one cache of the grid says."""
        row, column = (
            self.grid.flatnesses.index(config.flatness),
            self.grid.half_lives.index(config.half_life),
        )
        return CacheScores(
            np.ascontiguousarray(self.shares[:, row, column]),
            np.ascontiguousarray(self.evidence[:, row, column]),
        )


class ChosenCache(NamedTuple):
    """The cache that suits a model best.

    Attributes:
        config: its shape.
        log_probs: natural-log probabilities of the predicted tokens with it [N].
        grid: the values that were tried.
        perplexities: per token under each [F, H], with the weight that is best for it.
        priors: the values of μ that were tried with the best of these, each with the perplexity.
    """

    config: CacheConfig
    log_probs: npt.NDArray[np.float32]
    grid: CacheGrid
    perplexities: Sequence[Sequence[float | None]]
    priors: Sequence[tuple[float, float | None]]


class FittedCache(NamedTuple):
    """A model with the cache that suits it best.

    Attributes:
        model: the model, wrapped.
        chosen: the cache, and what was tried.
    """

    model: CacheModel
    chosen: ChosenCache


def fit_cache(
    model: LanguageModel[Any], held_out: EncodedCorpus, *, window: int, progress: Progress
) -> FittedCache:
    """Wrap a model in the cache that makes a held-out text most probable, read as one stream.

    The cache is continuous where the model has features, else unigram. θ and the half-life are chosen from a
    grid, then μ, and λ is found by EM for each.

    Args:
        model: any family.
        held_out: encoded with the model's tokenizer.
        window: how many tokens the cache remembers.
        progress: told of tokens.

    Raises:
        InvalidInputError: the text is too short to say anything of a cache, or the window out of range.
    """
    readings = score_with_caches(model, held_out, window=window, progress=progress)
    chosen = choose_cache(readings, readings.targets.log_probs)
    return FittedCache(CacheModel(model, chosen.config), chosen)


def score_with_caches(
    model: LanguageModel[Any],
    corpus: EncodedCorpus,
    *,
    window: int,
    grid: CacheGrid | None = None,
    progress: Progress,
) -> CacheGridScores:
    """Read a text in one pass, as a stream, with the model and with caches that look at its features.

    Args:
        model: any family.
        corpus: encoded with the model's tokenizer.
        window: how many tokens a cache remembers.
        grid: the caches; None: those among which one is to be chosen.
        progress: told of tokens.

    Raises:
        InvalidInputError: the window is out of range, or there is no token to predict.
    """
    width = feature_size(model)
    kind: CacheKind = "continuous" if width else "unigram"
    CacheConfig(kind=kind, window=window, half_life=None, weight=0.5)  # refused before the text is read
    grid = _search_grid(kind, window) if grid is None else grid
    weighing = SimilarityDecay.of(*grid, window=window)
    before, text = running_text(corpus)
    state = model.advance(model.empty_state(1), np.asarray([before]))
    history = History.empty(window=window, width=padded_width(width))
    log_probs, shares, evidence = [], [], []
    progress.start(f"scoring with the {model.family} and a {kind} cache, stream context", corpus.num_tokens)
    for start in range(0, len(text), CHUNK_TOKENS):
        chunk = text[start : start + CHUNK_TOKENS]
        inner = _read_chunk(model, state, chunk)
        state = inner.state
        reading = score_with_history(history, chunk, to_unit_vectors(inner.features[0]), decay=weighing)
        history = reading.history
        predicted = chunk != BOS
        log_probs.append(inner.log_probs[0, predicted])
        shares.append(reading.shares[predicted])
        evidence.append(reading.evidence[predicted])
        progress.advance(int(predicted.sum()))
    progress.finish()
    if not log_probs:
        raise InvalidInputError("a cache cannot be fitted on no held-out token", parameter="valid")
    targets = CorpusScores(np.concatenate(log_probs), text[text != BOS], None)
    return CacheGridScores(targets, np.concatenate(shares), np.concatenate(evidence), grid, kind, window)


def grid_of(config: CacheConfig) -> CacheGrid:
    """The grid of one cache alone."""
    return CacheGrid((config.flatness,), (config.half_life,))


def choose_cache(readings: CacheGridScores, log_probs: npt.NDArray[np.float32]) -> ChosenCache:
    """The cache, and its weight, that make a text most probable when mixed with given log-probabilities.

    Args:
        readings: what the caches say.
        log_probs: what the model to be wrapped says of the same tokens [N]; the one that was read, or another.

    Raises:
        InvalidInputError: nothing is ever remembered: the text has a single token.
    """
    if not (readings.evidence[:, 0, 0] > 0).any():
        raise InvalidInputError("a cache cannot be fitted on a text of one token", parameter="valid")
    grid = readings.grid
    tried = [
        [_try_cache(readings, log_probs, flatness, half_life, _FIRST_PRIOR) for half_life in grid.half_lives]
        for flatness in grid.flatnesses
    ]
    best = max((one for row in tried for one in row), key=lambda one: one.total)
    flatness, half_life = best.config.flatness, best.config.half_life
    others = [_try_cache(readings, log_probs, flatness, half_life, share) for share in _PRIORS]
    best = max([best, *others], key=lambda one: one.total)
    perplexities = [[perplexity(one.total, len(log_probs)) for one in row] for row in tried]
    priors = [(one.config.prior, perplexity(one.total, len(log_probs))) for one in others]
    return ChosenCache(best.config, best.log_probs, grid, perplexities, priors)


def mix_with_cache(
    log_probs: npt.NDArray[np.float32], remembered: CacheScores, config: CacheConfig
) -> npt.NDArray[np.float32]:
    """Log-probabilities [N] mixed with what a cache says."""
    mixed = np.empty(len(log_probs), dtype=np.float32)
    kernels.mix_targets(np.ascontiguousarray(log_probs), *remembered, config.weight, config.prior, mixed)
    return mixed


class _Trial(NamedTuple):
    """A cache, what it makes of a text, and the sum of that."""

    config: CacheConfig
    log_probs: npt.NDArray[np.float32]
    total: float


def _try_cache(
    readings: CacheGridScores,
    log_probs: npt.NDArray[np.float32],
    flatness: float,
    half_life: float | None,
    prior_share: float,
) -> _Trial:
    """A cache with the weight that suits it best, and with so much of a prior as is mostly remembered."""
    config = CacheConfig(
        kind=readings.kind, window=readings.window, flatness=flatness, half_life=half_life, weight=0.5
    )
    remembered = readings.of(config)
    known = remembered.evidence > 0
    own, shares, evidence = (values[known].astype(np.float64) for values in (log_probs, *remembered))
    prior = prior_share * float(np.median(evidence)) if len(evidence) else 0.0
    trust = evidence / (evidence + prior)
    with np.errstate(divide="ignore"):
        both = np.stack([own, np.log(trust * shares + (1 - trust) * np.exp(own))], axis=1)
    config = dataclasses.replace(config, weight=fit_weights(both)[1], prior=prior)
    cached = mix_with_cache(log_probs, remembered, config)
    return _Trial(config, cached, float(cached.sum(dtype=np.float64)))


def _read_chunk(model: LanguageModel[Any], state: Any, chunk: TokenIds) -> ReadWithFeatures:
    """One row of tokens [T]."""
    tokens, lengths = chunk[None], np.asarray([len(chunk)])
    if feature_size(model) and isinstance(model, FeatureExtractor):
        return model.read_with_features(state, tokens, lengths)
    scored = read_sequences(model, state, tokens, lengths)
    return ReadWithFeatures(scored.log_probs, np.zeros((*tokens.shape, 0), dtype=np.float32), scored.state)


def _search_grid(kind: CacheKind, window: int) -> CacheGrid:
    """What to try, in rising order."""
    if kind == "unigram":
        return CacheGrid((0.0,), (*(window * _UNIGRAM_HALF_LIVES).tolist(), None))
    return CacheGrid(_FLATNESSES, (*(window * share for share in _HALF_LIVES), None))
