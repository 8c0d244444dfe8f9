"""What a model says of words after many states at once, and the states after them."""

from typing import Any

import numpy as np

from models.arrays import TokenIds, to_numpy
from models.lattices.lattice import Indices, Scores
from models.lattices.spelling import LabelTokens
from models.protocol import LanguageModel, TopKPredictor
from models.scoring import prefill_sequences, score_sequences

_MAX_DISTRIBUTION_ENTRIES = 1 << 23
"""Log-probabilities held at a time: 32 MiB."""


def word_log_probs(
    model: LanguageModel[Any], state: Any, rows: Indices, labels: Indices, spelling: LabelTokens
) -> Scores:
    """Natural-log probabilities [P] of words, each after a row of a state; 0 for labels without tokens.

    Equal pairs are scored once. A model that computes whole distributions anyway does so once a row, however
    many words follow it.

    Args:
        model: any.
        state: B rows.
        rows: of the state [P].
        labels: of the words [P].
        spelling: their tokens.
    """
    num_labels = len(spelling.lengths)
    pairs, places = np.unique(rows * num_labels + labels, return_inverse=True)
    rows, labels = np.divmod(pairs, num_labels)
    scores = np.zeros(len(pairs))
    spoken = np.flatnonzero(spelling.lengths[labels] > 0)
    rows, labels = rows[spoken], labels[spoken]
    tokens, lengths = spelling.tokens[labels], spelling.lengths[labels]
    if isinstance(model, TopKPredictor):  # it looks up what it is asked for
        whole = score_sequences(model, state.select(rows), tokens[:, : lengths.max(initial=0)], lengths)
        scores[spoken] = whole.sum(axis=1, dtype=np.float64)
        return scores[places]
    scores[spoken] = _first_log_probs(model, state, rows, tokens[:, 0])
    longer = np.flatnonzero(lengths > 1)
    if longer.size:
        after = model.advance(state.select(rows[longer]), tokens[longer, 0])
        rest = score_sequences(model, after, tokens[longer, 1 : lengths.max()], lengths[longer] - 1)
        scores[spoken[longer]] += rest.sum(axis=1, dtype=np.float64)
    return scores[places]


def advance_words(
    model: LanguageModel[Any], state: Any, rows: Indices, labels: Indices, spelling: LabelTokens
) -> Any:
    """The states [P] after words, each after a row of a state; see `word_log_probs`."""
    before = state.select(rows)
    tokens, lengths = spelling.tokens[labels], spelling.lengths[labels]
    spoken = np.flatnonzero(lengths > 0)
    if not spoken.size:
        return before
    tokens, lengths = tokens[spoken, : lengths.max()], lengths[spoken]
    moved = before if len(spoken) == len(rows) else before.select(spoken)
    moved = (
        model.advance(moved, tokens[:, 0])
        if lengths.max() == 1
        else prefill_sequences(model, moved, tokens, lengths)
    )
    if len(spoken) == len(rows):
        return moved
    places = np.arange(len(rows))
    places[spoken] = len(rows) + np.arange(len(spoken))
    return before.concatenate([moved]).select(places)


def _first_log_probs(model: LanguageModel[Any], state: Any, rows: TokenIds, tokens: TokenIds) -> Scores:
    """Log-probabilities of one token after each of ascending rows, a bounded number of distributions at a time."""
    scores = np.empty(len(rows))
    step = max(1, _MAX_DISTRIBUTION_ENTRIES // len(model.vocabulary))
    for begin in range(0, len(state), step):
        first, last = np.searchsorted(rows, (begin, begin + step))
        if first < last:
            some = slice(first, last)
            wanted, places = np.unique(rows[some], return_inverse=True)
            log_probs = model.next_log_probs(state.select(wanted))
            scores[some] = to_numpy(log_probs[places, tokens[some]])
    return scores
