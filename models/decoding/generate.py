"""Continuations of prompts: the rules of a request's tokens, then sampling or search."""

import secrets
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, TypeVar

from models.calls import Work, map_in_steps
from models.decoding.choices import Continuation, DecodeTask, Emit, Prompt
from models.decoding.parameters import BEAM, DecodingParameters
from models.decoding.rules import BannedSequences, TokenBias, spellings
from models.decoding.top_k import TokenChoice
from models.errors import InputError
from models.phrases import NO_TOKEN_PHRASES, Phrase, PhraseAutomaton
from models.text_model import Limits, TextModel, check_forward

A = TypeVar("A", bound=PhraseAutomaton[int])


def token_automaton(loaded: TextModel, automaton: A, weights: Iterable[tuple[str, float]]) -> Work[Any, A]:
    """Fill an automaton with token sequences of texts and their weights."""
    by_ids = {}  # bytes: a tuple takes ten times the memory

    def spell(weighted: tuple[str, float]) -> None:
        for ids in spellings(loaded.tokenizer, weighted[0]):
            by_ids[array("i", ids).tobytes()] = weighted[1]

    yield from map_in_steps(weights, spell, size=lambda one: 16 * len(one[0]))
    if by_ids:
        yield from automaton.build([memoryview(ids).cast("i") for ids in by_ids], by_ids.values())
    return automaton


def phrase_automaton(loaded: TextModel, phrases: Sequence[Phrase]) -> Work[Any, PhraseAutomaton[int]]:
    """Return an automaton of phrases' token sequences; `NO_TOKEN_PHRASES` without any."""
    if not phrases:
        return NO_TOKEN_PHRASES
    weights = [(one.text, one.weight) for one in phrases]
    return (yield from token_automaton(loaded, PhraseAutomaton[int](), weights))


def continue_prompts(
    loaded: TextModel,
    prompts: Sequence[Prompt],
    parameters: DecodingParameters,
    *,
    limits: Limits,
    top: TokenChoice = 0,
    emit: Emit | None = None,
) -> Work[Any, list[Continuation]]:
    """Continue each prompt `n` times.

    Args:
        loaded: model.
        prompts: prompts to continue.
        parameters: decoding parameters.
        limits: of one request.
        top: tokens to report at each position.
        emit: builds the events of each step's pieces; None for no events. Beam search yields a choice's
            events at the end, when its text is final.

    Returns:
        The continuations, n per prompt in the prompts' order; with beams and `best_of`, best first.
        Beam search returns fewer if fewer than n distinct ones exist.

    Raises:
        InputError: an id of `logit_bias` is outside the vocabulary, or a limit is exceeded.
        UnsupportedError: the model reads backward.
    """
    check_forward(loaded)
    for token_id, _ in parameters.logit_bias:
        if not 0 <= token_id < loaded.vocab_size:
            raise InputError(
                f"logit_bias has token id {token_id}, but this model's token ids are 0 to {loaded.vocab_size - 1}",
                param=f"logit_bias.{token_id}",
            )
    num_choices = len(prompts) * parameters.n
    alternatives = top if isinstance(top, int) else len(top)
    limits.check_entries(
        num_choices * parameters.max_tokens * max(1, alternatives),
        param="max_tokens",
        description=f"max_tokens is {parameters.max_tokens} for {num_choices} choices"
        + (f" with {alternatives} alternatives per token" if alternatives else ""),
        instead="split it into several requests",
    )
    banned = yield from token_automaton(loaded, BannedSequences(), zip(parameters.bad_words, repeat(1.0)))
    phrases = yield from phrase_automaton(loaded, parameters.phrases)
    if parameters.seed is None:
        parameters = replace(parameters, seed=secrets.randbits(63))
    top = min(top, loaded.vocab_size) if isinstance(top, int) else top
    task = DecodeTask(loaded, parameters, TokenBias(parameters.logit_bias, banned, phrases), top, emit)
    # late: compiled code would delay the start; model warm-up loads it
    from models.decoding.strategies import beam_search, sample_prompts

    if parameters.strategy == BEAM:
        return (yield from beam_search(task, prompts))
    choices = yield from sample_prompts(task, prompts)
    if parameters.num_samples == parameters.n:
        return choices
    best = []
    for first in range(0, len(choices), parameters.num_samples):
        ranked = sorted(choices[first : first + parameters.num_samples], key=lambda one: -one.score)
        best += ranked[: parameters.n]
    for number, item in enumerate(best):
        item.choice = number
    return best
