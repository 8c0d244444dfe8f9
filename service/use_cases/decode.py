"""Sampling and beam search over prompts; imported when first used.

Imports compiled kernels, which would delay the start of the service.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from models.decoding.batch import SequenceBatch, row_seed
from models.decoding.beam_search import BeamSearch, FinishedBeam
from models.decoding.rules import compile_rules
from models.decoding.stopping import StopBytes
from models.decoding.top_k import top_tokens_of_rows
from models.vocabulary import EOS
from service.engine.calls import next_log_probs, step
from service.engine.decode import DecodeState, Generated, decode
from service.engine.job import Work
from service.use_cases.choices import (
    Continuation,
    ContinuationBuilder,
    DecodeTask,
    Prompt,
    TokenEvent,
    prefill_prompts,
)


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


def beam_search(
    task: DecodeTask, prompts: Sequence[Prompt]
) -> Work[TokenEvent | Continuation, list[Continuation]]:
    """Search for the best continuations of each prompt; a use case.

    Returns:
        `n` a prompt, or as many as there are, in order of prompts and the best first.
    """
    done: list[Continuation] = []
    for part in task.parts(prompts, task.parameters.beams):
        searches = yield from _run_beams(task, part)
        for prompt, found in zip(part, searches, strict=True):
            for place, finished in enumerate(found.best()):
                written = yield from _build_continuation(task, prompt, place, finished)
                done.append(written)
    return done


def _run_beams(
    task: DecodeTask, prompts: Sequence[Prompt]
) -> Work[TokenEvent | Continuation, list[BeamSearch]]:
    """Step the beams of all prompts together until each search is over."""
    parameters, model = task.parameters, task.loaded.model
    state = yield from prefill_prompts(task, prompts)
    log_probs = yield from next_log_probs(model, state)
    batch = SequenceBatch.of([compile_rules(parameters, prompt.ids, task.banned) for prompt in prompts])
    searches = [BeamSearch(parameters, row, _stops(task, prompt)) for row, prompt in enumerate(prompts)]
    while True:
        tops = top_tokens_of_rows(log_probs, task.top) if task.top else None
        rows = batch.rows()
        for search in searches:
            search.step(log_probs, rows, tops)
        live = [beam for search in searches for beam in search.live]
        if not live:
            return searches
        before = np.array([beam.row for beam in live])
        links = [beam.end for beam in live if beam.end is not None]
        tokens = np.array([link.token for link in links], np.int64)
        for row, beam in enumerate(live):
            beam.row = row
        batch = batch.select(before).append(
            tokens, np.array([link.info.logprob for link in links], np.float32)
        )
        state, log_probs = yield from step(model, state.select(before), tokens)


def _stops(task: DecodeTask, prompt: Prompt) -> StopBytes | None:
    tokenizer, stops = task.loaded.tokenizer, task.parameters.stop
    if not stops:
        return None
    strip_space = tokenizer.leading_space and not prompt.continues
    return StopBytes(stops, tokenizer.token_bytes, strip_space=strip_space)


def _build_continuation(
    task: DecodeTask, prompt: Prompt, place: int, finished: FinishedBeam
) -> Work[TokenEvent | Continuation, Continuation]:
    """Spell a continuation, and tell it if events are wanted."""
    choice = prompt.number * task.parameters.n + place
    writer = ContinuationBuilder(
        task.loaded,
        task.parameters,
        choice=choice,
        prompt=prompt.number,
        continues=prompt.continues,
    )
    for _, token, (logprob, top) in finished.nodes():
        text = writer.push([token], [logprob], [] if top is None else [top])
        if task.stream:
            yield TokenEvent(choice, text, token, logprob, top)
    written = writer.end() if finished.eos is None else writer.end_by_eos(*finished.eos)
    written.score = finished.score
    if task.stream:
        yield written
    return written
