"""Compiled scoring with an automaton, exact or quantised: log-probabilities, states, distributions.

Kernels release the interpreter lock. All add in double precision and the same
order, so a word gets the same float in a score and a distribution, in any batch.

Word ids are checked, since others would index outside the arrays: kernels return the index of the
first invalid id, or −1. State and arc numbers of the accessors are unsigned to omit numba's check for
negative indices, which costs a fifth of the speed.

`link_states` finds missing links from contexts to their longest listed suffix.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import overload

from models.arrays import Float32s, Float64s, Int32s, Int64s, UInt8s, UInt32s, UInt64s
from models.kernels.compilation import compile_declared, kernel, tuple_type
from models.kernels.math import BYTE_POINTER, INT64, copy_values, first_element, intrinsic
from models.ngram.automaton import EXACT_TYPES, LN_10, QUANTISED_TYPES, Automaton

U = numba.uint64
F = TypeVar("F", bound=Callable[..., Any])

_LANES = 24
_POSITION, _ROW_END, _STATE, _FIRST, _LAST = (np.uint64(column) for column in range(5))
"""Columns of a lane: its token, the end of its row, its state, and the range of arcs to search."""


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


@numba.njit(nogil=True)
def write_suffix_chain(automaton: Automaton, state: np.int32, states: UInt64s, backoffs: Float64s) -> int:
    """Write a state and its suffixes, and the log10 back-off to each; return their count.

    The last one is the empty context.
    """
    depth, backoff, here = 0, 0.0, U(state)
    while here != U(0):
        states[depth], backoffs[depth] = here, backoff
        depth += 1
        backoff += log10_backoff_of(automaton, here)
        here = U(automaton.suffixes[here])
    states[depth], backoffs[depth] = here, backoff
    return depth + 1


@automaton_kernel(types.void, readonly("int32"), types.float32[:, ::1])
def write_distributions(automaton: Automaton, states: Int32s, out: Float32s) -> None:
    """Write log-probabilities [B, V] of all words in states [B] to `out`.

    Writes the unigrams with the complete back-off, then the arcs of successively longer
    contexts: O(V + arcs) per row instead of V lookups.
    """
    order = len(automaton.order_starts) - 1
    chain, backoffs = np.empty(order, np.uint64), np.empty(order, np.float64)
    first_arcs, words = automaton.first_arcs, automaton.words
    probs, decoded = automaton.log10_probs, automaton.prob_values
    for row in range(len(states)):
        last = write_suffix_chain(automaton, states[row], chain, backoffs) - 1
        for word in range(out.shape[1]):
            out[row, word] = (value_at(probs, decoded, word) + backoffs[last]) * LN_10
        # longer contexts overwrite shorter
        for level in range(last - 1, -1, -1):
            state = chain[level]
            for arc in range(U(first_arcs[state]), U(first_arcs[state + U(1)])):
                value = (value_at(probs, decoded, U(arc)) + backoffs[level]) * LN_10
                out[row, word_at(words, U(arc))] = value


@numba.njit(nogil=True)
def ranked_index(automaton: Automaton, state: np.uint64) -> Any:
    """Return the index of a state among `ranked_states`, else −1."""
    ranked, wanted = automaton.ranked_states, np.int32(state)
    index = np.searchsorted(ranked, wanted)
    return index if index < len(ranked) and ranked[index] == wanted else -1


@numba.njit(nogil=True, forceinline=True)
def _next_filled_row(row: int, begins: Int64s, ends: Int64s) -> int:
    """Return the first non-empty row from `row` on, or B."""
    while row < len(begins) and begins[row] >= ends[row]:
        row += 1
    return row


@numba.njit(nogil=True, forceinline=True)
def _start_lane(walks: UInt64s, lane: Any, begin: Any, end: Any, state: Any) -> None:
    """Start a row in a lane."""
    walks[lane, _POSITION], walks[lane, _ROW_END], walks[lane, _STATE] = U(begin), U(end), U(state)


@numba.njit(nogil=True, forceinline=True)
def _prefetch_arcs(automaton: Automaton, tokens: Int64s, walks: UInt64s, lanes: Any) -> None:
    """Find the arcs of each lane's state, and prefetch data for the next step."""
    for number in range(lanes):
        lane = U(number)
        state = walks[lane, _STATE]
        first = U(automaton.first_arcs[state])
        last = search_end(first, U(automaton.first_arcs[state + U(1)]), tokens[walks[lane, _POSITION]])
        walks[lane, _FIRST], walks[lane, _LAST] = first, last
        prefetch(automaton.words, (first + last) >> U(1))
        prefetch(automaton.log10_probs, (first + last) >> U(1))
        prefetch(automaton.log10_backoffs, state)
        prefetch(automaton.suffixes, state)


