"""Int8 layers: recurrent, feed-forward, attention; integer products and row-wise float gates.

Activations pass between layers as integers, or floats if a layer needs them (normalisation,
residual connections). Cells are simple loops over contiguous ranges, which the compiler vectorises.

Attention's scores and softmax are computed in single precision, term by term in order of time, so the
results of a row do not depend on the batch or its text's segmentation.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import numba
import numpy as np
from numba import types
from typing_extensions import override

from models.arrays import FloatArray, TokenIds
from models.kernels.compilation import kernel, tuple_type
from models.kernels.log_sum_exp import ROW_LANES
from models.kernels.math import copy_values, exp, fma, greater, sigmoid, sum_lanes, tanh
from models.neural.config import GATES, NetworkConfig
from models.neural.int8.matrix import (
    FLOATS,
    FLOATS_2D,
    IDS,
    INT8_MATRIX_TYPE,
    INT8_ROWS_TYPE,
    ROW_PADDING,
    Int8Linear,
    Int8Matrix,
    Int8Rows,
    Parameters,
    dequantise_rows,
    multiply_rows,
    quantise_row,
    quantise_rows,
    zero_int8_rows,
)
from models.neural.int8.output import multiply, to_int8_rows
from models.neural.network_model import HiddenArrays

_ZERO, _HALF = np.float32(0), np.float32(0.5)

INPUTS_PER_PRODUCT = 32
"""Number of inputs per product, which reads the weights once."""

LSTM_KIND, GRU_KIND, ELMAN_KIND, RELU_ELMAN_KIND, MINGRU_KIND = range(5)

_FLOATS_3D = types.float32[:, :, ::1]

_EPSILON = np.float32(1e-5)  # added to the variance; torch's default

_NO_CELLS = np.empty((0, 0), np.float32)


@numba.njit(nogil=True)
def _add_in_place(target: Any, values: Any) -> None:
    for index in range(len(target)):
        target[index] += values[index]


def _in_place(function: Any) -> Any:
    """Return a function that replaces values [N] by a compiled function's of each."""

    @numba.njit(nogil=True, error_model="numpy")  # no check for zero divisors
    def replace_values(values: Any) -> None:
        for index in range(len(values)):
            values[index] = function(values[index])

    return replace_values


sigmoid_in_place, tanh_in_place = _in_place(sigmoid), _in_place(tanh)
relu_in_place = _in_place(numba.njit(nogil=True, inline="always")(lambda value: greater(value, _ZERO)))


@kernel(types.void(FLOATS, types.boolean))
def activate(values: Any, rectified: Any) -> None:
    """Replace values [N] by tanh, or by max(0, value) if `rectified`."""
    if rectified:
        relu_in_place(values)
    else:
        tanh_in_place(values)


@numba.njit(nogil=True)
def lstm_step(x: Any, u: Any, h: Any, c: Any) -> None:
    """Long short-term memory: c ← σ(f) c + σ(i) tanh(g), h ← σ(o) tanh(c).

    Args:
        x: the inputs' part of the gates i, f, g, o [4 P], P being H rounded up; overwritten.
        u: contribution of the last outputs, in the shape of `x`.
        h: the last outputs [H]; overwritten.
        c: the memory cells [H]; overwritten.
    """
    size, padded = len(h), len(x) // 4
    _add_in_place(x, u)
    sigmoid_in_place(x[: 2 * padded])
    tanh_in_place(x[2 * padded : 3 * padded])
    sigmoid_in_place(x[3 * padded :])
    i, f, g, o = x[:size], x[padded : padded + size], x[2 * padded :], x[3 * padded :]
    for unit in range(size):
        c[unit] = fma(f[unit], c[unit], i[unit] * g[unit])
        h[unit] = c[unit]
    tanh_in_place(h)
    for unit in range(size):
        h[unit] *= o[unit]


@numba.njit(nogil=True)
def gru_step(x: Any, u: Any, h: Any) -> None:
    """Gated recurrent unit: h ← (1 − σ(z)) tanh(n + σ(r) n') + σ(z) h; gates r, z, n; see `lstm_step`."""
    size, padded = len(h), len(x) // 3
    _add_in_place(x[: 2 * padded], u)
    sigmoid_in_place(x[: 2 * padded])
    r, z, n, n_of_hidden = x[:size], x[padded : padded + size], x[2 * padded :], u[2 * padded :]
    for unit in range(size):
        n[unit] = fma(r[unit], n_of_hidden[unit], n[unit])
    tanh_in_place(n)
    for unit in range(size):
        h[unit] = fma(z[unit], h[unit] - n[unit], n[unit])


