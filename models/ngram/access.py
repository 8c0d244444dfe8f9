"""What kernels read from an automaton, whichever way it stores words, probabilities and back-offs.

Numbers of states and arcs are unsigned while kernels run: numba then leaves out its look at
negative indices, which costs a fifth of the speed.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from models.ngram.automaton import EXACT_TYPES, QUANTISED_TYPES, Automaton

U = numba.uint64


def readonly(dtype: str, ndim: int = 1) -> types.Array:
    """The numba type of a contiguous array that a kernel only reads."""
    return types.Array(getattr(types, dtype), ndim, "C", readonly=True)


def _automaton_type(arrays: dict[str, tuple[str, int]]) -> types.NamedTuple:
    return types.NamedTuple(  # type: ignore[no-untyped-call]  # numba ships no annotations for it
        [readonly(dtype, ndim) for dtype, ndim in arrays.values()], Automaton
    )


AUTOMATON_TYPES = (_automaton_type(EXACT_TYPES), _automaton_type(QUANTISED_TYPES))
"""What every kernel is compiled for."""


def _element(automaton: types.NamedTuple, field: str) -> types.Type:
    element: types.Type = automaton.types[Automaton._fields.index(field)].dtype
    return element


def word_of(automaton: Automaton, arc: Any) -> Any:
    """The id of the word that an arc reads, int32; for kernels only."""
    raise NotImplementedError


@overload(word_of)
def _word_of(automaton: Any, arc: Any) -> Any:  # noqa: ARG001 - the types decide
    def whole(automaton: Any, arc: Any) -> Any:
        return automaton.words[arc]

    def bytewise(automaton: Any, arc: Any) -> Any:
        low = np.int32(automaton.words[arc, 0]) | (np.int32(automaton.words[arc, 1]) << 8)
        return np.int32(low | (np.int32(automaton.words[arc, 2]) << 16))

    return bytewise if _element(automaton, "words") == types.uint8 else whole


def log10_prob_of(automaton: Automaton, arc: Any) -> Any:
    """The log10 probability of an arc, float32; for kernels only."""
    raise NotImplementedError


@overload(log10_prob_of)
def _log10_prob_of(automaton: Any, arc: Any) -> Any:  # noqa: ARG001
    def value(automaton: Any, arc: Any) -> Any:
        return automaton.log10_probs[arc]

    def coded(automaton: Any, arc: Any) -> Any:
        return automaton.prob_values[automaton.log10_probs[arc]]

    return coded if _element(automaton, "log10_probs") == types.uint8 else value


def log10_backoff_of(automaton: Automaton, state: Any) -> Any:
    """The log10 back-off weight of a state, float32; for kernels only."""
    raise NotImplementedError


@overload(log10_backoff_of)
def _log10_backoff_of(automaton: Any, state: Any) -> Any:  # noqa: ARG001
    def value(automaton: Any, state: Any) -> Any:
        return automaton.log10_backoffs[state]

    def coded(automaton: Any, state: Any) -> Any:
        return automaton.backoff_values[automaton.log10_backoffs[state]]

    return coded if _element(automaton, "log10_backoffs") == types.uint8 else value


@intrinsic
def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """Ask the processor for the cache line of `array[index]`, without waiting for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        view = context.make_array(array_type)(context, builder, arguments[0])
        place = builder.mul(arguments[1], ir.Constant(ir.IntType(64), _stride(array_type)))
        pointer = builder.gep(builder.bitcast(view.data, cgutils.voidptr_t), [place])
        flag = ir.IntType(32)
        function = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, flag, flag, flag])
        read, keep, data = (ir.Constant(flag, value) for value in (0, 3, 1))
        callee = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], function)
        builder.call(callee, [pointer, read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate


def _stride(array_type: Any) -> int:
    """Bytes from one row to the next; arrays of two axes hold the three bytes of a word."""
    width = 3 if array_type.ndim == 2 else 1
    return int(array_type.dtype.bitwidth // 8 * width)


prefetch: Any = _prefetch  # called without the typing context


@numba.njit(nogil=True)
def find(automaton: Automaton, begin: Any, end: Any, word: Any) -> Any:
    """The first arc in [begin, end) whose word is not smaller, by bisection; `end` if there is none.

    Guessing branches beat a search without branches: a wrong guess still loads the next line early.
    """
    while begin < end:
        middle = (begin + end) >> U(1)
        if word_of(automaton, middle) < word:
            begin = middle + U(1)
        else:
            end = middle
    return begin


@numba.njit(nogil=True)
def arc_of(automaton: Automaton, state: Any, word: Any) -> Any:
    """The arc of this very state that reads the word, else A; the empty context has one for every word."""
    if state == U(0):
        return U(word)
    end = U(automaton.first_arcs[state + U(1)])
    arc = find(automaton, U(automaton.first_arcs[state]), end, word)
    if arc < end and word_of(automaton, arc) == word:
        return arc
    return U(len(automaton.words))


@numba.njit(nogil=True)
def minimal(automaton: Automaton, state: Any) -> Any:
    """The shortest state with the same future: a context that nothing continues, at no charge, says nothing."""
    while (
        state != U(0)
        and automaton.first_arcs[state] == automaton.first_arcs[state + U(1)]
        and log10_backoff_of(automaton, state) == 0
    ):
        state = U(automaton.suffixes[state])
    return state


@numba.njit(nogil=True)
def step(automaton: Automaton, state: Any, word: Any) -> Any:
    """The state of the longest suffix of a context and a word."""
    num_states, missing = U(len(automaton.suffixes)), U(len(automaton.words))
    while True:
        arc = arc_of(automaton, state, word)
        if arc != missing and arc + U(1) < num_states:
            return arc + U(1)
        if state == U(0):  # a model of order 1 has no other state
            return U(0)
        state = U(automaton.suffixes[state])
