"""Accessors of an automaton for kernels, whichever way words, probabilities and back-offs are stored.

State and arc numbers are unsigned in kernels: numba then omits its check for negative indices,
which costs a fifth of the speed. `link_states` finds missing links from contexts to their longest
listed suffix.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from models.ngram.automaton import EXACT_TYPES, QUANTISED_TYPES, Automaton

U = numba.uint64
F = TypeVar("F", bound=Callable[..., Any])


def readonly(dtype: str, ndim: int = 1) -> types.Array:
    """The numba type of a contiguous array that a kernel only reads."""
    return types.Array(getattr(types, dtype), ndim, "C", readonly=True)


def _automaton_type(arrays: dict[str, tuple[str, int]]) -> types.NamedTuple:
    return types.NamedTuple(  # type: ignore[no-untyped-call]  # numba ships no annotations for it
        [readonly(dtype, ndim) for dtype, ndim in arrays.values()], Automaton
    )


_EXACT, _QUANTISED = _automaton_type(EXACT_TYPES), _automaton_type(QUANTISED_TYPES)
_uncompiled: list[tuple[Any, Any]] = []
"""Kernels that are not compiled for quantised automata yet, and their signatures; callees before their callers."""
_compiling = threading.Lock()

SPAN_TYPES = (readonly("int32"), *[readonly("int64")] * 3)
"""States [B], tokens [N], and where each state's stretch of them begins and ends [B]: what walks along texts take."""


def automaton_kernel(result: Any, *arguments: Any) -> Callable[[F], F]:
    """Compile a kernel of an exact automaton and arguments of these types, or read it from numba's cache, at import.

    `compile_kernels` does the same for quantised automata.
    """

    def compiled(function: F) -> F:
        kernel = numba.njit([result(_EXACT, *arguments)], nogil=True, cache=True)(function)
        _uncompiled.append((kernel, result(_QUANTISED, *arguments)))
        return cast("F", kernel)

    return compiled


def compile_kernels(automaton: Automaton) -> None:
    """Compile all imported kernels for an automaton, or read them from numba's cache, so that no call waits for it."""
    if not automaton.quantised:
        return  # compiled at import
    with _compiling:
        for kernel, signature in _uncompiled:
            kernel.disable_compile(val=False)
            kernel.compile(signature)
            kernel.disable_compile()
        _uncompiled.clear()


def word_at(words: Any, arc: Any) -> Any:
    """The id of the word that an arc reads, int32, of `Automaton.words`; for kernels only."""
    raise NotImplementedError


@overload(word_at, jit_options={"forceinline": True, "nogil": True})
def _word_at(words: Any, arc: Any) -> Any:  # noqa: ARG001 - the types decide
    def whole(words: Any, arc: Any) -> Any:
        return words[arc]

    def bytewise(words: Any, arc: Any) -> Any:
        low = np.int32(words[arc, 0]) | (np.int32(words[arc, 1]) << 8)
        return np.int32(low | (np.int32(words[arc, 2]) << 16))

    return bytewise if words.ndim == 2 else whole


def value_at(coded: Any, values: Any, index: Any) -> Any:
    """A probability or back-off weight, float32, of the array that has it or its code; for kernels only."""
    raise NotImplementedError


@overload(value_at, jit_options={"forceinline": True, "nogil": True})
def _value_at(coded: Any, values: Any, index: Any) -> Any:  # noqa: ARG001
    def value(coded: Any, values: Any, index: Any) -> Any:  # noqa: ARG001
        return coded[index]

    def decoded(coded: Any, values: Any, index: Any) -> Any:
        return values[coded[index]]

    return decoded if coded.dtype == types.uint8 else value


@numba.njit(nogil=True, forceinline=True)
def word_of(automaton: Automaton, arc: Any) -> Any:
    """The id of the word that an arc reads, int32."""
    return word_at(automaton.words, arc)


@numba.njit(nogil=True, forceinline=True)
def log10_prob_of(automaton: Automaton, arc: Any) -> Any:
    """The log10 probability of an arc, float32."""
    return value_at(automaton.log10_probs, automaton.prob_values, arc)


@numba.njit(nogil=True, forceinline=True)
def log10_backoff_of(automaton: Automaton, state: Any) -> Any:
    """The log10 back-off weight of a state, float32."""
    return value_at(automaton.log10_backoffs, automaton.backoff_values, state)


@intrinsic
def _prefetch(_typing_context: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """Prefetch the cache line of `array[index]`, without waiting for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        view = context.make_array(array_type)(context, builder, arguments[0])
        position = builder.mul(arguments[1], ir.Constant(ir.IntType(64), _stride(array_type)))
        pointer = builder.gep(builder.bitcast(view.data, cgutils.voidptr_t), [position])
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


# a call would hand over every array of the automaton
@numba.njit(nogil=True, forceinline=True)
def search_end(begin: Any, end: Any, word: Any) -> Any:
    """The end of the arcs in [begin, end) that can read a word: as they rise, no more than `word` stand before it.

    Frequent words have small ids, so this spares most of the search in contexts with many arcs.
    """
    return min(end, begin + U(word) + U(1))


@numba.njit(nogil=True, forceinline=True)
def find_arc(words: Any, begin: Any, end: Any, word: Any) -> Any:
    """The arc in [begin, end) that reads the word, by bisection in `Automaton.words`; A if there is none.

    Guessing branches beat a search without branches: a wrong guess still loads the next line early.
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
    """The arc of this very state that reads the word, else A; the empty context has one for every word."""
    if state == U(0):
        return U(word)
    begin, end = U(first_arcs[state]), U(first_arcs[state + U(1)])
    return find_arc(words, begin, search_end(begin, end, word), word)


@numba.njit(nogil=True, forceinline=True)
def arc_of(automaton: Automaton, state: Any, word: Any) -> Any:
    """The same, of an automaton."""
    return arc_at(automaton.first_arcs, automaton.words, state, word)


@numba.njit(nogil=True, forceinline=True)
def context_length(order_starts: Any, state: Any) -> Any:
    """Return the length of a state's context. Also of longer n-grams: arc a is as long as a + 1."""
    length = U(0)
    while state > U(order_starts[length]):
        length += U(1)
    return length


@numba.njit(nogil=True)
def minimal_state(automaton: Automaton, state: Any) -> Any:
    """The shortest state with the same future: a context that nothing continues, at no charge, says nothing."""
    while (
        state != U(0)
        and automaton.first_arcs[state] == automaton.first_arcs[state + U(1)]
        and log10_backoff_of(automaton, state) == 0
    ):
        state = U(automaton.suffixes[state])
    return state


@numba.njit(nogil=True)
def next_state(automaton: Automaton, state: Any, word: Any) -> Any:
    """The state of the longest suffix of a context and a word."""
    num_states, missing = U(len(automaton.suffixes)), U(len(automaton.words))
    while True:
        arc = arc_of(automaton, state, word)
        if arc != missing and arc + U(1) < num_states:
            return arc + U(1)
        if state == U(0):  # a model of order 1 has no other state
            return U(0)
        state = U(automaton.suffixes[state])


@numba.njit(nogil=True, cache=True)
def link_states(
    first_arcs: npt.NDArray[np.uint32], words: npt.NDArray[np.int32], suffixes: npt.NDArray[np.int32]
) -> None:
    """Find the links that are −1 among `suffixes`, in place; see `Automaton` for the arrays.

    Without suffixes of n-grams of the highest order [S], those are not sought.
    The suffix of a context h w is where reading w leads from the suffix of h.
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
