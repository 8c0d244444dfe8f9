"""A network in integers of eight bits: embedding → body → (projection) → output layer."""

from collections.abc import Iterator
from typing import NamedTuple, cast

import numpy as np
from torch import Tensor, nn

from models.arrays import FloatArray, TokenIds
from models.errors import InvalidInputError
from models.neural.feed_forward import FeedForward
from models.neural.network import Network
from models.neural.output.softmax import Softmax
from models.neural.quantized.body import QuantizedBody, lengths_of
from models.neural.quantized.feed_forward import QuantizedFeedForward
from models.neural.quantized.linear import Linear, linear_of, padded_bias
from models.neural.quantized.matrix import LAYOUT, gather, multiply, multiply_one_each, packed_once
from models.neural.quantized.output import normalise_logits, score_rows, score_tokens
from models.neural.quantized.recurrent import QuantizedRecurrent
from models.neural.quantized.rows import SPARE, Rows, new_rows, quantise_all
from models.neural.quantized.state import Hidden
from models.neural.quantized.support import unsupported
from models.neural.quantized.weighing import logits_of_blocks, weigh_rows
from models.neural.recurrent import Recurrent
from models.neural.threads import share_rows
from models.protocol import WEIGHED_TOKENS, Weighed
from models.shelf import Shelf

TOGETHER = 64
"""Rows for which the output layer's weights are read once."""


class Outputs(NamedTuple):
    """What reading T tokens a row gives.

    Attributes:
        before: the body's outputs before each token [T, B, W].
        rows: the same as `Rows` [T * B].
        hidden: what is carried on.
    """

    before: FloatArray
    rows: Rows
    hidden: Hidden


