"""The network: embedding → LSTM or GRU → (projection) → output layer, often tied to the embedding.

Time comes first, [T, B], the layout that the recurrent kernels compute in. Dropout is active in
training mode only. `<s>` is never predicted: its logit is minus infinity in training and in
serving, so that the other tokens' probabilities sum to 1.
"""

import math
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.neural.config import RecurrentConfig
from models.vocabulary import BOS

Hidden: TypeAlias = tuple[Tensor, ...]
"""What is carried from token to token, each [layers, B, hidden]: (h, c) of an LSTM, (h,) of a GRU."""

_INITIAL_RANGE = 0.1


class RecurrentNetwork(nn.Module):
    """A recurrent language model's parameters and forward computation.

    Args:
        config: the shape.
        vocab_size: V.
    """

    def __init__(self, config: RecurrentConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        cell = nn.LSTM if config.cell == "lstm" else nn.GRU
        between_layers = config.dropout if config.layers > 1 else 0.0
        self.embedding = nn.Embedding(vocab_size, config.embedding_size)
        self.recurrent = cell(
            config.embedding_size, config.hidden_size, config.layers, dropout=between_layers
        )
        self.dropout = nn.Dropout(config.dropout)
        narrowed = config.tied and config.hidden_size != config.embedding_size
        self.projection = nn.Linear(config.hidden_size, config.embedding_size) if narrowed else nn.Identity()
        width = config.embedding_size if config.tied else config.hidden_size
        self.output = nn.Linear(width, vocab_size)
        if config.tied:
            self.output.weight = self.embedding.weight
        never_predicted = torch.zeros(vocab_size)
        never_predicted[BOS] = -math.inf
        self.register_buffer("never_predicted", never_predicted, persistent=False)  # added to the bias
        self.never_predicted: Tensor
        self._initialise()

    def zero_hidden(self, batch: int) -> Hidden:
        """What is carried before any token: zeros."""
        shape = (self.config.layers, batch, self.config.hidden_size)
        count = 2 if self.config.cell == "lstm" else 1
        return tuple(torch.zeros(shape, device=self.embedding.weight.device) for _ in range(count))

    def forward(self, tokens: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """Read T tokens a row.

        Args:
            tokens: ids [T, B].
            hidden: what was carried up to the first of them; it is not changed.

        Returns:
            The top layer's outputs [T, B, hidden] and what is carried on.
        """
        embedded = self.dropout(self.embedding(tokens))
        if self.config.cell == "lstm":
            outputs, hidden = self.recurrent(embedded, hidden)
        else:
            outputs, last = self.recurrent(embedded, hidden[0])
            hidden = (last,)
        return outputs, hidden

    def logits(self, outputs: Tensor) -> Tensor:
        """Unnormalised log-probabilities of the next token.

        Args:
            outputs: the top layer's [N, hidden].

        Returns:
            [N, V], minus infinity for `<s>`.
        """
        narrowed = self.projection(self.dropout(outputs))
        return functional.linear(narrowed, self.output.weight, self.output.bias + self.never_predicted)

    def _initialise(self) -> None:
        nn.init.uniform_(self.output.weight, -_INITIAL_RANGE, _INITIAL_RANGE)
        nn.init.uniform_(self.embedding.weight, -_INITIAL_RANGE, _INITIAL_RANGE)
        nn.init.zeros_(self.output.bias)
        if self.config.cell == "lstm":
            size = self.config.hidden_size
            for name, bias in self.recurrent.named_parameters():
                if name.startswith("bias_ih"):  # gates i, f, g, o: remember at first (Jozefowicz et al. 2015)
                    nn.init.ones_(bias.data[size : 2 * size])
