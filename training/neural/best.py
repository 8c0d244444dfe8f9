"""The best weights of a run, and when to give up hoping for better ones."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from models.neural.network import Network


class BestWeights:
    """Remembers the weights of the lowest validation perplexity.

    Args:
        patience: so many validations in a row without a lower one exhaust it.
    """

    def __init__(self, *, patience: int) -> None:
        self.perplexity = math.inf
        self._patience = patience
        self._failures = 0
        self._weights: dict[str, Tensor] | None = None

    @property
    def exhausted(self) -> bool:
        """Whether patience is at its end."""
        return self._failures >= self._patience

    def update(self, perplexity: float, network: Network, *, counts: bool = True) -> None:
        """Take note of a validation.

        Args:
            perplexity: what it found.
            network: of which.
            counts: whether it tries patience if it is no better.
        """
        if perplexity < self.perplexity:
            self.perplexity = perplexity
            self._failures = 0
            self._weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        else:
            self._failures += counts

    def apply(self, network: Network) -> None:
        """Give the network the best weights; its own stay if nothing was ever validated."""
        if self._weights is not None:
            network.load_state_dict(self._weights)

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs: tensors and numbers."""
        return {"perplexity": self.perplexity, "failures": self._failures, "weights": self._weights}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` said."""
        self.perplexity, self._failures = state["perplexity"], state["failures"]
        self._weights = state["weights"]
