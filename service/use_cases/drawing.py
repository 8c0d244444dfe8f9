"""Continuing prompts token by token: greedily, or by drawing."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from models.arrays import FloatArray
from models.decoding.batch import Batch
from models.decoding.choosing import IMPOSSIBLE, choose
from models.decoding.draws import Draws
from models.decoding.ranking import top_of_rows
from models.protocol import TopTokens
from models.vocabulary import EOS
from service.engine.calls import step
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
    rows = [_Row(prompt, sample) for prompt in prompts for sample in range(task.parameters.drawn)]
    done: list[Continuation] = []
    for part in task.parts(rows, 1):
        done += yield from _draw(task, part)
    return done


def _draw(task: Task, rows: Sequence[_Row]) -> Work[Piece | Continuation, list[Continuation]]:
    """Step R rows together; those that end leave."""
    parameters, model = task.parameters, task.loaded.model
    writers = [_writer(task, row) for row in rows]
    done = [writer.written for writer in writers]
    state, log_probs = yield from begin(task, [row.prompt for row in rows])
    batch = Batch(parameters, [row.prompt.ids for row in rows], task.banned)
    draws = Draws(parameters.seed or 0, [(row.prompt.number, row.sample) for row in rows])
    while True:
        chosen = choose(log_probs, batch.rows(), draws.take())
        chosen[chosen == IMPOSSIBLE] = EOS
        own = log_probs[np.arange(len(chosen)), chosen].tolist()
        tops = _tops(task, log_probs)
        del log_probs  # rows of a batch: whoever rests until its events are taken must not keep it
        live = []
        for row, (writer, token) in enumerate(zip(writers, chosen.tolist(), strict=True)):
            top = tops[row] if tops else None
            if token == EOS:
                ended = writer.end_by_eos(own[row], top)
                if task.stream:
                    yield ended
                continue
            text = writer.push(token, own[row], top)
            if task.stream:
                yield Piece(writer.written.choice, text, token, own[row], top)
            if not writer.full:
                live.append(row)
                continue
            ended = writer.end()
            if task.stream:
                yield ended
        if not live:
            return done
        if len(live) < len(writers):
            writers = [writers[row] for row in live]
            state, chosen = state.select(np.array(live)), chosen[live]
            batch.select(live)
            draws.select(live)
        batch.append(chosen)
        state, log_probs = yield from step(model, state, chosen)


def _writer(task: Task, row: _Row) -> Writer:
    return Writer(
        task.loaded,
        task.parameters,
        choice=row.prompt.number * task.parameters.drawn + row.sample,
        prompt=row.prompt.number,
        continues=row.prompt.continues,
        stream=task.stream,
    )


def _tops(task: Task, log_probs: FloatArray) -> list[TopTokens]:
    """The most probable tokens of each row [k], if they are asked for."""
    if not task.top:
        return []
    ids, values = top_of_rows(log_probs, task.top)
    return [TopTokens(*row) for row in zip(ids, values, strict=True)]
