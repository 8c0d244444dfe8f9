"""Common part of networks as language models: base class and states; imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeAlias

import numpy as np
from typing_extensions import override

from models.arrays import AnyArray, TokenIds
from models.errors import InvalidInputError
from models.language_model import ChoiceScorer, FeatureExtractor, LanguageModel, SequenceReader
from models.neural.config import NetworkConfig
from models.neural.weights import count_parameters
from models.vocabulary import BOS, Vocabulary

HiddenArrays: TypeAlias = tuple[AnyArray, ...]
"""Arrays whose dimension 1 is the batch; the first is the body's last output [1, B, W], float32."""


@dataclass(frozen=True, slots=True, eq=False)
class NeuralState:
    """State of B texts.

    Attributes:
        hidden: arrays (tensors in `TensorState`) whose dimension 1 is the batch; the first is the body's last output
            [1, B, W], stored to predict without repeating the step.
    """

    hidden: tuple[Any, ...]

    def __len__(self) -> int:
        return int(self.hidden[0].shape[1])

    @property
    def top(self) -> Any:
        """The body's last outputs [B, W]."""
        return self.hidden[0][0]

    def select(self, rows: TokenIds | slice) -> Self:
        """Copy rows `rows[0], rows[1], …`, which may repeat; a slice of arrays is a view."""
        return type(self)(tuple(part[:, rows] for part in self.hidden))

    def concatenate(self, states: Sequence[Self]) -> Self:
        """Return a state with the rows of this state, followed by the rows of each of `states`."""
        columns = zip(self.hidden, *(state.hidden for state in states), strict=True)
        return type(self)(tuple(np.concatenate(parts, axis=1) for parts in columns))


class NetworkModel(
    ChoiceScorer[NeuralState],
    FeatureExtractor[NeuralState],
    SequenceReader[NeuralState],
    LanguageModel[NeuralState],
):
    """Base class of language models with a network.

    Args:
        config: shape of the network.
        vocab_size: number of tokens that it predicts.
        vocabulary: tokens of the ids.

    Attributes:
        config: shape of the network; the name of its cell is the family.
        num_parameters: number of learnt values; a matrix shared by embedding and output counts once.
        self_normalised: whether logits were trained to approximate log-probabilities.
        feature_size: width of the output layer's input, E.

    Raises:
        InvalidInputError: network and vocabulary differ in size.
    """

    normalised = True

    def __init__(self, config: NetworkConfig, vocab_size: int, vocabulary: Vocabulary) -> None:
        if vocab_size != len(vocabulary):
            raise InvalidInputError(
                f"the network predicts {vocab_size} tokens, the vocabulary has {len(vocabulary)}",
                parameter="vocabulary",
            )
        self.config = config
        self.family: str = config.cell
        self.num_parameters = count_parameters(config, vocab_size)
        self.vocabulary = vocabulary
        self.self_normalised = config.self_normalised
        self.feature_size = config.feature_size

    @override
    def initial_state(self, batch: int) -> NeuralState:
        return self._start if batch == 1 else self._start.select(np.zeros(batch, dtype=np.int64))

    @cached_property
    def _start(self) -> NeuralState:
        """State of one row after `<s>`, cached because nearly every request begins with it."""
        return self.advance(self.empty_state(1), np.array([BOS]))
