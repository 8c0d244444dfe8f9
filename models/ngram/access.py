"""Accessors of an automaton for kernels, exact or quantised.

State and arc numbers are unsigned here to omit numba's check for negative indices, which costs a
fifth of the speed.

`link_states` finds missing links from contexts to their longest listed suffix.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import overload

from models.arrays import Int32s, UInt32s
from models.kernels.compilation import compile_declared, kernel, tuple_type
from models.kernels.llvm import BYTE_POINTER, INT64, first_element, intrinsic
from models.ngram.automaton import EXACT_TYPES, QUANTISED_TYPES, Automaton

U = numba.uint64
F = TypeVar("F", bound=Callable[..., Any])


def readonly(dtype: str, ndim: int = 1) -> types.Array:
    """Return the numba type of a contiguous array that a kernel only reads."""
    return types.Array(getattr(types, dtype), ndim, "C", readonly=True)


_EXACT, _QUANTISED = (
    tuple_type(Automaton, *[readonly(dtype, ndim) for dtype, ndim in arrays.values()])
    for arrays in (EXACT_TYPES, QUANTISED_TYPES)
)

SPAN_TYPES = (readonly("int32"), *[readonly("int64")] * 3)
"""Arguments of kernels that read texts: states [B], tokens [N], start and end of each span [B]."""


def automaton_kernel(result: Any, *arguments: Any) -> Callable[[F], F]:
    """Declare a kernel of an automaton, exact or quantised, and these types; see `kernel`."""
    return kernel(result(_EXACT, *arguments), result(_QUANTISED, *arguments))


def compile_kernels(automaton: Automaton) -> None:
    """Compile the imported kernels for an automaton's types, or read them from files."""
    compile_declared(type_of(automaton))


def type_of(automaton: Automaton) -> Any:
    """Return the numba type of an automaton."""
    return _QUANTISED if automaton.quantised else _EXACT


@numba.njit(nogil=True, forceinline=True)
def word_at(words: Any, arc: Any) -> Any:
    """Return the word id of an arc, int32, from `Automaton.words`."""
    if words.ndim == 2:  # numba compiles one of the branches
        low = np.int32(words[arc, 0]) | (np.int32(words[arc, 1]) << 8)
        return np.int32(low | (np.int32(words[arc, 2]) << 16))
    return words[arc]


def value_at(coded: Any, values: Any, index: Any) -> Any:
    """Return a value, float32, from an array of values or codes; for kernels only."""
    raise NotImplementedError


@overload(value_at, jit_options={"forceinline": True, "nogil": True})
def _value_at(coded: Any, values: Any, index: Any) -> Any:  # noqa: ARG001
    def value(coded: Any, values: Any, index: Any) -> Any:  # noqa: ARG001
        return coded[index]

    def decoded(coded: Any, values: Any, index: Any) -> Any:
        return values[coded[index]]

    return decoded if coded.dtype == types.uint8 else value


@numba.njit(nogil=True, forceinline=True)
def log10_prob_of(automaton: Automaton, arc: Any) -> Any:
    """Return the log10 probability of an arc, float32."""
    return value_at(automaton.log10_probs, automaton.prob_values, arc)


@numba.njit(nogil=True, forceinline=True)
def log10_backoff_of(automaton: Automaton, state: Any) -> Any:
    """Return the log10 back-off weight of a state, float32."""
    return value_at(automaton.log10_backoffs, automaton.backoff_values, state)


