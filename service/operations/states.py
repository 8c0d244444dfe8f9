"""Stored model states for decoders with their own search, and tokenisation."""

from collections.abc import Sequence
from typing import Any, TypeVar

from typing_extensions import override

from models.arrays import FloatArray, TokenIds
from service.engine.job import Work
from service.hosting.state_store import StoredState
from service.operations.operation import BYTES_PER_TOKEN, Call, Cost, Operation, RowsOperation
from service.schemas.replies import (
    AdvancedState,
    AdvanceReply,
    NextReply,
    OpenedState,
    OpenStatesReply,
    to_json,
)
from service.use_cases.states import (
    AdvanceRequest,
    NextRequest,
    OpenStatesRequest,
    advance_states,
    common_version,
    next_log_prob_blocks,
    next_log_prob_matrix,
    open_states,
    requested_token_ids,
)

R = TypeVar("R")
_BULK_STATES = 512
"""Maximum continuations or states of a request that is not bulk."""

_HANDLE_BYTES = 128
"""Approximate body bytes per state with a following word; such a body is little work."""


class OpenStates(Operation[list[OpenedState]]):
    """Store the model state after each context, and return handles to the states.

    A handle is valid for requests with the same API key until it is freed, expires without use, or its model is
    unloaded. It stays bound to the version that read the context, even if the address later points to another version.
    """

    request = OpenStatesRequest
    may_run_inline = True

    def __init__(self, call: Call, given: OpenStatesRequest) -> None:
        call.limits.check_count(len(given.contexts), parameter="context")
        self.given = given
        super().__init__(call, call.resolve(given.model))

    @override
    def cost(self) -> Cost:
        return Cost(self.call.num_tokens, entries=len(self.given.contexts))

    @override
    def run(self) -> Work[Any, list[OpenedState]]:
        return open_states(self.models[0], self.given, self.call.states, self.call.limits)

    @override
    def reply(self, result: list[OpenedState]) -> bytes:
        self.call.count_prompt(self.models[0], sum(state.num_tokens for state in result))
        return to_json(OpenStatesReply(self.models[0].address, result))


class _OnStates(Operation[R]):
    """Operation on stored states of one model version."""

    def find_states(self, call: Call, handles: Sequence[str], *, parameter: str) -> None:
        """Find the states of handles, and use their model."""
        stored = call.resources.states.find(call.owner, handles, parameter=parameter)
        loaded = common_version(stored, parameter=parameter)
        call.use_model(loaded)
        self.stored: list[StoredState] = stored
        super().__init__(call, loaded)

    @override
    def cost(self) -> Cost:
        count, num_bytes = len(self.stored), self.call.num_bytes
        text = max(0, num_bytes - _HANDLE_BYTES * count) // BYTES_PER_TOKEN
        is_bulk = True if count > _BULK_STATES else None if text else False
        return Cost(text, predicted=count, bulk=is_bulk)


class AdvanceStates(_OnStates[list[AdvancedState]]):
    """Score continuations of states, and store the states after them, in one batch.

    A state is immutable: continuing it does not affect other handles, and an empty continuation is a fork. `text`
    must be complete words, tokenised as after a space; parts of words require token ids.
    """

    request = AdvanceRequest

    def __init__(self, call: Call, given: AdvanceRequest) -> None:
        call.limits.check_count(len(given.continuations), parameter="continuations")
        call.limits.check_count(len(given.free), parameter="free")
        call.resources.states.check_process(given.free, parameter="free[]")
        self.given, self.may_run_inline = given, not given.next_token_ids
        handles = [continuation.state for continuation in given.continuations]
        self.find_states(call, handles, parameter="continuations[].state")

    @override
    def run(self) -> Work[Any, list[AdvancedState]]:
        return advance_states(self.models[0], self.given, self.stored, self.call.states, self.call.limits)

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
        call.limits.check_count(len(given.states), parameter="states")
        self.find_states(call, given.states, parameter="states[]")
        self._ids: TokenIds | None = requested_token_ids(self.models[0], given.token_ids)

    @property
    def _states(self) -> list[Any]:
        return [before.state for before in self.stored]

    @override
    def shape(self) -> tuple[int, int]:
        return len(self.stored), self.models[0].vocab_size if self._ids is None else len(self._ids)

    @override
    def rows(self) -> Work[FloatArray, None]:
        return next_log_prob_blocks(self.models[0], self._states, self._ids)

    @override
    def run(self) -> Work[Any, FloatArray]:
        count, width = self.shape()
        self.call.limits.check_entries(
            count * width,
            parameter="token_ids",
            description=f"{width} tokens after {count} states",
            instead="accept application/octet-stream for more",
        )
        return next_log_prob_matrix(self.models[0], self._states, self._ids)

    @override
    def reply(self, result: FloatArray) -> bytes:
        return to_json(NextReply(self.models[0].address, result.tolist()))
