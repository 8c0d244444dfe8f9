"""Mixture weights that maximise the likelihood of held-out tokens, by expectation maximisation."""

from typing import Any

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError

_MIN_WEIGHT = 1e-6
_PRIOR_TOKENS = 20.0


def fit_weights(
    log_probs: npt.NDArray[np.floating[Any]], *, iterations: int = 200, tolerance: float = 1e-7
) -> tuple[float, ...]:
    """Fit global mixture weights.

    λ_i ← mean over tokens of λ_i p_i / Σ_j λ_j p_j (Jelinek and Mercer 1980); the
    likelihood is concave in λ, so the start does not matter.

    Args:
        log_probs: natural-log probabilities [N, M] of N held-out tokens under M models.
        iterations: maximum number.
        tolerance: stop when no weight changes by more.

    Returns:
        M positive weights that sum to 1.

    Raises:
        InvalidInputError: there is no held-out token.
    """
    if log_probs.shape[0] == 0:
        raise InvalidInputError("mixture weights cannot be fitted on no held-out token", parameter="valid")
    num_models = log_probs.shape[1]
    start = np.full(num_models, 1.0 / num_models)
    prior = np.zeros(num_models)
    weights = _run_em(
        _scaled_probabilities(log_probs), start, prior, iterations=iterations, tolerance=tolerance
    )
    weights = np.maximum(weights, _MIN_WEIGHT)  # every part keeps a positive weight
    return tuple(float(w) for w in weights / weights.sum())


def fit_weights_by_context(
    log_probs: npt.NDArray[np.floating[Any]],
    lengths: npt.NDArray[np.integer[Any]],
    *,
    num_lengths: int,
    weights: tuple[float, ...],
    iterations: int = 200,
    tolerance: float = 1e-7,
) -> tuple[tuple[float, ...], ...]:
    """Fit weights for each context length, never worse on the held-out tokens than global weights.

    The global weights act as a prior worth some tokens: weights of rare lengths stay close to them, and
    lengths without tokens get them.

    Args:
        log_probs: natural-log probabilities [N, M] of N held-out tokens under M models.
        lengths: of each token's context [N].
        num_lengths: C; all lengths are below it.
        weights: global weights [M], from `fit_weights`.
        iterations: maximum number, for each length.
        tolerance: stop when no weight changes by more.

    Returns:
        M positive weights that sum to 1 for each length [C, M].
    """
    common = np.asarray(weights)
    table = [
        _run_em(
            _scaled_probabilities(log_probs[lengths == length]),
            common,
            _PRIOR_TOKENS * common,
            iterations=iterations,
            tolerance=tolerance,
        )
        for length in range(num_lengths)
    ]
    return tuple(tuple(float(w) for w in row / row.sum()) for row in table)


def _scaled_probabilities(log_probs: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Return probabilities scaled per token [N, M]; drop tokens that are impossible under all models."""
    peak = log_probs.max(axis=1, keepdims=True, initial=-np.inf)
    p = np.exp(log_probs - np.where(np.isfinite(peak), peak, 0.0), dtype=np.float64)
    possible: npt.NDArray[np.float64] = p[p.sum(axis=1) > 0]
    return possible


def _run_em(
    p: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float64],
    prior: npt.NDArray[np.float64],
    *,
    iterations: int,
    tolerance: float,
) -> npt.NDArray[np.float64]:
    """Fit weights [M] by EM from a start; `prior` [M] counts as so many tokens per part."""
    if len(p) + prior.sum() == 0:
        return weights
    for _ in range(iterations):
        joint = p * weights
        updated = ((joint / joint.sum(axis=1, keepdims=True)).sum(axis=0) + prior) / (len(p) + prior.sum())
        change = float(np.abs(updated - weights).max())
        weights = updated
        if change < tolerance:
            break
    return weights
