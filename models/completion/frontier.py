"""Compiled parts of the search over pieces: continuations of words, open token sequences, words found."""

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from models.arrays import Bools, Float64s, Int32s, Int64s, UInt64s
from models.completion.text_hashes import (
    BEGINS_LONGER,
    IS_WORD,
    LEXICON_TYPE,
    TEXTS_TYPE,
    TOKENS_TYPE,
    find_flags,
)
from models.kernels.compilation import columns_type, kernel
from models.kernels.math import exp

OPEN, CUT, COMPLETED = range(3)
NODES, POOL, HEAP, WORDS = range(4)
ENDED, CROSSED, INSIDE = range(3)

_NEGLIGIBLE, _ZERO = np.float32(-87), np.float32(0)
_NUM_BUCKETS, _BUCKET_SHIFT = 1 << 11, np.uint32(20)

_INT, _LONG = types.int32, types.int64
_FLOAT, _HASH, _FLAG = types.float64, types.uint64, types.boolean
ROW_TYPE = types.Array(types.float32, 1, "C", readonly=True)


class Continuations(NamedTuple):
    """Continuations of a beginning of a word, as shares of its mass.

    Attributes:
        tokens: most probable tokens inside the word, by ascending share [n].
        shares: mass of each [n].
        is_undecided: whether each may turn out to follow the word [n].
        groups: letters that tokens add before they end the word, by descending
            share [G].
        group_shares: mass of each of these [G].
        totals: mass of tokens that end the word before them, that end it inside
            them, that continue it.
    """

    tokens: Int32s
    shares: Float64s
    is_undecided: Bools
    groups: Int32s
    group_shares: Float64s
    totals: Float64s


class SearchArrays(NamedTuple):
    """State of a search; arrays of nodes, of their children together, and of words.

    Attributes:
        totals: masses that are open, cut, completed.
        counts: numbers of nodes, of children's places, of nodes with children, of
            words.
        masses: mass of each node [N].
        keys: mass of its best child [N].
        hashes: hash of its text [N].
        stems: the same without final joiners [N].
        lengths: bytes of its text [N].
        is_unspaced: whether it has letters of a script without spaces [N].
        is_bare: whether the first space of its children's tokens belongs to no word
            [N].
        firsts: place of its first remaining child [N].
        pasts: place after its last [N].
        tokens: last token of each child, by ascending share.
        shares: its share of its node's mass.
        sums: shares of a node's children up to each.
        heap: nodes with children, the best first.
        word_hashes: hash of each word.
        word_masses: its mass.
        word_nodes: node that it was found at.
        word_groups: letters added to the node's text; -1 for none.
        slots: words by hash, -1 for none; twice as many as words at least, a power
            of two.
    """

    totals: Float64s
    counts: Int64s
    masses: Float64s
    keys: Float64s
    hashes: UInt64s
    stems: UInt64s
    lengths: Int32s
    is_unspaced: Bools
    is_bare: Bools
    firsts: Int64s
    pasts: Int64s
    tokens: Int32s
    shares: Float64s
    sums: Float64s
    heap: Int32s
    word_hashes: UInt64s
    word_masses: Float64s
    word_nodes: Int32s
    word_groups: Int32s
    slots: Int32s


def new_search(max_nodes: int, words: int, places: int) -> SearchArrays:
    """Return the state of a search before its first node."""
    sizes = {"tokens": places, "shares": places, "sums": places}
    arrays = SearchArrays(
        *(
            np.empty(words if name.startswith("word_") else sizes.get(name, max_nodes), column.dtype.name)
            for name, column in zip(SearchArrays._fields, SEARCH_TYPE.types, strict=True)
        )
    )
    return arrays._replace(
        totals=np.array([1.0, 0.0, 0.0]), counts=np.zeros(4, np.int64), slots=np.full(2 * words, -1, np.int32)
    )


SEARCH_TYPE = columns_type(SearchArrays)
_CONTINUATIONS = columns_type(Continuations)


@numba.njit(nogil=True, inline="always")
def _prob(log_prob: Any) -> Any:
    """Return a probability; 0 below the smallest normal number."""
    return exp(log_prob) if log_prob > _NEGLIGIBLE else _ZERO


@kernel(_LONG[::1](types.float32[::1]))
def _ascending(values: Any) -> Any:
    """Return the places of positive numbers in ascending order; of equal ones, the first is the last."""
    keys, places = np.empty(len(values), np.uint64), np.empty(len(values), np.int64)
    bits, last = values.view(np.uint32), len(values) - 1
    for place in range(len(values)):
        keys[place] = np.uint64(bits[place]) << np.uint64(32) | np.uint64(last - place)
    keys.sort()
    for rank in range(len(values)):
        places[rank] = last - np.int64(keys[rank] & np.uint64(0xFFFFFFFF))
    return places


