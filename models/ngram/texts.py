r"""Scores of whole texts, and completions of words, by an n-gram model of words, in one kernel call each.

Python objects of words, or a row over the vocabulary, would cost several times as much as the
lookups.

A word's rank is its position among the sorted words: the words with a prefix are an interval I
of ranks. Let h_n, …, h_0 be the context and its suffixes, h_0 empty; α(h) the product of the
back-off weights from h_n to h; E(h) the words listed after h, not after a longer one. A word in
E(h) has the probability α(h) p(w | h), so

    M(I) = Σ_h Σ_{w ∈ E(h) ∩ I} α(h) p(w | h) + α(h_0) (U(I) − Σ_{w ∈ E(h) ∩ I, h ≠ h_0} p(w))

is the exact mass of the prefix. U(I), the unigrams' mass, is a difference of two sums. Blocks of unigrams whose best
one does not reach the result are skipped.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from models.arrays import Float32s, Float64s, Int32s, Int64s, TokenIds, UInt8s, UInt32s
from models.kernels.compilation import tuple_type, version_for
from models.kernels.math import exp
from models.language_model import EOS, STATE, UNK, TopTokens
from models.ngram.automaton import LN_10, Automaton
from models.ngram.model import NGramModel, NGramState
from models.ngram.scoring import (
    U,
    arc_at,
    automaton_kernel,
    minimal_state,
    next_state,
    ranked_index,
    score_spans,
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
"""Ranks compared together."""


@automaton_kernel(
    types.int64,
    WORD_TABLE_TYPE,
    types.int32[::1],
    BYTES,
    types.int64,
    types.int32,
    types.int64[::1],
    types.int64[::1],
    types.float32[::1],
)
def score_lines(
    automaton: Automaton,
    table: WordHashTable,
    word_ids: Int32s,
    text: UInt8s,
    last: int,
    start: int,
    tokens: Int64s,
    offsets: Int64s,
    log_probs: Float32s,
) -> int:
    r"""Write the ids and natural-log probabilities of L lines joined by "\n".

    Args:
        automaton: the model.
        table: the words that have ids.
        word_ids: id of each word of the table [W].
        text: the lines.
        last: id to append to each line; −1 for none.
        start: state before each line.
        tokens: written; as long as half the number of bytes, rounded up, and L more [N].
        offsets: written, number of tokens before each line, then in total [L + 1].
        log_probs: written [N].

    Returns:
        −1, or the position of a token outside the vocabulary.
    """
    num_lines = len(offsets) - 1
    words = np.empty(len(tokens), np.int32)
    encode_lines(text, table, word_ids, UNK, words, offsets)
    # move each line by the ids appended before it, the last line first: no word is overwritten
    states = np.empty(num_lines, np.int32)
    added = 0 if last < 0 else 1
    for line in range(num_lines):
        states[line] = start
        begin, end, shift = offsets[line], offsets[line + 1], added * line
        for position in range(begin, end):
            tokens[position + shift] = words[position]
        if added:
            tokens[end + shift] = last
    for line in range(num_lines + 1):
        offsets[line] += added * line
    no_orders, no_backoffs = np.empty(0, np.uint8), np.empty(0, np.float32)
    bad: int = score_spans(
        automaton, states, tokens, offsets[:-1], offsets[1:], log_probs, no_orders, no_backoffs
    )
    return bad


class RankedWords(NamedTuple):
    """The N words of a vocabulary in an order of their spellings.

    Attributes:
        ranks: rank of each token; N for tokens that are no words [V].
        words: token of each rank [N].
        sums: sum of the unigrams' probabilities before each rank, then of all [N + 1].
        best: largest log10 probability of each block's unigrams [⌈N / 64⌉].
        arcs: the arcs in `Automaton.ranked_arcs`, those of each state by the rank of their words.
        totals: mass of all words after each ranked state, once it was needed; else NaN [R].
    """

    ranks: Int32s
    words: Int32s
    sums: Float64s
    best: Float32s
    arcs: UInt32s
    totals: Float64s

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
        arcs = np.empty(len(automaton.ranked_arcs), np.uint32)
        _sort_arcs(automaton, ranks, arcs)
        return cls(ranks, words, sums, best, arcs, np.full(len(automaton.ranked_states), np.nan))


_RANKED_TYPE = tuple_type(
    RankedWords,
    *[types.int32[::1]] * 2,
    types.float64[::1],
    types.float32[::1],
    types.uint32[::1],
    types.float64[::1],
)


@automaton_kernel(types.void, types.int32[::1], types.uint32[::1])
def _sort_arcs(automaton: Automaton, ranks: Int32s, arcs: UInt32s) -> None:
    """Write the arcs of each ranked state, in the order of their words' ranks."""
    for number, state in enumerate(automaton.ranked_states):
        if state == 0:
            continue  # the unigrams have other arrays
        begin = np.int64(automaton.ranked_starts[number])
        first, past = np.int64(automaton.first_arcs[state]), np.int64(automaton.first_arcs[state + 1])
        keys = np.empty(past - first, np.int32)
        for arc in range(first, past):
            keys[arc - first] = ranks[word_at(automaton.words, U(arc))]
        for position, place in enumerate(np.argsort(keys)):
            arcs[begin + position] = first + place


