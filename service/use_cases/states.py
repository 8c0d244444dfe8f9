"""States that are kept for a decoder: opened after contexts, continued, forked, asked what comes next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.errors import InvalidInputError
from models.reranking.tuning.steps import map_in_steps
from models.vocabulary import EOS, UNK
from service.engine.hosted import LoadedModel
from service.engine.job import Work
from service.engine.rows import materialize
from service.engine.states import StateStore, StoredState
from service.use_cases.limits import Limits
from service.use_cases.prefill import context_groups, prefill
from service.use_cases.reading_order import check_reads_forward
from service.use_cases.state_scores import continue_states, next_log_prob_matrix
from service.use_cases.tokens import TextOrIds, encode_each

_NO_LOG_PROBS = np.zeros(0, dtype=np.float32)


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
        description=f"{len(given)} continuations of {sum(map(len, texts))} tokens, asked about {len(next_ids)} after each",
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
