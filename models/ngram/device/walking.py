"""Walks along given tokens, all positions of all rows at once.

A back-off model's score of a token depends on the order − 1 tokens before it alone. So
nothing here goes through time: the contexts of one length before every token are found from
those one shorter, which makes as many rounds as the model's order, however long the texts are.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from models.ngram.automaton import LN_10
from models.ngram.device.tensors import TensorAutomaton


class ScoredTokens(NamedTuple):
    """What a model says of N tokens that it read.

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
    return automaton.minimal[_longest_state(torch.where(found, arcs + 1, 0))]


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


def final_states(automaton: TensorAutomaton, reading: ScoredTokens, ends: Tensor) -> Tensor:
    """The minimal states, int32, after the tokens at some places."""
    return automaton.minimal[_longest_state(reading.states[:, ends])]


def _longest_state(states: Tensor) -> Tensor:
    """The longest of the states along the first axis: the longer, the larger is its number."""
    return states.amax(0)
