"""Automaton as torch tensors: scores of all positions at once, full distributions, next states.

Kernel launches dominate the cost on a device. An arc is therefore found by one bisection over the
ascending keys of all arcs, state · V + word, not among the arcs of its state.

The score of a token depends only on the order − 1 tokens before it, so there is no loop over time:
the contexts of one length before all tokens are found from those one token shorter, in as many
rounds as the model's order.

Distributions are written from the unigrams to the arcs of successively longer contexts. All arcs of
a group of rows form a flat list; the host waits for the device once per call, to read its length.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from models.arrays import AnyArray, Bools, FloatArray, TokenIds, UInt8s, runs_by_cost
from models.ngram.automaton import LN_10, Automaton, word_ids
from models.ngram.model import check_known, check_one_per_row

# bench_device
MAX_MATRIX_ENTRIES = 1 << 24
"""Entries of [B, V] computed at once, with a few hundred MiB beyond the result; see `_ARC_ENTRIES`."""

_ARC_ENTRIES = 4
"""Entries that an overwriting arc counts as: it takes more temporary memory."""

MAX_TOKENS_AT_ONCE = 1 << 20
"""Tokens read at once; each takes 200 bytes of temporary device memory."""

_BLOCK = 1 << 22
"""Elements copied at once, so a mapped file is never entirely in the host's memory."""

_NO_KEY = 2**63 - 1

Ids: TypeAlias = TokenIds | Tensor
"""Token ids or row numbers in NumPy, or in torch on the model's device."""


class TensorAutomaton(NamedTuple):
    """S states and A arcs, numbered as in `Automaton`, which describes the arrays.

    Attributes:
        order: length of the longest n-gram.
        vocab_size: V.
        state_starts: first state of each length 1, 2, … [order], int64.
        keys: state · V + word of each arc, then a larger number [A + 1], int64.
        first_arcs: first arc of each state, then A [S + 1], int32, or int64 if A requires it.
        suffixes: [S], int32.
        minimal: the shortest state with each state's future [S], int32.
        log10_probs: decoded values [A + 1], float32; the last entry is padding.
        log10_backoffs: decoded values [S], float32; 0 for the empty context.
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
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.keys.device


@torch.inference_mode()
def to_tensors(automaton: Automaton, device: torch.device) -> TensorAutomaton:
    """Copy an automaton to a device and decode its values.

    It takes 12 bytes per arc and 16 per state on the device, and 12 more per arc during the copy.
    """
    states, arcs, vocab_size = automaton.num_states, automaton.num_arcs, automaton.vocab_size

    def copied(array: AnyArray, kind: torch.dtype, convert: Callable[[AnyArray], AnyArray]) -> Tensor:
        out = torch.empty(len(array), dtype=kind, device=device)
        for begin in range(0, len(array), _BLOCK):
            part = slice(begin, begin + _BLOCK)
            out[part] = torch.from_numpy(convert(array[part]))
        return out

    wide = torch.int64 if arcs >= 2**31 else torch.int32
    firsts = copied(automaton.first_arcs, wide, lambda part: part.astype(np.int64))
    suffixes = copied(automaton.suffixes, torch.int32, np.copy)
    probs, backoffs = (
        copied(values, torch.float32, table.__getitem__ if len(table) else np.copy)
        for values, table in (
            (automaton.log10_probs, automaton.prob_values),
            (automaton.log10_backoffs, automaton.backoff_values),
        )
    )
    backoffs[0] = 0
    keys = torch.full((arcs + 1,), _NO_KEY, dtype=torch.int64, device=device)
    owners = torch.repeat_interleave(firsts.diff().long(), output_size=arcs).mul_(vocab_size)
    keys[:-1] = owners.add_(copied(automaton.words, torch.int32, word_ids))
    del owners  # 8 bytes per arc
    # `access.minimal_state` of all states, by length: links lead to shorter contexts
    minimal = torch.arange(states, dtype=torch.int32, device=device)
    says_nothing = (firsts.diff() == 0) & (backoffs == 0)
    starts = automaton.order_starts[:-1] + 1
    for begin, end in itertools.pairwise([*starts.tolist(), states]):
        part = slice(begin, end)
        minimal[part] = torch.where(says_nothing[part], minimal[suffixes[part].long()], minimal[part])
    return TensorAutomaton(
        order=automaton.order,
        vocab_size=vocab_size,
        state_starts=torch.from_numpy(starts).to(device),
        keys=keys,
        first_arcs=firsts,
        suffixes=suffixes,
        minimal=minimal,
        log10_probs=torch.cat([probs, probs.new_zeros(1)]),
        log10_backoffs=backoffs,
    )


def suffix_chain(automaton: TensorAutomaton, ids: Tensor) -> Tensor:
    """Return states [B] and their suffixes [order, B], the longest first; at the end 0."""
    chain = [ids.long()]
    for _ in range(automaton.order - 1):
        chain.append(automaton.suffixes[chain[-1]].long())
    return torch.stack(chain)


def find_arcs(automaton: TensorAutomaton, states: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Return the arcs of words in states, and whether they exist.

    A missing arc has any number up to A.
    """
    wanted = (states * automaton.vocab_size + words).contiguous()
    arcs = torch.searchsorted(automaton.keys, wanted)
    return arcs, automaton.keys[arcs] == wanted


