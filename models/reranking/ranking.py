"""From candidates' totals to an order and posteriors."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError

MAX_POSTERIOR_SCALE = 1e6
"""What totals may be multiplied by, at most."""


class Ranking(NamedTuple):
    """Candidates in their new order.

    Attributes:
        order: place in the list as given, the best first [C].
        posteriors: exp(scale · total) of each, normalised over the list, in the new order [C].
    """

    order: npt.NDArray[np.int64]
    posteriors: npt.NDArray[np.float64]

    @property
    def unchanged(self) -> bool:
        """Whether the candidate that came first still does."""
        return int(self.order[0]) == 0


def check_posterior_scale(scale: float) -> None:
    """Refuse a scale of posteriors that is none.

    Raises:
        InvalidInputError: it is negative, too large, or no number.
    """
    if not 0 <= scale <= MAX_POSTERIOR_SCALE:
        raise InvalidInputError(
            f"posterior_scale is {scale}; it must be from 0 to {MAX_POSTERIOR_SCALE:g}",
            parameter="posterior_scale",
        )


def scaled_posteriors(totals: npt.NDArray[np.float64], scale: float = 1.0) -> npt.NDArray[np.float64]:
    """exp(scale · total) of each candidate, normalised over the list [C]: all alike at 0, the sharper the larger."""
    mass: npt.NDArray[np.float64] = np.exp(scale * (totals - totals.max()))
    mass /= mass.sum()
    return mass


def rank(totals: npt.NDArray[np.float64], scale: float = 1.0) -> Ranking:
    """Order candidates by falling total [C]; equal ones stay in the order they came in."""
    return rank_by(totals, scaled_posteriors(totals, scale))


def rank_by(values: npt.NDArray[np.float64], posteriors: npt.NDArray[np.float64]) -> Ranking:
    """Order candidates by falling value [C], such as an expected utility; equal ones stay in the order they came in.

    Args:
        values: what to order by.
        posteriors: of the candidates in the order given [C].
    """
    order = np.argsort(-values, kind="stable")
    return Ranking(order, posteriors[order])