@numba.njit(nogil=True)
def elman_step(x: Any, u: Any, h: Any, rectified: Any) -> None:
    """Simple recurrent network: h ← tanh(x + u), or relu(x + u); see `lstm_step`."""
    for unit in range(len(h)):
        h[unit] = x[unit] + u[unit]
    activate(h, rectified)


@numba.njit(nogil=True, error_model="numpy")
def mingru_step(x: Any, h: Any) -> None:
    """Minimal gated recurrent unit: h ← h + σ(z) (g(n) − h).

    g is n + ½ above 0 and σ(n) below; see `lstm_step`.
    """
    size, padded = len(h), len(x) // 2
    sigmoid_in_place(x[:padded])
    z, n = x[:size], x[padded : padded + size]
    for unit in range(size):
        low, high = sigmoid(n[unit]), n[unit] + _HALF
        n[unit] = high if n[unit] > _ZERO else low
    for unit in range(size):
        h[unit] = fma(z[unit], n[unit] - h[unit], h[unit])


class RecurrentLayer(NamedTuple):
    """Weights of a recurrent layer with G gates of P rows, P being H rounded up to a multiple of 64.

    Attributes:
        kind: kind of the cell.
        of_inputs: weights of the inputs [G P, I].
        of_hidden: weights of the last outputs [G P, H]; no rows if gates depend only on the input.
        biases: biases of inputs and of last outputs [2, G P], float32.
    """

    kind: int
    of_inputs: Int8Matrix
    of_hidden: Int8Matrix
    biases: FloatArray


RECURRENT_LAYER_TYPE = tuple_type(RecurrentLayer, types.int64, INT8_MATRIX_TYPE, INT8_MATRIX_TYPE, FLOATS_2D)


