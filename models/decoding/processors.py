"""What happens to a distribution before a token is drawn from it.

The order is: mask, temperature, top-k, top-p. So top-p counts probability after the
temperature and among the tokens that top-k left. Every function takes and gives
log-probabilities [B, V], which need not sum to one; a token that cannot be drawn has minus
infinity. None changes its argument.
"""

from collections.abc import Sequence

import numpy as np

from models.arrays import FloatArray
from models.decoding.parameters import DecodingParameters


def process(log_probs: FloatArray, parameters: DecodingParameters, *, forbidden: Sequence[int]) -> FloatArray:
    """Apply all that the parameters ask for, in this module's order.

    Args:
        log_probs: a model's own log-probabilities [B, V].
        parameters: of all B rows.
        forbidden: ids that must not be drawn.

    Returns:
        Unnormalised log-probabilities [B, V].
    """
    out = mask(log_probs, forbidden)
    if parameters.greedy:
        return out
    if parameters.temperature != 1:
        out = apply_temperature(out, parameters.temperature)
    if parameters.top_k is not None and parameters.top_k < out.shape[1]:
        out = keep_top_k(out, parameters.top_k)
    if parameters.top_p < 1:
        out = keep_top_p(out, parameters.top_p)
    return out


def mask(log_probs: FloatArray, forbidden: Sequence[int]) -> FloatArray:
    """Make some ids impossible."""
    out = log_probs.copy()
    out[:, list(forbidden)] = -np.inf
    return out


def apply_temperature(log_probs: FloatArray, temperature: float) -> FloatArray:
    """Divide by a positive temperature: below 1 sharpens the distribution, above 1 flattens it.

    The largest entry of a row is moved to 0 first, so that no temperature overflows.
    """
    peak = log_probs.max(axis=1, keepdims=True)
    shifted = log_probs - np.where(np.isfinite(peak), peak, np.float32(0))
    with np.errstate(over="ignore"):  # minus infinity is right where a temperature is next to nothing
        out: FloatArray = (shifted.astype(np.float64) / temperature).astype(np.float32)
    return out


def keep_top_k(log_probs: FloatArray, k: int) -> FloatArray:
    """Keep the k largest entries of each row; of equal ones those with the smaller id."""
    batch, width = log_probs.shape
    kth = np.partition(log_probs, width - k, axis=1)[:, width - k, None]  # [B, 1]
    above = log_probs > kth
    equal = log_probs == kth
    room = k - above.sum(axis=1, keepdims=True)
    kept = above | (equal & (np.cumsum(equal, axis=1) <= room))
    return np.where(kept, log_probs, np.float32(-np.inf)).reshape(batch, width)


def keep_top_p(log_probs: FloatArray, p: float) -> FloatArray:
    """Keep the fewest most probable tokens whose share of the probability reaches p.

    Equal tokens enter in order of id.

    Source: nucleus sampling, Holtzman et al. 2020, equation 2.
    """
    order = np.argsort(-log_probs, axis=1, kind="stable")
    ranked = np.take_along_axis(log_probs, order, axis=1).astype(np.float64)
    mass = np.exp(ranked - np.where(np.isfinite(ranked[:, :1]), ranked[:, :1], 0.0))
    reached = np.cumsum(mass, axis=1)
    # a token is needed as long as those before it fall short; the first always is
    short = np.concatenate([np.zeros_like(reached[:, :1]), reached[:, :-1]], axis=1) < p * reached[:, -1:]
    kept = np.zeros(log_probs.shape, dtype=bool)
    np.put_along_axis(kept, order, short, axis=1)
    return np.where(kept, log_probs, np.float32(-np.inf))
