"""Continuation of prompts: POST /v1/generate, and code shared with /v1/completions.

All prompts' rows are stepped together. Choice `prompt * n + j` is the j-th continuation of a
prompt; it depends only on the prompt, the parameters and the seed.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import Field, Tag
from typing_extensions import override

from models.calls import Work
from models.decoding.choices import Continuation, Piece, encode_prompt
from models.decoding.generate import continue_prompts
from models.decoding.parameters import BEAM, SAMPLE, STRATEGIES, DecodingParameters
from models.errors import InputError, UnsupportedError
from models.language_model import TopTokens
from models.phrases import MAX_TOKEN_PHRASES
from models.text_model import Limits
from service.operations.operation import Call, Cost, EventsOperation, ModelOperation
from service.operations.score import token_scores
from service.schemas import with_examples
from service.schemas.replies import Choice, GenerateReply, Usage, to_json
from service.schemas.wire import (
    BadWords,
    Biases,
    DiversityPenalty,
    LengthPenalty,
    ModelRequest,
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
    by_type,
    schema_only,
    shared_fields,
)
from service.schemas.word_lists import PhraseEntry

MAX_ALTERNATIVES = 20
FlagOrCount = Annotated[
    Annotated[bool, Tag("<flag>")] | Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES), Tag("<count>")],
    by_type(
        f"input should be true, false or a number from 0 to {MAX_ALTERNATIVES}",
        {bool: "<flag>", int: "<count>"},
    ),
]
"""True, false, or a number."""


ChoiceChunk: TypeAlias = tuple[Any, int, Usage | None]
"""An event: a choice in wire format, or its next part, the number of tokens generated for it, and the usage so far if
the event tells it.

`/v1/completions` counts `</s>` as a token, `/v1/generate` does not.
"""


class GenerateResult(NamedTuple):
    """Result of a request.

    Attributes:
        choices: choices in wire format not sent as events, in order.
        usage: tokens read and generated, `</s>` counted as in the events.
        finish_reasons: finish reasons of all choices, in order.
    """

    choices: list[Any]
    usage: Any
    finish_reasons: list[str]


class GenerateRequest(ModelRequest):
    """Continue a text."""

    model_config = with_examples(
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
    )

    prompt: OneContext = ""
    """A string or a list of token ids; empty for the start of a sentence."""
    strategy: Annotated[str, schema_only(enum=STRATEGIES)] = SAMPLE
    """`greedy` picks the most probable token, `sample` samples tokens, `beam` searches for the most probable text."""
    max_tokens: Positive = 64
    """Maximum number of generated tokens."""
    min_tokens: NonNegative = 0
    """Minimum number of tokens before the end of the sentence, `</s>`."""
    ignore_eos: bool = False
    """True to continue past ends of sentences, up to `max_tokens`."""
    temperature: Temperature = 1.0
    """Sampling temperature; 0 means greedy."""
    top_k: Positive | None = None
    """Sample from the k most probable tokens."""
    typical_p: Share = 1.0
    """Typical sampling: keep the remaining tokens with surprisal nearest the entropy, up to this total probability."""
    top_p: Share = 1.0
    """Nucleus sampling: keep the most probable of the remaining tokens, up to this total probability."""
    min_p: Probability = 0.0
    """Keep the remaining tokens with at least this fraction of the highest probability."""
    repetition_penalty: RepetitionPenalty = 1.0
    """Exponent of the probabilities of tokens in the prompt or the continuation; above 1 discourages repetition."""
    presence_penalty: Penalty = 0.0
    """Amount subtracted once from the log-probability of a token that was generated."""
    frequency_penalty: Penalty = 0.0
    """Amount subtracted from the log-probability of a token for each time it was generated."""
    logit_bias: Biases = Field(default_factory=dict)
    """Values from -100 to 100 added to log-probabilities, by token id as a string."""
    phrases: list[PhraseEntry] = Field(default_factory=list, max_length=MAX_TOKEN_PHRASES)
    """Texts to favour: the weight of each, a natural logarithm, is added in equal parts to the log-probabilities of its
    tokens. The class does not count. An object with `wordlist` stands for the entries of a stored list."""
    bad_words: BadWords = Field(default_factory=list)
    """Texts that must not be generated."""
    n: NumChoices = 1
    """Number of continuations to return."""
    best_of: NumChoices | None = None
    """Number of continuations to sample; the `n` with the highest mean log-probability are returned."""
    num_beams: NumBeams | None = None
    """With `beam`: number of hypotheses kept during the search; default: 4, or `n` if that is more."""
    length_penalty: LengthPenalty = 1.0
    """With `beam`: continuations are ranked by log-probability / length ** length_penalty."""
    early_stopping: bool = False
    """With `beam`: stop once `num_beams` continuations are finished, even if others could still be better."""
    num_beam_groups: NumBeams = 1
    """With `beam`: number of groups; each group avoids the tokens of earlier groups."""
    diversity_penalty: DiversityPenalty = 0.0
    """With groups: amount subtracted from a token's score for each beam of an earlier group that chose it."""
    seed: Seed | None = None
    """Seed of sampling; equal seeds give equal texts."""
    stop: Stops = Field(default_factory=list)
    """One or several stop strings, up to 32; the text ends before the first that occurs."""
    logprobs: FlagOrCount = False
    """True to report the log-probability of each token by the model alone; a number k adds the k most probable."""
    token_healing: bool = False
    """True to complete the prompt's last word: its tokens are replaced by the first tokens of the continuation, which
    begin with the same text. Not with `beam`."""
    stream: bool = False
    """True to send tokens as server-sent events."""

    @property
    def num_alternatives(self) -> int | None:
        """Number of most probable tokens per position; None for no log-probabilities."""
        if isinstance(self.logprobs, bool):
            return 0 if self.logprobs else None
        return self.logprobs


