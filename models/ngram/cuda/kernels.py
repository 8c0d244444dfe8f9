"""An automaton as torch tensors: scores of all positions at once, whole distributions, next states.

The cost on a device is starting a kernel. So an arc is found by one bisection over the keys of all
arcs, state · V + word, which rise through the whole array, and not among those of its state.

The score of a token depends on the order − 1 tokens before it alone, so there is no loop over time:
the contexts of one length before every token are found from those one shorter, in as many rounds as
the model's order.

For distributions, the unigrams are written first and then the arcs of ever longer contexts. All
arcs of a run of rows are one flat list; the host waits for the device once per call, to learn its
length.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.arrays import FloatArray, TokenIds
from models.ngram.automaton import LN_10, Automaton
from models.ngram.model import check_one_per_row, unknown_id_error

# bench_ngram_device
MAX_MATRIX_ENTRIES = 1 << 24
"""Entries of [B, V] computed at once, in at most some hundred MiB beyond the result; see `_ARC_ENTRIES`."""

_ARC_ENTRIES = 4
"""Entries that one arc written over them counts as: it takes more memory meanwhile."""

MAX_TOKENS_AT_ONCE = 1 << 20
"""Tokens read at once; one takes some 200 bytes of the device's memory meanwhile."""

_BLOCK = 1 << 22
"""Elements copied at once, so that a mapped file is never in the host's memory as a whole."""

_NO_KEY = 2**63 - 1


class TensorAutomaton(NamedTuple):
    """S states and A arcs, numbered as in `Automaton`, whose arrays these are unless said otherwise.

    Attributes:
        order: the length of the longest n-gram.
        vocab_size: V.
        state_starts: the first state of each length 1, 2, … [order], int64.
        keys: state · V + word of each arc, and something larger at the end [A + 1], int64.
        first_arcs: where each state's arcs start, and A at the end [S + 1], int32, or int64 where it must be.
        suffixes: [S], int32.
        minimal: the shortest state with the same future as each state [S], int32.
        log10_probs: [A + 1], float32; no code is left, and what stands at the end means nothing.
        log10_backoffs: [S], float32; 0 for the empty context.
    """

    order: int
    vocab_size: int
    state_starts: Tensor
    keys: Tensor
    first_arcs: Tensor
    suffixes: Tensor
    minimal: Tensor
    log10_probs: Tensor
    log10_backoffs: Tensor

    @property
    def num_states(self) -> int:
        """S."""
        return len(self.suffixes)

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.keys.device


@torch.inference_mode()
def to_tensors(automaton: Automaton, device: torch.device) -> TensorAutomaton:
    """Copy an automaton to a device; codes become the values they stand for.

    Takes 12 bytes an arc and 16 a state there, and 12 more an arc while it copies.
    """
    states, arcs, vocab_size = automaton.num_states, automaton.num_arcs, automaton.vocab_size
    wide = torch.int64 if arcs >= 2**31 else torch.int32
    first_arcs = _copy_in_blocks(
        states + 1, wide, device, lambda part: automaton.first_arcs[part].astype(np.int64)
    )
    suffixes = _copy_in_blocks(states, torch.int32, device, lambda part: automaton.suffixes[part].copy())
    backoffs = _copy_in_blocks(
        states,
        torch.float32,
        device,
        lambda part: _decoded(automaton.log10_backoffs[part], automaton.backoff_values),
    )
    backoffs[0] = 0
    probs = _copy_in_blocks(
        arcs, torch.float32, device, lambda part: _decoded(automaton.log10_probs[part], automaton.prob_values)
    )
    state_starts = automaton.order_starts[:-1] + 1
    return TensorAutomaton(
        order=automaton.order,
        vocab_size=vocab_size,
        state_starts=torch.from_numpy(state_starts).to(device),
        keys=_keys(automaton, first_arcs),
        first_arcs=first_arcs,
        suffixes=suffixes,
        minimal=_minimal_states(first_arcs, suffixes, backoffs, [*state_starts.tolist(), states]),
        log10_probs=torch.cat([probs, probs.new_zeros(1)]),
        log10_backoffs=backoffs,
    )


