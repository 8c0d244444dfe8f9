"""What language models around a network have in common, whatever numbers it computes in."""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Generic

import numpy as np

from models.arrays import TokenIds
from models.errors import InvalidInputError
from models.neural.config import NetworkConfig
from models.neural.network import Network
from models.protocol import S
from models.vocabulary import BOS, Vocabulary


class NetworkModel(ABC, Generic[S]):
    """A network and the vocabulary that it predicts.

    Args:
        network: its shape and number of parameters are noted.
        vocabulary: the tokens that ids stand for.

    Raises:
        InvalidInputError: network and vocabulary differ in size.
    """

    normalised = True

    def __init__(self, network: Network, vocabulary: Vocabulary) -> None:
        if network.vocab_size != len(vocabulary):
            raise InvalidInputError(
                f"the network predicts {network.vocab_size} tokens, the vocabulary has {len(vocabulary)}",
                parameter="vocabulary",
            )
        self._config = network.config
        self._num_parameters = sum(parameter.numel() for parameter in network.parameters())
        self._vocabulary = vocabulary

    @property
    def family(self) -> str:
        """The name of the network's cell."""
        return self._config.cell

    @property
    def config(self) -> NetworkConfig:
        """The network's shape."""
        return self._config

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens that ids stand for."""
        return self._vocabulary

    @property
    def num_parameters(self) -> int:
        """Numbers learnt; a matrix shared by embedding and output counts once."""
        return self._num_parameters

    @property
    def self_normalised(self) -> bool:
        """Whether training pulled logits towards log-probabilities."""
        return self._config.self_normalised

    @abstractmethod
    def empty_state(self, batch: int) -> S:
        """The state after nothing."""

    @abstractmethod
    def advance(self, state: S, tokens: TokenIds) -> S:
        """Consume one token per row.

        Args:
            state: B rows; it is not changed.
            tokens: ids [B], each in [0, V).

        Returns:
            The state after the tokens.
        """

    def initial_state(self, batch: int) -> S:
        """The state after `<s>`."""
        return self._start if batch == 1 else self._start.select(np.zeros(batch, dtype=np.int64))

    @cached_property
    def _start(self) -> S:
        """One row after `<s>`: nearly every request begins there, so it is computed once."""
        return self.advance(self.empty_state(1), np.array([BOS]))
