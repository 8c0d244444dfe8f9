"""Maximum likelihood: no smoothing at all."""

from dataclasses import dataclass

import numpy as np

from training.corpora.encoded import EncodedCorpus
from training.ngram.observations import Observations
from training.ngram.smoothing.interface import Smoothed
from training.ngram.smoothing.interpolated import InterpolationLevel, interpolate


@dataclass(frozen=True, slots=True)
class MaximumLikelihood:
    """Relative frequencies: p(w|h) = c(hw) / c(h).

    What never followed a context has probability 0 there. A context that was never seen says
    nothing: the next shorter one answers. Where n-grams are pruned, they are estimated by the
    shorter context, with the weight that they had together.

    Source: Jelinek (1997), "Statistical methods for speech recognition", section 4.2.
    """

    def estimate(self, observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:  # noqa: ARG002 - a smoothing's signature
        """Estimate a model; held-out text is not looked at."""
        orders = interpolate(
            observations.occurrences(),
            lambda order: InterpolationLevel(np.zeros(4), np.zeros(len(order.totals))),
        )
        return Smoothed(orders, {})
