"""Stored states for decoders: open after contexts, advance, fork, and query next tokens.

First tokens of a state's continuations are scored from one distribution if that costs less than
separate scores.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Annotated, Any, TypeVar, cast

import numpy as np
from pydantic import Field
from typing_extensions import override

from models.arrays import FloatArray, Int64s, TokenIds, runs_by_cost
from models.calls import Predict, Read, Work, join_states, map_in_steps, materialize
from models.decoding.generate import phrase_automaton
from models.errors import InputError
from models.language_model import EOS, SCORES, STATE, UNK, LanguageModel, Want, is_lookup, pad_sequences
from models.phrases import MAX_TOKEN_PHRASES, NO_PHRASES
from models.scoring.constants import MAX_CALL_TOKENS, MAX_GROUP_TOKENS, MAX_STATE_ENTRIES
from models.scoring.sequences import chunks_by_length, prefill
from models.text_model import TextModel, TextOrIds, check_forward, encode_each, ids_after
from service.hosting.state_store import StoredState
from service.operations.operation import (
    MIN_SHARED_CONTINUATIONS,
    SPARSE_RATIO,
    Call,
    Cost,
    ModelOperation,
    Operation,
    RowsOperation,
)
from service.schemas import with_examples
from service.schemas.replies import (
    AdvancedState,
    AdvanceReply,
    NextReply,
    OpenedState,
    OpenStatesReply,
    to_json,
)
from service.schemas.wire import (
    ModelAddress,
    OneOrMoreContexts,
    TimedRequest,
    TokenId,
    WireModel,
    either,
    named_contexts,
)
from service.schemas.word_lists import PhraseEntry

_STATES_PER_STEP = 512
_NO_LOG_PROBS = np.zeros(0, np.float32)

Handle = Annotated[str, Field(min_length=1, max_length=200)]
"""Handle of a state, opaque to clients."""

_STATE = "1f0e2d3c.a1b2c3.kJ9dXw0hT2mQvB7s"
"""Handle in the examples: returned by the example that opens a state, and used in the other requests."""

R = TypeVar("R")

_BULK_STATES = 512
"""Maximum continuations or states of a request that is not bulk."""

_INLINE_STATES, _INLINE_BYTES = 64, 256
"""Maximum continuations, and bytes of each on average, that an n-gram model scores faster at once."""

_HANDLE_BYTES = 128
"""Approximate body bytes per state with a following word: little work."""


def continue_states(
    loaded: TextModel, previous: Sequence[StoredState], texts: Sequence[TokenIds], want: Want
) -> Work[Any, tuple[list[FloatArray], list[Any]]]:
    """Read texts [T] after states, in chunks of similar length.

    Args:
        loaded: model version of the states.
        previous: state before each text, possibly repeated.
        texts: token ids; an empty text is a fork.
        want: log-probabilities, states after the texts, or both.

    Returns:
        Natural-log probabilities of each text's tokens [T], and states (one row) after it, if wanted.
    """
    by_id = {id(one.state): one.state for one in previous}
    row_of = {key: row for row, key in enumerate(by_id)}
    rows = np.array([row_of[id(one.state)] for one in previous])
    distinct = join_states([*by_id.values()])
    log_probs: list[FloatArray] = [_NO_LOG_PROBS] * len(texts)
    states: list[Any] = [one.state for one in previous] if want.state else []
    lengths = np.array([len(text) for text in texts], np.int64)
    filled = np.flatnonzero(lengths)
    for chunk in chunks_by_length(lengths[filled]):
        indices = filled[chunk]
        tokens, widths = pad_sequences([texts[i] for i in indices])
        scored, after = yield from _score_and_advance(
            loaded.model, distinct, rows[indices], tokens=tokens, lengths=widths, want=want
        )
        for row, i in enumerate(indices.tolist()):
            if want.scores:
                log_probs[i] = scored[row, : widths[row]]
            if want.state:
                states[i] = after.select(np.array([row]))
    return log_probs, states


def next_log_prob_matrix(
    loaded: TextModel, states: Sequence[Any], ids: TokenIds | None
) -> Work[Any, FloatArray]:
    """Compute next-token log-probabilities [N, K] after N states of one row each, see `next_log_probs`."""
    blocks = [np.zeros((0, loaded.vocab_size if ids is None else len(ids)), np.float32)]
    for block in _row_blocks(loaded, states, ids):
        log_probs = yield from next_log_probs(loaded, block, ids)
        blocks.append(log_probs)
    return np.concatenate(blocks)


def next_log_probs(loaded: TextModel, state: Any, ids: TokenIds | None) -> Work[Any, FloatArray]:
    """Compute next-token log-probabilities [N, K] after a state of N rows.

    Args:
        loaded: model version of the state.
        state: N rows.
        ids: requested tokens [K]; None for all.
    """
    if ids is None or not _is_sparse(loaded, ids):
        log_probs = yield from Predict(loaded.model, state)
        return log_probs if ids is None else log_probs[:, ids]
    count = len(state)
    repeated = state.select(np.repeat(np.arange(count), len(ids)))
    tokens = np.tile(ids, count)[:, None]
    scored = yield from Read(loaded.model, repeated, tokens, np.ones(len(tokens), np.int64), SCORES)
    return cast("FloatArray", scored.log_probs.reshape(count, len(ids)))


def _is_sparse(loaded: TextModel, ids: TokenIds) -> bool:
    return is_lookup(loaded.model) and len(ids) * SPARSE_RATIO <= loaded.vocab_size


def _row_blocks(loaded: TextModel, states: Sequence[Any], ids: TokenIds | None) -> Iterator[Any]:
    """Join states of one row each into blocks of bounded work."""
    size = MAX_STATE_ENTRIES // loaded.vocab_size
    if ids is not None and _is_sparse(loaded, ids):
        size = MAX_CALL_TOKENS // len(ids)
    size = max(1, size)
    for first in range(0, len(states), size):
        yield join_states(states[first : first + size])


def _score_and_advance(
    model: LanguageModel[Any],
    distinct: Any,
    rows: Int64s,
    *,
    tokens: TokenIds,
    lengths: TokenIds,
    want: Want,
) -> Work[Any, tuple[FloatArray, Any]]:
    """Read nonempty texts [R, T] after rows of distinct states; return what is wanted."""
    used, row_of_used = np.unique(rows, return_inverse=True)
    num_tokens = tokens.shape[1]
    single = num_tokens == 1 and not want.state  # scoring would advance the state
    by_distribution = want.scores and (single or len(rows) >= MIN_SHARED_CONTINUATIONS * len(used))
    if is_lookup(model) or not by_distribution:
        result = yield from Read(model, distinct.select(rows), tokens, lengths, want)
        return result.log_probs, result.state
    # look up first tokens in the distribution of the state before
    scores = np.zeros(tokens.shape, np.float32)
    before = distinct.select(used)
    size = max(1, MAX_STATE_ENTRIES // len(model.vocabulary))
    for first in range(0, len(before), size):
        end = min(first + size, len(before))
        log_probs = yield from Predict(model, before.select(np.arange(first, end)))
        indices = np.flatnonzero((row_of_used >= first) & (row_of_used < end))
        scores[indices, 0] = log_probs[row_of_used[indices] - first, tokens[indices, 0]]
    state = before.select(row_of_used)
    if not single:
        result = yield from Read(model, state, tokens[:, :1], np.ones_like(lengths), STATE)
        state = result.state
    if num_tokens > 1:
        result = yield from Read(model, state, tokens[:, 1:], lengths - 1, want)
        scores[:, 1:], state = result.log_probs, result.state
    return scores, state


class OpenStatesRequest(TimedRequest):
    """Store the model state after one or more contexts."""

    model_config = with_examples({"context": "Return the"})

    context: OneOrMoreContexts = ""
    """A string, strings, a list of token ids, or several such lists; empty for the start of a sentence."""
    model: ModelAddress = None
    bos: bool = True
    """True to put `<s>` before each context."""
    phrases: list[PhraseEntry] = Field(default_factory=list, max_length=MAX_TOKEN_PHRASES)
    """Texts to favour, up to 1,000. Advancing the states reports the value that the continuation adds: the weight of
    each text, in equal parts for its tokens. The class does not count. An object with `wordlist` stands for the entries
    of a stored list."""

    @cached_property
    def contexts(self) -> tuple[tuple[str, TextOrIds], ...]:
        """Each context with its name in the request, for messages."""
        return named_contexts(self.context, "context")


class ContinuationIn(WireModel):
    """A continuation of a state; a fork if it has neither text nor ids."""

    state: Handle
    """Handle of the state to continue, which stays unchanged."""
    text: str | None = None
    """Words to append, tokenised as after a space; give `text` or `token_ids`, or neither."""
    token_ids: list[TokenId] | None = None
    """Token ids to append, possibly parts of words; give `text` or `token_ids`, or neither."""
    eos: bool = False
    """True to also score `</s>` after the continuation; the new state is the one before `</s>`."""
    keep: bool = True
    """True to store the state after the continuation; false only scores it."""

    _not_both = either("text", "token_ids", neither=", or neither")

    @property
    def given(self) -> TextOrIds:
        """Words or ids; empty for a fork."""
        return self.text or self.token_ids or ""


class AdvanceRequest(TimedRequest):
    """Continue states: score the continuations, and store the states after them."""

    model_config = with_examples(
        {
            "continuations": [
                {"state": _STATE, "text": "value"},
                {"state": _STATE, "text": "moon", "eos": True, "keep": False},
            ],
            "next_token_ids": [2],
        }
    )

    continuations: list[ContinuationIn] = Field(min_length=1)
    """Continuations of states of one model version; a state may have several."""
    next_token_ids: list[TokenId] = Field(default_factory=list)
    """Next tokens whose log-probabilities are reported after each continuation."""
    free: list[Handle] = Field(default_factory=list)
    """Handles of states to delete after the request succeeds."""


class NextRequest(TimedRequest):
    """Return next-token log-probabilities after states."""

    model_config = with_examples({"states": [_STATE], "token_ids": [2, 259, 311]})

    states: list[Handle] = Field(min_length=1)
    """Handles of states of one model version."""
    token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None
    """Tokens to report; all tokens if omitted."""


class FreeRequest(WireModel):
    """Delete states."""

    model_config = with_examples({"states": [_STATE]})

    states: list[Handle] = Field(min_length=1)
    """Handles of the states; unknown handles are ignored."""


def requested_token_ids(loaded: TextModel, ids: Sequence[int] | None) -> TokenIds | None:
    """Check a request's token ids [K]; None for all.

    Raises:
        InputError: an id is outside the vocabulary, or there are more ids than tokens.
    """
    if ids is None:
        return None
    if len(ids) > loaded.vocab_size:
        raise InputError.of(
            "token_ids", f"has {len(ids)} entries; the model's vocabulary has {loaded.vocab_size} tokens"
        )
    return loaded.model.vocabulary.check_ids(ids, param="token_ids")


def stored_states(
    states: Sequence[Any], texts: Sequence[TokenIds], prior: Sequence[StoredState]
) -> Work[Any, list[StoredState]]:
    """Copy states after texts into their own memory, a bounded number per step.

    Each text was read after a prior state.
    """

    def build(index: int) -> StoredState:
        ids, before = texts[index], prior[index]
        last = int(ids[-1]) if len(ids) else before.last_token
        num_tokens, (node, _) = before.num_tokens + len(ids), before.read_phrases(ids)
        return StoredState(before.loaded, materialize(states[index]), num_tokens, last, before.phrases, node)

    return (yield from map_in_steps(range(len(states)), build, size=lambda _: 0))


class OpenStates(ModelOperation[list[OpenedState]]):
    """Store the model state after each context, and return handles to the states.

    A handle is valid for requests with the same API key until it is freed, expires without use, or its model is
    unloaded. It stays bound to the version that read the context, even if the address later points to another version.
    """

    request = OpenStatesRequest
    may_run_inline = True

    def __init__(self, call: Call, given: OpenStatesRequest) -> None:
        call.limits.check_count(len(given.contexts), "context")
        super().__init__(call, given)
        self._phrases = call.phrases(given.phrases, MAX_TOKEN_PHRASES) if given.phrases else NO_PHRASES

    @override
    def cost(self) -> Cost:
        return Cost(self.call.num_tokens, entries=len(self.given.contexts))

    @override
    def run(self) -> Work[Any, list[OpenedState]]:
        loaded, given, states = self.models[0], self.given, self.call.states
        check_forward(loaded)
        phrases = yield from phrase_automaton(loaded, self._phrases.phrases)
        states.store.check_capacity(states.owner, len(given.contexts), phrases.num_bytes)
        contexts = yield from encode_each(loaded, given.contexts, self.call.limits)
        handles: list[str] = []
        with ExitStack() as undo:  # also if the work is cancelled
            undo.callback(states.store.free, states.owner, handles)
            for group in runs_by_cost([len(ids) for ids in contexts], MAX_GROUP_TOKENS):
                group_contexts = contexts[group]
                state = yield from prefill(loaded, group_contexts, bos=given.bos)
                rows = yield from map_in_steps(np.arange(len(state))[:, None], state.select, size=len)
                prior = [StoredState(loaded, None, phrases=phrases)] * len(rows)  # nothing read before
                stored = yield from stored_states(rows, group_contexts, prior)
                for first in range(0, len(stored), _STATES_PER_STEP):
                    handles += states.store.keep(states.owner, stored[first : first + _STATES_PER_STEP])
                    yield None
            undo.pop_all()
        return [OpenedState(handle, len(ids)) for handle, ids in zip(handles, contexts, strict=True)]

    @override
    def reply(self, result: list[OpenedState]) -> bytes:
        loaded, tokens = self.models[0], sum(state.num_tokens for state in result)
        self.call.count_prompt(loaded, tokens)
        self.call.annotate(prompt_tokens=tokens)
        return to_json(OpenStatesReply(loaded.address, result))


class _OnStates(Operation[R]):
    """Operation on stored states of one model version."""

    def find_states(self, call: Call, handles: Sequence[str], param: str) -> None:
        """Find the states of handles, and use their model.

        Raises:
            InputError: the states are of several versions.
        """
        self.stored: list[StoredState]
        self.stored = call.resources.states.find(call.owner, handles, param=param)
        loaded = self.stored[0].loaded
        for index, state in enumerate(self.stored):
            if state.loaded is not loaded:
                raise InputError.of(
                    param.replace("[]", f"[{index}]", 1),
                    f"was computed by {state.loaded.address} and the first state by {loaded.address}; all "
                    "states of a request must come from one load of one version",
                )
        call.use_model(loaded)
        super().__init__(call, loaded)

    @override
    def cost(self) -> Cost:
        count = len(self.stored)
        is_small = self.call.num_bytes <= _HANDLE_BYTES * count
        is_bulk = True if count > _BULK_STATES else False if is_small else None
        return Cost(self.call.num_tokens, bulk=is_bulk)


class AdvanceStates(_OnStates[list[AdvancedState]]):
    """Score continuations of states, and store the states after them, in one batch.

    A state is immutable: continuing it does not affect other handles, and an empty continuation is a fork. `text`
    must be complete words, tokenised as after a space; parts of words require token ids.
    """

    request = AdvanceRequest

    def __init__(self, call: Call, given: AdvanceRequest) -> None:
        call.limits.check_count(len(given.continuations), "continuations")
        call.limits.check_count(len(given.free), "free")
        call.resources.states.check_process(given.free, param="free[]")
        self.given = given
        handles = [one.state for one in given.continuations]
        self.find_states(call, handles, "continuations[].state")

    @override
    def runs_inline(self, cost: Cost) -> bool:
        is_small = (
            len(self.stored) <= _INLINE_STATES and self.call.num_bytes <= _INLINE_STATES * _INLINE_BYTES
        )
        return is_small and not self.given.next_token_ids and is_lookup(self.models[0].model)

    @override
    def run(self) -> Work[Any, list[AdvancedState]]:
        given, before = self.given.continuations, self.stored
        loaded = self.models[0]
        limits, states = self.call.limits, self.call.states
        next_ids = loaded.model.vocabulary.check_ids(self.given.next_token_ids, param="next_token_ids")
        to_keep = [i for i, item in enumerate(given) if item.keep]
        if to_keep:
            size = sum(before[i].num_bytes for i in to_keep)
            states.store.check_capacity(states.owner, len(to_keep), size)

        def prepare(index: int) -> TokenIds:
            text = given[index].given
            param = f"continuations[{index}].{'text' if given[index].text is not None else 'token_ids'}"
            limits.check_characters(text, param=param)
            ids = (
                ids_after(before[index].loaded.tokenizer, before[index], text)
                if isinstance(text, str)
                else loaded.model.vocabulary.check_ids(text, param=param)
            )
            limits.check_length(len(ids), param)
            return ids

        texts = yield from map_in_steps(
            range(len(given)), prepare, size=lambda index: len(given[index].given)
        )
        num_tokens = sum(map(len, texts))
        limits.check_entries(
            num_tokens + len(given) * len(next_ids),
            "next_token_ids" if len(next_ids) else "continuations",
            description=f"{len(given)} continuations of {num_tokens} tokens, "
            f"with {len(next_ids)} next tokens after each",
            instead="POST /v1/states/next returns complete distributions as application/octet-stream",
        )
        ends = [i for i, item in enumerate(given) if item.eos]
        want = Want(scores=True, state=bool(to_keep or ends or len(next_ids)))
        log_probs, after = yield from continue_states(loaded, before, texts, want)
        queried = list(range(len(given))) if len(next_ids) else ends
        queried_ids = np.append(next_ids, EOS)
        rows = yield from next_log_prob_matrix(loaded, [after[i] for i in queried], queried_ids)
        next_rows = dict(zip(queried, rows.tolist(), strict=True))
        read = [stored.read_phrases(text) for stored, text in zip(before, texts, strict=True)]
        handles = {}
        if to_keep:
            kept: Any = [[of_each[i] for i in to_keep] for of_each in (after, texts, before)]
            stored = yield from stored_states(*kept)
            handles = dict(zip(to_keep, states.store.keep(states.owner, stored), strict=True))
        states.store.free(states.owner, self.given.free)

        def advanced(i: int) -> AdvancedState:
            return AdvancedState(
                handles.get(i),
                float(log_probs[i].sum(dtype=np.float64)),
                len(texts[i]),
                int(np.count_nonzero(texts[i] == UNK)),
                texts[i].tolist(),
                log_probs[i].tolist(),
                next_rows[i][-1] if given[i].eos else None,
                next_rows[i][:-1] if i in next_rows else [],
                read[i][1],
                before[i].phrases.taken_back(read[i][0]) if given[i].eos else 0.0,
            )

        return (yield from map_in_steps(range(len(given)), advanced, size=lambda i: len(texts[i])))

    @override
    def reply(self, result: list[AdvancedState]) -> bytes:
        self.call.count_scored(self.models[0], sum(state.num_tokens for state in result))
        return to_json(AdvanceReply(self.models[0].address, result))


class NextOfStates(_OnStates[FloatArray], RowsOperation[FloatArray]):
    """Compute the log-probabilities of next tokens after each state.

    With `Accept: application/octet-stream`, the reply is little-endian float32 [B, K], row by row; the header
    `x-shape` is `B,K`, and `x-model` is the model's address.
    """

    request = NextRequest

    def __init__(self, call: Call, given: NextRequest) -> None:
        call.limits.check_count(len(given.states), "states")
        self.find_states(call, given.states, "states[]")
        self._ids: TokenIds | None = requested_token_ids(self.models[0], given.token_ids)

    @override
    def shape(self) -> tuple[int, int]:
        return len(self.stored), self.models[0].vocab_size if self._ids is None else len(self._ids)

    @override
    def rows(self) -> Work[FloatArray, None]:
        for block in _row_blocks(self.models[0], [one.state for one in self.stored], self._ids):
            yield (yield from next_log_probs(self.models[0], block, self._ids))

    @override
    def run(self) -> Work[Any, FloatArray]:
        count, width = self.shape()
        self.call.limits.check_entries(
            count * width,
            "token_ids",
            description=f"{width} tokens after {count} states",
            instead="accept application/octet-stream for more",
        )
        states = [one.state for one in self.stored]
        return next_log_prob_matrix(self.models[0], states, self._ids)

    @override
    def reply(self, result: FloatArray) -> bytes:
        return to_json(NextReply(self.models[0].address, result.tolist()))
