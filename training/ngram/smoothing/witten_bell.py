"""Witten–Bell smoothing: a new word is as likely as new words were."""

from dataclasses import dataclass

import numpy as np

from training.corpora.encoded import EncodedCorpus
from training.ngram.observations import Observations, OrderCounts
from training.ngram.smoothing.interface import Smoothed
from training.ngram.smoothing.interpolated import InterpolationLevel, interpolate


@dataclass(frozen=True, slots=True)
class WittenBell:
    """Interpolation by how varied a context is: p(w|h) = (c(hw) + T(h) p(w|h')) / (c(h) + T(h)).

    T(h) is the number of different words seen after h: as often was the next word a new one.

    Source: Witten and Bell (1991), "The zero-frequency problem", method C; Chen and Goodman (1998), section 2.5.
    """

    def estimate(self, observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:  # noqa: ARG002 - a smoothing's signature
        """Estimate a model; held-out text is not looked at."""
        return Smoothed(interpolate(observations.occurrences(), _level), {})


def _level(order: OrderCounts) -> InterpolationLevel:
    types = order.types.astype(np.float64)
    shares = np.divide(types, order.totals + types, out=np.ones_like(types), where=types > 0)
    return InterpolationLevel(np.zeros(4), shares)