@automaton_kernel(types.int64, *SPAN_TYPES, types.float32[::1], types.uint8[::1], types.float32[::1])
def score_spans(  # noqa: C901, PLR0912, PLR0915 - one loop, to keep its variables in registers
    automaton: Automaton,
    states: Int32s,
    tokens: Int64s,
    begins: Int64s,
    ends: Int64s,
    log_probs: Float32s,
    orders: UInt8s,
    log_backoffs: Float32s,
) -> int:
    """Write log-probabilities of B spans of tokens [N] to the same positions of `log_probs`.

    Several rows, the lanes, advance in turn by one arc or link. A round has two passes: one
    prefetches the arcs of each lane's state, the other reads them.

    Args:
        automaton: the model.
        states: state before each span [B].
        tokens: tokens of all spans [N].
        begins: start of each span [B].
        ends: end of each span [B].
        log_probs: [N]; written.
        orders: length of each token's n-gram [N]; not written if empty.
        log_backoffs: natural logarithm of each token's back-off [N]; not written if empty.

    Returns:
        −1, or the position of a token outside the vocabulary.
    """
    vocab_size, num_states = U(automaton.first_arcs[1]), U(len(automaton.suffixes))
    missing = U(len(automaton.words))
    detailed = len(orders) > 0
    walks = np.empty((_LANES, 8), np.uint64)  # [L, 8]: one 64-byte cache line per lane
    backoffs = np.zeros(_LANES, np.float64)  # [L], log10, charged since the last token
    # [L]; the token is scored, but its next state is unknown
    scored = np.zeros(_LANES, np.bool_)
    row, lanes = _next_filled_row(0, begins, ends), U(0)
    while lanes < U(_LANES) and row < len(states):
        _start_lane(walks, lanes, begins[row], ends[row], states[row])
        row, lanes = _next_filled_row(row + 1, begins, ends), lanes + U(1)
    # round robin, a step per lane, so all lanes' cache misses overlap
    while lanes > U(0):
        _prefetch_arcs(automaton, tokens, walks, lanes)
        lane = U(0)
        while lane < lanes:
            at, state = walks[lane, _POSITION], walks[lane, _STATE]
            word = tokens[at]
            if state == U(0):
                if U(word) >= vocab_size:  # also catches negative ids
                    bad: int = at
                    return bad
                arc = U(word)
            else:
                arc = find_arc(automaton.words, walks[lane, _FIRST], walks[lane, _LAST], word)
                if arc == missing:
                    backoffs[lane] += log10_backoff_of(automaton, state)
                    state = U(automaton.suffixes[state])
                    walks[lane, _STATE] = state
                    prefetch(automaton.first_arcs, state)
                    lane += U(1)
                    continue
            if scored[lane]:
                scored[lane] = False
            else:
                log_probs[at] = (log10_prob_of(automaton, arc) + backoffs[lane]) * LN_10
                if detailed:
                    orders[at] = context_length(automaton.order_starts, arc + U(1))
                    log_backoffs[at] = backoffs[lane] * LN_10
            at += U(1)
            if at == walks[lane, _ROW_END]:
                backoffs[lane] = 0.0
                if row < len(states):
                    _start_lane(walks, lane, begins[row], ends[row], states[row])
                    row, lane = _next_filled_row(row + 1, begins, ends), lane + U(1)
                else:  # the last lane moves here and takes its turn
                    lanes -= U(1)
                    copy_values(walks[lanes], walks[lane])
                    backoffs[lane], scored[lane] = backoffs[lanes], scored[lanes]
                continue
            # n-grams of the highest order are no states; their suffixes are
            if arc + U(1) >= num_states and state != U(0):
                state, scored[lane] = U(automaton.suffixes[state]), True
            else:
                state = arc + U(1) if num_states > U(1) else U(0)
                walks[lane, _POSITION], backoffs[lane] = at, 0.0
            walks[lane, _STATE] = state
            prefetch(automaton.first_arcs, state)
            lane += U(1)
    return -1


@automaton_kernel(types.int64, readonly("int32"), readonly("int64"), types.int32[::1])
def advance_rows(automaton: Automaton, states: Int32s, tokens: Int64s, out: Int32s) -> int:
    """Write the states [B] after a token each [B]; return −1, or the row of an invalid token.

    States are minimal: contexts with the same future share one.
    """
    vocab_size = np.int64(automaton.first_arcs[1])
    for row in range(len(states)):
        word = tokens[row]
        if not 0 <= word < vocab_size:
            return row
        out[row] = minimal_state(automaton, next_state(automaton, U(states[row]), word))
    return -1


@automaton_kernel(types.int64, *SPAN_TYPES, types.int32[::1])
def states_before(
    automaton: Automaton, states: Int32s, tokens: Int64s, begins: Int64s, ends: Int64s, out: Int32s
) -> int:
    """Write the state before each token of B spans to its position in `out` [N].

    Arguments and result are as in `score_spans`.
    """
    vocab_size = np.int64(automaton.first_arcs[1])
    for row in range(len(states)):
        state = U(states[row])
        for position in range(begins[row], ends[row]):
            out[position] = state
            word = tokens[position]
            if not 0 <= word < vocab_size:
                return position
            state = minimal_state(automaton, next_state(automaton, state, word))
    return -1
