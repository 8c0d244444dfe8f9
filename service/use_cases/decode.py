"""Sampling and beam search over prompts.

Imported at first use: its compiled kernels would delay the start of the service.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from models.calls import Predict, Step
from models.decoding.batch import SequenceBatch, row_seed
from models.decoding.beam_search import BeamSearch, FinishedBeam
from models.decoding.rules import compile_rules
from models.decoding.stopping import StopBytes
from models.decoding.top_k import top_tokens_of_rows
from models.vocabulary import EOS
from service.engine.decode import Decode, DecodeState, Generated
from service.engine.job import Work
from service.use_cases.choices import (
    Continuation,
    ContinuationBuilder,
    DecodeTask,
    Piece,
    Prompt,
    prefill_prompts,
)


def sample_prompts(task: DecodeTask, prompts: Sequence[Prompt]) -> Work[Any, list[Continuation]]:
    """Sample `num_samples` continuations of each prompt; a use case.

    Returns:
        All continuations, in the order of the prompts.
    """
    rows = [(prompt, sample) for prompt in prompts for sample in range(task.parameters.num_samples)]
    done: list[Continuation] = []
    for part in task.parts(rows, 1):
        done += yield from _sample_rows(task, part)
    return done


def _sample_rows(task: DecodeTask, rows: Sequence[tuple[Prompt, int]]) -> Work[Any, list[Continuation]]:
    """Sample R rows together, each the j-th continuation of a prompt; drop finished rows."""
    model, max_tokens = task.loaded.model, task.parameters.max_tokens
    per_prompt = task.parameters.num_samples
    builders = [
        ContinuationBuilder(task, prompt, prompt.number * per_prompt + sample) for prompt, sample in rows
    ]
    done = [builder.continuation for builder in builders]
    state = yield from prefill_prompts(task, [prompt for prompt, _ in rows])
    decoding: Any = DecodeState(state, _batch(task, rows))
    # streams and stop strings require the text after every token; otherwise one block generates all tokens
    block = 1 if task.emit or task.parameters.stop else max_tokens
    for begin in range(0, max_tokens, block):
        last = begin + block == max_tokens
        generated = yield from Decode(model, decoding, block, task.top, last)
        yield from _extend(task, builders, generated)
        unended = [item for item, tokens in zip(builders, generated.tokens, strict=True) if tokens[-1] != EOS]
        live = [row for row, builder in enumerate(unended) if not builder.full]
        if generated.unfinished is None or not live:
            break
        builders = [unended[row] for row in live]
        decoding = generated.unfinished.select(np.array(live))
    return done


def _extend(task: DecodeTask, builders: Sequence[ContinuationBuilder], generated: Generated) -> Iterator[Any]:
    """Add the generated tokens to each row's continuation; yield their events if streaming."""
    pieces = []
    for row, (builder, tokens, logprobs) in enumerate(
        zip(builders, generated.tokens, generated.log_probs, strict=True)
    ):
        tops = generated.tops[row] if generated.tops else []
        count = len(tokens) - (tokens[-1] == EOS)
        text = builder.push(tokens[:count], logprobs[:count], tops[:count])
        ended = None
        if count < len(tokens):
            ended = builder.end_by_eos(logprobs[-1], tops[-1] if tops else None)
        elif builder.full:
            ended = builder.end()
        token = (tokens[0], logprobs[0], tops[0] if tops else None) if count else None
        pieces.append(Piece(builder.continuation.choice, text, token, ended))
    if task.emit is not None:
        yield from task.emit(pieces)


def _batch(task: DecodeTask, rows: Sequence[tuple[Prompt, int]]) -> SequenceBatch:
    """Create the batch of rows before generation; rows of a prompt share its rules."""
    parameters = task.parameters
    prompts = {prompt.number: prompt for prompt, _ in rows}
    rules = {number: compile_rules(parameters, prompt.ids, task.banned) for number, prompt in prompts.items()}
    seeds = [row_seed(parameters.seed or 0, prompt.number, sample) for prompt, sample in rows]
    return SequenceBatch.of([rules[prompt.number] for prompt, _ in rows], seeds)


def beam_search(task: DecodeTask, prompts: Sequence[Prompt]) -> Work[Any, list[Continuation]]:
    """Search for the best continuations of each prompt; a use case.

    Returns:
        At most `n` continuations per prompt, best first, in the order of the prompts.
    """
    done: list[Continuation] = []
    for part in task.parts(prompts, task.parameters.beams):
        searches = yield from _run_beams(task, part)
        for prompt, search in zip(part, searches, strict=True):
            for rank, finished in enumerate(search.best()):
                continuation = yield from _build_continuation(task, prompt, rank, finished)
                done.append(continuation)
    return done


def _run_beams(task: DecodeTask, prompts: Sequence[Prompt]) -> Work[Any, list[BeamSearch]]:
    """Step the beams of all prompts together until all searches end."""
    parameters, model = task.parameters, task.loaded.model
    state = yield from prefill_prompts(task, prompts)
    log_probs = yield from Predict(model, state)
    batch = SequenceBatch.of([compile_rules(parameters, prompt.ids, task.banned) for prompt in prompts])
    tokenizer = task.loaded.tokenizer
    searches = []
    for row, prompt in enumerate(prompts):
        stops = None
        if parameters.stop:
            strip_space = tokenizer.leading_space and not prompt.continues
            stops = StopBytes(parameters.stop, tokenizer.token_bytes, strip_space=strip_space)
        searches.append(BeamSearch(parameters, row, stops))
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
        state, log_probs = yield from Step(model, state.select(before), tokens)


def _build_continuation(
    task: DecodeTask, prompt: Prompt, rank: int, finished: FinishedBeam
) -> Work[Any, Continuation]:
    """Build a continuation from a finished beam; yield its events if streaming."""
    choice = prompt.number * task.parameters.n + rank
    builder = ContinuationBuilder(task, prompt, choice)
    pieces = []
    for _, token, (logprob, top) in finished.nodes():
        text = builder.push([token], [logprob], [] if top is None else [top])
        pieces.append(Piece(choice, text, (token, logprob, top), None))
    continuation = builder.end() if finished.eos is None else builder.end_by_eos(*finished.eos)
    continuation.score = finished.score
    if task.emit is not None:
        last = pieces.pop() if pieces else Piece(choice, "", None, None)
        for piece in (*pieces, last._replace(end=continuation)):
            yield from task.emit([piece])
    return continuation