def decoding_parameters(
    request: TimedRequest, limits: Limits, *, stream: bool, **converted: Any
) -> DecodingParameters:
    """Return a request's decoding parameters; null fields mean the defaults.

    Args:
        request: has `max_tokens`, `logit_bias`, `stop` and other parameters.
        limits: of one request.
        stream: true if the choices are streamed.
        converted: values that override the request's.

    Raises:
        InputError: a value is outside its limits, or parameters do not allow streaming.
    """
    given = shared_fields(request, DecodingParameters) | converted
    if "max_tokens" not in request.model_fields_set or vars(request)["max_tokens"] is None:
        given["max_tokens"] = min(given["max_tokens"], limits.max_new_tokens)  # a default never fails
    if given["max_tokens"] > limits.max_new_tokens:
        raise InputError.of(
            "max_tokens", f"is {given['max_tokens']}; this service generates at most {limits.max_new_tokens}"
        )
    biases: dict[str, float] = given.get("logit_bias", {})
    for name in biases:
        if not (name.isascii() and name.isdigit() and len(name) <= 10):
            raise InputError.of("logit_bias", f"has the key {name[:20]!r}; keys must be token ids")
    given["logit_bias"] = tuple((int(name), bias) for name, bias in biases.items())
    stop = given.get("stop", ())
    given["stop"] = (stop,) if isinstance(stop, str) else stop
    parameters = DecodingParameters(**given)
    if stream and parameters.num_samples > parameters.n:
        raise InputError.of(
            "best_of",
            f"is {parameters.best_of} and n is {parameters.n}: the best are known only at the end, so they "
            "cannot be streamed",
        )
    return parameters


