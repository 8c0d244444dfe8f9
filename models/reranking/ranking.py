"""From candidates' totals to an order and posteriors."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Ranking(NamedTuple):
    """Candidates in their new order.

    Attributes:
        order: place in the list as given, the best first [C].
        posteriors: exp(total) of each, normalised over the list, in the new order [C].
    """

    order: npt.NDArray[np.int64]
    posteriors: npt.NDArray[np.float64]

    @property
    def unchanged(self) -> bool:
        """Whether the candidate that came first still does."""
        return int(self.order[0]) == 0


def rank(totals: npt.NDArray[np.float64]) -> Ranking:
    """Order candidates by falling total [C]; equal ones stay in the order they came in."""
    order = np.argsort(-totals, kind="stable")
    ranked = totals[order]
    mass = np.exp(ranked - ranked[0])
    return Ranking(order, mass / mass.sum())