def advance_contexts(automaton: TensorAutomaton, ids: Tensor, words: Tensor) -> Tensor:
    """Return the minimal states [B], int32, after one word each [B]."""
    arcs, found = find_arcs(automaton, suffix_chain(automaton, ids), words)
    found &= arcs + 1 < len(automaton.suffixes)
    longest = torch.where(found, arcs + 1, 0).amax(0)  # states are numbered by length
    return automaton.minimal[longest]


def suffixes_by_length(automaton: TensorAutomaton, ids: Tensor) -> Tensor:
    """Return states [B] and their suffixes, by length [order, B], int64; 0 if there is none."""
    chain = suffix_chain(automaton, ids)
    lengths = torch.bucketize(chain, automaton.state_starts, right=True)
    return torch.zeros_like(chain).scatter_(0, lengths, chain)


def score_contexts(
    automaton: TensorAutomaton, tokens: Tensor, starts: Tensor, before: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Score tokens of R joined sequences, each given the tokens before it.

    Args:
        automaton: the model.
        tokens: ids of the vocabulary [N].
        starts: start of each sequence [R]; none is empty.
        before: states before each sequence, by length [order, R].

    Returns:
        The results of `score_unpadded`, and the state of each length that ends in each token [order, N];
        0 if unlisted.
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
    return (probs + backoffs).float(), orders, backoffs.float(), torch.stack(states)


def all_log_probs(automaton: TensorAutomaton, ids: Tensor) -> Tensor:
    """Return log-probabilities [B, V], float32, of all words in states [B]."""
    chain = suffix_chain(automaton, ids)
    # contexts [order − 1, B], the shortest first; 0 if a row has none of that length
    states = chain[:-1].flip(0)
    backoffs = (automaton.log10_backoffs[chain].double() * LN_10).cumsum(0)
    # down to each context, natural logarithm
    charged = torch.cat([torch.zeros_like(backoffs[:1]), backoffs[:-1]])
    begins = automaton.first_arcs[states].long()
    counts = torch.where(states > 0, automaton.first_arcs[states + 1] - begins, 0)
    host_counts = counts.cpu().numpy()  # the only wait for the device
    unigrams = automaton.log10_probs[: automaton.vocab_size].double() * LN_10
    out = torch.empty((len(ids), automaton.vocab_size), dtype=torch.float32, device=automaton.device)
    entries = automaton.vocab_size + _ARC_ENTRIES * host_counts.sum(axis=0)
    for rows in runs_by_cost(entries, MAX_MATRIX_ENTRIES):
        torch.add(unigrams, charged[-1, rows, None], out=out[rows])
        # of the arcs of each length
        ends = np.cumsum(host_counts[:, rows].sum(axis=1)).tolist()
        if not ends or ends[-1] == 0:
            continue
        group, sizes = states[:, rows], counts[:, rows].reshape(-1)
        owners = torch.repeat_interleave(sizes, output_size=ends[-1])
        shift = begins[:, rows].reshape(-1) - (sizes.cumsum(0) - sizes)
        arcs = torch.arange(ends[-1], device=automaton.device) + shift[owners]
        numbers = torch.arange(group.shape[1], device=automaton.device)
        # an arc's key, state · V + word, becomes its offset in `out`, row · V + word
        offsets = automaton.keys[arcs] + ((numbers - group) * automaton.vocab_size).reshape(-1)[owners]
        own = automaton.log10_probs[arcs].double() * LN_10
        values = (own + charged[:-1].flip(0)[:, rows].reshape(-1)[owners]).float()
        # one length at a time, the longest last: offsets are unique within a length
        for begin, end in zip([0, *ends[:-1]], ends, strict=True):
            out[rows].view(-1).scatter_(0, offsets[begin:end], values[begin:end])
    return out


def top_k_of_states(automaton: TensorAutomaton, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k most probable words [B, k] and their log-probabilities; ties by id."""
    size = max(1, MAX_MATRIX_ENTRIES // automaton.vocab_size)
    begins = range(0, max(len(ids), 1), size)
    parts = [_exact_top_k(all_log_probs(automaton, ids[begin : begin + size]), k) for begin in begins]
    return torch.cat([words for words, _ in parts]), torch.cat([values for _, values in parts])


def _exact_top_k(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest entries of each row of [B, V], ties by id, unlike `torch.topk`."""
    width = values.shape[1]
    bits = (values + 0.0).view(torch.int32)  # adding 0 turns −0 into 0
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    keys = (rising << 32) | torch.arange(width - 1, -1, -1, device=values.device)
    words = width - 1 - (torch.topk(keys, k, dim=1).values & 0xFFFFFFFF)
    return words, values.gather(1, words)


class UnpaddedTokens(NamedTuple):
    """Tokens of B rows without padding, on the host.

    Attributes:
        tokens: joined ids of all rows [N], each in [0, V).
        starts: start of each non-empty row [R].
        rows: indices of the non-empty rows [R].
    """

    tokens: TokenIds
    starts: TokenIds
    rows: TokenIds


def to_device(ids: Ids, device: torch.device) -> Tensor:
    """Copy ids or row numbers of any shape to the device, as int64."""
    if isinstance(ids, Tensor):
        return ids.to(device, torch.int64)
    own = np.array(ids, np.int64)  # a copy: torch warns about read-only arrays
    return torch.from_numpy(own).to(device)


def check_token_per_row(tokens: Ids, rows: int, vocab_size: int, device: torch.device) -> Tensor:
    """Return one token per row [B], int64, on the device.

    To check ids on a device, the host waits for it.

    Raises:
        InputError: there is not one token per row, or an id is outside the vocabulary.
    """
    host = tokens.cpu().numpy() if isinstance(tokens, Tensor) else np.asarray(tokens, np.int64)
    check_one_per_row(host.shape, rows)
    outside = (host < 0) | (host >= vocab_size)
    if outside.any():
        check_known(host, int(outside.argmax()), vocab_size)
    return to_device(tokens, device)


def unpad(tokens: TokenIds, counts: Bools, vocab_size: int) -> UnpaddedTokens:
    """Return the tokens of [B, T] that a mask selects; they are contiguous in a row.

    Raises:
        InputError: a selected token is outside the vocabulary.
    """
    outside = counts & ((tokens < 0) | (tokens >= vocab_size))
    if outside.any():
        check_known(tokens, int(outside.argmax()), vocab_size)
    lengths = counts.sum(axis=1)
    rows = np.flatnonzero(lengths)
    return UnpaddedTokens(tokens[counts], np.cumsum(lengths[rows]) - lengths[rows], rows)


def score_unpadded(
    automaton: TensorAutomaton, ids: Tensor, texts: UnpaddedTokens
) -> tuple[FloatArray, UInt8s, FloatArray]:
    """Score all tokens of unpadded rows and return the results on the host.

    Args:
        automaton: the model.
        ids: states before all rows [B], with or without tokens.
        texts: tokens of the rows [N].

    Returns:
        Natural-log probabilities, float32, lengths of the n-grams found, uint8, and natural logarithms of
        the back-off charged to reach these, float32, each [N].
    """
    size = len(texts.tokens)
    out: list[AnyArray] = [np.empty(size, kind) for kind in (np.float32, np.uint8, np.float32)]
    before = suffixes_by_length(automaton, ids[to_device(texts.rows, automaton.device)])
    last = before[:, :0]
    for begin in range(0, size, MAX_TOKENS_AT_ONCE):
        end = min(begin + MAX_TOKENS_AT_ONCE, size)
        first, after = np.searchsorted(texts.starts, [begin, end])
        starts, contexts = texts.starts[first:after] - begin, before[:, first:after]
        if begin > 0 and 0 not in starts[:1]:  # a row continues from the previous segment
            starts, contexts = np.append(starts, 0), torch.cat([contexts, last], dim=1)
        tokens, offsets = (to_device(array, automaton.device) for array in (texts.tokens[begin:end], starts))
        *scores, states = score_contexts(automaton, tokens, offsets, contexts)
        last = states[:, -1:]
        for array, found in zip(out, scores, strict=True):
            array[begin:end] = found.cpu().numpy()
    return out[0], out[1], out[2]


def prefill_unpadded(automaton: TensorAutomaton, ids: Tensor, texts: UnpaddedTokens) -> Tensor:
    """Return the states [B], int32, after the texts; without tokens, a row's state is unchanged.

    For the few last tokens of each row, on which the state depends: all are read at once.
    """
    if len(texts.rows) == 0:
        return ids
    tokens, starts, rows = (to_device(array, automaton.device) for array in texts)
    *_, states = score_contexts(automaton, tokens, starts, suffixes_by_length(automaton, ids[rows]))
    ends = torch.cat([starts[1:], starts.new_full((1,), len(tokens))]) - 1
    return ids.index_copy(0, rows, automaton.minimal[states[:, ends].amax(0)])
