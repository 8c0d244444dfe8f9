"""Schemas of POST /v1/states, /v1/states/advance, /v1/states/next and /v1/states/free."""

from collections.abc import Sequence
from typing import Annotated, Self

import numpy as np
from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from models.arrays import FloatArray
from models.language_model import LOG_ZERO, finite_logprob
from service.engine.loaded_model import LoadedModel
from service.engine.state_store import StoredState
from service.schemas.replies import AdvancedState, AdvanceReply, NextReply, OpenedState, OpenStatesReply
from service.schemas.wire import (
    OneOrMoreContexts,
    TimedRequest,
    TokenId,
    WireModel,
    named_contexts,
    text_or_ids,
)
from service.use_cases.inputs import Limits
from service.use_cases.states import AdvanceCommand, AdvanceResult, OpenCommand, OpenResult, StateContinuation

Handle = Annotated[str, Field(min_length=1, max_length=200)]
"""Handle of a state, opaque to clients."""

_STATE = "1f0e2d3c.a1b2c3.kJ9dXw0hT2mQvB7s"
"""Handle in the examples: the reply to the example of opening a state, and part of the other requests."""


class OpenStatesRequest(TimedRequest):
    """Keep the state of a model after one or more contexts."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"context": "Return the"}]})

    context: OneOrMoreContexts = ""
    """A text, texts, token ids, or lists of them; empty for the start of a sentence."""
    model: str | None = None
    """`name`, `name@7` or `name@champion`; the service's default if it is left out."""
    bos: bool = True
    """Whether `<s>` stands before each."""

    def command(self, limits: Limits) -> OpenCommand:
        """Convert the request to a command.

        Raises:
            InvalidInputError: there are too many contexts.
        """
        contexts = named_contexts(self.context, parameter="context")
        limits.check_count(len(contexts), parameter="context")
        return OpenCommand(contexts, self.bos, self.model)


class ContinuationIn(WireModel):
    """A continuation of a state; with neither text nor ids it is a fork."""

    state: Handle
    """The state before it, which stays as it is."""
    text: str | None = None
    """Words, tokenised as they are after a space; or else `token_ids`."""
    token_ids: list[TokenId] | None = None
    """Token ids, which may be parts of words; or else `text`."""
    eos: bool = False
    """Whether `</s>` after it is scored too; the new state stands before it."""
    keep: bool = True
    """Whether the state after it is kept; without, it is scored only."""

    @model_validator(mode="after")
    def _not_both(self) -> Self:
        if self.text is not None and self.token_ids is not None:
            raise PydanticCustomError("one_of", "give either text or token_ids, or neither")
        return self


class AdvanceRequest(TimedRequest):
    """Continue states: score what follows each, and keep the states after it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "continuations": [
                        {"state": _STATE, "text": "value"},
                        {"state": _STATE, "text": "moon", "eos": True, "keep": False},
                    ],
                    "next_token_ids": [2],
                }
            ]
        }
    )

    continuations: list[ContinuationIn] = Field(min_length=1)
    """Of states of one version of one model; a state may be continued in several ways."""
    next_token_ids: list[TokenId] = Field(default_factory=list)
    """Tokens whose log-probabilities, if they came next, are told after each continuation."""
    free: list[Handle] = Field(default_factory=list)
    """States that are not needed any more once this is answered."""

    @property
    def handles(self) -> list[str]:
        """Return the handles of the states that are continued."""
        return [continuation.state for continuation in self.continuations]

    def check(self, limits: Limits) -> None:
        """Check the number of states in the request.

        Raises:
            InvalidInputError: there are too many.
        """
        limits.check_count(len(self.continuations), parameter="continuations")
        limits.check_count(len(self.free), parameter="free")

    def command(self, states: Sequence[StoredState]) -> AdvanceCommand:
        """Convert the request to a command, given the states of its handles."""
        continuations = tuple(
            _continuation(index, continuation, state)
            for index, (continuation, state) in enumerate(zip(self.continuations, states, strict=True))
        )
        return AdvanceCommand(continuations, tuple(self.next_token_ids), tuple(self.free))


class NextRequest(TimedRequest):
    """Predict the next tokens after each of some states."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"states": [_STATE], "token_ids": [2, 259, 311]}]}
    )

    states: list[Handle] = Field(min_length=1)
    """Of one version of one model."""
    token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None
    """The tokens that are asked about; all if they are left out."""

    def check(self, limits: Limits) -> None:
        """Check the number of states in the request.

        Raises:
            InvalidInputError: there are too many.
        """
        limits.check_count(len(self.states), parameter="states")

    def check_reply(self, loaded: LoadedModel, limits: Limits) -> None:
        """Check the length of the reply in JSON.

        Raises:
            InvalidInputError: the reply would be too long.
        """
        num_tokens = loaded.vocab_size if self.token_ids is None else len(self.token_ids)
        limits.check_entries(
            len(self.states) * num_tokens,
            parameter="token_ids",
            description=f"{num_tokens} tokens after {len(self.states)} states",
            instead="accept application/octet-stream for more",
        )


class FreeRequest(WireModel):
    """Forget states."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"states": [_STATE]}]})

    states: list[Handle] = Field(min_length=1)
    """Handles; those that lead nowhere do not matter."""

    def check(self, limits: Limits) -> None:
        """Check the number of states in the request.

        Raises:
            InvalidInputError: there are too many.
        """
        limits.check_count(len(self.states), parameter="states")


def open_reply(loaded: LoadedModel, opened: Sequence[OpenResult]) -> OpenStatesReply:
    """Return the reply for opened states."""
    return OpenStatesReply(loaded.address, [OpenedState(*result) for result in opened])


def advance_reply(loaded: LoadedModel, advanced: Sequence[AdvanceResult]) -> AdvanceReply:
    """Return the reply for continuations."""
    return AdvanceReply(
        loaded.address,
        [
            AdvancedState(
                result.handle,
                finite_logprob(result.logprob),
                len(result.ids),
                result.num_oov,
                result.ids.tolist(),
                _finite(result.log_probs),
                None if result.eos_log_prob is None else finite_logprob(result.eos_log_prob),
                result.next_log_probs.tolist(),
            )
            for result in advanced
        ],
    )


def next_reply(loaded: LoadedModel, log_probs: FloatArray) -> NextReply:
    """Return the reply for finite log-probabilities [N, K]."""
    return NextReply(loaded.address, log_probs.tolist())


def _continuation(index: int, wire: ContinuationIn, state: StoredState) -> StateContinuation:
    name = "token_ids" if wire.text is None else "text"
    given = text_or_ids(wire.text or wire.token_ids or "")
    return StateContinuation(f"continuations[{index}].{name}", state, given, eos=wire.eos, keep=wire.keep)


def _finite(log_probs: FloatArray) -> list[float]:
    values: list[float] = np.maximum(log_probs, np.float32(LOG_ZERO)).tolist()
    return values
