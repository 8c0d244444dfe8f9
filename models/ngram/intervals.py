"""Completions of a word by an n-gram model of words, without a row over the vocabulary.

A word's rank is its position among the sorted words, so the words with a prefix are an interval I of ranks. Let
h_n, …, h_0 be the context and its suffixes, the last one empty; α(h) the product of the back-off weights from h_n to
h; and E(h) the words listed after h and after no longer suffix. The probability of a word in E(h) is α(h) p(w | h), so

    M(I) = Σ_h Σ_{w ∈ E(h) ∩ I} α(h) p(w | h) + α(h_0) (U(I) − Σ_{w ∈ E(h) ∩ I, h ≠ h_0} p(w))

is the exact mass of the prefix. U(I), the mass of the unigrams, is a difference of two sums. The best unigrams of I
are found by blocks: a block whose best one does not reach the result is skipped.
"""

from collections import deque
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from models.arrays import Float32s, Float64s, Int32s, Int64s, TokenIds, UInt8s, UInt32s
from models.kernels.compilation import tuple_type, version_for
from models.kernels.math import exp
from models.language_model import UNK
from models.ngram.automaton import LN_10, Automaton
from models.ngram.model import NGramModel, NGramState
from models.ngram.scoring import (
    U,
    automaton_kernel,
    minimal_state,
    next_state,
    type_of,
    value_at,
    word_at,
    write_suffix_chain,
)
from models.tokenizers import Tokenizer, WordTokenizer
from models.word_index import join_lines
from models.word_kernels import BYTES, WORD_TABLE_TYPE, WordHashTable, encode_lines

_BLOCK_BITS = 6
_BLOCK = 1 << _BLOCK_BITS
"""Ranks of a block, of which all are skipped or compared."""


class RankedWords(NamedTuple):
    """The N words of a vocabulary in an order of their spellings.

    Attributes:
        ranks: rank of each token; N for tokens that are no words [V].
        words: token of each rank [N].
        sums: sum of the unigrams' probabilities before each rank, then of all [N + 1].
        best: largest log10 probability of each block's unigrams [⌈N / 64⌉].
    """

    ranks: Int32s
    words: Int32s
    sums: Float64s
    best: Float32s

    @classmethod
    def of(cls, order: TokenIds, automaton: Automaton) -> "RankedWords":
        """Rank the words of a model, given in order [N]."""
        words = order.astype(np.int32)
        ranks = np.full(automaton.vocab_size, len(words), np.int32)
        ranks[words] = np.arange(len(words), dtype=np.int32)
        probs = automaton.log10_probs[: automaton.vocab_size]
        log10s = (automaton.prob_values[probs] if automaton.quantised else probs)[words]
        sums = np.concatenate([[0.0], np.cumsum(10.0 ** log10s.astype(np.float64))])
        starts = np.arange(0, len(words), _BLOCK)
        best = np.maximum.reduceat(log10s, starts) if len(words) else log10s
        return cls(ranks, words, sums, best)


_RANKED_TYPE = tuple_type(
    RankedWords, types.int32[::1], types.int32[::1], types.float64[::1], types.float32[::1]
)


@numba.njit(nogil=True, forceinline=True)
def _precedes(value: Any, rank: Any, other: Any, other_rank: Any) -> np.bool_:
    """True if a word is better than another; of equally probable ones the first in order is."""
    return np.bool_(value > other or (value == other and rank < other_rank))


@numba.njit(nogil=True, forceinline=True)
def _insert(ranks: Int64s, log_probs: Float32s, rank: Any, value: np.float32) -> None:
    """Insert a word into the k best, if it is better than the last."""
    at = len(ranks) - 1
    if not _precedes(value, rank, log_probs[at], ranks[at]):
        return
    while at > 0 and _precedes(value, rank, log_probs[at - 1], ranks[at - 1]):
        ranks[at], log_probs[at] = ranks[at - 1], log_probs[at - 1]
        at -= 1
    ranks[at], log_probs[at] = rank, value


@numba.njit(nogil=True, forceinline=True)
def _insert_unigrams(
    automaton: Automaton,
    ranked: RankedWords,
    begin: int,
    end: int,
    backoff: float,
    seen: UInt32s,
    ranks: Int64s,
    log_probs: Float32s,
) -> None:
    """Insert the words of ranks [begin, end) that no longer context lists."""
    for rank in range(begin, end):
        if seen[rank] != seen[-1]:
            prob = value_at(automaton.log10_probs, automaton.prob_values, U(ranked.words[rank]))
            _insert(ranks, log_probs, rank, np.float32((prob + backoff) * LN_10))


