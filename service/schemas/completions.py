"""Schemas of POST /v1/completions, compatible with OpenAI."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict

from models.decoding.parameters import DecodingParameters
from models.errors import InvalidInputError, UnsupportedParameterError
from service.engine.loaded_model import LoadedModel
from service.schemas.generate import read_biases, stop_texts
from service.schemas.wire import (
    Biases,
    NonNegative,
    NumChoices,
    OneOrMoreContexts,
    Penalty,
    Probability,
    RepetitionPenalty,
    Share,
    Stops,
    Temperature,
    TimedRequest,
    named_contexts,
    schema_only,
    shared_fields,
)
from service.use_cases.completions import ChoiceChunk, CompletionCommand, CompletionResult, TokenEntries
from service.use_cases.generate import check_streams
from service.use_cases.inputs import Limits


@dataclass(frozen=True, slots=True)
class CompletionLogprobs:
    """Tokens of a choice, in four lists of one length; null where nothing stands before a token.

    `top_logprobs` are by name, and the token itself is always among them; `text_offset` counts characters of
    the choice's text.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


@dataclass(frozen=True, slots=True)
class CompletionChoice:
    """A choice, number prompt · n + j, or in a stream the next part of one; `finish_reason` is null until the last."""

    index: int
    text: str
    finish_reason: str | None
    logprobs: CompletionLogprobs | None


@dataclass(frozen=True, slots=True)
class CompletionUsage:
    """Tokens of all prompts as they were given or tokenised, and of all choices, `</s>` included."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class CompletionReply:
    """All choices, or one event of a stream, whose `usage` is null until the last."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: CompletionUsage | None


DEFAULT_MAX_TOKENS = 16
MAX_LOGPROBS = 20
OBJECT_TYPE = "text_completion"
_SEEDS = 1 << 64
_FINGERPRINT_CHARACTERS = 12
T = TypeVar("T")


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, use_attribute_docstrings=True)

    include_usage: bool | None = None
    """Whether a last event before `[DONE]` has the usage and no choice."""


