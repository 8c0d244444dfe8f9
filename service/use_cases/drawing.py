"""Continuing prompts token by token: greedily, or by drawing."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from models.decoding.batch import Batch
from models.decoding.draws import row_seed
from models.decoding.rules import rules_of
from models.vocabulary import EOS
from service.engine.decode import decode
from service.engine.decoding import Decoding, Drawn
from service.engine.job import Work
from service.use_cases.choices import Continuation, Piece, Writer
from service.use_cases.prompts import Prompt, Task, begin


class _Row(NamedTuple):
    """The j-th continuation of a prompt."""

    prompt: Prompt
    sample: int


def draw(task: Task, prompts: Sequence[Prompt]) -> Work[Piece | Continuation, list[Continuation]]:
    """Continue each prompt as often as is asked for; a use case.

    Returns:
        All that was drawn, in order of prompts.
    """
    rows = [_Row(prompt, sample) for prompt in prompts for sample in range(task.parameters.num_samples)]
    done: list[Continuation] = []
    for part in task.parts(rows, 1):
        done += yield from _draw(task, part)
    return done


def _draw(task: Task, rows: Sequence[_Row]) -> Work[Piece | Continuation, list[Continuation]]:
    """Step R rows together; those that end leave."""
    model, most = task.loaded.model, task.parameters.max_tokens
    writers = [_writer(task, row) for row in rows]
    done = [writer.continuation for writer in writers]
    state = yield from begin(task, [row.prompt for row in rows])
    decoding: Any = Decoding(state, _batch(task, rows))
    # a text that is told, or may be stopped, is looked at after every token; of all others the end is waited for
    at_once = 1 if task.stream or task.parameters.stop else most
    for generated in range(0, most, at_once):
        last = generated + at_once == most
        drawn: Drawn = yield from decode(model, decoding, at_once, top=task.top, last=last)
        yield from _written(task, writers, drawn)
        going_on = [writer for writer, tokens in zip(writers, drawn.tokens, strict=True) if tokens[-1] != EOS]
        live = [row for row, writer in enumerate(going_on) if not writer.full]
        if drawn.unfinished is None or not live:
            break
        writers = [going_on[row] for row in live]
        decoding = drawn.unfinished.select(np.array(live))
    return done


def _written(task: Task, writers: Sequence[Writer], drawn: Drawn) -> Iterator[Piece | Continuation]:
    """Write what was generated of each row; the events of that, if they are wanted."""
    for row, (writer, tokens, logprobs) in enumerate(
        zip(writers, drawn.tokens, drawn.log_probs, strict=True)
    ):
        tops = drawn.tops[row] if drawn.tops else []
        count = len(tokens) - (tokens[-1] == EOS)
        text = writer.push(tokens[:count], logprobs[:count], tops[:count])
        if task.stream and count:
            yield Piece(writer.continuation.choice, text, tokens[0], logprobs[0], tops[0] if tops else None)
        if count < len(tokens):
            ended = writer.end_by_eos(logprobs[-1], tops[-1] if tops else None)
        elif writer.full:
            ended = writer.end()
        else:
            continue
        if task.stream:
            yield ended


def _batch(task: Task, rows: Sequence[_Row]) -> Batch:
    """The rows, of which nothing is generated yet; those of a prompt share its rules."""
    parameters = task.parameters
    prompts = {row.prompt.number: row.prompt for row in rows}
    rules = {number: rules_of(parameters, prompt.ids, task.banned) for number, prompt in prompts.items()}
    seeds = [row_seed(parameters.seed or 0, row.prompt.number, row.sample) for row in rows]
    return Batch.of([rules[row.prompt.number] for row in rows], seeds)


def _writer(task: Task, row: _Row) -> Writer:
    return Writer(
        task.loaded,
        task.parameters,
        choice=row.prompt.number * task.parameters.num_samples + row.sample,
        prompt=row.prompt.number,
        continues=row.prompt.continues,
    )
