"""The floats of recurrent cells: gates and updates of one row, in single precision.

Simple loops over whole stretches: the compiler vectorises those, and not one loop over many arrays.
"""

from typing import Any

import numba
import numpy as np

from models.neural.elementary import fma, greater, sigmoid, tanh

_ZERO, _HALF = np.float32(0), np.float32(0.5)


@numba.njit(nogil=True, cache=True)
def _add_in_place(target: Any, values: Any) -> None:
    for place in range(len(target)):
        target[place] += values[place]


@numba.njit(nogil=True, cache=True, error_model="numpy")  # no test of divisors
def sigmoid_in_place(values: Any) -> None:
    """Replace values by their sigmoids."""
    for place in range(len(values)):
        values[place] = sigmoid(values[place])


@numba.njit(nogil=True, cache=True, error_model="numpy")
def tanh_in_place(values: Any) -> None:
    """Replace values by their hyperbolic tangents."""
    for place in range(len(values)):
        values[place] = tanh(values[place])


@numba.njit(nogil=True, cache=True)
def relu_in_place(values: Any) -> None:
    """Replace what is below 0 by 0."""
    for place in range(len(values)):
        values[place] = greater(values[place], _ZERO)


@numba.njit(nogil=True, cache=True)
def lstm_step(x: Any, u: Any, h: Any, c: Any) -> None:
    """Long short-term memory: c ← σ(f) c + σ(i) tanh(g), h ← σ(o) tanh(c).

    Args:
        x: what inputs contribute to the gates i, f, g, o [4 P], P being H rounded up; written over.
        u: what the last outputs contribute, likewise.
        h: the last outputs [H]; written over.
        c: the memory cells [H]; written over.
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


@numba.njit(nogil=True, cache=True)
def gru_step(x: Any, u: Any, h: Any) -> None:
    """Gated recurrent unit: h ← (1 − σ(z)) tanh(n + σ(r) n') + σ(z) h; gates r, z, n; see `lstm`."""
    size, padded = len(h), len(x) // 3
    _add_in_place(x[: 2 * padded], u)
    sigmoid_in_place(x[: 2 * padded])
    r, z, n, further = x[:size], x[padded : padded + size], x[2 * padded :], u[2 * padded :]
    for unit in range(size):
        n[unit] = fma(r[unit], further[unit], n[unit])
    tanh_in_place(n)
    for unit in range(size):
        h[unit] = fma(z[unit], h[unit] - n[unit], n[unit])


@numba.njit(nogil=True, cache=True)
def elman_step(x: Any, u: Any, h: Any, rectified: Any) -> None:
    """Simple recurrent network: h ← tanh(x + u), or the rectified sum; see `lstm`."""
    for unit in range(len(h)):
        h[unit] = x[unit] + u[unit]
    if rectified:
        relu_in_place(h)
    else:
        tanh_in_place(h)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def mingru_step(x: Any, h: Any) -> None:
    """Minimal gated recurrent unit: h ← h + σ(z) (g(n) − h), g being n + ½ above 0 and σ(n) below; see `lstm`."""
    size, padded = len(h), len(x) // 2
    sigmoid_in_place(x[:padded])
    z, n = x[:size], x[padded : padded + size]
    for unit in range(size):
        low, high = sigmoid(n[unit]), n[unit] + _HALF
        n[unit] = high if n[unit] > _ZERO else low
    for unit in range(size):
        h[unit] = fma(z[unit], n[unit] - h[unit], h[unit])