class QuantizedNetwork:
    """What computes a quantised model's answers; every row's are its own, to the last bit.

    Args:
        network: in single precision; it is not changed.
        shelf: where rounded weights lie.

    Raises:
        InvalidInputError: it is of a kind that cannot be computed in integers.
    """

    def __init__(self, network: Network, shelf: Shelf) -> None:
        problem = unsupported(network.config)
        if problem is not None:
            raise InvalidInputError(problem, parameter="precision")
        self.vocab_size = network.vocab_size
        self.feature_size = network.feature_size
        self.embedding_size = network.config.embedding_size
        self.tied = network.config.tied
        self.start: Hidden = tuple(_array(part) for part in network.initial_hidden(1))
        shelf = shelf.section(LAYOUT)
        vectors = _array(cast("Tensor", network.embedding.weight))
        self.embedding = packed_once(shelf, "embedding", lambda: vectors)
        self.body = _quantized_body(network, shelf.section("body"))
        self.projection: Linear | None = None
        if isinstance(network.projection, nn.Linear):
            self.projection = linear_of(network.projection, shelf, "projection")
        self.output = self._output(cast("Softmax", network.output), shelf)

    def _output(self, layer: Softmax, shelf: Shelf) -> Linear:
        """The output layer; its matrix is the embedding's if that is so in single precision."""
        bias, vectors = _array(layer.bias + layer.never_predicted), _array(layer.weight)
        matrix = self.embedding if self.tied else packed_once(shelf, "output", lambda: vectors)
        return Linear(matrix, padded_bias(bias, fill=-np.inf), len(bias))  # what is added is never predicted

    def read(self, tokens: TokenIds, alive: TokenIds, hidden: Hidden) -> Outputs:
        """Read up to T tokens a row.

        Args:
            tokens: ids [T, B]; those that are not read can be any in [0, V).
            alive: how many rows, the first ones, read the token of each step [T], descending.
            hidden: what is carried; it is not changed.

        Raises:
            InvalidInputError: an id is not in [0, V).
        """
        outputs, rows, carried = self.body.read(self._embedded(tokens), alive, hidden[1:])
        quantise_all(hidden[0][0], rows, 0)
        before = np.concatenate([hidden[0], outputs])
        top = before[lengths_of(alive, tokens.shape[1]), np.arange(tokens.shape[1])][None]
        return Outputs(before[:-1], rows, (top, *carried))

    def step(self, tokens: TokenIds, hidden: Hidden) -> Hidden:
        """What `read` carries on after one token a row, ids [B]; it spares what scores are made of."""
        alive = np.array([len(tokens)])
        outputs, _, carried = self.body.read(self._embedded(tokens[None]), alive, hidden[1:])
        return (outputs, *carried)

    def _embedded(self, tokens: TokenIds) -> Rows:
        """The vectors of tokens [T, B], after B that mean nothing."""
        steps, batch = tokens.shape
        vectors = new_rows((steps + 1) * batch, self.embedding_size)
        bad = gather(self.embedding, self.vocab_size, tokens.reshape(-1), vectors, batch)
        if bad:
            raise InvalidInputError(f"token id {bad} is not in [0, {self.vocab_size})", parameter="tokens")
        return vectors

    def features(self, outputs: FloatArray) -> FloatArray:
        """What the output layer reads [N, E], before it is rounded, of outputs of the body [N, W]."""
        return outputs if self.projection is None else _projected(self.projection, _rounded(outputs))

    def log_probs(self, outputs: FloatArray) -> FloatArray:
        """Natural-log probabilities [B, V] of the next token after outputs of the body [B, W]."""
        rows, width = self._features(_rounded(outputs)), len(self.output.bias)
        logits, log_sums = np.empty((len(outputs), width), np.float32), np.empty(len(outputs), np.float32)

        def work(some: slice) -> None:
            for cut in _cuts(some):
                score_rows(self.output.matrix, self.output.bias, rows, cut.start, logits[cut], log_sums[cut])

        share_rows(work, len(outputs))
        log_probs = logits if width == self.vocab_size else logits[:, : self.vocab_size].copy()
        normalise_logits(log_probs, log_sums)
        return log_probs

    def target_log_probs(self, rows: Rows, ids: TokenIds) -> FloatArray:
        """Natural-log probabilities [N] of given next tokens, ids [N], after outputs as `Rows`."""
        rows, log_probs = self._features(rows), np.empty(len(ids), np.float32)
        for cut in _cuts(slice(0, len(ids))):
            score_tokens(self.output.matrix, self.output.bias, rows, cut.start, ids[cut], log_probs[cut])
        return log_probs

    def choice_log_probs(self, outputs: FloatArray, rows: TokenIds, ids: TokenIds) -> FloatArray:
        """Natural-log probabilities [C] of ids [C] after outputs [B, W], by number in `rows` [C], never falling."""
        features, log_probs = self._features(_rounded(outputs)), np.empty(len(ids), np.float32)
        for cut in _cuts(slice(0, len(outputs))):
            size = cut.stop - cut.start
            logits, log_sums = np.empty((size, len(self.output.bias)), np.float32), np.empty(size, np.float32)
            score_rows(self.output.matrix, self.output.bias, features, cut.start, logits, log_sums)
            first, end = np.searchsorted(rows, [cut.start, cut.stop])
            here = rows[first:end] - cut.start
            log_probs[first:end] = logits[here, ids[first:end]] - log_sums[here]
        return log_probs

    def block_sums(self, outputs: FloatArray, temperatures: FloatArray) -> Weighed:
        """What the next tokens after outputs of the body [B, W] are drawn by, at temperatures [B]."""
        features, count = self._features(_rounded(outputs)), len(outputs)
        highest, log_sums = np.empty(count, np.float32), np.empty(count, np.float32)
        sums = np.empty((count, len(self.output.bias) // WEIGHED_TOKENS), np.float32)
        first = np.empty((count, WEIGHED_TOKENS), np.float32)

        def work(some: slice) -> None:
            for cut in _cuts(some):
                parts = temperatures[cut], highest[cut], log_sums[cut], sums[cut], first[cut]
                weigh_rows(self.output.matrix, self.output.bias, features, cut.start, *parts)

        share_rows(work, count)
        return Weighed(log_sums, highest, sums, first, features)

    def logits(self, features: Rows, rows: TokenIds, blocks: TokenIds) -> FloatArray:
        """The logits [N, 64] of blocks of tokens [N] after features by number [N]."""
        logits = np.empty((len(rows), WEIGHED_TOKENS), np.float32)
        logits_of_blocks(self.output.matrix, self.output.bias, features, rows, blocks, logits)
        return logits

    def target_logits(self, rows: Rows, ids: TokenIds) -> FloatArray:
        """Unnormalised log-probabilities [N] of given next tokens, ids [N], after outputs as `Rows`."""
        logits = np.empty(len(ids), np.float32)
        multiply_one_each(self.output.matrix, self.output.bias, self._features(rows), ids, logits)
        return logits

    def _features(self, rows: Rows) -> Rows:
        """What the output layer reads."""
        return rows if self.projection is None else _rounded(_projected(self.projection, rows))


def _quantized_body(network: Network, shelf: Shelf) -> QuantizedBody:
    body = network.body
    if isinstance(body, FeedForward):
        return QuantizedFeedForward(body, network.config, shelf)
    return QuantizedRecurrent(cast("Recurrent", body), network.config, shelf)


def _cuts(rows: slice) -> Iterator[slice]:
    """Rows that are computed together."""
    for start in range(rows.start, rows.stop, TOGETHER):
        yield slice(start, min(start + TOGETHER, rows.stop))


def _rounded(vectors: FloatArray) -> Rows:
    """Vectors [N, W] as `Rows`."""
    rows = new_rows(*vectors.shape)
    quantise_all(vectors, rows, 0)
    return rows


def _projected(projection: Linear, rows: Rows) -> FloatArray:
    """What a projection makes of N rows [N, E]."""
    count = len(rows.values) - SPARE
    projected = np.empty((count, len(projection.bias)), np.float32)
    multiply(projection.matrix, projection.bias, rows, 0, count, projected)
    return projected[:, : projection.size]


def _array(tensor: Tensor) -> FloatArray:
    array: FloatArray = tensor.detach().cpu().numpy()
    return array
