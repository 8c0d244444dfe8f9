"""Fitting a cache to a model on held-out text, whose state is carried across lines."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.cache import CacheModel
from models.caching import kernels
from models.caching.config import CacheConfig, CacheKind
from models.caching.history import History
from models.caching.reading import read
from models.caching.unit_vectors import padded_size, unit_vectors
from models.caching.weighing import Weighing
from models.errors import InvalidInputError
from models.protocol import Featured, FeaturedReading, LanguageModel, feature_size
from models.scoring import perplexity, read_sequences
from models.vocabulary import BOS
from training.corpora.encoded import EncodedCorpus
from training.evaluating.scoring import CHUNK_TOKENS, Targets, running_text
from training.mixture_weights import fit_weights
from training.progress import Progress

_FLATNESSES = (0.0, 6.0, 8.0, 11.0, 14.0, 18.0, 24.0, 32.0)
"""Values tried for θ: those of use hardly depend on the model, as cosines do not."""

_HALF_LIVES = (1 / 8, 1 / 4, 1 / 2)
"""Values tried for the half-life of what has features, as a share of the window."""

_UNIGRAM_HALF_LIVES = 1 / math.sqrt(2) ** np.arange(19, -1, -1)
"""The same where only age counts."""


class CacheGrid(NamedTuple):
    """Values that are tried together, each θ with each half-life.

    Attributes:
        flatnesses: values of θ [F].
        half_lives: in tokens [H]; None where nothing is forgotten.
    """

    flatnesses: tuple[float, ...]
    half_lives: tuple[float | None, ...]


class CacheReadings(NamedTuple):
    """What a model and caches of several shapes say of a text's predicted tokens.

    Attributes:
        targets: what the model says [N].
        shares: p_cache of each token under each value [N, F, H], float32; −1 where nothing was remembered.
        grid: the values.
        kind: of the caches.
        window: of the caches, in tokens.
    """

    targets: Targets
    shares: FloatArray
    grid: CacheGrid
    kind: CacheKind
    window: int

    def shares_of(self, config: CacheConfig) -> FloatArray:
        """p_cache of each token under one cache of the grid [N]."""
        row = self.grid.flatnesses.index(config.flatness)
        return self.shares[:, row, self.grid.half_lives.index(config.half_life)]


class ChosenCache(NamedTuple):
    """The cache that suits a model best.

    Attributes:
        config: its shape.
        log_probs: natural-log probabilities of the predicted tokens with it [N].
        grid: the values that were tried.
        perplexities: per token under each [F, H], with the weight that is best for it.
    """

    config: CacheConfig
    log_probs: npt.NDArray[np.float32]
    grid: CacheGrid
    perplexities: Sequence[Sequence[float | None]]


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
    grid, λ is found by EM for each pair.

    Args:
        model: any family.
        held_out: encoded with the model's tokenizer.
        window: how many tokens the cache remembers.
        progress: told of tokens.

    Raises:
        InvalidInputError: the text is too short to say anything of a cache, or the window out of range.
    """
    readings = read_with_caches(model, held_out, window=window, progress=progress)
    chosen = choose_cache(readings, readings.targets.log_probs)
    return FittedCache(CacheModel(model, chosen.config), chosen)


def read_with_caches(
    model: LanguageModel[Any],
    corpus: EncodedCorpus,
    *,
    window: int,
    grid: CacheGrid | None = None,
    progress: Progress,
) -> CacheReadings:
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
    grid = _grid(kind, window) if grid is None else grid
    weighing = Weighing.of(*grid, window=window)
    before, text = running_text(corpus)
    state = model.advance(model.empty_state(1), np.asarray([before]))
    history = History.nothing(window=window, width=padded_size(width))
    log_probs, shares = [], []
    progress.start(f"scoring with the {model.family} and a {kind} cache, stream context", corpus.num_tokens)
    for start in range(0, len(text), CHUNK_TOKENS):
        chunk = text[start : start + CHUNK_TOKENS]
        inner = _read(model, state, chunk)
        state = inner.state
        reading = read(history, chunk, unit_vectors(inner.features[0]), weighing=weighing)
        history = reading.history
        predicted = chunk != BOS
        log_probs.append(inner.log_probs[0, predicted])
        shares.append(reading.shares[predicted])
        progress.advance(int(predicted.sum()))
    progress.finish()
    if not log_probs:
        raise InvalidInputError("a cache cannot be fitted on no held-out token", parameter="valid")
    targets = Targets(np.concatenate(log_probs), text[text != BOS], None)
    return CacheReadings(targets, np.concatenate(shares), grid, kind, window)


def grid_of(config: CacheConfig) -> CacheGrid:
    """The grid of one cache alone."""
    return CacheGrid((config.flatness,), (config.half_life,))


def choose_cache(readings: CacheReadings, log_probs: npt.NDArray[np.float32]) -> ChosenCache:
    """The cache, and its weight, that make a text most probable when mixed with given log-probabilities.

    Args:
        readings: what the caches say.
        log_probs: what the model to be wrapped says of the same tokens [N]; the one that was read, or another.

    Raises:
        InvalidInputError: nothing is ever remembered: the text has a single token.
    """
    remembering = readings.shares[:, 0, 0] >= 0
    if not remembering.any():
        raise InvalidInputError("a cache cannot be fitted on a text of one token", parameter="valid")
    own = log_probs[remembering]
    best, best_total = None, -math.inf
    perplexities: list[list[float | None]] = []
    for flatness in readings.grid.flatnesses:
        perplexities.append([])
        for half_life in readings.grid.half_lives:
            config = CacheConfig(
                kind=readings.kind,
                window=readings.window,
                flatness=flatness,
                half_life=half_life,
                weight=0.5,
            )
            shares = readings.shares_of(config)
            with np.errstate(divide="ignore"):
                both = np.stack([own, np.log(shares[remembering])], axis=1)
            config = dataclasses.replace(config, weight=fit_weights(both)[1])
            cached = with_cache(log_probs, shares, config.weight)
            total = float(cached.sum(dtype=np.float64))
            perplexities[-1].append(perplexity(total, len(cached)))
            if best is None or total > best_total:
                best, best_total = ChosenCache(config, cached, readings.grid, perplexities), total
    if best is None:
        raise InvalidInputError("no value of θ was tried", parameter="grid")
    return best


def with_cache(
    log_probs: npt.NDArray[np.float32], shares: FloatArray, weight: float
) -> npt.NDArray[np.float32]:
    """Log-probabilities [N] mixed with a cache's shares [N]."""
    mixed = np.empty(len(log_probs), dtype=np.float32)
    kernels.mix_targets(np.ascontiguousarray(log_probs), np.ascontiguousarray(shares), weight, mixed)
    return mixed


def _read(model: LanguageModel[Any], state: Any, chunk: TokenIds) -> FeaturedReading:
    """One row of tokens [T]."""
    tokens, lengths = chunk[None], np.asarray([len(chunk)])
    if feature_size(model) and isinstance(model, Featured):
        return model.read_with_features(state, tokens, lengths)
    scored = read_sequences(model, state, tokens, lengths)
    return FeaturedReading(scored.log_probs, np.zeros((*tokens.shape, 0), dtype=np.float32), scored.state)


def _grid(kind: CacheKind, window: int) -> CacheGrid:
    """What to try, in rising order."""
    if kind == "unigram":
        return CacheGrid((0.0,), (*(window * _UNIGRAM_HALF_LIVES).tolist(), None))
    return CacheGrid(_FLATNESSES, (*(window * share for share in _HALF_LIVES), None))