@intrinsic
def prefetch(_typing_context: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """Prefetch the cache line of `array[index]`, without waiting for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        width = ir.Constant(INT64, 3 if array_type.ndim == 2 else 1)  # a word has three bytes
        first = first_element(context, builder, array_type, arguments[0])
        pointer = builder.bitcast(builder.gep(first, [builder.mul(arguments[1], width)]), BYTE_POINTER)
        read, keep, data = (ir.Constant(ir.IntType(32), value) for value in (0, 3, 1))
        function = ir.FunctionType(ir.VoidType(), [BYTE_POINTER, *[read.type] * 3])
        callee = builder.module.declare_intrinsic("llvm.prefetch", [BYTE_POINTER], function)
        builder.call(callee, [pointer, read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate


# inlined because a call would pass every array of the automaton
@numba.njit(nogil=True, forceinline=True)
def search_end(begin: Any, end: Any, word: Any) -> Any:
    """Bound the search for a word's arc in [begin, end): at most `word` arcs precede it.

    Frequent words have small ids, so this avoids most of the search among many arcs.
    """
    return min(end, begin + U(word) + U(1))


@numba.njit(nogil=True, forceinline=True)
def find_arc(words: Any, begin: Any, end: Any, word: Any) -> Any:
    """Return the arc of a word in [begin, end), by bisection; A if there is none.

    Predicted branches are faster than a branch-free search: a wrong one still loads a cache line early.
    """
    stop = end
    while begin < end:
        middle = (begin + end) >> U(1)
        if word_at(words, middle) < word:
            begin = middle + U(1)
        else:
            end = middle
    return begin if begin < stop and word_at(words, begin) == word else U(len(words))


@numba.njit(nogil=True, forceinline=True)
def arc_at(first_arcs: Any, words: Any, state: Any, word: Any) -> Any:
    """Return the state's own arc of a word, else A; the empty context has an arc for each."""
    if state == U(0):
        return U(word)
    begin, end = U(first_arcs[state]), U(first_arcs[state + U(1)])
    return find_arc(words, begin, search_end(begin, end, word), word)


@numba.njit(nogil=True, forceinline=True)
def context_length(order_starts: Any, state: Any) -> Any:
    """Return the length of a state's context, or, given a + 1, of the n-gram of arc a."""
    length = U(0)
    while state > U(order_starts[length]):
        length += U(1)
    return length


@numba.njit(nogil=True)
def minimal_state(automaton: Automaton, state: Any) -> Any:
    """Return the shortest state with the same future.

    Contexts without arcs and of back-off weight 1 are skipped.
    """
    while (
        state != U(0)
        and automaton.first_arcs[state] == automaton.first_arcs[state + U(1)]
        and log10_backoff_of(automaton, state) == 0
    ):
        state = U(automaton.suffixes[state])
    return state


@numba.njit(nogil=True)
def next_state(automaton: Automaton, state: Any, word: Any) -> Any:
    """Return the state of the longest suffix of a context and a word."""
    num_states, missing = U(len(automaton.suffixes)), U(len(automaton.words))
    while True:
        arc = arc_at(automaton.first_arcs, automaton.words, state, word)
        if arc != missing and arc + U(1) < num_states:
            return arc + U(1)
        if state == U(0):  # order 1: the only state
            return U(0)
        state = U(automaton.suffixes[state])


@kernel()
def link_states(first_arcs: UInt32s, words: Int32s, suffixes: Int32s) -> None:
    """Replace entries −1 of `suffixes` by links, in place; see `Automaton` for the arrays.

    Without entries for n-grams of the highest order, these get no links.
    The suffix of a context h w is the state after w in the suffix of h.
    Source: Aho and Corasick (1975), "Efficient string matching", algorithm 3.
    """
    for prefix in range(len(first_arcs) - 1):
        for arc in range(first_arcs[prefix], first_arcs[prefix + 1]):
            state = arc + 1
            if state >= len(suffixes) or suffixes[state] >= 0:
                continue
            if prefix == 0:
                suffixes[state] = 0
                continue
            word, shorter = words[arc], U(suffixes[prefix])
            found = arc_at(first_arcs, words, shorter, word)
            while found == U(len(words)):
                shorter = U(suffixes[shorter])
                found = arc_at(first_arcs, words, shorter, word)
            suffixes[state] = found + U(1)
