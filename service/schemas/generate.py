"""Schemas of POST /v1/generate."""

from typing import Annotated

from pydantic import ConfigDict, Discriminator, Field, Tag

from models.decoding.parameters import SAMPLE, STRATEGIES, DecodingParameters
from models.errors import InvalidInputError
from models.language_model import TopTokens, finite_logprob
from service.engine.loaded_model import LoadedModel
from service.schemas.replies import Choice, GenerateReply, TokenCandidate, Usage
from service.schemas.wire import (
    BadWords,
    Biases,
    DiversityPenalty,
    LengthPenalty,
    NonNegative,
    NumBeams,
    NumChoices,
    OneContext,
    Penalty,
    Positive,
    Probability,
    RepetitionPenalty,
    Seed,
    Share,
    Stops,
    Temperature,
    TimedRequest,
    schema_only,
    shared_fields,
)
from service.use_cases.choices import Continuation, TokenEvent
from service.use_cases.generate import GenerateCommand, GenerateResult, check_streams
from service.use_cases.inputs import Limits

MAX_ALTERNATIVES = 20
FlagOrCount = Annotated[
    Annotated[bool, Tag("<flag>")] | Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES), Tag("<count>")],
    Discriminator(
        lambda value: {bool: "<flag>", int: "<count>"}.get(type(value)),
        custom_error_type="flag_or_count",
        custom_error_message=f"input should be true, false or a number from 0 to {MAX_ALTERNATIVES}",
    ),
]
"""True, false, or how many."""


class GenerateRequest(TimedRequest):
    """Continue a text."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "prompt": "Return the",
                    "max_tokens": 24,
                    "temperature": 0.7,
                    "top_p": 0.9,
                    "seed": 2,
                    "stop": ["."],
                },
                {"prompt": "Return the", "strategy": "beam", "num_beams": 8, "n": 2, "max_tokens": 12},
                {"prompt": "Return the", "max_tokens": 3, "seed": 2, "stream": True},
            ]
        }
    )

    prompt: OneContext = ""
    """A text or token ids; empty for the start of a sentence."""
    model: str | None = None
    """`name`, `name@7` or `name@champion`; the service's default if it is left out."""
    strategy: Annotated[str, schema_only(enum=STRATEGIES)] = SAMPLE
    """`greedy` takes the most probable token, `sample` draws one, `beam` searches for the most probable whole."""
    max_tokens: Positive = 64
    """At most so many tokens."""
    min_tokens: NonNegative = 0
    """The end of the sentence comes after at least so many tokens."""
    ignore_eos: bool = False
    """Go on past the ends of sentences, up to `max_tokens`."""
    temperature: Temperature = 1.0
    """0 means greedy."""
    top_k: Positive | None = None
    """Draw among the k most probable tokens."""
    typical_p: Share = 1.0
    """Of those, draw among the fewest with this probability whose surprisal is nearest to the entropy."""
    top_p: Share = 1.0
    """Of those, draw among the fewest most probable ones that together have this probability."""
    min_p: Probability = 0.0
    """Of those, draw among the ones with at least this share of the greatest probability."""
    repetition_penalty: RepetitionPenalty = 1.0
    """The probability of a token of the prompt or the continuation is raised to this power."""
    presence_penalty: Penalty = 0.0
    """Subtracted from the log-probability of a token that was generated."""
    frequency_penalty: Penalty = 0.0
    """Subtracted as often as it was."""
    logit_bias: Biases = Field(default_factory=dict)
    """Token ids, as strings, and what is added to their log-probabilities, -100 to 100."""
    bad_words: BadWords = Field(default_factory=list)
    """Texts that are not to be generated."""
    n: NumChoices = 1
    """How many continuations."""
    best_of: NumChoices | None = None
    """How many to draw; the `n` with the highest mean log-probability are returned."""
    num_beams: NumBeams | None = None
    """With `beam`: continuations kept while searching; 4, or `n`, if it is left out."""
    length_penalty: LengthPenalty = 1.0
    """With `beam`: continuations are ranked by log-probability / length ** length_penalty."""
    early_stopping: bool = False
    """With `beam`: end once `num_beams` continuations are finished, though others could still be better."""
    num_beam_groups: NumBeams = 1
    """With `beam`: search in so many groups, each avoiding the tokens of those before it."""
    diversity_penalty: DiversityPenalty = 0.0
    """With groups: by how much a token is avoided for each beam that took it."""
    seed: Seed | None = None
    """The same seed gives the same text."""
    stop: Stops = Field(default_factory=list)
    """The text ends before the first of these."""
    logprobs: FlagOrCount = False
    """Whether to report the model's own log-probability of each token; a number k adds the k most probable ones."""
    stream: bool = False
    """Whether to send tokens as server-sent events."""

    @property
    def num_alternatives(self) -> int | None:
        """Number of most probable tokens to report at each position; None to report no log-probabilities."""
        if isinstance(self.logprobs, bool):
            return 0 if self.logprobs else None
        return self.logprobs

    def command(self, limits: Limits) -> GenerateCommand:
        """Convert the request to a command.

        Raises:
            InvalidInputError: a value is outside its limits.
        """
        if self.max_tokens > limits.max_new_tokens:
            raise InvalidInputError(
                f"max_tokens is {self.max_tokens}; this service generates at most {limits.max_new_tokens}",
                parameter="max_tokens",
            )
        converted = {"logit_bias": read_biases(self.logit_bias), "stop": stop_texts(self.stop)}
        parameters = DecodingParameters(**shared_fields(self, DecodingParameters) | converted)
        if self.stream:
            check_streams(parameters)
        return GenerateCommand(
            self.prompt, parameters, self.model, top=self.num_alternatives, stream=self.stream
        )


