"""Fit mixture weights, and a cache (θ, half-life, λ, prior; dynamic marginals, gate), on held-out text.

Weights are fitted by expectation maximisation; a cache is fitted to the text read as one stream.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import Float32s, Float64s, FloatArray, Int32s, Int64s, to_numpy
from models.cache.config import CacheConfig, CacheKind, MarginalsConfig
from models.cache.kernels import DynamicMarginals, SimilarityDecay, padded_width, to_unit_vectors
from models.cache.model import CacheModel, CacheScores, History, score_with_history
from models.errors import InputError
from models.language_model import BOS, LanguageModel, Want, feature_size
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import CorpusScores, chunks, read_stream, running_text
from training.progress import Progress

_MIN_WEIGHT = 1e-6
_PRIOR_TOKENS = 20.0
_MAX_ITERATIONS = 200
_TOLERANCE = 1e-7  # EM stops at smaller changes of all weights

_FLATNESSES = (0.0, 6.0, 8.0, 11.0, 14.0, 18.0, 24.0, 32.0)
"""Candidate values of θ.

The useful range hardly depends on the model: features are compared by cosine.
"""

_HALF_LIVES = (1 / 8, 1 / 4, 1 / 2)
"""Candidate half-lives of a continuous cache, as shares of the window."""

_UNIGRAM_HALF_LIVES = tuple(2 ** (-n / 2) for n in range(19, -1, -1))
"""Candidate half-lives of a unigram cache, as shares of the window."""

_PRIORS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Candidate values of μ, as shares of the median evidence."""

_FIRST_PRIOR = 0.03
"""μ while θ and the half-life are chosen, as a share of the median evidence."""

_MARGINALS = {
    "half_life": (0.05, 0.1, 0.15, 0.25, 0.5),  # as shares of the window
    "exponent": (0.4, 0.75, 1.0, 1.4, 1.8, 2.0),
    "prior": (0.0, 0.75, 1.5, 2.5, 3.5, 5.0, 7.0),
    "floor": (0.05, 0.1, 0.15, 0.25, 0.4, 0.7, 1.0),
}
"""Candidates of dynamic marginals; higher exponents made single texts much less likely."""

_FIRST_MARGINALS = {"half_life": 0.15, "exponent": 1.4, "prior": 3.5, "floor": 0.25}
_MARGINALS_TOKENS = 30_000  # first tokens of the text, to fit dynamic marginals
# distributions among these, and their probabilities
_MAX_SAMPLES, _MAX_SAMPLE_ENTRIES = 3_000, 1 << 25
_MAX_GATE_STEPS, _GATE_TOLERANCE = 100, 1e-4


def fit_weights(log_probs: npt.NDArray[np.floating[Any]]) -> Float64s:
    """Fit global mixture weights.

    λ_i ← mean over tokens of λ_i p_i / Σ_j λ_j p_j (Jelinek and Mercer 1980).
    The log-likelihood is concave in λ, so all starts give one result.

    Args:
        log_probs: natural-log probabilities of N held-out tokens under M models [N, M].

    Returns:
        Positive weights that sum to 1 [M].

    Raises:
        InputError: no held-out token.
    """
    if log_probs.shape[0] == 0:
        raise InputError("the held-out text has no token to fit mixture weights on", param="valid")
    num_models = log_probs.shape[1]
    fitted = _run_em(log_probs, np.full(num_models, 1.0 / num_models), np.zeros(num_models))
    weights = np.maximum(fitted, _MIN_WEIGHT)  # every part keeps a positive weight
    return np.asarray(weights / weights.sum())


def fit_weights_by_context(
    log_probs: npt.NDArray[np.floating[Any]],
    lengths: npt.NDArray[np.integer[Any]],
    *,
    num_lengths: int,
    weights: Float64s,
) -> Float64s:
    """Fit weights by context length; on the held-out tokens they are never worse than global ones.

    Global weights act as a prior of some tokens: rare lengths
    have weights close to them, and lengths without tokens get them.

    Args:
        log_probs: natural-log probabilities of N held-out tokens under M models [N, M].
        lengths: context length of each token [N].
        num_lengths: C; all lengths are below C.
        weights: global weights [M], from `fit_weights`.

    Returns:
        Positive weights that sum to 1 for each length [C, M].
    """
    prior, numbers = _PRIOR_TOKENS * weights, range(num_lengths)
    rows = np.stack([_run_em(log_probs[lengths == length], weights, prior) for length in numbers])
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


