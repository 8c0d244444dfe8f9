"""Network in int8: embedding → body → (projection) → output layer, and a check of supported networks."""

from typing import NamedTuple, cast

import numpy as np
import torch
from torch import nn

from models.arrays import FloatArray, TokenIds
from models.errors import InvalidInputError
from models.neural.adaptive_softmax import ClusteredEmbedding
from models.neural.attention import AttentionBody
from models.neural.cells import Body
from models.neural.config import NetworkConfig
from models.neural.int8.attention import Int8Attention
from models.neural.int8.layers import Int8Body, Int8FeedForward, Int8Recurrent, last_vectors
from models.neural.int8.matrix import (
    INT8_LAYOUT,
    Int8Linear,
    Int8Rows,
    gather_rows,
    load_or_quantise,
    quantise_linear,
    quantise_rows,
    to_array,
    zero_int8_rows,
)
from models.neural.int8.output import make_output, multiply, to_int8_rows
from models.neural.network import Network
from models.neural.recurrent import FeedForward, Recurrent
from models.neural.state import HiddenArrays
from models.tensor_files import PackedWeightCache

MAX_INT8_WIDTH = 1 << 17
"""Largest input width of a layer, so that sums of byte products fit into 32 bits."""


def unsupported_reason(config: NetworkConfig) -> str | None:
    """Return the reason why int8 does not support a network; None if it does."""
    width = max(config.layer_inputs)
    if width > MAX_INT8_WIDTH:
        return f"int8 supports layer inputs of up to {MAX_INT8_WIDTH} numbers, given {width}"
    return None


class NetworkOutputs(NamedTuple):
    """Outputs of a network for T tokens per row.

    Attributes:
        before: the body's outputs before each token [T, B, W].
        rows: the same outputs as `Int8Rows` [T * B].
        hidden: the next state.
    """

    before: FloatArray
    rows: Int8Rows
    hidden: HiddenArrays


class Int8Network:
    """Network in int8; the results of a row do not depend on the other rows, to the last bit.

    Args:
        network: in single precision; unchanged.
        weight_cache: cache of quantised weights.

    Raises:
        InvalidInputError: int8 does not support the network.
    """

    def __init__(self, network: Network, weight_cache: PackedWeightCache) -> None:
        problem = unsupported_reason(network.config)
        if problem is not None:
            raise InvalidInputError(problem, parameter="precision")
        self.vocab_size = network.vocab_size
        self.feature_size = network.feature_size
        self.embedding_size = network.config.embedding_size
        self.start: HiddenArrays = tuple(to_array(part) for part in network.initial_hidden(1))
        weight_cache = weight_cache.section(INT8_LAYOUT)
        self.weights = weight_cache.arrays
        self.embedding = load_or_quantise(weight_cache, "embedding", lambda: _token_vectors(network))
        self.body = _make_body(network.body, network.config, weight_cache.section("body"))
        self.projection: Int8Linear | None = None
        if isinstance(network.projection, nn.Linear):
            self.projection = quantise_linear(network.projection, weight_cache, "projection")
        shared = self.embedding if network.config.tied else None
        self.output = make_output(network.output, shared, weight_cache)

    def read(self, tokens: TokenIds, alive: TokenIds, hidden: HiddenArrays) -> NetworkOutputs:
        """Read up to T tokens per row.

        Args:
            tokens: ids [T, B], all in [0, V), including ids that are not read.
            alive: number of leading rows that each step reads [T], descending.
            hidden: the state; unchanged.

        Raises:
            InvalidInputError: an id is not in [0, V).
        """
        outputs, carried = self.body.read(self._embedded(tokens), alive, hidden[1:])
        quantise_rows(np.ascontiguousarray(hidden[0][0]), outputs.rows, 0)
        before = np.concatenate([hidden[0], outputs.floats])
        return NetworkOutputs(before[:-1], outputs.rows, (last_vectors(before, alive, 1), *carried))

    def step(self, tokens: TokenIds, hidden: HiddenArrays) -> HiddenArrays:
        """Return the next state after one token per row, ids [B]: `read` without the outputs for scores."""
        alive = np.array([len(tokens)])
        outputs, carried = self.body.read(self._embedded(tokens[None]), alive, hidden[1:])
        return (outputs.floats, *carried)

    def _embedded(self, tokens: TokenIds) -> Int8Rows:
        """Return the vectors of tokens [T, B] as rows [(T + 1) * B], the first B unused."""
        steps, batch = tokens.shape
        vectors = zero_int8_rows((steps + 1) * batch, self.embedding_size)
        bad = gather_rows(self.embedding, self.vocab_size, np.ascontiguousarray(tokens).reshape(-1), vectors, batch)
        if bad:
            raise InvalidInputError(f"token id {bad} is not in [0, {self.vocab_size})", parameter="tokens")
        return vectors

    def features(self, outputs: FloatArray) -> FloatArray:
        """Return inputs of the output layer [N, E], before quantisation, from outputs of the body [N, W]."""
        return outputs if self.projection is None else multiply(self.projection, to_int8_rows(outputs))

    def features_of(self, outputs: FloatArray | Int8Rows) -> Int8Rows:
        """Return quantised inputs of the output layer from outputs of the body [N, W]."""
        rows = outputs if isinstance(outputs, Int8Rows) else to_int8_rows(outputs)
        return rows if self.projection is None else to_int8_rows(multiply(self.projection, rows))


def _make_body(body: Body, config: NetworkConfig, weight_cache: PackedWeightCache) -> Int8Body:
    if isinstance(body, AttentionBody):
        inner = _make_body(body.inner, config, weight_cache)
        return Int8Attention(body, inner, weight_cache.section("attention"))
    if isinstance(body, FeedForward):
        return Int8FeedForward(body, config, weight_cache)
    return Int8Recurrent(cast("Recurrent", body), config, weight_cache)


def _token_vectors(network: Network) -> FloatArray:
    """Return the input vectors [V, E] of all tokens."""
    if isinstance(network.embedding, ClusteredEmbedding):
        with torch.inference_mode():
            return to_array(network.embedding(torch.arange(network.vocab_size)))
    return to_array(network.embedding.weight)
