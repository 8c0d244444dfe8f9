"""What /v1/states answers: the names on the wire, for the server that writes them and the client."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenedState:
    """A handle, and how many tokens were read before it; `<s>` is not counted."""

    state: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class OpenStatesReply:
    """One state a context, in order."""

    model: str
    states: list[OpenedState]


@dataclass(frozen=True, slots=True)
class AdvancedState:
    """What became of a continuation.

    `state` leads to the state after it, before any `</s>`, and is null if it was not to be kept. `logprob` is
    the sum of `logprobs`, those of its tokens; `eos_logprob` is that of `</s>` after them, null if not asked
    for. `next_logprobs` are of the tokens asked about, if they came next.
    """

    state: str | None
    logprob: float
    num_tokens: int
    num_oov: int
    token_ids: list[int]
    logprobs: list[float]
    eos_logprob: float | None
    next_logprobs: list[float]


@dataclass(frozen=True, slots=True)
class AdvanceReply:
    """One result a continuation, in order."""

    model: str
    results: list[AdvancedState]


@dataclass(frozen=True, slots=True)
class NextReply:
    """For each state, in order, the log-probabilities of the tokens that were asked about, or of all."""

    model: str
    logprobs: list[list[float]]


@dataclass(frozen=True, slots=True)
class FreeReply:
    """How many of the states were there to be freed."""

    freed: int
