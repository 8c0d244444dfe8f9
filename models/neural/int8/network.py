"""The network in int8: embedding → body → (projection) → output layer, and which networks it supports."""

from collections.abc import Iterator
from typing import NamedTuple, cast

import numpy as np
from torch import Tensor, nn

from models.arrays import FloatArray, TokenIds
from models.errors import InvalidInputError
from models.language_model import BLOCK_TOKENS, BlockSums
from models.neural.config import NetworkConfig
from models.neural.constants import ROWS_PER_PRODUCT
from models.neural.int8.layers import Int8Body, Int8FeedForward, Int8Recurrent, row_lengths
from models.neural.int8.matrix import (
    INT8_LAYOUT,
    SPARE_ROWS,
    Int8Linear,
    Int8Rows,
    gather_rows,
    load_or_quantise,
    multiply_row_pairs,
    multiply_rows,
    pad_bias,
    quantise_linear,
    quantise_rows,
    zero_int8_rows,
)
from models.neural.int8.softmax import (
    normalise_logits,
    score_targets,
    write_block_logits,
    write_block_sums,
    write_logits,
)
from models.neural.network import Network
from models.neural.recurrent import FeedForward, Recurrent
from models.neural.softmax import Softmax
from models.neural.state import HiddenArrays
from models.neural.threads import run_row_slices
from models.tensor_files import PackedWeightCache

MAX_INT8_WIDTH = 1 << 17
"""Largest input width of a layer: sums of products of bytes must fit into 32 bits."""

_IRRELEVANT_FIELDS = frozenset(
    {
        "cell",
        "layers",
        "embedding_size",
        "hidden_size",
        "window",
        "activation",
        "residual",
        "layer_norm",
        "learned_state",
        "tied",
        "self_normalised",
        # training only
        "orthogonal",
        "forget_bias",
        "dropout",
        "input_dropout",
        "hidden_dropout",
        "embedding_dropout",
        "weight_drop",
        "variational",
        # of options that are off
        "attention_window",
        "attention_size",
        "cutoffs",
    }
)
"""Fields of the configuration that int8 supports with any value."""


def unsupported_reason(config: NetworkConfig) -> str | None:
    """The reason why int8 does not support a network; None if it does."""
    for name, field in NetworkConfig.model_fields.items():
        value = getattr(config, name)
        if name not in _IRRELEVANT_FIELDS and value != field.default:
            return f"int8 knows no {name} = {value!r}"
    width = max(config.layer_inputs)
    if width > MAX_INT8_WIDTH:
        return f"int8 knows no layer that reads more than {MAX_INT8_WIDTH} numbers, given {width}"
    return None


class NetworkOutputs(NamedTuple):
    """Outputs of a network for T tokens a row.

    Attributes:
        before: the body's outputs before each token [T, B, W].
        rows: the same as `Int8Rows` [T * B].
        hidden: the next state.
    """

    before: FloatArray
    rows: Int8Rows
    hidden: HiddenArrays


