"""Continuation of prompts: the core of /v1/generate and /v1/completions.

The rows of all prompts are stepped together. Choice `prompt * n + j` is the j-th continuation of a
prompt; it depends on its prompt, the parameters and the seed only.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from models.arrays import TokenIds
from models.decoding.parameters import BEAM, DecodingParameters
from models.decoding.rules import BannedSequences
from models.decoding.stopping import spellings
from models.errors import InvalidInputError
from models.reranking.candidates import map_in_steps
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.schemas.wire import TextOrIds
from service.use_cases.choices import Continuation, DecodeTask, Prompt, TokenEvent
from service.use_cases.inputs import Limits, check_reads_forward, encode_within


def continue_prompts(
    loaded: LoadedModel,
    prompts: Sequence[TokenIds],
    parameters: DecodingParameters,
    *,
    continues: Sequence[bool],
    limits: Limits,
    bos: Sequence[bool] | None = None,
    top: int | None = None,
    stream: bool = False,
) -> Work[TokenEvent | Continuation, list[Continuation]]:
    """Continue each prompt `n` times; a use case.

    Args:
        loaded: the model.
        prompts: checked ids [T] of each, without `<s>`; possibly none.
        parameters: decoding parameters.
        continues: for each prompt, whether text precedes its continuation, whose first space is then kept.
        limits: of one request.
        bos: for each prompt, whether the model starts after `<s>`, else from its empty state; all do if left out.
        top: number of most probable tokens to report at each position; none if 0 or left out.
        stream: whether to yield events: a `TokenEvent` per token, and each `Continuation` at its end. Beam search
            yields all events of a choice at the end, when its text is final.

    Returns:
        The continuations, n per prompt in order of prompts; with beams and `best_of` the best first. Beams
        give fewer if fewer than n distinct ones exist.

    Raises:
        InvalidInputError: an id of `logit_bias` is outside the vocabulary, a limit is exceeded, or the
            parameters do not allow streaming.
        UnsupportedParameterError: the model reads from right to left.
    """
    check_reads_forward(loaded)
    _check_biases(loaded, parameters)
    if stream:
        check_streams(parameters)
    choices = len(prompts) * parameters.n
    limits.check_entries(
        choices * parameters.max_tokens * max(1, top or 0),
        parameter="max_tokens",
        description=f"max_tokens is {parameters.max_tokens} for {choices} choices"
        + (f" with {top} alternatives a token" if top else ""),
        instead="ask in several requests",
    )
    banned = yield from _banned_sequences(loaded, parameters)
    if parameters.seed is None:
        parameters = replace(parameters, seed=secrets.randbits(63))
    starts = [True] * len(prompts) if bos is None else bos
    given = [
        Prompt(number, ids, after_bos, continued)
        for number, (ids, after_bos, continued) in enumerate(zip(prompts, starts, continues, strict=True))
    ]
    task = DecodeTask(loaded, parameters, banned, min(top or 0, loaded.vocab_size), stream)
    # imported here so that the start of the service does not wait for compiled code; model warm-up loads it
    from service.use_cases.decode import beam_search, sample_prompts

    if parameters.strategy == BEAM:
        return (yield from beam_search(task, given))
    return _best((yield from sample_prompts(task, given)), parameters)


def check_streams(parameters: DecodingParameters) -> None:
    """Refuse to stream choices selected among more continuations.

    Raises:
        InvalidInputError: `best_of` is above `n`.
    """
    if parameters.num_samples > parameters.n:
        raise InvalidInputError(
            f"best_of is {parameters.best_of} and n is {parameters.n}: which are the best is known at the end, so "
            "they cannot be streamed",
            parameter="best_of",
        )


def _check_biases(loaded: LoadedModel, parameters: DecodingParameters) -> None:
    for token_id, _ in parameters.logit_bias:
        if not 0 <= token_id < loaded.vocab_size:
            raise InvalidInputError(
                f"logit_bias has the token {token_id}, but this model's token ids are 0 to {loaded.vocab_size - 1}",
                parameter=f"logit_bias.{token_id}",
            )


def _banned_sequences(
    loaded: LoadedModel, parameters: DecodingParameters
) -> Work[TokenEvent | Continuation, BannedSequences | None]:
    if not parameters.bad_words:
        return None
    found = yield from map_in_steps(
        parameters.bad_words, lambda text: spellings(loaded.tokenizer, text), size=lambda text: 16 * len(text)
    )
    return BannedSequences(ids for sequences in found for ids in sequences)


def _best(choices: list[Continuation], parameters: DecodingParameters) -> list[Continuation]:
    """Select the `n` best of `best_of` continuations per prompt and renumber them."""
    if parameters.num_samples == parameters.n:
        return choices
    best = []
    for first in range(0, len(choices), parameters.num_samples):
        ranked = sorted(choices[first : first + parameters.num_samples], key=lambda item: -item.score)
        best += ranked[: parameters.n]
    for number, item in enumerate(best):
        item.choice = number
    return best


@dataclass(frozen=True, slots=True)
class GenerateCommand:
    """A valid request for continuations.

    Attributes:
        prompt: text or ids to continue; empty for the start of a sentence.
        parameters: decoding parameters.
        model: address; None for the default.
        top: number of most probable tokens to report with each token; None to omit even its own
            log-probability.
        stream: whether to yield events.
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
        """Number of tokens of all continuations, without `</s>`."""
        return sum(len(choice.token_ids) for choice in self.choices)


def generate(
    loaded: LoadedModel, command: GenerateCommand, limits: Limits
) -> Work[TokenEvent | Continuation, GenerateResult]:
    """Continue a prompt `n` times.

    `<unk>` is never chosen. The same seed gives the same text, whatever other requests are served.

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