@kernel(_CONTINUATIONS(ROW_TYPE, _INT[::1], _FLAG[::1], _INT[::1], _INT[::1], _INT[::1], _LONG, _LONG))
def rank_continuations(
    log_probs: Any,
    inside: Any,
    is_undecided: Any,
    ending: Any,
    crossing: Any,
    groups: Any,
    num_groups: Any,
    most: Any,
) -> Any:
    """Return the continuations of a word by the distribution [V] of the next token.

    Args:
        log_probs: natural logarithms.
        inside: tokens that continue the word.
        is_undecided: whether each may turn out to follow the word.
        ending: tokens that end the word before them.
        crossing: tokens that end the word inside them.
        groups: letters that each of these adds to the word, by number.
        num_groups: number of these letters.
        most: tokens inside to keep at least, besides undecided ones.
    """
    probs = np.empty_like(log_probs)
    for token in range(len(log_probs)):  # by itself, so it is vectorised
        probs[token] = _prob(log_probs[token])
    totals, of_groups = np.zeros(3), np.zeros(num_groups)
    for token in ending:
        totals[ENDED] += probs[token]
    for place in range(len(crossing)):
        of_groups[groups[place]] += probs[crossing[place]]
    totals[CROSSED] = of_groups.sum()
    # the bits of positive numbers are in their order: find the bucket with the least of the best
    bits, counts = probs.view(np.uint32), np.zeros(_NUM_BUCKETS, np.int64)
    for token in inside:
        totals[INSIDE] += probs[token]
        counts[bits[token] >> _BUCKET_SHIFT] += 1
    least, count = _NUM_BUCKETS, 0
    while least > 0 and count < most:
        least -= 1
        count += counts[least]
    chosen, count = np.empty(len(inside), np.int32), 0
    for place in range(len(inside)):
        if bits[inside[place]] >> _BUCKET_SHIFT >= least or is_undecided[place]:
            chosen[count] = place
            count += 1
    ranked = chosen[_ascending(probs[inside[chosen[:count]]])]
    tokens, order = inside[ranked], _ascending(of_groups.astype(np.float32))[::-1].astype(np.int32)
    return Continuations(
        tokens, probs[tokens].astype(np.float64), is_undecided[ranked], order, of_groups[order], totals
    )


@kernel(_LONG(SEARCH_TYPE, _HASH))
def _slot_of(search: Any, text: Any) -> Any:
    """Return the slot of a word, the first free one if it is new."""
    mask = len(search.slots) - 1
    slot = np.int64((text ^ (text >> np.uint64(29))) & np.uint64(mask))
    while search.slots[slot] >= 0 and search.word_hashes[search.slots[slot]] != text:
        slot = (slot + 1) & mask
    return slot


@kernel(types.void(SEARCH_TYPE))
def index_words(search: Any) -> None:
    """Fill empty slots with the words."""
    for word in range(search.counts[WORDS]):
        search.slots[_slot_of(search, search.word_hashes[word])] = word


@kernel(types.void(SEARCH_TYPE, _HASH, _FLOAT, _LONG, _LONG, types.boolean))
def _complete(search: Any, text: Any, mass: Any, node: Any, group: Any, is_known: Any) -> None:
    """Add to the mass of a word; that of an unknown one is cut."""
    if mass <= 0.0:
        return
    if not is_known:
        search.totals[CUT] += mass
        return
    search.totals[COMPLETED] += mass
    slot = _slot_of(search, text)
    word = search.slots[slot]
    if word >= 0:
        search.word_masses[word] += mass
        return
    word = search.slots[slot] = search.counts[WORDS]
    search.word_hashes[word], search.word_masses[word] = text, mass
    search.word_nodes[word], search.word_groups[word] = node, group
    search.counts[WORDS] = word + 1


@kernel(types.boolean(SEARCH_TYPE, _INT, _INT))
def _precedes(search: Any, first: Any, second: Any) -> Any:
    """Return whether a node's best child is better than another's; of equal ones, the older node is."""
    ours, others = search.keys[first], search.keys[second]
    return ours > others or (ours == others and first < second)


