"""The automaton as tensors, laid out for very many look-ups at once.

What costs on a device is starting a kernel, not what it computes. So an arc is not sought
among those of its state, a step of the bisection a kernel, but by one bisection over all
arcs: their keys, state · V + word, rise through the whole array.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.ngram.automaton import Automaton

_BLOCK = 1 << 22
"""Elements copied at once, so that a mapped file is never in the host's memory as a whole."""

_NO_KEY = 2**63 - 1


class TensorAutomaton(NamedTuple):
    """S states and A arcs, numbered as in `Automaton`, whose arrays these are unless said otherwise.

    Attributes:
        order: the length of the longest n-gram.
        vocab_size: V.
        longest_from: the first state of the greatest length, order − 1; only states below it lead on by their arcs.
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
    longest_from: int
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
        """Where the tensors are."""
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
        longest_from=int(state_starts[max(automaton.order - 2, 0)]),
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
    """What `read` makes of one stretch after the other, as one tensor [length]."""
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
    whole: npt.NDArray[np.int32] = low | middle << 8 | high << 16
    return whole


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
    """As `access.minimal`, for all states: those of one length at once, since links lead to shorter ones."""
    minimal = torch.arange(len(suffixes), dtype=torch.int32, device=suffixes.device)
    says_nothing = (first_arcs.diff() == 0) & (backoffs == 0)
    for begin, end in itertools.pairwise(state_starts):
        part = slice(begin, end)
        minimal[part] = torch.where(says_nothing[part], minimal[suffixes[part].long()], minimal[part])
    return minimal
