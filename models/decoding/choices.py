"""Continuations being generated: prompts, tokens, emitted text and finish reasons."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

from models.decoding.parameters import DecodingParameters
from models.decoding.prompts import Prompt
from models.decoding.rules import Rules, TokenBias, compile_rules
from models.decoding.stopping import StopStrings
from models.decoding.top_k import TokenChoice
from models.language_model import TopTokens
from models.scoring.constants import MAX_CHOICE_ENTRIES, MAX_CHOICE_ROWS
from models.text_model import TextModel
from models.tokenizers import Detokenizer

STOP, LENGTH = "stop", "length"


GeneratedToken: TypeAlias = tuple[int, float, TopTokens | None]
"""Id of a token; its finite natural log-probability by the model alone, before bias, penalties and temperature; and
the most probable tokens at its position by the model alone (log-probabilities may be -inf), None unless requested."""


class Piece(NamedTuple):
    """One step's addition to a choice: a token, its end, or both; `</s>` is part of the end.

    Attributes:
        choice: number of the continuation, `prompt * n + j`.
        text: text made final by the token; may be empty.
        token: the token; None with `</s>`.
        end: the complete continuation if this piece ends it.
    """

    choice: int
    text: str
    token: GeneratedToken | None
    end: "Continuation | None"


T = TypeVar("T")


Emit: TypeAlias = Callable[[Sequence[Piece]], Iterable[Any]]
"""Build the events of the pieces of one step, in order."""


@dataclass(frozen=True, slots=True)
class DecodeTask:
    """Decoding settings, common to all prompts.

    Attributes:
        loaded: model.
        parameters: decoding parameters, with a seed.
        biases: biases of tokens, for sequences that must not or should be generated.
        top: tokens to report at each position.
        emit: builds the events of one step's pieces; None for no events.
    """

    loaded: TextModel
    parameters: DecodingParameters
    biases: TokenBias
    top: TokenChoice
    emit: Emit | None

    @property
    def stops(self) -> Sequence[str]:
        """Stop strings in the Unicode form and case of the model."""
        return self.loaded.tokenizer.normaliser.all(self.parameters.stop)

    def rules(self, prompt: Prompt) -> Rules:
        """Return the rules of rows that continue a prompt."""
        return compile_rules(self.parameters, prompt.ids, self.biases)

    def parts(self, items: Sequence[T], rows: int) -> Iterator[Sequence[T]]:
        """Split items of `rows` rows each into parts decoded together, to bound memory."""
        max_rows = min(MAX_CHOICE_ROWS, MAX_CHOICE_ENTRIES // self.loaded.vocab_size)
        size = max(1, max_rows // rows)
        for first in range(0, len(items), size):
            yield items[first : first + size]


@dataclass(slots=True)
class Continuation:
    """A continuation, built token by token.

    Attributes:
        task: settings of decoding.
        prompt: the prompt that it continues.
        choice: number of the continuation, `prompt * n + j`.
        text: text before a stop string.
        rest: end of `text` buffered until the end, in no token's piece.
        token_ids: all generated tokens but `</s>`, with those cut off by a stop string.
        logprobs: natural-log probability of each token by the model alone.
        tops: most probable tokens at each position; empty unless requested.
        finish_reason: `stop` at `</s>` or a stop string, `length` at `max_tokens`.
        eos_logprob: likewise of the final `</s>`; None without it.
        eos_top: most probable tokens at its position, if requested.
        score: ranking score, higher first: with beams the sum of token scores over
            length ** length_penalty, else the mean of `logprobs`, both with `</s>`.
    """

    task: DecodeTask = field(repr=False, compare=False)
    prompt: Prompt = field(repr=False, compare=False)
    choice: int
    text: str = ""
    rest: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[TopTokens] = field(default_factory=list)
    finish_reason: str = LENGTH
    eos_logprob: float | None = None
    eos_top: TopTokens | None = None
    score: float = 0.0
    _stops: StopStrings = field(init=False, repr=False, compare=False)
    _detokenizer: Detokenizer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._stops = StopStrings(self.task.stops)
        skip = len(self.prompt.taken)
        continues = self.prompt.continues or skip > 0
        self._detokenizer = Detokenizer(self.task.loaded.tokenizer, continues=continues, skip=skip)

    @property
    def ended_by_eos(self) -> bool:
        """Return True if the model ended it with `</s>`."""
        return self.eos_logprob is not None

    @property
    def full(self) -> bool:
        """Return True if generation must stop: at a stop string or `max_tokens` tokens."""
        return self._stops.stopped or len(self.token_ids) == self.task.parameters.max_tokens

    def push(self, tokens: Sequence[int], logprobs: Sequence[float], tops: Sequence[TopTokens]) -> str:
        """Add tokens; return the text that they make final.

        Args:
            tokens: ids [T]; T is 1 if there are stop strings.
            logprobs: log-probability of each by the model alone [T].
            tops: most probable tokens at each position [T]; empty unless requested.
        """
        self.token_ids += tokens
        self.logprobs += logprobs
        self.tops += tops
        text = self._stops.push(self._detokenizer.push(*tokens))
        self.text += text
        return text

    def end(self) -> Self:
        """Finish at a stop string, at `max_tokens`, or because no token is possible."""
        if not self._stops.stopped:
            self.rest = self._stops.push(self._detokenizer.flush()) + self._stops.flush()
            self.text += self.rest
        if self._stops.stopped or len(self.token_ids) < self.task.parameters.max_tokens:
            self.finish_reason = STOP
        log_probs = list(self.logprobs)
        if self.eos_logprob is not None:
            log_probs.append(self.eos_logprob)
        self.score = sum(log_probs) / len(log_probs) if log_probs else 0.0
        return self

    def end_by_eos(self, logprob: float, top: TopTokens | None) -> Self:
        """Finish at `</s>`."""
        self.eos_logprob, self.eos_top = logprob, top
        self.end()
        self.finish_reason = STOP
        return self