@kernel(types.void(SEARCH_TYPE, _LONG))
def _sift_down(search: Any, place: Any) -> None:
    heap, size = search.heap, search.counts[HEAP]
    node = heap[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _precedes(search, heap[child + 1], heap[child]):
            child += 1
        if not _precedes(search, heap[child], node):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = node


@kernel(types.void(SEARCH_TYPE))
def _rebuild(search: Any) -> None:
    """Order the heap by the best children; drop nodes without any; sum up the open mass."""
    size, mass = 0, 0.0
    for place in range(search.counts[HEAP]):
        node = search.heap[place]
        first, past = search.firsts[node], search.pasts[node]
        if first < past:
            before = search.sums[first] - search.shares[first]
            mass += search.masses[node] * (search.sums[past - 1] - before)
            search.keys[node] = search.masses[node] * search.shares[past - 1]
            search.heap[size] = node
            size += 1
    search.counts[HEAP] = size
    search.totals[OPEN] = mass
    for place in range(size // 2 - 1, -1, -1):
        _sift_down(search, place)


@kernel(
    types.void(
        SEARCH_TYPE, _CONTINUATIONS, TEXTS_TYPE, LEXICON_TYPE, _FLOAT, _HASH, _HASH, _HASH, _LONG, _LONG,
        _FLAG, _FLAG, _FLAG, _FLOAT, _LONG, _LONG,
    )
)  # fmt: skip
def add_node(  # noqa: C901 - words that end, and sequences that go on
    search: Any,
    continuations: Any,
    letters: Any,
    lexicon: Any,
    mass: Any,
    text: Any,
    whole: Any,
    stem: Any,
    length: Any,
    num_pending: Any,
    is_unspaced: Any,
    is_bare: Any,
    may_end: Any,
    floor: Any,
    most: Any,
    min_length: Any,
) -> None:
    """Expand a node: words that end there are found, and sequences of one more token open.

    Args:
        search: state of the search; changed.
        continuations: continuations of the node's word.
        letters: letters that tokens add to the word before they end it.
        lexicon: known words.
        mass: mass of the node.
        text: hash of its text.
        whole: the same without pending bytes.
        stem: the same without final joiners.
        length: bytes of its text.
        num_pending: pending bytes of these.
        is_unspaced: whether it has letters of a script without spaces.
        is_bare: whether the first space of its children's tokens belongs to no
            word.
        may_end: whether its word can end there.
        floor: share of the live mass up to which a sequence stays unexplored.
        most: maximum number of children.
        min_length: bytes of the shortest word.
    """
    node = search.counts[NODES]
    totals = search.totals
    totals[OPEN] -= mass
    is_longer = True
    if may_end:
        flags = IS_WORD | BEGINS_LONGER if is_unspaced else find_flags(lexicon, whole)
        if length - num_pending >= min_length:
            _complete(search, whole, continuations.totals[ENDED] * mass, node, -1, (flags & IS_WORD) > 0)
        is_longer = (flags & BEGINS_LONGER) > 0
    totals[OPEN] += continuations.totals[INSIDE] * mass
    least = floor * (totals[OPEN] + totals[CUT] + totals[COMPLETED]) / mass
    first = past = search.counts[POOL]
    for place in range(len(continuations.tokens)):
        if continuations.shares[place] > least and (is_longer or continuations.is_undecided[place]):
            search.tokens[past] = continuations.tokens[place]
            search.shares[past] = continuations.shares[place]
            past += 1
    first = max(first, past - most)
    kept = 0.0
    for place in range(first, past):
        kept += search.shares[place]
        search.sums[place] = kept
    totals[OPEN] -= (continuations.totals[INSIDE] - kept) * mass
    totals[CUT] += (continuations.totals[INSIDE] - kept) * mass
    crossed = 0.0
    for place in range(len(continuations.groups)):
        share, group = continuations.group_shares[place], continuations.groups[place]
        if share <= least:
            break
        crossed += share
        if length - num_pending + letters.lengths[group] >= min_length:
            word = whole * letters.powers[group] + letters.hashes[group]
            known = is_unspaced or (find_flags(lexicon, word) & IS_WORD) > 0
            _complete(search, word, share * mass, node, group, known)
    totals[CUT] += max(continuations.totals[CROSSED] - crossed, 0.0) * mass
    search.masses[node], search.hashes[node], search.stems[node] = mass, text, stem
    search.lengths[node], search.is_unspaced[node], search.is_bare[node] = length, is_unspaced, is_bare
    search.firsts[node], search.pasts[node] = first, past
    search.counts[POOL] = past
    search.counts[NODES] = node + 1
    if first < past:
        search.keys[node] = mass * search.shares[past - 1]
        place = search.counts[HEAP]
        search.counts[HEAP] = place + 1
        while place and _precedes(search, np.int32(node), search.heap[(place - 1) // 2]):
            search.heap[place] = search.heap[(place - 1) // 2]
            place = (place - 1) // 2
        search.heap[place] = node


@kernel(_FLOAT(_FLOAT[::1], _LONG))
def _nth_largest(values: Any, number: Any) -> Any:
    """Return the largest number but `number` - 1; 0 if there are fewer."""
    if len(values) < number:
        return 0.0
    best = np.zeros(number)  # ascending
    for value in values:
        if value > best[0]:
            place = 0
            while place + 1 < number and best[place + 1] < value:
                best[place] = best[place + 1]
                place += 1
            best[place] = value
    return best[0]


@kernel(types.void(SEARCH_TYPE, _LONG))
def prune(search: Any, most: Any) -> None:
    """Drop all but the most probable children, and close the gaps."""
    every, count = np.empty(search.counts[POOL]), 0
    for place in range(search.counts[HEAP]):
        node = search.heap[place]
        for child in range(search.firsts[node], search.pasts[node]):
            every[count] = search.masses[node] * search.shares[child]
            count += 1
    every = np.sort(every[:count])
    least = every[count - most] if count > most else 0.0
    before, size = search.totals[OPEN], 0
    _rebuild(search)
    open_mass = search.totals[OPEN]
    for node in range(search.counts[NODES]):
        first, past = search.firsts[node], search.pasts[node]
        while first < past and search.masses[node] * search.shares[first] < least:
            first += 1
        search.firsts[node], search.pasts[node] = size, size + past - first
        for child in range(first, past):
            search.tokens[size], search.shares[size] = search.tokens[child], search.shares[child]
            search.sums[size] = search.sums[child]
            size += 1
    search.counts[POOL] = size
    _rebuild(search)
    dropped = open_mass - search.totals[OPEN]
    search.totals[OPEN] = before - dropped
    search.totals[CUT] += dropped


@kernel(
    types.int64(
        SEARCH_TYPE,
        LEXICON_TYPE,
        TOKENS_TYPE,
        TOKENS_TYPE,
        _FLOAT,
        _LONG,
        _LONG,
        _INT[::1],
        _INT[::1],
        _FLOAT[::1],
    )
)
def pop_best(  # noqa: C901, PLR0912 - the end of the search, then the best of what is left
    search: Any,
    lexicon: Any,
    tokens: Any,
    bare: Any,
    settled: Any,
    limit: Any,
    max_bytes: Any,
    nodes: Any,
    last: Any,
    masses: Any,
) -> Any:
    """Remove the most probable sequences that may become words; return how many.

    Args:
        search: state of the search; changed.
        lexicon: known words.
        tokens: spellings of the tokens.
        bare: the same without a first space.
        settled: share of the live mass that may stay open; 0 to explore all.
        limit: number of words in the result.
        max_bytes: maximum bytes of a sequence.
        nodes: output, the node of each.
        last: output, its last token.
        masses: output, its mass.
    """
    _rebuild(search)
    totals = search.totals
    if settled > 0:
        least = _nth_largest(search.word_masses[: search.counts[WORDS]], limit)
        if totals[OPEN] > settled * (totals[OPEN] + totals[CUT] + totals[COMPLETED]):
            least = 0.0
        if len(lexicon.keys):
            before = totals[OPEN]
            for place in range(search.counts[HEAP]):
                node = search.heap[place]
                while (
                    search.firsts[node] < search.pasts[node]
                    and search.masses[node] * search.shares[search.firsts[node]] < least
                ):
                    search.firsts[node] += 1
            _rebuild(search)
            totals[CUT] += before - totals[OPEN]
        elif search.counts[HEAP] and search.keys[search.heap[0]] < least:
            # as for models of earlier versions, whose replies must not change
            return 0
    count = 0
    while search.counts[HEAP] and count < len(nodes):
        node = search.heap[0]
        place = search.pasts[node] - 1
        mass, token = search.keys[node], search.tokens[place]
        search.pasts[node] = place
        if search.firsts[node] < place:
            search.keys[node] = search.masses[node] * search.shares[place - 1]
        else:
            search.counts[HEAP] -= 1
            search.heap[0] = search.heap[search.counts[HEAP]]
        _sift_down(search, 0)
        spelled = bare if search.is_bare[node] else tokens
        is_worth = search.lengths[node] + tokens.lengths[token] <= max_bytes
        if is_worth and not (search.is_unspaced[node] or spelled.is_free[token]):
            stem = search.stems[node]
            if spelled.stem_powers[token]:
                stem = search.hashes[node] * spelled.stem_powers[token] + spelled.stems[token]
            is_worth = find_flags(lexicon, stem) > 0
        if is_worth:
            nodes[count], last[count], masses[count] = node, token, mass
            count += 1
        else:
            totals[OPEN] -= mass
            totals[CUT] += mass
    return count