class CompletionRequest(TimedRequest):
    """Continue texts, as OpenAI's clients ask; null is the same as leaving out, other fields are ignored."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {"prompt": "Return the", "max_tokens": 2, "temperature": 0, "echo": True, "logprobs": 1},
                {"prompt": ["Return the", "Raise an"], "max_tokens": 3, "seed": 1, "stream": True},
            ]
        },
    )

    model: str | None = None
    """`name`, `name@7` or `name@champion`; the service's default if it is left out."""
    prompt: OneOrMoreContexts | None = None
    """A text, texts, token ids, or lists of them. A text is read after `<s>`; ids exactly as they are: begin them
    with that of `<s>` to have it there."""
    best_of: NumChoices | None = None
    """Of how many continuations of each prompt the `n` with the highest mean log-probability are returned."""
    echo: bool | None = None
    """Whether a choice begins with its prompt."""
    frequency_penalty: Penalty | None = None
    """From -2 to 2: subtracted from a token's score for each time it was generated."""
    ignore_eos: bool | None = None
    """Go on where `</s>` would end a choice."""
    logit_bias: Biases | None = None
    """By token id, from -100 to 100: added to a token's score."""
    logprobs: Annotated[int, schema_only(minimum=0, maximum=MAX_LOGPROBS)] | None = None
    """For each token its log-probability and those of so many most probable tokens, from 0 to 20."""
    max_tokens: NonNegative | None = None
    """At most so many tokens a choice, 16 if it is left out; 0 with `echo`, to have prompts scored."""
    min_p: Probability | None = None
    """Draw among tokens that have at least this share of the greatest probability."""
    min_tokens: NonNegative | None = None
    """At least so many tokens before `</s>`."""
    n: NumChoices | None = None
    """How many choices for each prompt."""
    presence_penalty: Penalty | None = None
    """From -2 to 2: subtracted from the scores of tokens that were generated."""
    repetition_penalty: RepetitionPenalty | None = None
    """Above 1: makes tokens seen in the prompt or generated less probable."""
    return_tokens_as_token_ids: bool | None = None
    """Whether tokens are called `token_id:7` in log-probabilities."""
    seed: Annotated[int, schema_only(minimum=-_SEEDS // 2, maximum=_SEEDS - 1)] | None = None
    """The same seed gives the same choices."""
    stop: Stops | None = None
    """A choice ends before the first of these."""
    stream: bool | None = None
    """Whether to send tokens as server-sent events."""
    stream_options: StreamOptions | None = None
    """Only with `stream`."""
    suffix: Annotated[str, schema_only(maxLength=0)] | None = None
    """Not served."""
    temperature: Temperature | None = None
    """1 if it is left out; 0 takes the most probable token."""
    top_k: Annotated[int, schema_only(minimum=-1)] | None = None
    """Draw among the k most probable tokens; 0 or -1 for all."""
    top_p: Share | None = None
    """Draw among the fewest tokens that together have this probability."""
    user: str | None = None
    """Ignored."""

    def command(self, limits: Limits) -> CompletionCommand:
        """Convert the request to a command.

        Raises:
            InvalidInputError: a value is outside its limits.
            UnsupportedParameterError: a valid value is not supported.
        """
        prompts = named_contexts("" if self.prompt is None else self.prompt, parameter="prompt")
        limits.check_count(len(prompts), parameter="prompt")
        self._check_fields()
        n = _default(self.n, 1)
        best_of = _default(self.best_of, n)
        rows = len(prompts) * max(n, best_of)
        if rows > limits.max_texts:
            raise InvalidInputError(
                f"{len(prompts)} prompts with {max(n, best_of)} choices each make {rows}; at most "
                f"{limits.max_texts} are accepted in one request",
                parameter="n" if self.best_of is None else "best_of",
            )
        return CompletionCommand(
            prompts=prompts,
            parameters=self._parameters(limits, n),
            n=n,
            echo=bool(self.echo),
            logprobs=self.logprobs,
            as_ids=bool(self.return_tokens_as_token_ids),
            model=self.model,
        )

    def _check_fields(self) -> None:
        if self.suffix:
            raise UnsupportedParameterError(
                "suffix is given; these models continue a text and cannot fill a gap in it",
                parameter="suffix",
            )
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise InvalidInputError(
                f"logprobs is {self.logprobs}; it must be from 0 to {MAX_LOGPROBS}", parameter="logprobs"
            )
        if self.stream_options is not None and not self.stream:
            raise InvalidInputError("stream_options are given without stream", parameter="stream_options")

    def _parameters(self, limits: Limits, n: int) -> DecodingParameters | None:
        max_tokens = _default(self.max_tokens, DEFAULT_MAX_TOKENS)
        if max_tokens > limits.max_new_tokens:
            raise InvalidInputError(
                f"max_tokens is {max_tokens}; this service generates at most {limits.max_new_tokens}",
                parameter="max_tokens",
            )
        if max_tokens == 0 and not self.echo:
            raise InvalidInputError(
                "max_tokens is 0; that is accepted with echo only", parameter="max_tokens"
            )
        converted = {
            "max_tokens": max_tokens or 1,  # with 0 the other fields are still checked
            "top_k": None if self.top_k in {-1, 0} else self.top_k,
            "logit_bias": read_biases(self.logit_bias or {}),
            "n": n,
            "seed": None if self.seed is None else _seed(self.seed),
            "stop": stop_texts(self.stop),
        }
        parameters = DecodingParameters(**shared_fields(self, DecodingParameters) | converted)
        if self.stream:
            check_streams(parameters)
        return parameters if max_tokens else None


class ReplyHeader(NamedTuple):
    """Common fields of every event of one reply.

    Attributes:
        id: identifier of the reply.
        created: time of the request in seconds since 1970.
    """

    id: str
    created: int


def completion_reply(loaded: LoadedModel, header: ReplyHeader, result: CompletionResult) -> CompletionReply:
    """Return the reply with all choices."""
    return _reply(loaded, header, [_choice(part) for part in result.parts], _usage(result))


def completion_event(loaded: LoadedModel, header: ReplyHeader, part: ChoiceChunk) -> CompletionReply:
    """Return the event of the next part of a choice."""
    return _reply(loaded, header, [_choice(part)], None)


def usage_event(loaded: LoadedModel, header: ReplyHeader, result: CompletionResult) -> CompletionReply:
    """Return the last event of a stream, with the usage."""
    return _reply(loaded, header, [], _usage(result))


def _reply(
    loaded: LoadedModel,
    header: ReplyHeader,
    choices: Sequence[CompletionChoice],
    usage: CompletionUsage | None,
) -> CompletionReply:
    # with the request it determines the reply: the model's version and its tokenizer
    fingerprint = f"{loaded.address}-{loaded.tokenizer.fingerprint[:_FINGERPRINT_CHARACTERS]}"
    return CompletionReply(
        header.id, OBJECT_TYPE, header.created, loaded.address, fingerprint, list(choices), usage
    )


def _choice(part: ChoiceChunk) -> CompletionChoice:
    return CompletionChoice(part.choice, part.text, part.finish_reason, _logprobs(part.entries))


def _logprobs(entries: TokenEntries | None) -> CompletionLogprobs | None:
    if entries is None:
        return None
    return CompletionLogprobs(entries.names, entries.logprobs, entries.tops, entries.offsets)


def _usage(result: CompletionResult) -> CompletionUsage:
    total = result.num_prompt_tokens + result.num_generated
    return CompletionUsage(result.num_prompt_tokens, result.num_generated, total)


def _default(value: T | None, default: T) -> T:
    return default if value is None else value


def _seed(given: int) -> int:
    """Map a seed of OpenAI's range, negative ones included, to one from 0 to 2^64 - 1."""
    if not -_SEEDS // 2 <= given < _SEEDS:
        raise InvalidInputError(f"seed is {given}; it must be from -2^63 to 2^64 - 1", parameter="seed")
    return given % _SEEDS
