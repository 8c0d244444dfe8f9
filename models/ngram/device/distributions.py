"""Every word of the vocabulary at once: scores and next states of a batch of contexts.

As on the CPU, the unigrams are written first, and the arcs of ever longer contexts over them.
All arcs of the contexts of a stretch of rows are one flat list, so that a row with many arcs
and one with few keep the device equally busy. How long the list is must be known to the host
before it can be made: that is the one time it waits for the device in a call.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.ngram.automaton import LN_10
from models.ngram.device.tensors import TensorAutomaton
from models.ngram.device.walking import suffix_chain

MAX_MATRIX_ENTRIES = 1 << 24
"""Entries of [B, V] computed at once, in at most some hundred MiB beyond the result; see `_ARC_ENTRIES`."""

_ARC_ENTRIES = 4
"""What an arc counts that is written over them: it takes more memory meanwhile."""


class _Contexts(NamedTuple):
    """The contexts of B rows, the shortest of each first.

    Attributes:
        states: [order − 1, B], int64; 0 where a row has no context at that place.
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
    contexts = _contexts(automaton, ids, num_states=automaton.num_states)
    unigrams = automaton.log10_probs[: automaton.vocab_size].double() * LN_10
    charged = contexts.log_backoffs

    def score(rows: slice, arcs: Tensor, owners: Tensor) -> Tensor:
        own = automaton.log10_probs[arcs].double() * LN_10
        return (own + charged[:, rows].reshape(-1)[owners]).float()

    out = torch.empty((len(ids), automaton.vocab_size), dtype=torch.float32, device=automaton.device)
    for rows in _row_slices(contexts, automaton.vocab_size):
        torch.add(unigrams, contexts.root_log_backoffs[rows, None], out=out[rows])
        _scatter_arcs(automaton, contexts, rows, out[rows], score)
    return out


def next_states(automaton: TensorAutomaton, ids: Tensor) -> Tensor:
    """The minimal states [B, V], int32, after every word in states [B].

    Arcs of the longest contexts are left out: the longest n-grams are no states.
    """
    contexts = _contexts(automaton, ids, num_states=automaton.longest_from)

    def lead(rows: slice, arcs: Tensor, owners: Tensor) -> Tensor:  # noqa: ARG001 - as `score` above
        return automaton.minimal[arcs + 1]

    out = torch.zeros((len(ids), automaton.vocab_size), dtype=torch.int32, device=automaton.device)
    for rows in _row_slices(contexts, automaton.vocab_size):
        if automaton.order > 1:
            out[rows] = automaton.minimal[1 : automaton.vocab_size + 1]
        _scatter_arcs(automaton, contexts, rows, out[rows], lead)
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


def _contexts(automaton: TensorAutomaton, ids: Tensor, *, num_states: int) -> _Contexts:
    """The contexts of states [B]; arcs are written of states below `num_states` only."""
    chain = suffix_chain(automaton, ids)
    backoffs = (automaton.log10_backoffs[chain].double() * LN_10).cumsum(0)
    charged = torch.cat([torch.zeros_like(backoffs[:1]), backoffs[:-1]])
    states = chain[:-1].flip(0)  # without the empty context, which every row has at its end
    begins = automaton.first_arcs[states].long()
    counts = automaton.first_arcs[states + 1] - begins
    counts = torch.where((states > 0) & (states < num_states), counts, 0)
    return _Contexts(states, charged[:-1].flip(0), charged[-1], begins, counts, counts.cpu().numpy())


def _row_slices(contexts: _Contexts, vocab_size: int) -> Iterator[slice]:
    """Rows in runs that together take about `MAX_MATRIX_ENTRIES` entries."""
    ends = np.cumsum(vocab_size + _ARC_ENTRIES * contexts.host_counts.sum(axis=0))
    begin, done = 0, 0
    while begin < len(ends):
        end = max(begin + 1, int(np.searchsorted(ends, done + MAX_MATRIX_ENTRIES, side="right")))
        yield slice(begin, end)
        begin, done = end, int(ends[end - 1])


def _scatter_arcs(
    automaton: TensorAutomaton,
    contexts: _Contexts,
    rows: slice,
    out: Tensor,
    value: Callable[[slice, Tensor, Tensor], Tensor],
) -> None:
    """Write what `value` says of the arcs of some rows' contexts over `out` [rows, V], the longest last."""
    ends = np.cumsum(contexts.host_counts[:, rows].sum(axis=1)).tolist()
    if not ends or ends[-1] == 0:
        return
    states, counts = contexts.states[:, rows], contexts.counts[:, rows].reshape(-1)
    owners = torch.repeat_interleave(counts, output_size=ends[-1])
    shift = contexts.begins[:, rows].reshape(-1) - (counts.cumsum(0) - counts)
    arcs = torch.arange(ends[-1], device=automaton.device) + shift[owners]
    numbers = torch.arange(states.shape[1], device=automaton.device)
    # an arc's key, state · V + word, becomes its place in `out`, row · V + word
    places = automaton.keys[arcs] + ((numbers - states) * automaton.vocab_size).reshape(-1)[owners]
    values = value(rows, arcs, owners)
    # one level after the other: within one, no place occurs twice
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        out.view(-1).scatter_(0, places[begin:end], values[begin:end])