class Int8Network:
    """A network in int8; the results of a row do not depend on the other rows, to the last bit.

    Args:
        network: in single precision; it is not changed.
        weight_cache: cache of rounded weights.

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
        self.tied = network.config.tied
        self.start: HiddenArrays = tuple(_to_array(part) for part in network.initial_hidden(1))
        weight_cache = weight_cache.section(INT8_LAYOUT)
        vectors = _to_array(cast("Tensor", network.embedding.weight))
        self.embedding = load_or_quantise(weight_cache, "embedding", lambda: vectors)
        self.body = _make_body(network, weight_cache.section("body"))
        self.projection: Int8Linear | None = None
        if isinstance(network.projection, nn.Linear):
            self.projection = quantise_linear(network.projection, weight_cache, "projection")
        self.output = self._output(cast("Softmax", network.output), weight_cache)

    def _output(self, layer: Softmax, weight_cache: PackedWeightCache) -> Int8Linear:
        """The output layer; shares the embedding's matrix if the network is tied."""
        bias, vectors = _to_array(layer.bias + layer.never_predicted), _to_array(layer.weight)
        matrix = self.embedding if self.tied else load_or_quantise(weight_cache, "output", lambda: vectors)
        return Int8Linear(matrix, pad_bias(bias, fill=-np.inf), len(bias))  # padding is never predicted

    def read(self, tokens: TokenIds, alive: TokenIds, hidden: HiddenArrays) -> NetworkOutputs:
        """Read up to T tokens a row.

        Args:
            tokens: ids [T, B], all in [0, V), also those that are not read.
            alive: number of rows, from the first on, in each step [T], descending.
            hidden: the state; it is not changed.

        Raises:
            InvalidInputError: an id is not in [0, V).
        """
        outputs, rows, carried = self.body.read(self._embedded(tokens), alive, hidden[1:])
        quantise_rows(hidden[0][0], rows, 0)
        before = np.concatenate([hidden[0], outputs])
        top = before[row_lengths(alive, tokens.shape[1]), np.arange(tokens.shape[1])][None]
        return NetworkOutputs(before[:-1], rows, (top, *carried))

    def step(self, tokens: TokenIds, hidden: HiddenArrays) -> HiddenArrays:
        """The next state after one token a row, ids [B]: `read` without the outputs for scores."""
        alive = np.array([len(tokens)])
        outputs, _, carried = self.body.read(self._embedded(tokens[None]), alive, hidden[1:])
        return (outputs, *carried)

    def _embedded(self, tokens: TokenIds) -> Int8Rows:
        """The vectors of tokens [T, B] as rows [(T + 1) * B], the first B unused."""
        steps, batch = tokens.shape
        vectors = zero_int8_rows((steps + 1) * batch, self.embedding_size)
        bad = gather_rows(self.embedding, self.vocab_size, tokens.reshape(-1), vectors, batch)
        if bad:
            raise InvalidInputError(f"token id {bad} is not in [0, {self.vocab_size})", parameter="tokens")
        return vectors

    def features(self, outputs: FloatArray) -> FloatArray:
        """Inputs of the output layer [N, E], before rounding, from outputs of the body [N, W]."""
        return outputs if self.projection is None else _project(self.projection, _to_int8_rows(outputs))

    def log_probs(self, outputs: FloatArray) -> FloatArray:
        """Natural-log probabilities [B, V] of the next token after outputs of the body [B, W]."""
        rows, width = self._features(_to_int8_rows(outputs)), len(self.output.bias)
        logits, log_sums = np.empty((len(outputs), width), np.float32), np.empty(len(outputs), np.float32)

        def work(share: slice) -> None:
            for cut in _row_slices(share):
                write_logits(
                    self.output.matrix, self.output.bias, rows, cut.start, logits[cut], log_sums[cut]
                )

        run_row_slices(work, len(outputs))
        log_probs = logits if width == self.vocab_size else logits[:, : self.vocab_size].copy()
        normalise_logits(log_probs, log_sums)
        return log_probs

    def target_log_probs(self, rows: Int8Rows, ids: TokenIds) -> FloatArray:
        """Natural-log probabilities [N] of given next tokens, ids [N], after outputs of the body."""
        rows, log_probs = self._features(rows), np.empty(len(ids), np.float32)
        for cut in _row_slices(slice(0, len(ids))):
            score_targets(self.output.matrix, self.output.bias, rows, cut.start, ids[cut], log_probs[cut])
        return log_probs

    def choice_log_probs(self, outputs: FloatArray, rows: TokenIds, ids: TokenIds) -> FloatArray:
        """Natural-log probabilities [C] of ids [C] after outputs [B, W], by number in `rows` [C], never falling."""
        features, log_probs = self._features(_to_int8_rows(outputs)), np.empty(len(ids), np.float32)
        for cut in _row_slices(slice(0, len(outputs))):
            size = cut.stop - cut.start
            logits, log_sums = np.empty((size, len(self.output.bias)), np.float32), np.empty(size, np.float32)
            write_logits(self.output.matrix, self.output.bias, features, cut.start, logits, log_sums)
            first, end = np.searchsorted(rows, [cut.start, cut.stop])
            here = rows[first:end] - cut.start
            log_probs[first:end] = logits[here, ids[first:end]] - log_sums[here]
        return log_probs

    def block_sums(self, outputs: FloatArray, temperatures: FloatArray) -> BlockSums:
        """Sums for sampling the next tokens after outputs of the body [B, W], at temperatures [B]."""
        features, count = self._features(_to_int8_rows(outputs)), len(outputs)
        highest, log_sums = np.empty(count, np.float32), np.empty(count, np.float32)
        sums = np.empty((count, len(self.output.bias) // BLOCK_TOKENS), np.float32)
        first = np.empty((count, BLOCK_TOKENS), np.float32)

        def work(share: slice) -> None:
            for cut in _row_slices(share):
                parts = temperatures[cut], highest[cut], log_sums[cut], sums[cut], first[cut]
                write_block_sums(self.output.matrix, self.output.bias, features, cut.start, *parts)

        run_row_slices(work, count)
        return BlockSums(log_sums, highest, sums, first, features)

    def logits(self, features: Int8Rows, rows: TokenIds, blocks: TokenIds) -> FloatArray:
        """The logits [N, 64] of blocks of tokens [N] after features, rows [N]."""
        logits = np.empty((len(rows), BLOCK_TOKENS), np.float32)
        write_block_logits(self.output.matrix, self.output.bias, features, rows, blocks, logits)
        return logits

    def target_logits(self, rows: Int8Rows, ids: TokenIds) -> FloatArray:
        """Unnormalised log-probabilities [N] of given next tokens, ids [N], after outputs of the body."""
        logits = np.empty(len(ids), np.float32)
        multiply_row_pairs(self.output.matrix, self.output.bias, self._features(rows), ids, logits)
        return logits

    def _features(self, rows: Int8Rows) -> Int8Rows:
        """Inputs of the output layer."""
        return rows if self.projection is None else _to_int8_rows(_project(self.projection, rows))


def _make_body(network: Network, weight_cache: PackedWeightCache) -> Int8Body:
    body = network.body
    if isinstance(body, FeedForward):
        return Int8FeedForward(body, network.config, weight_cache)
    return Int8Recurrent(cast("Recurrent", body), network.config, weight_cache)


def _row_slices(rows: slice) -> Iterator[slice]:
    """Slices of at most `ROWS_PER_PRODUCT` rows."""
    for start in range(rows.start, rows.stop, ROWS_PER_PRODUCT):
        yield slice(start, min(start + ROWS_PER_PRODUCT, rows.stop))


def _to_int8_rows(vectors: FloatArray) -> Int8Rows:
    """Vectors [N, W] as `Int8Rows`."""
    rows = zero_int8_rows(*vectors.shape)
    quantise_rows(vectors, rows, 0)
    return rows


def _project(projection: Int8Linear, rows: Int8Rows) -> FloatArray:
    """The projection of N rows [N, E]."""
    count = len(rows.values) - SPARE_ROWS
    projected = np.empty((count, len(projection.bias)), np.float32)
    multiply_rows(projection.matrix, projection.bias, rows, 0, count, projected)
    return projected[:, : projection.size]


def _to_array(tensor: Tensor) -> FloatArray:
    array: FloatArray = tensor.detach().cpu().numpy()
    return array
