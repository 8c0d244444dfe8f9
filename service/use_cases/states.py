"""Stored states for decoders: open after contexts, advance, fork, and query next tokens.

First tokens of several continuations of one state are read from one distribution where that costs
less than scoring each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.errors import InvalidInputError
from models.language_model import LOG_ZERO, LanguageModel, pad_sequences
from models.reranking.candidates import map_in_steps
from models.vocabulary import EOS, UNK
from service.engine.batching import concatenate_states, materialize
from service.engine.calls import consume, next_log_probs, read, score
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.engine.state_store import StateStore, StoredState
from service.use_cases.inputs import Limits, TextOrIds, check_reads_forward, encode_each
from service.use_cases.prefill import MAX_CALL_TOKENS, chunks_by_length, context_groups, prefill

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


@dataclass(frozen=True, slots=True)
class OwnedStateStore:
    """Where the states of a request are kept.

    Attributes:
        store: of the service.
        owner: whose they are.
    """

    store: StateStore
    owner: str


@dataclass(frozen=True, slots=True)
class OpenCommand:
    """A valid request to open states.

    Attributes:
        contexts: each with its name in the request, for messages; possibly empty.
        bos: whether `<s>` stands before them.
        model: address; None for the default.
    """

    contexts: tuple[tuple[str, TextOrIds], ...]
    bos: bool
    model: str | None


class OpenResult(NamedTuple):
    """A state after a context.

    Attributes:
        handle: leads to it.
        num_tokens: read so far, `<s>` not counted.
    """

    handle: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StateContinuation:
    """What follows a state.

    Attributes:
        parameter: its name in the request, for messages.
        before: the state.
        given: words or ids; empty for a fork.
        eos: whether `</s>` after it is scored too.
        keep: whether the state after it is wanted.
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
        next_token_ids: tokens whose probabilities after each are wanted too.
        free: handles that are not needed any more once this is answered.
    """

    continuations: tuple[StateContinuation, ...]
    next_token_ids: tuple[int, ...]
    free: tuple[str, ...]


class AdvanceResult(NamedTuple):
    """What became of a continuation.

    Attributes:
        handle: leads to the state after it, before any `</s>`; None if it was not to be kept.
        ids: its tokens [T].
        log_probs: of each [T].
        eos_log_prob: of `</s>` after them; None if not asked for.
        next_log_probs: of the tokens that were asked about, after them.
    """

    handle: str | None
    ids: TokenIds
    log_probs: FloatArray
    eos_log_prob: float | None
    next_log_probs: FloatArray

    @property
    def logprob(self) -> float:
        """Of all its tokens, in double precision."""
        return float(self.log_probs.sum(dtype=np.float64))

    @property
    def num_oov(self) -> int:
        """How many of the tokens are `<unk>`."""
        return int(np.count_nonzero(self.ids == UNK))


def open_states(
    loaded: LoadedModel, command: OpenCommand, place: OwnedStateStore, limits: Limits
) -> Work[Any, list[OpenResult]]:
    """Keep the state after each context.

    Raises:
        InvalidInputError: a context is wrong.
        UnsupportedParameterError: the model reads from right to left.
        StatesFullError: there is no room for the states; none is kept.
    """
    check_reads_forward(loaded)
    place.store.check_capacity(len(command.contexts))
    contexts = yield from encode_each(loaded, command.contexts, limits)
    handles: list[str] = []
    whole = False
    try:
        for group in context_groups([len(ids) for ids in contexts]):
            some = contexts[group]
            state = yield from prefill(loaded, some, bos=command.bos)
            rows = [state.select(np.array([row])) for row in range(len(some))]
            kept = yield from _stored_states(loaded, rows, some)
            handles += place.store.keep(place.owner, kept)
        whole = True
    finally:
        if not whole:
            place.store.free(place.owner, handles)
    return [OpenResult(handle, len(ids)) for handle, ids in zip(handles, contexts, strict=True)]


def advance_states(
    loaded: LoadedModel, command: AdvanceCommand, place: OwnedStateStore, limits: Limits
) -> Work[Any, list[AdvanceResult]]:
    """Score continuations of states and keep the states after them; those before stay as they are.

    Raises:
        InvalidInputError: an id is outside the vocabulary, or the reply would be too long.
        ContextLengthError: a continuation is too long.
        StatesFullError: there is no room for the states; none is kept.
    """
    given = command.continuations
    next_ids = loaded.check_ids(command.next_token_ids, parameter="next_token_ids")
    to_keep = [i for i, one in enumerate(given) if one.keep]
    if to_keep:
        place.store.check_capacity(len(to_keep), sum(given[i].before.num_bytes for i in to_keep))

    def prepare(one: StateContinuation) -> TokenIds:
        limits.check_characters(one.given, parameter=one.parameter)
        ids = _ids(loaded, one)
        limits.check_length(len(ids), parameter=one.parameter)
        return ids

    texts = yield from map_in_steps(given, prepare, size=lambda one: len(one.given))
    limits.check_entries(
        sum(map(len, texts)) + len(given) * len(next_ids),
        parameter="next_token_ids" if len(next_ids) else "continuations",
        description=f"{len(given)} continuations of {sum(map(len, texts))} tokens, "
        f"asked about {len(next_ids)} after each",
        instead="POST /v1/states/next gives whole distributions as application/octet-stream",
    )
    ends = [i for i, one in enumerate(given) if one.eos]
    wanted = bool(to_keep or ends or len(next_ids))
    log_probs, states = yield from continue_states(loaded, [one.before for one in given], texts, keep=wanted)
    asking = list(range(len(given))) if len(next_ids) else ends
    asked = np.append(next_ids, EOS)
    rows = yield from next_log_prob_matrix(loaded, [states[i] for i in asking], asked)
    after = dict(zip(asking, rows, strict=True))
    handles: list[str | None] = [None] * len(given)
    if to_keep:
        befores = [given[i].before for i in to_keep]
        kept = yield from _stored_states(
            loaded, [states[i] for i in to_keep], [texts[i] for i in to_keep], befores
        )
        for i, handle in zip(to_keep, place.store.keep(place.owner, kept), strict=True):
            handles[i] = handle
    place.store.free(place.owner, command.free)
    return [
        AdvanceResult(
            handles[i],
            texts[i],
            log_probs[i],
            float(after[i][-1]) if one.eos else None,
            after[i][:-1] if i in after else _NO_LOG_PROBS,
        )
        for i, one in enumerate(given)
    ]


def common_version(states: Sequence[StoredState], *, parameter: str) -> LoadedModel:
    """The version that states are of.

    Args:
        states: at least one.
        parameter: where they stand, such as `states[]`.

    Raises:
        InvalidInputError: they are of several.
    """
    first = states[0].loaded
    for place, kept in enumerate(states):
        if kept.loaded is not first:
            name = parameter.replace("[]", f"[{place}]", 1)
            raise InvalidInputError(
                f"{name} is of {kept.loaded.address} as it was loaded then, and the first is of {first.address}: "
                "states of one version go into one request",
                parameter=name,
            )
    return first


def requested_token_ids(loaded: LoadedModel, ids: Sequence[int] | None) -> TokenIds | None:
    """The tokens that a request asks about [K]; None for all.

    Raises:
        InvalidInputError: an id is outside the vocabulary, or there are more than it has.
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
    """The ids of words [T] that follow a state.

    They are tokenised as they are after a space, whatever the words before: where a state has text before it
    that does not end in white space, and neither do the words begin with it, a space is put between.
    """
    tokenizer = before.loaded.tokenizer
    if tokenizer.leading_space:
        text = text.removeprefix(" ")  # the tokenizer puts its own
    elif text and not text[0].isspace() and before.last_token is not None:
        spelled = tokenizer.token_bytes[before.last_token]
        if spelled and not spelled[-1:].isspace():
            text = " " + text
    return np.asarray(tokenizer.encode(text), dtype=np.int64)


def _ids(loaded: LoadedModel, one: StateContinuation) -> TokenIds:
    if isinstance(one.given, str):
        return ids_after(one.before, one.given)
    return loaded.check_ids(one.given, parameter=one.parameter)


def _stored_states(
    loaded: LoadedModel, states: Sequence[Any], texts: Sequence[TokenIds], befores: Sequence[StoredState] = ()
) -> Work[Any, list[StoredState]]:
    """States after texts, as they are kept: each in memory of its own; a bounded number a step."""

    def made(place: int) -> StoredState:
        ids = texts[place]
        num_tokens, last = (0, None)
        if befores:
            num_tokens, last = befores[place].num_tokens, befores[place].last_token
        last = int(ids[-1]) if len(ids) else last
        return StoredState(loaded, materialize(states[place]), num_tokens + len(ids), last)

    return (yield from map_in_steps(range(len(states)), made, size=lambda _: 0))