class ChoicesOperation(EventsOperation[ChoiceChunk, GenerateResult], ModelOperation[GenerateResult]):
    """Operation with generated choices, and their usage."""

    @override
    def reply(self, result: GenerateResult) -> bytes:
        loaded, usage = self.models[0], result.usage
        self.call.count_prompt(loaded, usage.prompt_tokens)
        self.call.count_generated(loaded, usage.completion_tokens, result.finish_reasons)
        return self._written(result.choices, result.usage)

    @override
    def event(self, event: ChoiceChunk) -> bytes:
        choice, _, usage = event
        return self._written([choice], usage)

    @abstractmethod
    def _written(self, choices: list[Any], usage: Any) -> bytes:
        """Return the JSON of choices and their usage, the reply's or an event's."""


class Generate(ChoicesOperation):
    """Continue a text.

    With `stream`, the reply has an event per token of each choice, an event with `finish_reason` at the end of each
    choice, `usage` in the last event, then `[DONE]`; comments keep an idle connection alive. Beam search sends all
    events at its end. An error after the first event is an event with `error`.
    """

    request = GenerateRequest

    def __init__(self, call: Call, given: GenerateRequest) -> None:
        self.streams = given.stream
        phrases = call.phrases(given.phrases, MAX_TOKEN_PHRASES).phrases if given.phrases else ()
        self._parameters = decoding_parameters(given, call.limits, stream=given.stream, phrases=phrases)
        super().__init__(call, given)

    @override
    def cost(self) -> Cost:
        rows = self._parameters.beams * self._parameters.num_samples
        predicted = rows * self._parameters.max_tokens
        return Cost(self.call.num_tokens, predicted=predicted, sequences=rows)

    @override
    def run(self) -> Work[ChoiceChunk, GenerateResult]:
        loaded, request, limits = self.models[0], self.given, self.call.limits
        parameters = self._parameters
        if request.token_healing and parameters.strategy == BEAM:
            raise UnsupportedError.of(
                "token_healing", "is true and strategy is 'beam'; use 'greedy' or 'sample'"
            )
        prompt = encode_prompt(
            loaded, 0, request.prompt, limits, param="prompt", healing=request.token_healing
        )
        num_ended = 0
        choices = []

        def emit(pieces: Sequence[Piece]) -> Iterator[ChoiceChunk]:
            nonlocal num_ended
            for piece in pieces:
                if piece.token is not None:
                    token, logprob, top = piece.token
                    tops = [] if top is None else [top]
                    yield self._choice(piece.choice, piece.text, ([token], [logprob], tops)), 1, None
                if piece.end is not None:
                    num_ended += 1
                    end = self._choice(piece.choice, piece.end.rest, ([], [], []), piece.end)
                    if num_ended < parameters.n:
                        yield end, 0, None
                    else:  # sent with the usage
                        choices.append(end)

        done = yield from continue_prompts(
            loaded,
            [prompt],
            parameters,
            limits=limits,
            top=request.num_alternatives or 0,
            emit=emit if request.stream else None,
        )
        if not request.stream:
            choices = [
                self._choice(one.choice, one.text, (one.token_ids, one.logprobs, one.tops), one)
                for one in done
            ]
        num_tokens = sum(len(one.token_ids) for one in done)
        usage = Usage(len(prompt.ids), num_tokens, len(prompt.ids) + num_tokens)
        return GenerateResult(choices, usage, [one.finish_reason for one in done])

    @override
    def _written(self, choices: list[Any], usage: Any) -> bytes:
        return to_json(GenerateReply(self.models[0].address, choices, usage))

    def _choice(
        self,
        index: int,
        text: str,
        tokens: tuple[list[int], list[float], list[TopTokens]],
        end: Continuation | None = None,
    ) -> Choice:
        """Return a choice or its next piece on the wire; `tokens` are ids, log-probabilities, alternatives."""
        token_ids, logprobs, tops = tokens
        alternatives = self.given.num_alternatives
        return Choice(
            index,
            text,
            token_ids,
            None if alternatives is None else logprobs,
            [token_scores(self.models[0], *top) for top in tops] if alternatives else None,
            None if end is None else end.score,
            None if end is None else end.finish_reason,
        )
