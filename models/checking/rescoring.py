"""Rescoring of candidate corrections with a language model, in the context on both sides.

One pass over the sentences of a batch gives the state before every token. The left context alone
selects candidates; those that can still win are scored with the tokens after them, in
ragged batches.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from models.arrays import Float64s, Int64s
from models.calls import Read, ScoreChoices, Work, map_in_steps
from models.checking.candidates import (
    CandidateGenerator,
    CheckBatch,
    Corrections,
    Slot,
    join_corrections,
)
from models.checking.sentences import Word
from models.language_model import EOS, LOG_ZERO, SCORES, STATE, UNK

_MAX_ROWS = 512
"""Maximum candidates per model call."""


class RescoredBatch(NamedTuple):
    """Results for a batch of sentences.

    Attributes:
        words: words of all sentences, in order.
        word_log_probs: ln P(word | earlier text) of each word [N].
        log_probs: log-probabilities of all predicted tokens, with ends of lines [T].
        positions: position of each in the whole text [T].
        num_ends: number of ends of lines.
        slots: spans that may be wrong; first one for each word.
        alternatives: candidates scored with both contexts [M].
        log_odds: log-odds of each against the typed text, given the text around it [M].
        gains_nats: gain in log-probability of each by the model alone [M].
        state: model state after the last sentence if its line goes on, else None.
    """

    words: Sequence[Word]
    word_log_probs: Float64s
    log_probs: Float64s
    positions: Int64s
    num_ends: int
    slots: Sequence[Slot]
    alternatives: Corrections
    log_odds: Float64s
    gains_nats: Float64s
    state: Any


def rescore_batch(
    proposer: CandidateGenerator,
    batch: CheckBatch,
    *,
    state: Any,
    right_tokens: int,
) -> Work[Any, RescoredBatch]:
    """Read a batch, find candidates and score them.

    Args:
        proposer: candidate generator for the tokenizer.
        batch: the batch.
        state: model states before the sentences, one row each.
        right_tokens: tokens after a slot to score with a candidate.
    """
    states, rows = yield from _prefix_states(batch, state)
    yield from batch.dictionary.look_up(batch.unknown_words())
    batch.slots += yield from map_in_steps(
        range(len(batch.words)),
        lambda number: proposer.word_slot(batch, number),
        size=lambda number: len(batch.words[number].text),
    )
    first = yield from proposer.propose(batch)
    count = len(batch.tokens)
    starts = np.flatnonzero(first.lengths)
    places = np.concatenate([rows, rows[first.firsts[starts]]])
    tokens = np.concatenate([batch.tokens, first.tokens[first.offsets[starts]]])
    order = np.argsort(places, kind="stable")
    choices = np.empty(len(places), np.float32)
    choices[order] = yield from ScoreChoices(batch.model, states, places[order], tokens[order])
    log_probs = np.maximum(choices[:count].astype(np.float64), LOG_ZERO)
    # gain of each candidate's first token over the token that it replaces
    before = np.zeros(len(first.slots))
    before[starts] = choices[count:] - log_probs[first.firsts[starts]]
    shortlisted = proposer.weigh_shortlisted(batch, first.select(_shortlist(batch, first, before)))
    more = yield from proposer.propose_after_reading(batch, states, rows, log_probs)
    chosen = join_corrections([shortlisted, more])
    totals, stops = yield from _sequence_log_probs(batch, (states, rows), chosen, right_tokens)
    sums = np.concatenate([[0.0], np.cumsum(log_probs)])
    gains = totals - (sums[stops] - sums[chosen.firsts])
    typed = np.array([slot.log_weight for slot in batch.slots])
    log_weights = chosen.log_weights - typed[chosen.slots]
    log_weights += _unknown_word_log_odds(batch, chosen, log_probs)
    # with the ends of lines
    ended = [(one, [len(one.text)] if one.ends else []) for one in batch.sentences]
    counts = [len(sentence.ids) + len(ends) for sentence, ends in ended]
    predicted = np.arange(sum(counts)) + np.repeat(batch.bases - np.cumsum(counts) + counts, counts)
    num_tokens = np.array([word.last - word.first for word in batch.words], np.int64)
    last = batch.sentences[-1]
    return RescoredBatch(
        batch.words,
        sums[batch.positions + num_tokens] - sums[batch.positions],
        log_probs[predicted],
        np.concatenate([one.offset + np.append(one.begins, ends) for one, ends in ended]).astype(np.int64),
        int(np.count_nonzero(batch.tokens[predicted] == EOS)),
        batch.slots,
        chosen,
        gains + log_weights,
        gains,
        None if last.ends else states.select(rows[[batch.bases[-1] + len(last.ids)]]),
    )


def _prefix_states(batch: CheckBatch, state: Any) -> Work[Any, tuple[Any, Int64s]]:
    """Read all sentences in parallel, token by token; return the states before all tokens.

    Also return the row of the state before each token [P].
    """
    order = np.argsort(-batch.lengths, kind="stable")
    lengths, bases = batch.lengths[order], batch.bases[order]
    states, firsts, num_rows = [], [], 0
    for step in range(int(lengths[0])):
        # sentences with more tokens than `step`
        alive = int(np.searchsorted(-lengths, -step))
        if alive < len(state):
            state = state.select(np.arange(alive))
        states.append(state)
        firsts.append(num_rows)
        num_rows += alive
        left = int(np.searchsorted(-lengths, -(step + 1)))
        if left:
            going = state if left == alive else state.select(np.arange(left))
            tokens = batch.tokens[bases[:left] + step]
            result = yield from Read(batch.model, going, tokens[:, None], np.ones_like(tokens), STATE)
            state = result.state
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    steps = np.arange(len(batch.tokens)) - np.repeat(batch.bases, batch.lengths)
    rows = np.array(firsts)[steps] + rank[batch.sentence_of]
    return states[0] if len(states) == 1 else states[0].concatenate(states[1:]), rows


def _shortlist(batch: CheckBatch, found: Corrections, before: Float64s) -> Int64s:
    """Select each slot's best candidates that can still win by the right context, ascending.

    For unknown words the best are always selected, as suggestions.
    """
    if not len(found.slots):
        return np.zeros(0, np.int64)
    typed = np.array([slot.log_weight for slot in batch.slots])
    is_unknown = np.array([not slot.known for slot in batch.slots])
    margins = before + found.log_weights - typed[found.slots]
    order = np.lexsort((-margins, found.slots))
    slots = found.slots[order]
    begins = np.flatnonzero(np.diff(slots, prepend=-1))
    rank = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    plausible = (margins[order] >= -batch.search.slack_nats) | is_unknown[slots]
    return np.sort(order[plausible & (rank < batch.search.max_alternatives)])


def _unknown_word_log_odds(batch: CheckBatch, found: Corrections, log_probs: Float64s) -> Float64s:
    """Log-odds bonus that raises unknown words to at least their prior [M].

    A model with all words of its training text gives others almost no probability.
    """
    tokens = batch.tokens
    missing = np.where(tokens == UNK, np.maximum(batch.error_model.log_unknown - log_probs, 0.0), 0.0)
    sums = np.concatenate([[0.0], np.cumsum(missing)])
    typed = np.array([sums[slot.last] - sums[slot.first] for slot in batch.slots])
    is_unknown = np.zeros(len(found.slots), bool)
    single = np.flatnonzero(found.lengths == 1)
    is_unknown[single] = found.tokens[found.offsets[single]] == UNK
    added: Float64s = np.where(is_unknown, missing[found.firsts], 0.0) - typed[found.slots]
    return added


def _sequence_log_probs(
    batch: CheckBatch,
    prefix_states: tuple[Any, Int64s],
    found: Corrections,
    right_tokens: int,
) -> Work[Any, tuple[Float64s, Int64s]]:
    """Return log-probabilities of candidates with the tokens after them [M], and their ends [M]."""
    states, rows = prefix_states
    stops = np.minimum(
        found.lasts + right_tokens, (batch.bases + batch.lengths)[batch.sentence_of[found.firsts]]
    )
    lengths = found.lengths + stops - found.lasts
    totals = np.zeros(len(found.slots))
    order = np.argsort(lengths, kind="stable")
    for begin in range(0, len(order), _MAX_ROWS):
        selected = order[begin : begin + _MAX_ROWS]
        # candidates, then the text [R, T], padded with arbitrary tokens
        steps, own = np.arange(lengths[selected].max()), found.lengths[selected][:, None]
        behind = np.minimum(found.lasts[selected][:, None] + steps - own, len(batch.tokens) - 1)
        tokens = batch.tokens[np.maximum(behind, 0)]
        if len(found.tokens):
            inside = np.minimum(found.offsets[selected][:, None] + steps, len(found.tokens) - 1)
            tokens = np.where(steps < own, found.tokens[inside], tokens)
        before = states.select(rows[found.firsts[selected]])
        result = yield from Read(batch.model, before, tokens, lengths[selected], SCORES)
        totals[selected] = np.maximum(result.log_probs.astype(np.float64), LOG_ZERO).sum(axis=1)
    return totals, stops
