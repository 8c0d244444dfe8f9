"""Stored states for decoders: open after contexts, advance, fork, and query next tokens.

First tokens of several continuations of one state are scored from one distribution where that costs
less than scoring each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.calls import Predict, Read
from models.errors import InvalidInputError
from models.language_model import (
    LOG_ZERO,
    SCORES,
    STATE,
    LanguageModel,
    Want,
    is_lookup,
    pad_sequences,
)
from models.reranking.candidates import map_in_steps
from models.vocabulary import EOS, UNK
from service.engine.batching import concatenate_states, materialize
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.engine.state_store import StateStore, StoredState
from service.use_cases.constants import (
    MAX_CALL_TOKENS,
    MAX_STATE_ENTRIES,
    MIN_SHARED_CONTINUATIONS,
    SPARSE_RATIO,
)
from service.use_cases.inputs import Limits, TextOrIds, check_reads_forward, encode_each
from service.use_cases.prefill import chunks_by_length, context_groups, prefill

_NO_LOG_PROBS = np.zeros(0, dtype=np.float32)


class ContinuedStates(NamedTuple):
    """Results of N continuations.

    Attributes:
        log_probs: natural-log probabilities of the tokens of each [T].
        states: states of one row after each; empty if not requested.
    """

    log_probs: list[FloatArray]
    states: list[Any]


def continue_states(
    loaded: LoadedModel, previous: Sequence[StoredState], texts: Sequence[TokenIds], *, keep: bool
) -> Work[Any, ContinuedStates]:
    """Read texts [T] after states, in chunks of similar length; a use case.

    Args:
        loaded: the model version of all states.
        previous: the state before each text, possibly repeated.
        texts: token ids; an empty text is a fork.
        keep: whether to return the states after the texts.
    """
    row_of_state: dict[int, int] = {}
    rows = np.array([row_of_state.setdefault(id(before.state), len(row_of_state)) for before in previous])
    distinct = concatenate_states(list({id(before.state): before.state for before in previous}.values()))
    log_probs: list[FloatArray] = [_NO_LOG_PROBS] * len(texts)
    states: list[Any] = [before.state for before in previous] if keep else []
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    filled = np.flatnonzero(lengths)
    for chunk in chunks_by_length(lengths[filled]):
        indices = filled[chunk]
        tokens, widths = pad_sequences([texts[i] for i in indices])
        scored, after = yield from _score_and_advance(
            loaded.model, distinct, rows[indices], tokens=tokens, lengths=widths, keep=keep
        )
        for row, i in enumerate(indices.tolist()):
            log_probs[i] = scored[row, : widths[row]]
            if keep:
                states[i] = after.select(np.array([row]))
    return ContinuedStates(log_probs, states)


def next_log_prob_blocks(
    loaded: LoadedModel, states: Sequence[Any], ids: TokenIds | None
) -> Work[FloatArray, None]:
    """Compute next-token log-probabilities after states of one row each; a use case.

    Args:
        loaded: the model version of all states.
        states: N states.
        ids: the requested tokens [K]; None for all.

    Yields:
        Events: natural-log probabilities of a block of rows [n, K], in order, none below `LOG_ZERO`.
    """
    for rows in _row_ranges(loaded, len(states), ids):
        yield (yield from _next_log_probs(loaded, concatenate_states([states[i] for i in rows]), ids))


def next_log_prob_matrix(
    loaded: LoadedModel, states: Sequence[Any], ids: TokenIds | None
) -> Work[Any, FloatArray]:
    """Collect the blocks of `next_log_prob_blocks` in one array [N, K]."""
    blocks = [np.zeros((0, loaded.vocab_size if ids is None else len(ids)), dtype=np.float32)]
    for rows in _row_ranges(loaded, len(states), ids):
        block = yield from _next_log_probs(loaded, concatenate_states([states[i] for i in rows]), ids)
        blocks.append(block)
    return np.concatenate(blocks)


def _next_log_probs(loaded: LoadedModel, state: Any, ids: TokenIds | None) -> Work[Any, FloatArray]:
    if ids is not None and _is_sparse(loaded, ids):
        count = len(state)
        repeated = state.select(np.repeat(np.arange(count), len(ids)))
        tokens = np.tile(ids, count)[:, None]
        scored = yield from Read(loaded.model, repeated, tokens, np.ones(len(tokens), np.int64), SCORES)
        log_probs = scored.log_probs.reshape(count, len(ids))
    else:
        log_probs = yield from Predict(loaded.model, state)
        if ids is not None:
            log_probs = log_probs[:, ids]
    return np.maximum(log_probs, np.float32(LOG_ZERO))


def _is_sparse(loaded: LoadedModel, ids: TokenIds) -> bool:
    return is_lookup(loaded.model) and len(ids) * SPARSE_RATIO <= loaded.vocab_size


def _row_ranges(loaded: LoadedModel, count: int, ids: TokenIds | None) -> Iterator[range]:
    """Split rows 0 … count − 1 into ranges of bounded work."""
    if ids is not None and _is_sparse(loaded, ids):
        return _ranges(count, max(1, MAX_CALL_TOKENS // len(ids)))
    return _ranges(count, max(1, MAX_STATE_ENTRIES // loaded.vocab_size))


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
    """Score nonempty texts [R, T] after rows of distinct states; return the states after them if `keep`."""
    used, row_of_used = np.unique(rows, return_inverse=True)
    single = tokens.shape[1] == 1 and not keep  # scoring would needlessly advance the state
    if not is_lookup(model) and (single or len(rows) >= MIN_SHARED_CONTINUATIONS * len(used)):
        return (
            yield from _score_by_distributions(
                model, distinct.select(used), row_of_used, tokens=tokens, lengths=lengths, keep=keep
            )
        )
    result = yield from Read(model, distinct.select(rows), tokens, lengths, Want(scores=True, state=keep))
    return result.log_probs, result.state


def _score_by_distributions(
    model: LanguageModel[Any],
    before: Any,
    rows: npt.NDArray[np.int64],
    *,
    tokens: TokenIds,
    lengths: TokenIds,
    keep: bool,
) -> Work[Any, tuple[FloatArray, Any]]:
    """Score and advance as above, with first tokens looked up in the distribution of the state before."""
    scores = np.zeros(tokens.shape, dtype=np.float32)
    for block in _ranges(len(before), max(1, MAX_STATE_ENTRIES // len(model.vocabulary))):
        log_probs = yield from Predict(model, before.select(np.arange(block.start, block.stop)))
        indices = np.flatnonzero((rows >= block.start) & (rows < block.stop))
        scores[indices, 0] = log_probs[rows[indices] - block.start, tokens[indices, 0]]
    state = before.select(rows)
    if not keep and tokens.shape[1] == 1:
        return scores, state
    result = yield from Read(model, state, tokens[:, :1], np.ones(len(tokens), np.int64), STATE)
    if tokens.shape[1] > 1:
        want = Want(scores=True, state=keep)
        result = yield from Read(model, result.state, tokens[:, 1:], lengths - 1, want)
        scores[:, 1:] = result.log_probs
    return scores, result.state


@dataclass(frozen=True, slots=True)
class OwnedStateStore:
    """State store of a request.

    Attributes:
        store: the store of the service.
        owner: owner of the states.
    """

    store: StateStore
    owner: str


@dataclass(frozen=True, slots=True)
class OpenCommand:
    """A valid request to open states.

    Attributes:
        contexts: each with its name in the request, for messages; possibly empty.
        bos: whether `<s>` precedes them.
        model: address; None for the default.
    """

    contexts: tuple[tuple[str, TextOrIds], ...]
    bos: bool
    model: str | None


class OpenResult(NamedTuple):
    """A state after a context.

    Attributes:
        handle: identifier of the state.
        num_tokens: tokens read so far, without `<s>`.
    """

    handle: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StateContinuation:
    """A continuation of a state.

    Attributes:
        parameter: its name in the request, for messages.
        before: the state.
        given: words or ids; empty for a fork.
        eos: whether to score `</s>` after it too.
        keep: whether to keep the state after it.
    """

    parameter: str
    before: StoredState
    given: TextOrIds
    eos: bool
    keep: bool


@dataclass(frozen=True, slots=True)
class AdvanceCommand:
    """A valid request to continue states of one version.

    Attributes:
        continuations: at least one.
        next_token_ids: tokens to score after each continuation.
        free: handles to free once the request is answered.
    """

    continuations: tuple[StateContinuation, ...]
    next_token_ids: tuple[int, ...]
    free: tuple[str, ...]


class AdvanceResult(NamedTuple):
    """Result of a continuation.

    Attributes:
        handle: identifier of the state after it, before any `</s>`; None if not kept.
        ids: its tokens [T].
        log_probs: log-probability of each token [T].
        eos_log_prob: log-probability of `</s>` after them; None if not requested.
        next_log_probs: log-probabilities of the requested next tokens.
    """

    handle: str | None
    ids: TokenIds
    log_probs: FloatArray
    eos_log_prob: float | None
    next_log_probs: FloatArray

    @property
    def logprob(self) -> float:
        """Sum of the log-probabilities of all tokens, in double precision."""
        return float(self.log_probs.sum(dtype=np.float64))

    @property
    def num_oov(self) -> int:
        """Number of `<unk>` tokens."""
        return int(np.count_nonzero(self.ids == UNK))


def open_states(
    loaded: LoadedModel, command: OpenCommand, state_store: OwnedStateStore, limits: Limits
) -> Work[Any, list[OpenResult]]:
    """Keep the state after each context.

    Raises:
        InvalidInputError: a context is wrong.
        UnsupportedParameterError: the model reads from right to left.
        StatesFullError: the store has no capacity for the states; none is kept.
    """
    check_reads_forward(loaded)
    state_store.store.check_capacity(len(command.contexts))
    contexts = yield from encode_each(loaded, command.contexts, limits)
    handles: list[str] = []
    complete = False
    try:
        for group in context_groups([len(ids) for ids in contexts]):
            group_contexts = contexts[group]
            state = yield from prefill(loaded, group_contexts, bos=command.bos)
            rows = [state.select(np.array([row])) for row in range(len(group_contexts))]
            stored = yield from _stored_states(loaded, rows, group_contexts)
            handles += state_store.store.keep(state_store.owner, stored)
        complete = True
    finally:
        if not complete:
            state_store.store.free(state_store.owner, handles)
    return [OpenResult(handle, len(ids)) for handle, ids in zip(handles, contexts, strict=True)]


def advance_states(
    loaded: LoadedModel, command: AdvanceCommand, state_store: OwnedStateStore, limits: Limits
) -> Work[Any, list[AdvanceResult]]:
    """Score continuations of states and keep the states after them; the states before stay unchanged.

    Raises:
        InvalidInputError: an id is outside the vocabulary, or the reply would be too long.
        ContextLengthError: a continuation is too long.
        StatesFullError: the store has no capacity for the states; none is kept.
    """
    given = command.continuations
    next_ids = loaded.check_ids(command.next_token_ids, parameter="next_token_ids")
    to_keep = [i for i, item in enumerate(given) if item.keep]
    if to_keep:
        state_store.store.check_capacity(len(to_keep), sum(given[i].before.num_bytes for i in to_keep))

    def prepare(item: StateContinuation) -> TokenIds:
        limits.check_characters(item.given, parameter=item.parameter)
        ids = _ids(loaded, item)
        limits.check_length(len(ids), parameter=item.parameter)
        return ids

    texts = yield from map_in_steps(given, prepare, size=lambda item: len(item.given))
    limits.check_entries(
        sum(map(len, texts)) + len(given) * len(next_ids),
        parameter="next_token_ids" if len(next_ids) else "continuations",
        description=f"{len(given)} continuations of {sum(map(len, texts))} tokens, "
        f"asked about {len(next_ids)} after each",
        instead="POST /v1/states/next gives whole distributions as application/octet-stream",
    )
    ends = [i for i, item in enumerate(given) if item.eos]
    keep = bool(to_keep or ends or len(next_ids))
    log_probs, states = yield from continue_states(loaded, [item.before for item in given], texts, keep=keep)
    queried = list(range(len(given))) if len(next_ids) else ends
    queried_ids = np.append(next_ids, EOS)
    rows = yield from next_log_prob_matrix(loaded, [states[i] for i in queried], queried_ids)
    next_rows = dict(zip(queried, rows, strict=True))
    handles: list[str | None] = [None] * len(given)
    if to_keep:
        previous = [given[i].before for i in to_keep]
        stored = yield from _stored_states(
            loaded, [states[i] for i in to_keep], [texts[i] for i in to_keep], previous
        )
        for i, handle in zip(to_keep, state_store.store.keep(state_store.owner, stored), strict=True):
            handles[i] = handle
    state_store.store.free(state_store.owner, command.free)
    return [
        AdvanceResult(
            handles[i],
            texts[i],
            log_probs[i],
            float(next_rows[i][-1]) if item.eos else None,
            next_rows[i][:-1] if i in next_rows else _NO_LOG_PROBS,
        )
        for i, item in enumerate(given)
    ]


def common_version(states: Sequence[StoredState], *, parameter: str) -> LoadedModel:
    """Find the model version of states.

    Args:
        states: at least one.
        parameter: their name in the request, such as `states[]`.

    Raises:
        InvalidInputError: the states are of several versions.
    """
    first = states[0].loaded
    for index, state in enumerate(states):
        if state.loaded is not first:
            name = parameter.replace("[]", f"[{index}]", 1)
            raise InvalidInputError(
                f"{name} is of {state.loaded.address} as it was loaded then, and the first is of {first.address}: "
                "states of one version go into one request",
                parameter=name,
            )
    return first


def requested_token_ids(loaded: LoadedModel, ids: Sequence[int] | None) -> TokenIds | None:
    """Check the token ids of a request [K]; None for all.

    Raises:
        InvalidInputError: an id is outside the vocabulary, or there are more ids than tokens.
    """
    if ids is None:
        return None
    if len(ids) > loaded.vocab_size:
        raise InvalidInputError(
            f"token_ids has {len(ids)} entries; the model's vocabulary has {loaded.vocab_size} tokens",
            parameter="token_ids",
        )
    return loaded.check_ids(ids, parameter="token_ids")


def ids_after(before: StoredState, text: str) -> TokenIds:
    """Tokenise words that follow a state [T].

    The words are tokenised as after a space, whatever precedes them: a space is inserted where neither the
    text before the state ends in white space nor the words begin with it.
    """
    tokenizer = before.loaded.tokenizer
    if tokenizer.leading_space:
        text = text.removeprefix(" ")  # the tokenizer adds its own
    elif text and not text[0].isspace() and before.last_token is not None:
        spelled = tokenizer.token_bytes[before.last_token]
        if spelled and not spelled[-1:].isspace():
            text = " " + text
    return np.asarray(tokenizer.encode(text), dtype=np.int64)


def _ids(loaded: LoadedModel, item: StateContinuation) -> TokenIds:
    if isinstance(item.given, str):
        return ids_after(item.before, item.given)
    return loaded.check_ids(item.given, parameter=item.parameter)


def _stored_states(
    loaded: LoadedModel, states: Sequence[Any], texts: Sequence[TokenIds], prior: Sequence[StoredState] = ()
) -> Work[Any, list[StoredState]]:
    """Copy states after texts, each into its own memory for the store; a bounded number per step."""

    def build(index: int) -> StoredState:
        ids = texts[index]
        num_tokens, last = (0, None)
        if prior:
            num_tokens, last = prior[index].num_tokens, prior[index].last_token
        last = int(ids[-1]) if len(ids) else last
        return StoredState(loaded, materialize(states[index]), num_tokens + len(ids), last)

    return (yield from map_in_steps(range(len(states)), build, size=lambda _: 0))
