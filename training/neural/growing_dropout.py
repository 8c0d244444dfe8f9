"""Dropout that grows while a network is trained: little of it while all is new, all of it against learning by heart."""

from models.neural.dropout import Dropout
from models.neural.network import Network


class DropoutSchedule:
    """Shares of dropped values that rise in a straight line over a run (Morerio et al. 2017, "curriculum dropout").

    Weights and whole tokens are dropped alike throughout.

    Args:
        network: whose layers' shares are those at the end.
        start: what part of them there is at the beginning, from 0 to 1.
    """

    def __init__(self, network: Network, *, start: float) -> None:
        self._layers = [(module, module.share) for module in network.modules() if isinstance(module, Dropout)]
        self._start = start

    def set_progress(self, done: float) -> None:
        """Set what belongs to a share of the run behind it."""
        for layer, share in self._layers:
            layer.share = share * (self._start + (1 - self._start) * done)
