"""Continuing a text."""

from dataclasses import dataclass
from typing import NamedTuple

from models.decoding.parameters import DecodingParameters
from service.engine.hosted import LoadedModel
from service.engine.job import Work
from service.use_cases.choices import Continuation, TokenEvent
from service.use_cases.continuation import continue_prompts
from service.use_cases.limits import Limits
from service.use_cases.tokens import TextOrIds, encode_within


@dataclass(frozen=True, slots=True)
class GenerateCommand:
    """A valid request for continuations.

    Attributes:
        prompt: what to continue; empty for the start of a sentence.
        parameters: how.
        model: address; None for the default.
        top: how many of the most probable tokens to report in the place of each, beside it; None if not even
            its own log-probability.
        stream: whether events are wanted.
    """

    prompt: TextOrIds
    parameters: DecodingParameters
    model: str | None
    top: int | None = None
    stream: bool = False


class GenerateResult(NamedTuple):
    """The continuations of a prompt.

    Attributes:
        num_prompt_tokens: tokens of the prompt.
        choices: its continuations.
    """

    num_prompt_tokens: int
    choices: list[Continuation]

    @property
    def num_tokens(self) -> int:
        """Tokens of all continuations, `</s>` aside."""
        return sum(len(choice.token_ids) for choice in self.choices)


def generate(
    loaded: LoadedModel, command: GenerateCommand, limits: Limits
) -> Work[TokenEvent | Continuation, GenerateResult]:
    """Continue a prompt as often as is asked for.

    `<unk>` is never chosen. With the same seed the same text comes out, whoever else is served.

    Raises:
        InvalidInputError: the prompt has a wrong id or too many tokens, or a parameter is not for this model.
        UnsupportedParameterError: the model reads from right to left.
    """
    ids = encode_within(loaded, command.prompt, limits, parameter="prompt")
    continues = len(ids) > 0 and not (isinstance(command.prompt, str) and command.prompt[-1].isspace())
    choices = yield from continue_prompts(
        loaded,
        [ids],
        command.parameters,
        continues=[continues],
        limits=limits,
        top=command.top,
        stream=command.stream,
    )
    return GenerateResult(len(ids), choices)