def _run_em(log_probs: npt.NDArray[np.floating[Any]], weights: Float64s, prior: Float64s) -> Float64s:
    """Fit weights [M] by EM from initial weights; `prior` [M] is a number of pseudo-tokens per part."""
    peak = log_probs.max(axis=1, keepdims=True, initial=-np.inf)
    # scaled per token [N, M]
    p = np.exp(log_probs - np.where(np.isfinite(peak), peak, 0.0), dtype=np.float64)
    p = p[p.sum(axis=1) > 0]  # drop tokens that are impossible under all models
    if len(p) + prior.sum() == 0:
        return weights
    for _ in range(_MAX_ITERATIONS):
        joint = p * weights  # [N, M]
        updated = ((joint / joint.sum(axis=1, keepdims=True)).sum(axis=0) + prior) / (len(p) + prior.sum())
        change = float(np.abs(updated - weights).max())
        weights = updated
        if change < _TOLERANCE:
            break
    return weights


class CacheGridScores(NamedTuple):
    """Scores of a text's predicted tokens by a model and a grid of caches, all θ with all half-lives.

    Attributes:
        targets: the model's scores [N].
        shares: each token's share of the cache's weight, by grid value [N, F, H], float32.
        evidence: total weight of the cache [N, F, H], float32; 0 for an empty cache.
        flatnesses: values of θ [F].
        half_lives: half-lives in tokens [H]; None for no decay.
        kind: kind of the caches.
        window: window of the caches, in tokens.
    """

    targets: CorpusScores
    shares: FloatArray
    evidence: FloatArray
    flatnesses: tuple[float, ...]
    half_lives: tuple[float | None, ...]
    kind: CacheKind
    window: int

    def of(self, config: CacheConfig) -> tuple[FloatArray, FloatArray]:
        """Return shares and evidence [N each] of one cache of the grid."""
        row = self.flatnesses.index(config.flatness)
        column = self.half_lives.index(config.half_life)
        shares, evidence = (scores[:, row, column] for scores in (self.shares, self.evidence))
        return np.ascontiguousarray(shares), np.ascontiguousarray(evidence)


class ChosenCache(NamedTuple):
    """The best cache for a model.

    Attributes:
        config: parameters of the cache.
        log_probs: natural-log probabilities of the tokens, mixed with the cache [N].
        frequencies: expected token frequencies for dynamic marginals [V]; None without them.
    """

    config: CacheConfig
    log_probs: Float32s
    frequencies: FloatArray | None = None

    def total(self) -> float:
        """Return the log-probability of the text."""
        return float(self.log_probs.sum(dtype=np.float64))


def score_with_caches(
    model: LanguageModel[Any], corpus: EncodedCorpus, *, window: int, progress: Progress
) -> CacheGridScores:
    """Score a stream in one pass by a model and a grid of caches of `window` tokens over its features.

    Raises:
        InputError: no token to predict.
    """
    width = feature_size(model)
    featured: Any = model
    kind: CacheKind = "continuous" if width else "unigram"
    flatnesses, half_lives = (_FLATNESSES, _HALF_LIVES) if width else ((0.0,), _UNIGRAM_HALF_LIVES)
    grid = flatnesses, (*(window * share for share in half_lives), None)
    decay = SimilarityDecay.of(*grid, window=window)
    text = running_text(corpus)
    history = History.empty(window=window, width=padded_width(width))
    parts, want = [], Want(scores=True, features=width > 0)
    title = f"scoring with the {model.family} and a {kind} cache, stream context"
    with progress.stage(title, corpus.num_tokens):
        for chunk, inner in read_stream(model, text, want, progress=progress):
            features = (
                to_numpy(featured.features(inner.before)) if width else np.zeros((len(chunk), 0), np.float32)
            )
            shares, evidence, _, history = score_with_history(
                history, chunk, to_unit_vectors(features), decay=decay
            )
            predicted = chunk != BOS  # [T]
            parts.append((inner.log_probs[0, predicted], shares[predicted], evidence[predicted]))
    if not parts:
        raise InputError("the held-out text has no token to fit a cache on", param="valid")
    log_probs, every_share, all_evidence = map(np.concatenate, zip(*parts, strict=True))
    targets = CorpusScores(log_probs, text[text != BOS], None)
    return CacheGridScores(targets, every_share, all_evidence, *grid, kind, window)