@automaton_kernel(
    types.float64, _RANKED_TYPE, *[types.int64] * 3, types.uint32[::1], types.int64[::1], types.float32[::1]
)
def complete_interval(
    automaton: Automaton,
    ranked: RankedWords,
    state: int,
    low: int,
    high: int,
    seen: UInt32s,
    words: Int64s,
    log_probs: Float32s,
) -> float:
    """Find the k best words of an interval of ranks, and its mass.

    Args:
        automaton: the model.
        ranked: its words in order.
        state: context.
        low: first rank of the interval.
        high: rank after its last.
        seen: number of the last call that found each rank listed, then the number of calls [N + 1]; changed.
        words: written: the best words, most probable first; −1 if there are fewer [k ≥ 1].
        log_probs: written: natural-log probability of each; −∞ if there are fewer [k].

    Returns:
        The mass: the sum of the probabilities of all words of the interval.
    """
    order, call = len(automaton.order_starts) - 1, np.uint32(seen[-1] + np.uint32(1))
    if call == 0:  # the numbers are used up
        seen[:] = 0
        call = np.uint32(1)
    seen[-1] = call
    chain, backoffs = np.empty(order, np.uint64), np.empty(order, np.float64)
    first_arcs, tokens = automaton.first_arcs, automaton.words
    probs, decoded = automaton.log10_probs, automaton.prob_values
    words[:], log_probs[:] = -1, -np.inf
    mass = shadowed = 0.0
    last = write_suffix_chain(automaton, np.int32(state), chain, backoffs) - 1
    # longer contexts first: their arcs shadow those of shorter ones
    for level in range(last):
        for arc in range(U(first_arcs[chain[level]]), U(first_arcs[chain[level] + U(1)])):
            rank = np.int64(ranked.ranks[word_at(tokens, U(arc))])
            if rank < low or rank >= high or seen[rank] == call:
                continue
            seen[rank] = call
            value = np.float32((value_at(probs, decoded, U(arc)) + backoffs[level]) * LN_10)
            mass += exp(value)
            shadowed += ranked.sums[rank + 1] - ranked.sums[rank]
            _insert(words, log_probs, rank, value)
    backoff = backoffs[last]
    mass += 10.0**backoff * max(ranked.sums[high] - ranked.sums[low] - shadowed, 0.0)
    for block in range(low >> _BLOCK_BITS, (high + _BLOCK - 1) >> _BLOCK_BITS):
        begin = max(block << _BLOCK_BITS, low)
        best = np.float32((ranked.best[block] + backoff) * LN_10)
        if _precedes(best, begin, log_probs[-1], words[-1]):
            end = min((block + 1) << _BLOCK_BITS, high)
            _insert_unigrams(automaton, ranked, begin, end, backoff, seen, words, log_probs)
    for position in range(len(words)):
        if words[position] >= 0:
            words[position] = ranked.words[words[position]]
    total: float = mass
    return total


@automaton_kernel(types.int64, WORD_TABLE_TYPE, types.int32[::1], BYTES, types.int64, types.int64[::1])
def read_text(
    automaton: Automaton, table: WordHashTable, word_ids: Int32s, text: UInt8s, start: int, after: Int64s
) -> int:
    """Return the number of words of a text, and write the state after them to `after` [1].

    Args:
        automaton: the model.
        table: the words that have ids.
        word_ids: id of each word of the table [W].
        text: one line.
        start: state before it.
        after: written.
    """
    words, offsets = np.empty((len(text) + 1) // 2, np.int32), np.empty(2, np.int64)
    encode_lines(text, table, word_ids, UNK, words, offsets)
    count: int = offsets[1]
    most = len(automaton.order_starts) - 2
    # a state depends on the last words only
    state = U(start) if count < most else U(0)
    for position in range(max(count - most, 0), count):
        state = minimal_state(automaton, next_state(automaton, state, np.int64(words[position])))
    after[0] = state
    return count


class IntervalWords(NamedTuple):
    """Best words of an interval.

    Attributes:
        ids: the words, most probable first [k].
        log_probs: their natural-log probabilities [k].
        mass: sum of the probabilities of all words of the interval.
    """

    ids: list[int]
    log_probs: list[float]
    mass: float


class WordCompleter:
    """Completer for an n-gram model whose tokens are words between white space.

    Args:
        model: the model.
        tokenizer: its tokenizer.
    """

    def __init__(self, model: NGramModel, tokenizer: WordTokenizer) -> None:
        self._model, self._automaton, self._normalise = model, model.automaton, tokenizer.normaliser
        self._index = tokenizer.index
        kind = type_of(self._automaton)
        self._read, self._complete = version_for(read_text, kind), version_for(complete_interval, kind)
        self._ranked: dict[int, tuple[TokenIds, RankedWords]] = {}
        # threads at the same time need one each
        self._seen: deque[UInt32s] = deque()

    @staticmethod
    def of(model: object, tokenizer: Tokenizer) -> "WordCompleter | None":
        """Return a completer for a model and its tokenizer; None for others."""
        if not (isinstance(model, NGramModel) and isinstance(tokenizer, WordTokenizer)):
            return None
        is_plain = tokenizer.pattern is None and tokenizer.members is None and not tokenizer.unicode_spaces
        return WordCompleter(model, tokenizer) if is_plain else None

    def read(self, text: str) -> tuple[int, int]:
        """Return the number of words of a text, and the state after `<s>` and them."""
        after, automaton = np.empty(1, np.int64), self._automaton
        line = join_lines([self._normalise(text)])
        count = self._read(automaton, self._index.table, self._index.ids, line, automaton.initial, after)
        return count, int(after[0])

    def log_prob(self, state: int, word: int) -> float:
        """Return the natural-log probability of a word in a state."""
        context = NGramState(np.array([state], np.int32))
        return float(self._model.score_ragged(context, np.array([word]), np.array([0, 1]))[0])

    def rank(self, order: TokenIds) -> RankedWords:
        """Rank words by an order; once for each."""
        found = self._ranked.get(id(order))
        if found is None:
            found = self._ranked[id(order)] = order, RankedWords.of(order, self._automaton)
        return found[1]

    def complete(self, state: int, order: TokenIds, first: int, past: int, count: int) -> IntervalWords:
        """Find the `count` most probable words among those from `first` to before `past` in an order."""
        ranked = self.rank(order)
        words, log_probs = np.empty(count, np.int64), np.empty(count, np.float32)
        try:
            seen = self._seen.pop()
        except IndexError:
            seen = np.zeros(len(order) + 1, np.uint32)
        mass = self._complete(self._automaton, ranked, state, first, past, seen, words, log_probs)
        self._seen.append(seen)
        found = words >= 0
        return IntervalWords(words[found].tolist(), log_probs[found].tolist(), mass)
