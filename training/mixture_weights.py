"""Mixture weights that maximise the likelihood of held-out tokens, by expectation maximisation."""

from typing import Any

import numpy as np
import numpy.typing as npt

from models.arrays import Float64s
from models.errors import InvalidInputError

_MIN_WEIGHT = 1e-6
_PRIOR_TOKENS = 20.0
_MAX_ITERATIONS = 200
_TOLERANCE = 1e-7  # EM stops at smaller changes of all weights


def fit_weights(log_probs: npt.NDArray[np.floating[Any]]) -> tuple[float, ...]:
    """Fit global mixture weights.

    λ_i ← mean over tokens of λ_i p_i / Σ_j λ_j p_j (Jelinek and Mercer 1980).
    The log-likelihood is concave in λ, so any start gives the same result.

    Args:
        log_probs: natural-log probabilities of N held-out tokens under M models [N, M].

    Returns:
        M positive weights that sum to 1.

    Raises:
        InvalidInputError: there is no held-out token.
    """
    if log_probs.shape[0] == 0:
        raise InvalidInputError("the held-out text has no token to fit mixture weights on", parameter="valid")
    num_models = log_probs.shape[1]
    weights = _run_em(log_probs, np.full(num_models, 1.0 / num_models), np.zeros(num_models))
    return _normalised(np.maximum(weights, _MIN_WEIGHT))  # every part keeps a positive weight


def fit_weights_by_context(
    log_probs: npt.NDArray[np.floating[Any]],
    lengths: npt.NDArray[np.integer[Any]],
    *,
    num_lengths: int,
    weights: tuple[float, ...],
) -> tuple[tuple[float, ...], ...]:
    """Fit weights by context length; on the held-out tokens they are never worse than global ones.

    The global weights act as a prior of some tokens: rare lengths
    have weights close to them, and lengths without tokens get them.

    Args:
        log_probs: natural-log probabilities of N held-out tokens under M models [N, M].
        lengths: context length of each token [N].
        num_lengths: C; all lengths are below C.
        weights: global weights [M], from `fit_weights`.

    Returns:
        M positive weights that sum to 1 for each length [C, M].
    """
    common = np.asarray(weights)
    return tuple(
        _normalised(_run_em(log_probs[lengths == length], common, _PRIOR_TOKENS * common))
        for length in range(num_lengths)
    )


def _normalised(weights: Float64s) -> tuple[float, ...]:
    return tuple((weights / weights.sum()).tolist())


def _run_em(log_probs: npt.NDArray[np.floating[Any]], weights: Float64s, prior: Float64s) -> Float64s:
    """Fit weights [M] by EM from initial weights; `prior` [M] is a number of pseudo-tokens per part."""
    peak = log_probs.max(axis=1, keepdims=True, initial=-np.inf)
    # scaled per token [N, M]
    p = np.exp(log_probs - np.where(np.isfinite(peak), peak, 0.0), dtype=np.float64)
    p = p[p.sum(axis=1) > 0]  # drop tokens that are impossible under all models
    if len(p) + prior.sum() == 0:
        return weights
    for _ in range(_MAX_ITERATIONS):
        joint = p * weights
        updated = ((joint / joint.sum(axis=1, keepdims=True)).sum(axis=0) + prior) / (len(p) + prior.sum())
        change = float(np.abs(updated - weights).max())
        weights = updated
        if change < _TOLERANCE:
            break
    return weights
