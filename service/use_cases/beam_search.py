"""Searching for the most probable continuations of prompts."""

from collections.abc import Sequence

import numpy as np

from models.decoding.batch import SequenceBatch
from models.decoding.beams import BeamSearch, FinishedBeam
from models.decoding.ranking import top_tokens_of_rows
from models.decoding.rules import compile_rules
from models.decoding.stopping import StopBytes
from service.engine.calls import next_log_probs, step
from service.engine.job import Work
from service.use_cases.choices import Continuation, ContinuationBuilder, TokenEvent
from service.use_cases.prompts import DecodeTask, Prompt, prefill_prompts


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