def choose_cache(readings: CacheGridScores, log_probs: Float32s) -> ChosenCache:
    """Choose cache and weight that maximise a text's likelihood, mixed with given log-probabilities.

    θ and the half-life are chosen from a grid, then μ; EM fits λ for each candidate.

    Args:
        readings: scores of the caches.
        log_probs: log-probabilities of the tokens by the wrapped model, which may differ from the scored one [N].

    Raises:
        InputError: the text has one token, so the cache is always empty.
    """
    if not (readings.evidence[:, 0, 0] > 0).any():
        raise InputError("the held-out text has one token; a cache needs two", param="valid")

    def fit(flatness: float, half_life: float | None, prior_share: float) -> ChosenCache:
        """Fit λ of a cache whose prior is `prior_share` times the median evidence."""
        config = CacheConfig(
            kind=readings.kind, window=readings.window, flatness=flatness, half_life=half_life, weight=0.5
        )
        shares, evidence = readings.of(config)
        positive = evidence[evidence > 0].astype(np.float64)
        prior = prior_share * float(np.median(positive)) if len(positive) else 0.0
        config = dataclasses.replace(config, prior=prior)
        return _fit_cache_weight(config, log_probs, shares, evidence)

    grid = itertools.product(readings.flatnesses, readings.half_lives, [_FIRST_PRIOR])
    best = max(itertools.starmap(fit, grid), key=ChosenCache.total)
    priors = (fit(best.config.flatness, best.config.half_life, share) for share in _PRIORS)
    return max([best, *priors], key=ChosenCache.total)


def adapt_cache(
    chosen: ChosenCache,
    model: LanguageModel[Any],
    readings: CacheGridScores,
    corpus: EncodedCorpus,
    *,
    progress: Progress,
) -> ChosenCache:
    """Add dynamic marginals and a gate to a chosen cache if they make the text more likely.

    Coordinate search chooses marginals on a sample of the text's first tokens. Then, on the
    entire text, θ and half-life are chosen again for the adapted model, and the gate is fitted.
    """
    window = chosen.config.window
    tokens, numbers, log_probs = _sample_distributions(model, corpus, progress)
    rows, targets = np.arange(len(numbers)), tokens[numbers]
    shares, evidence = (part[numbers] for part in readings.of(chosen.config))
    frequencies = np.exp(log_probs).mean(axis=0)

    def marginals_of(values: Mapping[str, float]) -> MarginalsConfig:
        return MarginalsConfig(**{**values, "half_life": max(1.0, values["half_life"] * window)})

    def total(values: Mapping[str, float]) -> float:
        marginals = DynamicMarginals(marginals_of(values), frequencies, window=window)
        own = marginals.adapt(log_probs, tokens, numbers)[rows, targets]
        return _fit_cache_weight(chosen.config, own, shares, evidence).total()

    values = dict(_FIRST_MARGINALS)
    for name, candidates in [*_MARGINALS.items()] * 2:
        totals = {value: total({**values, name: value}) for value in candidates}
        values[name] = max(totals, key=totals.__getitem__)
    config = dataclasses.replace(chosen.config, marginals=marginals_of(values), gate=(0.0, 0.0, 0.0))
    scores = _score_with_cache(CacheModel(model, config, frequencies), corpus, progress=progress)
    again = choose_cache(readings, scores.log_probs).config
    if (again.flatness, again.half_life) != (config.flatness, config.half_life):
        # distributions stay: read without marginals, which need every probability
        changed = dataclasses.replace(again, gate=config.gate)
        cached = _score_with_cache(CacheModel(model, changed), corpus, progress=progress)
        scores, config = cached._replace(log_probs=scores.log_probs), changed
    config = dataclasses.replace(config, marginals=marginals_of(values), gate=_fit_gate(scores))
    mixed = scores.mixed(config)
    return max(chosen, ChosenCache(config, mixed, frequencies), key=ChosenCache.total)


