"""Continuing a text."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from models.arrays import to_numpy
from models.decoding.parameters import DecodingParameters
from models.decoding.processors import process
from models.decoding.sampling import most_probable, sample
from models.decoding.stopping import StopStrings
from models.detokenizer import Detokenizer
from models.scoring import finite
from models.vocabulary import BOS, EOS, UNK
from service.engine.host import LoadedModel
from service.engine.job import Work
from service.use_cases.limits import Limits
from service.use_cases.prefill import prefill
from service.use_cases.reading_order import check_reads_forward
from service.use_cases.tokens import TextOrIds, encode

STOP, LENGTH = "stop", "length"


@dataclass(frozen=True, slots=True)
class GenerateCommand:
    """A valid request for a continuation.

    Attributes:
        prompt: what to continue; empty for the start of a sentence.
        parameters: how.
        model: address; None for the default.
    """

    prompt: TextOrIds
    parameters: DecodingParameters
    model: str | None


class GeneratedToken(NamedTuple):
    """One token as it is chosen.

    Attributes:
        text: what has become certain with it; may be empty.
        token_id: its id.
        logprob: the model's own, before temperature and the like.
    """

    text: str
    token_id: int
    logprob: float


@dataclass(slots=True)
class Completion:
    """A continuation.

    Attributes:
        num_prompt_tokens: tokens of the prompt.
        text: up to, and without, a stop string.
        rest: the end of `text` that came with no token, since it was held back until the end.
        token_ids: every token generated, `</s>` aside.
        logprobs: the model's own, one a token.
        finish_reason: `stop` at `</s>` or a stop string, `length` at `max_tokens`.
    """

    num_prompt_tokens: int
    text: str = ""
    rest: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = LENGTH


def generate(
    loaded: LoadedModel, command: GenerateCommand, limits: Limits
) -> Work[GeneratedToken, Completion]:
    """Choose token after token until the end of the sentence, a stop string or the limit.

    `<unk>` is never chosen. With the same seed the same text comes out, whoever else is served.

    Raises:
        InvalidInputError: the prompt has a wrong id or too many tokens.
        UnsupportedParameterError: the model reads from right to left.
    """
    check_reads_forward(loaded)
    limits.check_characters(command.prompt, parameter="prompt")
    ids = encode(loaded, command.prompt, parameter="prompt")
    limits.check_length(len(ids), parameter="prompt")
    state = yield from prefill(loaded.model, [ids], bos=True)
    parameters = command.parameters
    generator = np.random.default_rng(parameters.seed)
    continues = len(ids) > 0 and not (isinstance(command.prompt, str) and command.prompt[-1].isspace())
    detokenizer = Detokenizer(loaded.tokenizer, continues=continues)
    stops = StopStrings(parameters.stop)
    done = Completion(num_prompt_tokens=len(ids))
    while len(done.token_ids) < parameters.max_tokens and not stops.stopped:
        token, logprob = _choose(loaded, state, parameters, generator)
        if token == EOS:
            done.finish_reason = STOP
            break
        text = stops.push(detokenizer.push(token))
        done.text += text
        done.token_ids.append(token)
        done.logprobs.append(logprob)
        yield GeneratedToken(text, token, logprob)
        state = loaded.model.advance(state, np.array([token]))
    if not stops.stopped:
        done.rest = stops.push(detokenizer.flush()) + stops.flush()
        done.text += done.rest
    if stops.stopped:
        done.finish_reason = STOP
    return done


def _choose(
    loaded: LoadedModel, state: Any, parameters: DecodingParameters, generator: np.random.Generator
) -> tuple[int, float]:
    """The next token and its own log-probability; `</s>` if nothing else is possible."""
    log_probs = to_numpy(loaded.model.next_log_probs(state))
    possible = process(log_probs, parameters, forbidden=(UNK, BOS))
    if not np.isfinite(possible.max()):
        return EOS, finite(float(log_probs[0, EOS]))
    chosen = most_probable(possible) if parameters.greedy else sample(possible, [generator])
    token = int(chosen[0])
    return token, finite(float(log_probs[0, token]))