@numba.njit(nogil=True, forceinline=True)
def _rank_of(automaton: Automaton, ranked: RankedWords, arc: Any) -> Any:
    return np.int64(ranked.ranks[word_at(automaton.words, U(arc))])


@numba.njit(nogil=True, forceinline=True)
def _first_from(automaton: Automaton, ranked: RankedWords, begin: Any, end: Any, low: int) -> Any:
    """Return the first of a ranked state's sorted arcs whose word has at least a rank, by bisection."""
    while begin < end:
        middle = (begin + end) >> 1
        if _rank_of(automaton, ranked, ranked.arcs[middle]) < low:
            begin = middle + 1
        else:
            end = middle
    return begin


@automaton_kernel(types.float64, _RANKED_TYPE, types.int64)
def total_mass(automaton: Automaton, ranked: RankedWords, state: int) -> float:
    """Return the mass of all words in a state: 1 without `</s>` and `<unk>`, in normalised models.

    For each context from the shortest on: the mass of its own words, and its back-off weight times what is left of
    the shorter one's without them.
    """
    order = len(automaton.order_starts) - 1
    chain, backoffs = np.empty(order, np.uint64), np.empty(order, np.float64)
    first_arcs, tokens, missing = automaton.first_arcs, automaton.words, U(len(automaton.words))
    probs, decoded = automaton.log10_probs, automaton.prob_values
    last = write_suffix_chain(automaton, np.int32(state), chain, backoffs) - 1
    total = ranked.sums[-1]
    for level in range(last - 1, -1, -1):
        index = ranked_index(automaton, chain[level])
        if index >= 0 and ranked.totals[index] >= 0:
            total = ranked.totals[index]
            continue
        if backoffs[level] == -np.inf:  # counts nothing
            continue
        backs_off = backoffs[level + 1] > -np.inf
        listed = shorter = 0.0
        for arc in range(U(first_arcs[chain[level]]), U(first_arcs[chain[level] + U(1)])):
            word = word_at(tokens, U(arc))
            if ranked.ranks[word] == len(ranked.words):
                continue
            listed += 10.0 ** np.float64(value_at(probs, decoded, U(arc)))
            if not backs_off:
                continue
            below = level + 1
            other = arc_at(first_arcs, tokens, chain[below], word)
            while other == missing:
                below += 1
                other = arc_at(first_arcs, tokens, chain[below], word)
            shorter += 10.0 ** (value_at(probs, decoded, other) + backoffs[below] - backoffs[level + 1])
        total = listed + (
            10.0 ** (backoffs[level + 1] - backoffs[level]) * max(total - shorter, 0.0) if backs_off else 0.0
        )
        if index >= 0:
            ranked.totals[index] = total
    mass: float = total
    return mass