def _sample_distributions(
    model: LanguageModel[Any], corpus: EncodedCorpus, progress: Progress
) -> tuple[Int32s, Int64s, FloatArray]:
    """Return a stream's predicted tokens [N], positions of some [S], and distributions before these [S, V]."""
    text = running_text(corpus)[:_MARGINALS_TOKENS]
    predicted = np.flatnonzero(text != BOS)
    tokens = text[predicted].astype(np.int32)
    count = max(1, min(_MAX_SAMPLES, _MAX_SAMPLE_ENTRIES // len(model.vocabulary), len(tokens)))
    numbers = np.unique(np.linspace(0, len(tokens) - 1, count).astype(np.int64))
    positions, rows, start = predicted[numbers], list[FloatArray](), 0
    with progress.stage("sampling distributions of the mixture", len(tokens)):
        for chunk, reading in read_stream(model, text, Want(before=True), progress=progress):
            here = positions[slice(*np.searchsorted(positions, [start, start + len(chunk)]))] - start
            rows.append(to_numpy(model.next_log_probs(reading.before.select(here))))
            start += len(chunk)
    return tokens, numbers, np.concatenate(rows)


def _score_with_cache(model: CacheModel, corpus: EncodedCorpus, *, progress: Progress) -> CacheScores:
    """Return the terms that a cache model mixes for each predicted token of a stream [N]."""
    text, parts = running_text(corpus), list[CacheScores]()
    state = model.advance(model.empty_state(1), np.array([BOS]))
    with progress.stage("scoring with the adapted cache, stream context", corpus.num_tokens):
        for chunk in chunks(text, progress):
            want = Want(scores=True, state=True)
            (scores,), state = model.read_segment(state, chunk[None], np.asarray([len(chunk)]), want)
            parts.append(CacheScores(*(part[chunk != BOS] for part in scores)))
    return CacheScores(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _fit_gate(scores: CacheScores) -> tuple[float, float, float]:
    """Fit the gate of `CacheConfig` by EM, with a Newton step of logistic regression per iteration."""
    known = scores.largest > 0
    log_probs, shares, evidence, largest = (part[known].astype(np.float64) for part in scores)
    inputs = np.stack([np.ones_like(evidence), np.log(evidence), np.log(largest)], axis=1)  # [N, 3]
    own, coefficients = np.exp(log_probs), np.array([-1.0, 0.0, 0.0])
    for _ in range(_MAX_GATE_STEPS):
        weights = 1 / (1 + np.exp(-(inputs @ coefficients)))
        joint = weights * shares
        posteriors = joint / (joint + (1 - weights) * own)
        curvature = (inputs * (weights * (1 - weights))[:, None]).T @ inputs + np.eye(3)  # ridge [3, 3]
        step = np.linalg.solve(curvature, inputs.T @ (posteriors - weights))
        coefficients += step
        if np.abs(step).max() < _GATE_TOLERANCE:
            break
    first, second, third = coefficients.tolist()
    return first, second, third


def _fit_cache_weight(
    config: CacheConfig, log_probs: Float32s, shares: FloatArray, evidence: FloatArray
) -> ChosenCache:
    """Return a cache with λ fitted by EM on given scores [N]."""
    known = evidence > 0
    own, cached, total = (values[known].astype(np.float64) for values in (log_probs, shares, evidence))
    trust = total / (total + config.prior)
    with np.errstate(divide="ignore"):
        both = np.stack([own, np.log(trust * cached + (1 - trust) * np.exp(own))], axis=1)
    config = dataclasses.replace(config, weight=float(fit_weights(both)[1]))
    return ChosenCache(config, CacheScores(log_probs, shares, evidence).mixed(config))
