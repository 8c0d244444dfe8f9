"""Continuations being generated: prompts, tokens, emitted text and finish reasons."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from models.arrays import TokenIds
from models.decoding.parameters import DecodingParameters
from models.decoding.rules import BannedSequences
from models.decoding.stopping import StopStrings
from models.language_model import TopTokens, finite_logprob
from models.tokenizers import Detokenizer
from service.engine.batching import concatenate_states, materialize
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.use_cases.prefill import prefill

STOP, LENGTH = "stop", "length"


class TokenEvent(NamedTuple):
    """An event: one token of one choice. `</s>` is none; it is told with the end of its choice.

    Attributes:
        choice: number of the continuation, `prompt * n + j`.
        text: what has become certain with this token; may be empty.
        token_id: its id.
        logprob: the model's own, natural, before bias, penalties, temperature and the like; finite.
        top: the most probable tokens in its place, by the model's own log-probability (which may be
            minus infinity); None if not asked for.
    """

    choice: int
    text: str
    token_id: int
    logprob: float
    top: TopTokens | None


@dataclass(slots=True)
class Continuation:
    """A whole continuation. As an event, it says that its choice has ended.

    Attributes:
        choice: its number, `prompt * n + j`.
        prompt: number of the prompt that it continues.
        text: up to, and without, a stop string.
        rest: the end of `text` that came with no piece, since it was held back until the end.
        token_ids: every token chosen, `</s>` aside; those that a stop string cut off are among them.
        logprobs: the model's own log-probability of each token, natural and finite.
        tops: the most probable tokens in the place of each, if asked for; else empty.
        finish_reason: `stop` at `</s>` or a stop string, `length` at `max_tokens`.
        eos_logprob: the model's own log-probability of the `</s>` that ended it; None if another thing did.
        eos_top: the most probable tokens in the place of that `</s>`, if asked for.
        score: what choices are ranked by, higher first: with beams the sum of their scores over
            length ** length_penalty, else the mean of the own log-probabilities, `</s>` included in both.
    """

    choice: int
    prompt: int
    text: str = ""
    rest: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[TopTokens] = field(default_factory=list)
    finish_reason: str = LENGTH
    eos_logprob: float | None = None
    eos_top: TopTokens | None = None
    score: float = 0.0

    @property
    def ended_by_eos(self) -> bool:
        """Whether the model ended it with `</s>`."""
        return self.eos_logprob is not None

    @property
    def mean_logprob(self) -> float:
        """The mean of the model's own log-probabilities, that of `</s>` included; 0 if there are none."""
        every = self.logprobs if self.eos_logprob is None else [*self.logprobs, self.eos_logprob]
        return sum(every) / len(every) if every else 0.0


class ContinuationBuilder:
    """Writes one continuation, as its tokens come.

    Args:
        loaded: whose tokens.
        parameters: of the request.
        choice: number of the continuation.
        prompt: number of its prompt.
        continues: whether text stands before it.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        parameters: DecodingParameters,
        *,
        choice: int,
        prompt: int,
        continues: bool,
    ) -> None:
        self.continuation = Continuation(choice, prompt)
        self._max_tokens = parameters.max_tokens
        self._stops = StopStrings(parameters.stop)
        self._detokenizer = Detokenizer(loaded.tokenizer, continues=continues)

    def push(self, tokens: Sequence[int], logprobs: Sequence[float], tops: Sequence[TopTokens]) -> str:
        """Add tokens; the text that has become certain with them.

        Args:
            tokens: ids [T]; T is 1 if there are stop strings.
            logprobs: the model's own of each [T].
            tops: the most probable tokens in the place of each [T]; none if not asked for.
        """
        written = self.continuation
        written.token_ids += tokens
        written.logprobs += logprobs
        written.tops += tops
        text = self._stops.push(self._detokenizer.push(*tokens))
        written.text += text
        return text

    @property
    def full(self) -> bool:
        """Whether no token may be added: a stop string has come, or there are `max_tokens`."""
        return self._stops.stopped or len(self.continuation.token_ids) == self._max_tokens

    def end(self) -> Continuation:
        """The continuation, which a stop string or `max_tokens` has ended, or nothing else was possible."""
        written = self.continuation
        if not self._stops.stopped:
            written.rest = self._stops.push(self._detokenizer.flush()) + self._stops.flush()
            written.text += written.rest
        if self._stops.stopped or len(written.token_ids) < self._max_tokens:
            written.finish_reason = STOP
        written.score = written.mean_logprob
        return written

    def end_by_eos(self, logprob: float, top: TopTokens | None) -> Continuation:
        """The continuation, which `</s>` has ended."""
        self.continuation.eos_logprob, self.continuation.eos_top = finite_logprob(logprob), top
        self.end()
        self.continuation.finish_reason = STOP
        return self.continuation


T = TypeVar("T")
_MAX_ROWS = 256
_MAX_ENTRIES = 1 << 22
"""Rows, and entries of their distributions [R, V], that one request has computed together."""


class Prompt(NamedTuple):
    """A prompt to continue.

    Attributes:
        number: its place in the request.
        ids: its tokens [T].
        bos: whether `<s>` stands before them.
        continues: whether text stands before its continuation.
    """

    number: int
    ids: TokenIds
    bos: bool
    continues: bool


@dataclass(frozen=True, slots=True)
class DecodeTask:
    """What is to be done with each prompt.

    Attributes:
        loaded: by what model.
        parameters: how; with a seed.
        banned: sequences that are never completed.
        top: how many of the most probable tokens to report in the place of each token; 0 for none.
        stream: whether events are wanted.
    """

    loaded: LoadedModel
    parameters: DecodingParameters
    banned: BannedSequences | None
    top: int
    stream: bool

    def parts(self, items: Sequence[T], rows: int) -> Iterator[Sequence[T]]:
        """Items of so many rows each in runs that are decoded together: memory is bounded so."""
        at_once = min(_MAX_ROWS, _MAX_ENTRIES // self.loaded.vocab_size)
        size = max(1, at_once // rows)
        for first in range(0, len(items), size):
            yield items[first : first + size]


def prefill_prompts(task: DecodeTask, prompts: Sequence[Prompt]) -> Work[Any, Any]:
    """Read the prompts of R rows, equal ones once; a use case.

    Returns:
        The state after each row's prompt [R].
    """
    places: dict[tuple[bool, bytes], int] = {}
    different: list[Prompt] = []
    for prompt in sorted(prompts, key=lambda one: one.bos):
        key = (prompt.bos, prompt.ids.tobytes())
        if key not in places:
            places[key] = len(different)
            different.append(prompt)
    rows = [places[prompt.bos, prompt.ids.tobytes()] for prompt in prompts]
    states = []
    for bos in (False, True):
        contexts = [prompt.ids for prompt in different if prompt.bos == bos]
        if contexts:
            states.append((yield from prefill(task.loaded, contexts, bos=bos)))
    state = states[0] if len(states) == 1 else concatenate_states(states)
    return materialize(state if rows == list(range(len(different))) else state.select(np.array(rows)))