def stop_texts(given: str | list[str] | None) -> tuple[str, ...]:
    """Return the texts of a field that holds one, several or none."""
    return (given,) if isinstance(given, str) else tuple(given or ())


def read_biases(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    """Parse biases by token id from a JSON object.

    Raises:
        InvalidInputError: a key is not a number.
    """
    for name in given:
        if not (name.isascii() and name.isdigit() and len(name) <= 10):
            raise InvalidInputError(
                f"logit_bias has the key {name[:20]!r}; keys must be token ids", parameter="logit_bias"
            )
    return tuple((int(name), bias) for name, bias in given.items())


def generate_reply(loaded: LoadedModel, result: GenerateResult, *, alternatives: int | None) -> GenerateReply:
    """Return the reply with all continuations."""
    choices = [
        Choice(
            choice.choice,
            choice.text,
            choice.token_ids,
            None if alternatives is None else choice.logprobs,
            _alternatives(loaded, choice.tops, alternatives),
            choice.score,
            choice.finish_reason,
        )
        for choice in result.choices
    ]
    return GenerateReply(loaded.address, choices, _usage(result))


def piece_event(loaded: LoadedModel, event: TokenEvent, *, alternatives: int | None) -> GenerateReply:
    """Return the event of a token."""
    logprobs = None if alternatives is None else [event.logprob]
    tops = _alternatives(loaded, [] if event.top is None else [event.top], alternatives)
    choice = Choice(event.choice, event.text, [event.token_id], logprobs, tops, None, None)
    return GenerateReply(loaded.address, [choice], None)


def end_event(
    loaded: LoadedModel,
    ended: Continuation | None,
    result: GenerateResult | None,
    *,
    alternatives: int | None,
) -> GenerateReply:
    """Return the event of the end of a choice, or the last event of a stream, with the usage."""
    choices = []
    if ended is not None:
        no_logprobs: list[float] | None = None if alternatives is None else []
        tops = _alternatives(loaded, [], alternatives)
        choices = [Choice(ended.choice, ended.rest, [], no_logprobs, tops, ended.score, ended.finish_reason)]
    return GenerateReply(loaded.address, choices, None if result is None else _usage(result))


def _alternatives(
    loaded: LoadedModel, tops: list[TopTokens], alternatives: int | None
) -> list[list[TokenCandidate]] | None:
    if not alternatives:
        return None
    return [
        [
            TokenCandidate(token_id, loaded.token_texts[token_id], finite_logprob(logprob))
            for token_id, logprob in zip(top.ids.tolist(), top.log_probs.tolist(), strict=True)
        ]
        for top in tops
    ]


def _usage(result: GenerateResult) -> Usage:
    return Usage(result.num_prompt_tokens, result.num_tokens, result.num_prompt_tokens + result.num_tokens)