@kernel(
    types.void(RECURRENT_LAYER_TYPE, INT8_ROWS_TYPE, IDS, FLOATS_2D, FLOATS_2D, _FLOATS_3D, INT8_ROWS_TYPE)
)
def run_recurrent_layer(layer: Any, inputs: Any, alive: Any, h: Any, c: Any, outputs: Any, rows: Any) -> None:
    """Read T inputs per row.

    Args:
        layer: a `RecurrentLayer`.
        inputs: `Int8Rows` [(T + 1) * B]: B unused rows, then the B rows of each step.
        alive: number of leading rows that each step reads [T], descending.
        h: last outputs [B, H]; overwritten.
        c: memory cells [B, H]; overwritten by LSTM layers.
        outputs: written, [T, B, H].
        rows: written, `Int8Rows` [(T + 1) * B]: the last outputs, then each step's.
    """
    batch = len(h)
    width = layer.biases.shape[1]
    span = max(1, INPUTS_PER_PRODUCT // max(1, batch))
    # gate contributions: x of inputs for several steps, as inputs are known ahead; u of outputs for one
    x = np.empty((min(span, len(alive)) * batch, width + ROW_PADDING), np.float32)
    u = np.empty((batch, width + ROW_PADDING), np.float32)
    for row in range(batch):
        quantise_row(h[row], rows, row)
    for step in range(len(alive)):
        offset = step % span * batch
        if offset == 0:
            end = min(step + span, len(alive)) - 1
            count = (end - step) * batch + alive[end]
            multiply_rows(layer.of_inputs, layer.biases[0], inputs, (step + 1) * batch, count, x)
        multiply_rows(layer.of_hidden, layer.biases[1], rows, step * batch, alive[step], u)
        for row in range(alive[step]):
            if layer.kind == LSTM_KIND:
                lstm_step(x[offset + row, :width], u[row, :width], h[row], c[row])
            elif layer.kind == GRU_KIND:
                gru_step(x[offset + row, :width], u[row, :width], h[row])
            elif layer.kind == MINGRU_KIND:
                mingru_step(x[offset + row, :width], h[row])
            else:
                elman_step(x[offset + row, :width], u[row, :width], h[row], layer.kind == RELU_ELMAN_KIND)
            copy_values(h[row], outputs[step, row])
            quantise_row(h[row], rows, (step + 1) * batch + row)


@kernel(types.void(*[FLOATS_2D] * 3), error_model="numpy")
def normalise_rows(norm: Any, vectors: Any, normalised: Any) -> None:
    """Normalise vectors [N, W] to mean 0 and variance 1, into `normalised` [N, W] (Ba et al. 2016).

    `norm` has a scale and a shift per column [2, W].
    """
    size, scales, shifts = vectors.shape[1], norm[0], norm[1]
    padded = np.zeros(-(-size // ROW_LANES) * ROW_LANES, np.float32)
    centred = padded[:size]
    for row in range(len(vectors)):
        copy_values(vectors[row], centred)
        centred -= sum_lanes(padded) / np.float32(size)
        variance = sum_lanes(padded * padded) / np.float32(size)
        inverse = np.float32(1) / np.sqrt(variance + _EPSILON)
        for column in range(size):
            normalised[row, column] = fma(centred[column] * inverse, scales[column], shifts[column])


class Activations:
    """Activations between layers [T, B, W], as integers and, on demand, as floats.

    Args:
        rows: [(T + 1) * B], of which the first B are unused; None to quantise the floats.
        floats: [T, B, W]; None to convert the integers.
        shape: (T, B, W).
    """

    def __init__(self, rows: Int8Rows | None, floats: FloatArray | None, shape: tuple[int, int, int]) -> None:
        self._shape = shape
        if rows is not None:
            self.rows = rows
        if floats is not None:
            self.floats = floats

    @cached_property
    def rows(self) -> Int8Rows:
        """Vectors as integers, quantised at first use."""
        steps, batch, width = self._shape
        rows = zero_int8_rows((steps + 1) * batch, width)
        quantise_rows(self.floats.reshape(-1, width), rows, batch)
        return rows

    @cached_property
    def floats(self) -> FloatArray:
        """Vectors in single precision, converted at first use."""
        floats = np.empty(self._shape, np.float32)
        dequantise_rows(self.rows, self._shape[1], floats.reshape(-1, self._shape[2]))
        return floats

    def normalised(self, norm: FloatArray | None) -> "Activations":
        """Return the vectors normalised; unchanged if `norm` is None."""
        if norm is None:
            return self
        floats = np.empty(self._shape, np.float32)
        width = self._shape[2]
        normalise_rows(norm, self.floats.reshape(-1, width), floats.reshape(-1, width))
        return Activations(None, floats, self._shape)


BodyResult: TypeAlias = tuple[Activations, HiddenArrays]


class Int8Body(ABC):
    """Layers from token vectors to the vectors that predict the next token.

    Attributes:
        start: initial state of one row.
    """

    start: HiddenArrays

    @abstractmethod
    def read(self, vectors: Int8Rows, alive: TokenIds, carried: HiddenArrays) -> BodyResult:
        """Read up to T vectors per row.

        Args:
            vectors: [(T + 1) * B]: B unused rows, then the B rows of each step.
            alive: number of leading rows that each step reads [T], descending.
            carried: the body's state; unchanged.

        Returns:
            The outputs after each token [T, B, W], and the next state.
        """


def row_lengths(alive: TokenIds, batch: int) -> TokenIds:
    """Number of steps of each row [B], from the number of rows in each step."""
    lengths: Any = np.count_nonzero(alive[:, None] > np.arange(batch), axis=0)
    return np.asarray(lengths, np.int64)


def last_vectors(seen: FloatArray, alive: TokenIds, count: int) -> FloatArray:
    """Return each row's last n vectors [n, B, W]; `seen` has n earlier ones, then one per step."""
    batch = seen.shape[1]
    last: FloatArray = seen[row_lengths(alive, batch) + np.arange(count)[:, None], np.arange(batch)]
    return last


class Int8Layers(Int8Body):
    """Base of stacked layers; see `models.neural.layers.LayeredBody`."""

    def __init__(self, config: NetworkConfig, parameters: Parameters) -> None:
        self._skips = config.skips
        self._norms: list[FloatArray | None] = [None] * (config.layers + 1)
        if config.layer_norm:
            norms = [parameters.part(f"norms.{number}") for number in range(len(self._norms))]
            self._norms = [np.stack([norm["weight"], norm["bias"]]) for norm in norms]

    def _run_layers(self, outputs: Activations, run: Callable[[int, Int8Rows], Activations]) -> Activations:
        """Return the last layer's outputs; `run` takes a layer's number and inputs."""
        for number, skip in enumerate(self._skips):
            above = run(number, outputs.normalised(self._norms[number]).rows)
            if skip:
                sums = above.floats + outputs.floats
                above = Activations(None, sums, sums.shape)
            outputs = above
        return outputs.normalised(self._norms[-1])


class Int8Recurrent(Int8Layers):
    """`Recurrent` in int8, with the same state."""

    @override
    def __init__(self, config: NetworkConfig, parameters: Parameters) -> None:
        super().__init__(config, parameters)
        self._layers = [_pack_layer(config, parameters.part(f"cells.{n}")) for n in range(config.layers)]
        self._width = config.embedding_size
        parts = range(config.cell_states)
        self.start = tuple(np.zeros((config.layers, 1, config.hidden_size), np.float32) for _ in parts)
        if config.learned_state:
            self.start = tuple(parameters[f"initial.{part}"].copy() for part in parts)

    @override
    def read(self, vectors: Int8Rows, alive: TokenIds, carried: HiddenArrays) -> BodyResult:
        steps, batch, size = len(alive), carried[0].shape[1], carried[0].shape[2]
        carried = tuple(part.copy() for part in carried)

        def run(number: int, inputs: Int8Rows) -> Activations:
            outputs = np.zeros((steps, batch, size), np.float32)
            rows = zero_int8_rows((steps + 1) * batch, size)
            cells = carried[1][number] if len(carried) > 1 else _NO_CELLS
            run_recurrent_layer(self._layers[number], inputs, alive, carried[0][number], cells, outputs, rows)
            return Activations(rows, outputs, (steps, batch, size))

        return self._run_layers(Activations(vectors, None, (steps, batch, self._width)), run), carried


def _pack_layer(config: NetworkConfig, cell: Parameters) -> RecurrentLayer:
    kinds = {"lstm": LSTM_KIND, "gru": GRU_KIND, "elman": ELMAN_KIND, "mingru": MINGRU_KIND}
    kind = RELU_ELMAN_KIND if (config.cell, config.activation) == ("elman", "relu") else kinds[config.cell]

    def padded(name: str) -> FloatArray:
        """Return weights [G H, …], each gate's rows zero-padded to a multiple of the lanes."""
        weights, size = cell[name], config.hidden_size
        of_gates = weights.reshape(GATES[config.cell], size, *weights.shape[1:])
        rows = np.zeros((len(of_gates), -(-size // ROW_LANES) * ROW_LANES, *weights.shape[1:]), np.float32)
        rows[:, :size] = of_gates
        return rows.reshape(-1, *weights.shape[1:])

    if kind == MINGRU_KIND:
        of_inputs, bias = cell.matrix("gates.weight", lambda: padded("gates.weight")), padded("gates.bias")
        of_hidden = cell.matrix("of_hidden", lambda: np.zeros((0, config.hidden_size), np.float32))
        return RecurrentLayer(kind, of_inputs, of_hidden, np.stack([bias, np.zeros_like(bias)]))
    of_inputs, of_hidden = (
        cell.matrix(name, partial(padded, name)) for name in ("kernel.weight_ih_l0", "kernel.weight_hh_l0")
    )
    biases = np.stack([padded("kernel.bias_ih_l0"), padded("kernel.bias_hh_l0")])
    return RecurrentLayer(kind, of_inputs, of_hidden, biases)


class Int8FeedForward(Int8Layers):
    """`FeedForward` in int8, with the same state: the last vectors [n - 1, B, E]."""

    @override
    def __init__(self, config: NetworkConfig, parameters: Parameters) -> None:
        super().__init__(config, parameters)
        layers = [parameters.part(f"layers.{number}") for number in range(config.layers)]
        self._layers = [layer.linear("weight", layer["bias"]) for layer in layers]
        self._rectified = config.activation == "relu"
        self._window, self._width = config.window, config.embedding_size
        self.start = (np.zeros((self._window - 1, 1, self._width), np.float32),)

    @override
    def read(self, vectors: Int8Rows, alive: TokenIds, carried: HiddenArrays) -> BodyResult:
        steps, batch = len(alive), carried[0].shape[1]
        read = Activations(vectors, None, (steps, batch, self._width)).floats
        seen = np.concatenate([carried[0], read])
        windows = np.concatenate([seen[k : k + steps] for k in range(self._window)], axis=2)

        def run(number: int, inputs: Int8Rows) -> Activations:
            outputs = np.ascontiguousarray(multiply(self._layers[number], inputs, first=batch))
            activate(outputs.reshape(-1), self._rectified)
            return Activations(None, outputs.reshape(steps, batch, -1), (steps, batch, outputs.shape[1]))

        outputs = self._run_layers(Activations(None, windows, (steps, batch, windows.shape[2])), run)
        return outputs, (last_vectors(seen, alive, self._window - 1),)


class Int8Attention(Int8Body):
    """`AttentionBody` in int8, with the same state."""

    def __init__(self, inner: Int8Body, config: NetworkConfig, parameters: Parameters) -> None:
        self._inner, self._before = inner, config.attention_window - 1
        width = config.hidden_size
        memory = np.zeros((self._before, 1, width), np.float32), np.zeros((1, 1, 1), np.float32)
        self.start = (*inner.start, *memory)
        scores, additive = parameters.part("scores"), config.attention == "additive"
        self._queries = scores.linear("queries.weight", scores["queries.bias"] if additive else None)
        self._keys = None if config.attention == "multiplicative" else scores.linear("keys.weight")
        self._projection = parameters.linear("projection.weight")
        self._reduction = scores["reduction.weight"][0].copy() if additive else np.zeros(0, np.float32)
        self._scale = np.float32(1 / math.sqrt(config.attention_size) if config.attention == "scaled" else 1)

    @override
    def read(self, vectors: Int8Rows, alive: TokenIds, carried: HiddenArrays) -> BodyResult:
        activations, inner = self._inner.read(vectors, alive, carried[:-2])
        outputs = activations.floats
        past, filled = carried[-2:]
        steps, batch, width = outputs.shape
        seen = np.ascontiguousarray(np.concatenate([past, outputs]))  # [n - 1 + T, B, W]
        queries = self._multiplied(self._queries, outputs)
        keys = seen if self._keys is None else self._multiplied(self._keys, seen)
        context = np.empty_like(outputs)
        # each row's first valid vector in `seen`
        first = self._before - filled[0, :, 0].astype(np.int64)
        _attend(queries, keys, seen, first, self._reduction, self._scale, context)
        attended = outputs + self._multiplied(self._projection, context)
        lengths = row_lengths(alive, batch)
        last = last_vectors(seen, alive, self._before)
        count = np.minimum(filled + lengths[None, :, None].astype(np.float32), np.float32(self._before))
        return Activations(None, attended, (steps, batch, width)), (*inner, last, count)

    @staticmethod
    def _multiplied(layer: Int8Linear, vectors: FloatArray) -> FloatArray:
        """Return the products [T, B, O] of a layer with vectors [T, B, I]."""
        products = multiply(layer, to_int8_rows(vectors.reshape(-1, vectors.shape[-1])))
        return np.ascontiguousarray(products).reshape(*vectors.shape[:-1], layer.size)


@kernel(types.void(*[_FLOATS_3D] * 3, IDS, FLOATS, types.float32, _FLOATS_3D), error_model="numpy")
def _attend(queries: Any, keys: Any, seen: Any, first: Any, reduction: Any, scale: Any, context: Any) -> None:
    """Write the weighted sums of the vectors that each query attends to.

    Args:
        queries: [T, B, S].
        keys: [M + T, B, S].
        seen: vectors [M + T, B, W].
        first: first valid vector of each row [B].
        reduction: weights of additive scores [S]; empty for products of queries and keys.
        scale: scale of the products.
        context: written, [T, B, W].
    """
    steps, batch, _ = context.shape
    before = len(seen) - steps
    scores = np.empty(before + 1, np.float32)
    for row in range(batch):
        for step in range(steps):
            begin, end = max(step, first[row]), step + before + 1
            highest = np.float32(-np.inf)
            # in order of time: any batch
            for at in range(begin, end):
                score = np.float32(0)
                for unit in range(queries.shape[2]):
                    if len(reduction):
                        total = queries[step, row, unit] + keys[at, row, unit]
                        score += reduction[unit] * tanh(total)
                    else:
                        score += queries[step, row, unit] * scale * keys[at, row, unit]
                scores[at - begin] = score
                highest = greater(highest, score)
            normaliser = np.float32(0)
            context[step, row] = 0
            for at in range(begin, end):
                weight = exp(scores[at - begin] - highest)
                normaliser += weight
                for column in range(context.shape[2]):
                    context[step, row, column] += weight * seen[at, row, column]
            for column in range(context.shape[2]):
                context[step, row, column] /= normaliser