def _copy_in_blocks(
    length: int, dtype: torch.dtype, device: torch.device, read: Callable[[slice], npt.NDArray[Any]]
) -> Tensor:
    """Copy the segments that `read` returns, block by block, into one tensor [length]."""
    out = torch.empty(length, dtype=dtype, device=device)
    for begin in range(0, length, _BLOCK):
        part = slice(begin, min(begin + _BLOCK, length))
        out[part] = torch.from_numpy(read(part))
    return out


def _decoded(values: npt.NDArray[Any], table: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Values, or what the table says that codes stand for; a copy."""
    decoded: npt.NDArray[np.float32] = table[values] if len(table) else values.copy()
    return decoded


def _word_ids(words: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Word ids [n], also where they are given as three bytes each [n, 3]; a copy."""
    if words.ndim == 1:
        return words.astype(np.int32)
    low, middle, high = words.astype(np.int32).T
    values: npt.NDArray[np.int32] = low | middle << 8 | high << 16
    return values


def _keys(automaton: Automaton, first_arcs: Tensor) -> Tensor:
    device = first_arcs.device
    words = _copy_in_blocks(
        automaton.num_arcs, torch.int32, device, lambda part: _word_ids(automaton.words[part])
    )
    keys = torch.full((automaton.num_arcs + 1,), _NO_KEY, dtype=torch.int64, device=device)
    owners = torch.repeat_interleave(first_arcs.diff().long(), output_size=automaton.num_arcs)
    keys[:-1] = owners.mul_(automaton.vocab_size).add_(words)
    return keys


def _minimal_states(
    first_arcs: Tensor, suffixes: Tensor, backoffs: Tensor, state_starts: list[int]
) -> Tensor:
    """Minimal states of all states, as `access.minimal`; by length, since links lead to shorter contexts."""
    minimal = torch.arange(len(suffixes), dtype=torch.int32, device=suffixes.device)
    says_nothing = (first_arcs.diff() == 0) & (backoffs == 0)
    for begin, end in itertools.pairwise(state_starts):
        part = slice(begin, end)
        minimal[part] = torch.where(says_nothing[part], minimal[suffixes[part].long()], minimal[part])
    return minimal


class ScoredTokens(NamedTuple):
    """Scores of N tokens.

    Attributes:
        log_probs: natural-log probabilities [N], float32.
        orders: the length of the n-gram found for each [N], uint8.
        log_backoffs: natural logarithm of what was charged for backing off to it [N], float32.
        states: by length, the state of so many tokens that ends in each [order, N]; 0 where none is listed.
    """

    log_probs: Tensor
    orders: Tensor
    log_backoffs: Tensor
    states: Tensor


def suffix_chain(automaton: TensorAutomaton, ids: Tensor) -> Tensor:
    """States [B] and their suffixes [order, B], int64, the longest first; then the empty context, 0."""
    chain = [ids.long()]
    for _ in range(automaton.order - 1):
        chain.append(automaton.suffixes[chain[-1]].long())
    return torch.stack(chain)


def find_arcs(automaton: TensorAutomaton, states: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """The arcs that read the words in the states, and whether there are such; else any number up to A."""
    wanted = (states * automaton.vocab_size + words).contiguous()
    arcs = torch.searchsorted(automaton.keys, wanted)
    return arcs, automaton.keys[arcs] == wanted


def advance_contexts(automaton: TensorAutomaton, ids: Tensor, words: Tensor) -> Tensor:
    """The minimal states [B], int32, after one word each [B]."""
    arcs, found = find_arcs(automaton, suffix_chain(automaton, ids), words)
    found &= arcs + 1 < automaton.num_states
    return _longest_state(automaton, torch.where(found, arcs + 1, 0))


def _longest_state(automaton: TensorAutomaton, states: Tensor) -> Tensor:
    """The minimal form, int32, of the longest of the states along the first axis: the longer, the larger its number."""
    return automaton.minimal[states.amax(0)]


def suffixes_by_length(automaton: TensorAutomaton, ids: Tensor) -> Tensor:
    """The states [B] and their suffixes, at their lengths [order, B], int64; 0 where there is none."""
    chain = suffix_chain(automaton, ids)
    lengths = torch.bucketize(chain, automaton.state_starts, right=True)
    return torch.zeros_like(chain).scatter_(0, lengths, chain)


def score_contexts(
    automaton: TensorAutomaton, tokens: Tensor, starts: Tensor, before: Tensor
) -> ScoredTokens:
    """Score tokens of R sequences that lie one after the other, each given those before it.

    Args:
        automaton: the model.
        tokens: ids of the vocabulary [N].
        starts: where each sequence begins [R]; none is empty.
        before: what came before each, by length [order, R].
    """
    probs = automaton.log10_probs[tokens].double() * LN_10
    backoffs = torch.zeros_like(probs)
    orders = torch.ones_like(tokens, dtype=torch.uint8)
    arcs, found = tokens, torch.ones_like(tokens, dtype=torch.bool)
    states = [torch.zeros_like(tokens)]
    for length in range(1, automaton.order):
        states.append(torch.where(found, arcs + 1, 0))
        contexts = states[-1].roll(1).index_copy_(0, starts, before[length])
        arcs, found = find_arcs(automaton, contexts, tokens)
        found &= contexts > 0
        charged = automaton.log10_backoffs[contexts].double() * LN_10
        probs = torch.where(found, automaton.log10_probs[arcs].double() * LN_10, probs)
        backoffs = torch.where(found, 0.0, backoffs + charged)
        orders = torch.where(found, length + 1, orders)
    return ScoredTokens((probs + backoffs).float(), orders, backoffs.float(), torch.stack(states))


class _Contexts(NamedTuple):
    """The contexts of B rows, the shortest of each first.

    Attributes:
        states: [order − 1, B], int64; 0 where a row has no context of that length.
        log_backoffs: natural logarithm of what is charged down to each [order − 1, B], float64.
        root_log_backoffs: and down to the empty context [B].
        begins: the first of the arcs to write [order − 1, B].
        counts: how many there are [order − 1, B].
        host_counts: the same for the host.
    """

    states: Tensor
    log_backoffs: Tensor
    root_log_backoffs: Tensor
    begins: Tensor
    counts: Tensor
    host_counts: npt.NDArray[np.int64]


def all_log_probs(automaton: TensorAutomaton, ids: Tensor) -> Tensor:
    """Natural-log probabilities [B, V], float32, of every word in states [B]."""
    contexts = _contexts(automaton, ids)
    unigrams = automaton.log10_probs[: automaton.vocab_size].double() * LN_10
    out = torch.empty((len(ids), automaton.vocab_size), dtype=torch.float32, device=automaton.device)
    for rows in _row_slices(contexts, automaton.vocab_size):
        torch.add(unigrams, contexts.root_log_backoffs[rows, None], out=out[rows])
        _scatter_arcs(automaton, contexts, rows, out[rows])
    return out


def top_k_of_states(automaton: TensorAutomaton, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most probable words [B, k] in states [B] and their log-probabilities; equal ones in order of id."""
    size = max(1, MAX_MATRIX_ENTRIES // automaton.vocab_size)
    begins = range(0, max(len(ids), 1), size)
    parts = [_exact_top_k(all_log_probs(automaton, ids[begin : begin + size]), k) for begin in begins]
    return torch.cat([words for words, _ in parts]), torch.cat([values for _, values in parts])


def _exact_top_k(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest entries of each row of [B, V]; torch's own order of equal ones is left open."""
    width = values.shape[1]
    bits = (values + 0.0).view(torch.int32)  # −0 and 0 are one number
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    keys = (rising << 32) | torch.arange(width - 1, -1, -1, device=values.device)
    words = width - 1 - (torch.topk(keys, k, dim=1).values & 0xFFFFFFFF)
    return words, values.gather(1, words)


def _contexts(automaton: TensorAutomaton, ids: Tensor) -> _Contexts:
    """The contexts of states [B]."""
    chain = suffix_chain(automaton, ids)
    backoffs = (automaton.log10_backoffs[chain].double() * LN_10).cumsum(0)
    charged = torch.cat([torch.zeros_like(backoffs[:1]), backoffs[:-1]])
    states = chain[:-1].flip(0)  # without the empty context, which every row has at its end
    begins = automaton.first_arcs[states].long()
    counts = automaton.first_arcs[states + 1] - begins
    counts = torch.where(states > 0, counts, 0)
    return _Contexts(states, charged[:-1].flip(0), charged[-1], begins, counts, counts.cpu().numpy())


def _row_slices(contexts: _Contexts, vocab_size: int) -> Iterator[slice]:
    """Rows in runs that together take about `MAX_MATRIX_ENTRIES` entries."""
    ends = np.cumsum(vocab_size + _ARC_ENTRIES * contexts.host_counts.sum(axis=0))
    begin, done = 0, 0
    while begin < len(ends):
        end = max(begin + 1, int(np.searchsorted(ends, done + MAX_MATRIX_ENTRIES, side="right")))
        yield slice(begin, end)
        begin, done = end, int(ends[end - 1])


def _scatter_arcs(automaton: TensorAutomaton, contexts: _Contexts, rows: slice, out: Tensor) -> None:
    """Write the log-probabilities of the arcs of some rows' contexts over `out` [rows, V], the longest last."""
    ends = np.cumsum(contexts.host_counts[:, rows].sum(axis=1)).tolist()
    if not ends or ends[-1] == 0:
        return
    states, counts = contexts.states[:, rows], contexts.counts[:, rows].reshape(-1)
    owners = torch.repeat_interleave(counts, output_size=ends[-1])
    shift = contexts.begins[:, rows].reshape(-1) - (counts.cumsum(0) - counts)
    arcs = torch.arange(ends[-1], device=automaton.device) + shift[owners]
    numbers = torch.arange(states.shape[1], device=automaton.device)
    # an arc's key, state · V + word, becomes its offset in `out`, row · V + word
    offsets = automaton.keys[arcs] + ((numbers - states) * automaton.vocab_size).reshape(-1)[owners]
    own = automaton.log10_probs[arcs].double() * LN_10
    values = (own + contexts.log_backoffs[:, rows].reshape(-1)[owners]).float()
    # one level after the other: within one, no offset occurs twice
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        out.view(-1).scatter_(0, offsets[begin:end], values[begin:end])


Ids: TypeAlias = TokenIds | Tensor
"""Token ids or row numbers in NumPy, or in torch on the model's device."""


class UnpaddedTokens(NamedTuple):
    """Tokens of B rows without padding, on the host.

    Attributes:
        tokens: ids of all rows, one after the other [N], each in [0, V).
        starts: where each row that is not empty begins [R].
        rows: which rows these are [R].
    """

    tokens: TokenIds
    starts: TokenIds
    rows: TokenIds


def to_device(ids: Ids, device: torch.device) -> Tensor:
    """Ids or row numbers, of any shape, as int64 on the device."""
    if isinstance(ids, Tensor):
        return ids.to(device, torch.int64)
    own = np.array(ids, dtype=np.int64)  # torch warns of arrays that may not be written to
    return torch.from_numpy(own).to(device)


def check_token_per_row(tokens: Ids, rows: int, vocab_size: int, device: torch.device) -> Tensor:
    """One token for each row [B], int64, on the device.

    To look at ids that are on a device already, the host has to wait for it.

    Raises:
        InvalidInputError: their number is not that of the rows, or an id is outside the vocabulary.
    """
    if not isinstance(tokens, Tensor):
        tokens = np.asarray(tokens, dtype=np.int64)
    check_one_per_row(tuple(tokens.shape), rows)
    outside = (tokens < 0) | (tokens >= vocab_size)
    if outside.any():
        _refuse(_to_host(tokens), _to_host(outside), vocab_size)
    return to_device(tokens, device)


def unpad(tokens: TokenIds, counts: npt.NDArray[np.bool_], vocab_size: int) -> UnpaddedTokens:
    """The tokens that count, of [B, T]; those of a row lie side by side.

    Raises:
        InvalidInputError: one of them is outside the vocabulary.
    """
    outside = counts & ((tokens < 0) | (tokens >= vocab_size))
    if outside.any():
        _refuse(tokens, outside, vocab_size)
    lengths = counts.sum(axis=1)
    rows = np.flatnonzero(lengths)
    return UnpaddedTokens(tokens[counts], np.cumsum(lengths[rows]) - lengths[rows], rows)


def _to_host(array: npt.NDArray[Any] | Tensor) -> npt.NDArray[Any]:
    return array.cpu().numpy() if isinstance(array, Tensor) else array


def _refuse(tokens: TokenIds, outside: npt.NDArray[np.bool_], vocab_size: int) -> NoReturn:
    """Name the first token that is outside the vocabulary."""
    raise unknown_id_error(tokens, int(outside.argmax()), vocab_size)


def score_unpadded(
    automaton: TensorAutomaton, ids: Tensor, texts: UnpaddedTokens
) -> tuple[FloatArray, npt.NDArray[np.uint8], FloatArray]:
    """Score all tokens of unpadded rows and return the results on the host.

    Args:
        automaton: the model.
        ids: the states before all rows [B], those of no tokens too.
        texts: the rows' tokens [N].

    Returns:
        Natural-log probabilities, lengths of the n-grams found and log back-offs, each [N].
    """
    size = len(texts.tokens)
    out: list[npt.NDArray[Any]] = [np.empty(size, kind) for kind in (np.float32, np.uint8, np.float32)]
    before = suffixes_by_length(automaton, ids[to_device(texts.rows, automaton.device)])
    last = before[:, :0]
    for begin in range(0, size, MAX_TOKENS_AT_ONCE):
        end = min(begin + MAX_TOKENS_AT_ONCE, size)
        first, after = np.searchsorted(texts.starts, [begin, end])
        starts, contexts = texts.starts[first:after] - begin, before[:, first:after]
        if begin > 0 and 0 not in starts[:1]:  # a row goes on from the stretch before
            starts, contexts = np.append(starts, 0), torch.cat([contexts, last], dim=1)
        tokens, offsets = (to_device(array, automaton.device) for array in (texts.tokens[begin:end], starts))
        reading = score_contexts(automaton, tokens, offsets, contexts)
        last = reading.states[:, -1:]
        for array, found in zip(out, reading[: len(out)], strict=True):
            array[begin:end] = found.cpu().numpy()
    return out[0], out[1], out[2]


def prefill_unpadded(automaton: TensorAutomaton, ids: Tensor, texts: UnpaddedTokens) -> Tensor:
    """The states [B], int32, after the texts; a row of no tokens stays in the state that it is in.

    Meant for the few last tokens of each row, on which the state depends: they are read at once.
    """
    if len(texts.rows) == 0:
        return ids
    tokens, starts, rows = (to_device(array, automaton.device) for array in texts)
    reading = score_contexts(automaton, tokens, starts, suffixes_by_length(automaton, ids[rows]))
    ends = torch.cat([starts[1:], starts.new_tensor([len(tokens)])]) - 1
    return ids.index_copy(0, rows, _longest_state(automaton, reading.states[:, ends]))
