"""Model work on many kept states in one go: how probable continuations are, and what may come next."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.protocol import LanguageModel
from models.scoring import LOG_ZERO, pad_sequences
from service.engine.calls import consume, next_log_probs, read, score
from service.engine.hosted import LoadedModel
from service.engine.job import Work
from service.engine.rows import concatenate_states
from service.engine.states import StoredState
from service.use_cases.prefill import MAX_CALL_TOKENS, chunks_by_length

_MAX_ENTRIES = 1 << 20
"""Entries of distributions [R, V] that one call computes."""

_MIN_SHARED_CONTINUATIONS = 8
"""Continuations of one state from which on one distribution costs less than a score each."""

_SPARSE_RATIO = 64
"""A table finds single probabilities sooner than it writes this many times as many."""

_NO_LOG_PROBS = np.zeros(0, dtype=np.float32)


class ContinuedStates(NamedTuple):
    """What became of N continuations.

    Attributes:
        log_probs: natural-log probabilities of the tokens of each [T].
        states: after each, one row each; empty if they were not wanted.
    """

    log_probs: list[FloatArray]
    states: list[Any]


def continue_states(
    loaded: LoadedModel, befores: Sequence[StoredState], texts: Sequence[TokenIds], *, keep: bool
) -> Work[Any, ContinuedStates]:
    """Read texts [T] after states, those of like length at once; a use case.

    Args:
        loaded: the version that all states are of.
        befores: the state before each text; they may repeat.
        texts: possibly empty, which is a fork.
        keep: whether the states after them are wanted.
    """
    places: dict[int, int] = {}
    rows = np.array([places.setdefault(id(before.state), len(places)) for before in befores])
    distinct = concatenate_states(list({id(before.state): before.state for before in befores}.values()))
    log_probs: list[FloatArray] = [_NO_LOG_PROBS] * len(texts)
    states: list[Any] = [before.state for before in befores] if keep else []
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    filled = np.flatnonzero(lengths)
    for chunk in chunks_by_length(lengths[filled]):
        some = filled[chunk]
        tokens, widths = pad_sequences([texts[i] for i in some])
        scored, after = yield from _score_and_advance(
            loaded.model, distinct, rows[some], tokens=tokens, lengths=widths, keep=keep
        )
        for row, i in enumerate(some.tolist()):
            log_probs[i] = scored[row, : widths[row]]
            if keep:
                states[i] = after.select(np.array([row]))
    return ContinuedStates(log_probs, states)


def next_log_prob_blocks(
    loaded: LoadedModel, states: Sequence[Any], ids: TokenIds | None
) -> Work[FloatArray, None]:
    """What may come next after states of one row each; a use case.

    Args:
        loaded: the version that all states are of.
        states: N of them.
        ids: the tokens that are asked about [K]; None for all.

    Yields:
        Events: natural-log probabilities of some rows [n, K], in order, none below `LOG_ZERO`.
    """
    for some in _row_ranges(loaded, len(states), ids):
        yield (yield from _next_log_probs(loaded, concatenate_states([states[i] for i in some]), ids))


def next_log_prob_matrix(
    loaded: LoadedModel, states: Sequence[Any], ids: TokenIds | None
) -> Work[Any, FloatArray]:
    """What `following` says, as one array [N, K]."""
    blocks = [np.zeros((0, loaded.vocab_size if ids is None else len(ids)), dtype=np.float32)]
    for some in _row_ranges(loaded, len(states), ids):
        block = yield from _next_log_probs(loaded, concatenate_states([states[i] for i in some]), ids)
        blocks.append(block)
    return np.concatenate(blocks)


def _next_log_probs(loaded: LoadedModel, state: Any, ids: TokenIds | None) -> Work[Any, FloatArray]:
    if ids is not None and _is_sparse(loaded, ids):
        count = len(state)
        asked = state.select(np.repeat(np.arange(count), len(ids)))
        tokens = np.tile(ids, count)[:, None]
        scored = yield from score(loaded.model, asked, tokens, np.ones(len(tokens), dtype=np.int64))
        log_probs: FloatArray = scored.reshape(count, len(ids))
    else:
        log_probs = yield from next_log_probs(loaded.model, state)
        if ids is not None:
            log_probs = log_probs[:, ids]
    return np.maximum(log_probs, np.float32(LOG_ZERO))


def _is_sparse(loaded: LoadedModel, ids: TokenIds) -> bool:
    return loaded.model.family == "ngram" and len(ids) * _SPARSE_RATIO <= loaded.vocab_size


def _row_ranges(loaded: LoadedModel, count: int, ids: TokenIds | None) -> Iterator[range]:
    """Rows 0 … count − 1 in runs of bounded work."""
    if ids is not None and _is_sparse(loaded, ids):
        return _ranges(count, max(1, MAX_CALL_TOKENS // len(ids)))
    return _ranges(count, max(1, _MAX_ENTRIES // loaded.vocab_size))


def _ranges(count: int, size: int) -> Iterator[range]:
    for first in range(0, count, size):
        yield range(first, min(first + size, count))


def _score_and_advance(
    model: LanguageModel[Any],
    distinct: Any,
    rows: npt.NDArray[np.int64],
    *,
    tokens: TokenIds,
    lengths: TokenIds,
    keep: bool,
) -> Work[Any, tuple[FloatArray, Any]]:
    """Log-probabilities [R, T] of texts, none empty, after rows of some distinct states; the states after, if kept."""
    used, places = np.unique(rows, return_inverse=True)
    single = tokens.shape[1] == 1 and not keep  # for these scoring would go a step further than need be
    if model.family != "ngram" and (single or len(rows) >= _MIN_SHARED_CONTINUATIONS * len(used)):
        return (
            yield from _score_by_distributions(
                model, distinct.select(used), places, tokens=tokens, lengths=lengths, keep=keep
            )
        )
    state = distinct.select(rows)
    if keep:
        scored, state = yield from read(model, state, tokens, lengths)
    else:
        scored = yield from score(model, state, tokens, lengths)
    return scored, state


def _score_by_distributions(
    model: LanguageModel[Any],
    before: Any,
    rows: npt.NDArray[np.int64],
    *,
    tokens: TokenIds,
    lengths: TokenIds,
    keep: bool,
) -> Work[Any, tuple[FloatArray, Any]]:
    """The same, where first tokens are found in the distribution of the state before them."""
    scores = np.zeros(tokens.shape, dtype=np.float32)
    for some in _ranges(len(before), max(1, _MAX_ENTRIES // len(model.vocabulary))):
        log_probs = yield from next_log_probs(model, before.select(np.arange(some.start, some.stop)))
        mine = np.flatnonzero((rows >= some.start) & (rows < some.stop))
        scores[mine, 0] = log_probs[rows[mine] - some.start, tokens[mine, 0]]
    state = before.select(rows)
    if not keep and tokens.shape[1] == 1:
        return scores, state
    state = yield from consume(model, state, tokens[:, :1], np.ones(len(tokens), dtype=np.int64))
    if tokens.shape[1] > 1:
        if keep:
            scores[:, 1:], state = yield from read(model, state, tokens[:, 1:], lengths - 1)
        else:
            scores[:, 1:] = yield from score(model, state, tokens[:, 1:], lengths - 1)
    return scores, state
