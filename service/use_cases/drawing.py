"""Continuing prompts token by token: greedily, or by drawing."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from models.decoding.batch import SequenceBatch
from models.decoding.draws import row_seed
from models.decoding.rules import compile_rules
from models.vocabulary import EOS
from service.engine.decode import decode
from service.engine.decoding import DecodeState, Generated
from service.engine.job import Work
from service.use_cases.choices import Continuation, ContinuationBuilder, TokenEvent
from service.use_cases.prompts import DecodeTask, Prompt, prefill_prompts


class _Row(NamedTuple):
    """The j-th continuation of a prompt."""

    prompt: Prompt
    sample: int


def sample_prompts(
    task: DecodeTask, prompts: Sequence[Prompt]
) -> Work[TokenEvent | Continuation, list[Continuation]]:
    """Continue each prompt as often as is asked for; a use case.

    Returns:
        All that was drawn, in order of prompts.
    """
    rows = [_Row(prompt, sample) for prompt in prompts for sample in range(task.parameters.num_samples)]
    done: list[Continuation] = []
    for part in task.parts(rows, 1):
        done += yield from _sample_rows(task, part)
    return done


def _sample_rows(
    task: DecodeTask, rows: Sequence[_Row]
) -> Work[TokenEvent | Continuation, list[Continuation]]:
    """Step R rows together; those that end leave."""
    model, most = task.loaded.model, task.parameters.max_tokens
    writers = [_builder(task, row) for row in rows]
    done = [writer.continuation for writer in writers]
    state = yield from prefill_prompts(task, [row.prompt for row in rows])
    decoding: Any = DecodeState(state, _batch(task, rows))
    # a text that is told, or may be stopped, is looked at after every token; of all others the end is waited for
    at_once = 1 if task.stream or task.parameters.stop else most
    for generated in range(0, most, at_once):
        last = generated + at_once == most
        drawn: Generated = yield from decode(model, decoding, at_once, top=task.top, last=last)
        yield from _extend(task, writers, drawn)
        going_on = [writer for writer, tokens in zip(writers, drawn.tokens, strict=True) if tokens[-1] != EOS]
        live = [row for row, writer in enumerate(going_on) if not writer.full]
        if drawn.unfinished is None or not live:
            break
        writers = [going_on[row] for row in live]
        decoding = drawn.unfinished.select(np.array(live))
    return done


def _extend(
    task: DecodeTask, writers: Sequence[ContinuationBuilder], drawn: Generated
) -> Iterator[TokenEvent | Continuation]:
    """Write what was generated of each row; the events of that, if they are wanted."""
    for row, (writer, tokens, logprobs) in enumerate(
        zip(writers, drawn.tokens, drawn.log_probs, strict=True)
    ):
        tops = drawn.tops[row] if drawn.tops else []
        count = len(tokens) - (tokens[-1] == EOS)
        text = writer.push(tokens[:count], logprobs[:count], tops[:count])
        if task.stream and count:
            yield TokenEvent(
                writer.continuation.choice, text, tokens[0], logprobs[0], tops[0] if tops else None
            )
        if count < len(tokens):
            ended = writer.end_by_eos(logprobs[-1], tops[-1] if tops else None)
        elif writer.full:
            ended = writer.end()
        else:
            continue
        if task.stream:
            yield ended


def _batch(task: DecodeTask, rows: Sequence[_Row]) -> SequenceBatch:
    """The rows, of which nothing is generated yet; those of a prompt share its rules."""
    parameters = task.parameters
    prompts = {row.prompt.number: row.prompt for row in rows}
    rules = {number: compile_rules(parameters, prompt.ids, task.banned) for number, prompt in prompts.items()}
    seeds = [row_seed(parameters.seed or 0, row.prompt.number, row.sample) for row in rows]
    return SequenceBatch.of([rules[row.prompt.number] for row in rows], seeds)


def _builder(task: DecodeTask, row: _Row) -> ContinuationBuilder:
    return ContinuationBuilder(
        task.loaded,
        task.parameters,
        choice=row.prompt.number * task.parameters.num_samples + row.sample,
        prompt=row.prompt.number,
        continues=row.prompt.continues,
    )
