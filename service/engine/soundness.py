"""No answer that is no number leaves the engine: a reply with null, or a list in the wrong order, would hide it."""

import math

from models.arrays import FloatArray


def check_no_nan(log_probs: FloatArray) -> FloatArray:
    """The same log-probabilities; −inf is one.

    Raises:
        FloatingPointError: there is NaN among them; the engine finds out whose request it is, and fails that alone.
    """
    # a maximum is NaN if any value is, and is found several times as fast as all that are
    if log_probs.size and math.isnan(log_probs.max()):
        raise FloatingPointError("the model gave NaN for a log-probability")
    return log_probs
