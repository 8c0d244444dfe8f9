"""Fitting a cache to a model on held-out text, whose state is carried across lines."""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.cache import CacheModel
from models.caching import kernels
from models.caching.config import CacheConfig, CacheKind
from models.caching.history import History
from models.caching.reading import read
from models.errors import InvalidInputError
from models.protocol import Featured, LanguageModel, feature_size
from models.scoring import consume, perplexity, score_sequences
from models.vocabulary import BOS
from training.corpora.encoded import EncodedCorpus
from training.evaluating.scoring import CHUNK_TOKENS, Targets, running_text
from training.mixture_weights import fit_weights
from training.progress import Progress

_LIKENESS = 0.5 * math.sqrt(2) ** np.arange(16)
"""Values tried for θ times the mean product of a feature vector with itself, which says what θ is large."""

_HALF_LIVES = 1 / math.sqrt(2) ** np.arange(20)
"""Values tried for how long it takes to forget half, as a share of the window."""


class CacheReadings(NamedTuple):
    """What a model and caches of several shapes say of a text's predicted tokens.

    Attributes:
        targets: what the model says [N].
        shares: p_cache of each token under each value of θ [N, K]; −1 where nothing was remembered.
        flatnesses: the values of θ [K].
        kind: of the caches.
        window: of the caches, in tokens.
    """

    targets: Targets
    shares: npt.NDArray[np.float64]
    flatnesses: npt.NDArray[np.float64]
    kind: CacheKind
    window: int


class ChosenCache(NamedTuple):
    """The cache that suits a model best.

    Attributes:
        config: its shape.
        log_probs: natural-log probabilities of the predicted tokens with it [N].
        tried: perplexity per token under each θ that was tried, with the weight that is best for it.
    """

    config: CacheConfig
    log_probs: npt.NDArray[np.float32]
    tried: dict[float, float | None]


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

    The cache is continuous where the model has features, else unigram. θ is chosen from a grid, λ is found
    by EM for each.

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
    flatnesses: npt.NDArray[np.float64] | None = None,
    progress: Progress,
) -> CacheReadings:
    """Read a text in one pass, as a stream, with the model and with caches that look at its features.

    Args:
        model: any family.
        corpus: encoded with the model's tokenizer.
        window: how many tokens a cache remembers.
        flatnesses: values of θ [K]; None: a grid, of the scale of the text's first features.
        progress: told of tokens.

    Raises:
        InvalidInputError: the window is out of range.
    """
    width = feature_size(model)
    kind: CacheKind = "continuous" if width else "unigram"
    CacheConfig(kind=kind, window=window, flatness=0.0, weight=0.5)  # refused before the text is read
    before, text = running_text(corpus)
    state = model.advance(model.empty_state(1), np.asarray([before]))
    history = History.nothing(window=window, width=width)
    log_probs, shares = [], []
    progress.start(f"scoring with the {model.family} and a {kind} cache, stream context", corpus.num_tokens)
    for start in range(0, len(text), CHUNK_TOKENS):
        chunk = text[start : start + CHUNK_TOKENS]
        scores, features = _scored(model, state, chunk)
        if flatnesses is None:
            flatnesses = _grid(features, window)
        reading = read(history, chunk, features, flatnesses=flatnesses)
        history = reading.history
        state = consume(model, state, chunk[None], np.asarray([len(chunk)]))
        predicted = chunk != BOS
        log_probs.append(scores[predicted])
        shares.append(reading.shares[predicted])
        progress.advance(int(predicted.sum()))
    progress.finish()
    if flatnesses is None or not log_probs:
        raise InvalidInputError("a cache cannot be fitted on no held-out token", parameter="valid")
    targets = Targets(np.concatenate(log_probs), text[text != BOS], None)
    return CacheReadings(targets, np.concatenate(shares), flatnesses, kind, window)


def choose_cache(readings: CacheReadings, log_probs: npt.NDArray[np.float32]) -> ChosenCache:
    """The θ that makes the text most probable when mixed, with the best weight for it, with given log-probabilities.

    Args:
        readings: what the caches say.
        log_probs: what the model to be wrapped says of the same tokens [N]; the one that was read, or another.

    Raises:
        InvalidInputError: nothing is ever remembered: the text has a single token.
    """
    remembering = readings.shares[:, 0] >= 0
    if not remembering.any():
        raise InvalidInputError("a cache cannot be fitted on a text of one token", parameter="valid")
    best: ChosenCache | None = None
    tried: dict[float, float | None] = {}
    best_total = -math.inf
    for flatness, shares in zip(readings.flatnesses.tolist(), readings.shares.T, strict=True):
        with np.errstate(divide="ignore"):
            both = np.stack([log_probs[remembering], np.log(shares[remembering])], axis=1)
        config = CacheConfig(
            kind=readings.kind, window=readings.window, flatness=flatness, weight=fit_weights(both)[1]
        )
        cached = with_cache(log_probs, shares, config.weight)
        total = float(cached.sum(dtype=np.float64))
        tried[flatness] = perplexity(total, len(cached))
        if best is None or total > best_total:
            best, best_total = ChosenCache(config, cached, tried), total
    if best is None:
        raise InvalidInputError("no value of θ was tried", parameter="flatnesses")
    return best


def with_cache(
    log_probs: npt.NDArray[np.float32], shares: npt.NDArray[np.float64], weight: float
) -> npt.NDArray[np.float32]:
    """Log-probabilities [N] mixed with a cache's shares [N]."""
    mixed = np.empty(len(log_probs), dtype=np.float32)
    kernels.mix_targets(np.ascontiguousarray(log_probs), np.ascontiguousarray(shares), weight, mixed)
    return mixed


def _scored(model: LanguageModel[Any], state: Any, chunk: TokenIds) -> tuple[FloatArray, FloatArray]:
    """Log-probabilities [T] and features [T, W] of one row of tokens [T]."""
    tokens, lengths = chunk[None], np.asarray([len(chunk)])
    if feature_size(model) and isinstance(model, Featured):
        scored = model.score_with_features(state, tokens, lengths)
        return scored.log_probs[0], scored.features[0]
    return score_sequences(model, state, tokens, lengths)[0], np.zeros((len(chunk), 0), dtype=np.float32)


def _grid(features: FloatArray, window: int) -> npt.NDArray[np.float64]:
    """Values of θ to try, in rising order: of a continuous cache by its features [T, W], else by the window."""
    if not features.shape[1]:
        return np.concatenate([[0.0], math.log(2) / (window * _HALF_LIVES)])
    norm = float(np.square(features, dtype=np.float64).sum(axis=1).mean())
    return np.concatenate([[0.0], _LIKENESS / max(norm, 1e-12)])