@numba.njit(nogil=True, forceinline=True)
def _precedes(value: Any, rank: Any, other: Any, other_rank: Any) -> np.bool_:
    """True if a word is more probable than another, or as probable and first in order."""
    return np.bool_(value > other or (value == other and rank < other_rank))


@numba.njit(nogil=True, forceinline=True)
def _insert(ranks: Int64s, log_probs: Float32s, rank: Any, value: np.float32) -> None:
    """Insert a word into the k best if it precedes the last."""
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
def complete_interval(  # noqa: C901 - one loop over arcs, sorted or not
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
        log_probs: written: their natural-log probabilities; −∞ if there are fewer [k].

    Returns:
        The mass: the sum of all words' probabilities.
    """
    order, call = len(automaton.order_starts) - 1, np.uint32(seen[-1] + np.uint32(1))
    if call == 0:  # the numbers are used up
        seen[:] = 0
        call = np.uint32(1)
    seen[-1] = call
    chain, backoffs = np.empty(order, np.uint64), np.empty(order, np.float64)
    first_arcs, probs, decoded = automaton.first_arcs, automaton.log10_probs, automaton.prob_values
    words[:], log_probs[:] = -1, -np.inf
    mass = shadowed = 0.0
    last = write_suffix_chain(automaton, np.int32(state), chain, backoffs) - 1
    # longer contexts first: their arcs shadow those of shorter ones
    for level in range(last):
        begin, end = np.int64(first_arcs[chain[level]]), np.int64(first_arcs[chain[level] + U(1)])
        index = ranked_index(automaton, chain[level])
        if index >= 0:
            begin = np.int64(automaton.ranked_starts[index])
            end = np.int64(automaton.ranked_starts[index + 1])
            begin = _first_from(automaton, ranked, begin, end, low)
        for position in range(begin, end):
            arc = np.int64(ranked.arcs[position]) if index >= 0 else position
            rank = _rank_of(automaton, ranked, arc)
            if rank >= high and index >= 0:
                break
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
        start: int = max(block << _BLOCK_BITS, low)
        best = np.float32((ranked.best[block] + backoff) * LN_10)
        if _precedes(best, start, log_probs[-1], words[-1]):
            stop = min((block + 1) << _BLOCK_BITS, high)
            _insert_unigrams(automaton, ranked, start, stop, backoff, seen, words, log_probs)
    for position in range(len(words)):
        if words[position] >= 0:
            words[position] = ranked.words[words[position]]
    total: float = mass
    return total


@automaton_kernel(types.int64, WORD_TABLE_TYPE, types.int32[::1], BYTES, types.int64, types.int32[::1])
def read_text(
    automaton: Automaton, table: WordHashTable, word_ids: Int32s, text: UInt8s, start: int, after: Int32s
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


class ScoredLines(NamedTuple):
    """Scores of L texts.

    Attributes:
        tokens: joined ids [N].
        log_probs: natural-log probability of each token [N].
        offsets: start of each text, then N.
    """

    tokens: TokenIds
    log_probs: Float32s
    offsets: list[int]


class NGramTexts:
    """Scorer and completer of texts for an n-gram model whose tokens are words.

    Args:
        model: the model.
        tokenizer: its tokenizer.

    Attributes:
        is_plain: whether only ASCII's white space separates words; else no texts are scored.
    """

    def __init__(self, model: NGramModel, tokenizer: WordTokenizer) -> None:
        self._model, self._automaton, self._tokenizer = model, model.automaton, tokenizer
        self.is_plain = tokenizer.pattern is None and not tokenizer.unicode_spaces
        self._normalise, kind = tokenizer.normaliser.all, type_of(model.automaton)
        self._score_lines, self._read_text = version_for(score_lines, kind), version_for(read_text, kind)
        self._complete, self._total_mass = version_for(complete_interval, kind), version_for(total_mass, kind)
        self._ranked: dict[int, tuple[TokenIds, RankedWords]] = {}
        # one for each thread at work
        self._seen: deque[UInt32s] = deque()

    @staticmethod
    def of(model: object, tokenizer: Tokenizer) -> "NGramTexts | None":
        """Return the texts of a model and its tokenizer; None for others."""
        if isinstance(model, NGramModel) and isinstance(tokenizer, WordTokenizer) and not tokenizer.members:
            return NGramTexts(model, tokenizer)
        return None

    def score(self, texts: Sequence[str], *, bos: bool, eos: bool) -> ScoredLines:
        """Score each of L ≥ 1 texts, after `<s>` if `bos`, with its `</s>` if `eos`."""
        text, automaton = join_lines(self._normalise(texts)), self._automaton
        size = (len(text) + 1) // 2 + len(texts)  # of a word and the space after it
        tokens, log_probs = np.empty(size, np.int64), np.empty(size, np.float32)
        offsets = np.empty(len(texts) + 1, np.int64)
        start, last = automaton.initial if bos else 0, EOS if eos else -1
        table, ids = self._tokenizer.index.table, self._tokenizer.index.ids
        self._score_lines(automaton, table, ids, text, last, start, tokens, offsets, log_probs)
        return ScoredLines(tokens, log_probs, offsets.tolist())

    def read(self, text: str) -> tuple[int, NGramState]:
        """Count a text's words; return the state after `<s>` and them, too."""
        if not self.is_plain:
            ids = np.array([self._tokenizer.encode(text)], np.int64)
            read = self._model.read(self._model.initial_state(1), ids, np.array([ids.size]), STATE)
            return ids.size, read.state
        after, automaton = np.empty(1, np.int32), self._automaton
        text_bytes, words = join_lines(self._normalise([text])), self._tokenizer.index
        count = self._read_text(automaton, words.table, words.ids, text_bytes, automaton.initial, after)
        return count, NGramState(after)

    def after(
        self, state: NGramState
    ) -> tuple[Callable[..., tuple[TopTokens, float]], Callable[[int], float]]:
        """Return `complete` and `log_prob` in a state."""
        return partial(self.complete, state), partial(self.log_prob, state)

    def log_prob(self, state: NGramState, word: int) -> float:
        """Return the natural-log probability of a word in a state."""
        return float(self._model.score_ragged(state, np.array([word]), np.array([0, 1]))[0])

    def is_ranked(self, order: TokenIds) -> bool:
        """True if words are ranked by an order, so that completion does not wait for it."""
        return id(order) in self._ranked

    def rank(self, order: TokenIds) -> RankedWords:
        """Rank words by an order; once for each, in a tenth of a second for 300,000 words."""
        found = self._ranked.get(id(order))
        if found is None:
            found = self._ranked[id(order)] = order, RankedWords.of(order, self._automaton)
        return found[1]

    def complete(
        self, state: NGramState, order: TokenIds, first: int, past: int, count: int
    ) -> tuple[TopTokens, float]:
        """Find the best words of an order's ranks, and their mass."""
        ranked, number = self.rank(order), int(state.ids[0])
        if (first, past) == (0, len(order)):
            return self._complete_all(state, ranked, count)
        words, log_probs = np.empty(count, np.int64), np.empty(count, np.float32)
        try:
            seen = self._seen.pop()
        except IndexError:
            seen = np.zeros(len(order) + 1, np.uint32)
        mass = self._complete(self._automaton, ranked, number, first, past, seen, words, log_probs)
        self._seen.append(seen)
        if words[-1] < 0:
            found = words >= 0
            words, log_probs = words[found], log_probs[found]
        return TopTokens(words, log_probs), mass

    def _complete_all(self, state: NGramState, ranked: RankedWords, count: int) -> tuple[TopTokens, float]:
        """Find the best of all words: the most probable tokens without those that are no words."""
        others = len(ranked.ranks) - len(ranked.words)
        (ids,), (log_probs,) = self._model.top_k(state, min(count + others, len(ranked.ranks)))
        found = np.flatnonzero((ranked.ranks[ids] < len(ranked.words)) & (log_probs > -np.inf))[:count]
        mass = self._total_mass(self._automaton, ranked, int(state.ids[0]))
        return TopTokens(ids[found], log_probs[found]), mass
