"""Sampling, token healing and beam search over prompts.

Imported at first use: its compiled kernels would delay the service's start.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from operator import itemgetter
from typing import Any

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.calls import Predict, Read, Step, Work, join_states, materialize
from models.completion.token_trie import SortedTokens
from models.decoding.batch import SequenceBatch, row_seed, uniform_numbers
from models.decoding.beam_search import BeamSearch
from models.decoding.choices import Continuation, DecodeTask, Piece, Prompt, prefill_prompts
from models.decoding.decode import Decode, DecodeState, Generated
from models.decoding.rules import StopBytes, compile_rules
from models.decoding.sampling import choose_tokens
from models.decoding.top_k import top_of_rows
from models.language_model import EOS, LOG_ZERO, STATE, TopTokens
from models.scoring.constants import MAX_CHOICE_ENTRIES, MAX_SEARCH_STEPS
from models.text_model import TextModel

_NEGLIGIBLE = math.log(1e-6)
"""Share of the mass found below which a tokenisation is omitted, in natural logarithms."""


def sample_prompts(task: DecodeTask, prompts: Sequence[Prompt]) -> Work[Any, list[Continuation]]:
    """Sample `num_samples` continuations of each prompt.

    Returns:
        All continuations, in the prompts' order.
    """
    count = task.parameters.num_samples
    rows = [Continuation(task, prompt, prompt.number * count + n) for prompt in prompts for n in range(count)]
    for part in task.parts(rows, 1):
        yield from _sample_rows(task, part)
    return rows


def _sample_rows(task: DecodeTask, rows: Sequence[Continuation]) -> Work[Any, None]:
    """Sample R rows together; drop finished rows."""
    model, max_tokens = task.loaded.model, task.parameters.max_tokens
    state = yield from prefill_prompts(task.loaded, [one.prompt for one in rows])
    prompts = {one.prompt.number: one.prompt for one in rows}
    rules = {n: compile_rules(task.parameters, one.ids, task.biases) for n, one in prompts.items()}
    count = task.parameters.num_samples
    seed = task.parameters.seed or 0
    seeds = [row_seed(seed, one.prompt.number, one.choice % count) for one in rows]
    batch = SequenceBatch.of([rules[one.prompt.number] for one in rows], seeds)  # a prompt's rows share
    decoding: Any = DecodeState(state, batch)
    heals = any(one.prompt.taken for one in rows)
    if heals:
        rows, decoding = yield from _heal(task, rows, decoding)
        if not rows:
            return
    # streams, stop strings and healed prompts need text after every token; else one block
    block = 1 if task.emit or task.parameters.stop or heals else max_tokens
    for begin in range(0, max_tokens, block):
        last = begin + block == max_tokens
        made = yield from Decode(model, decoding, block, task.top, last)
        yield from _extend(task, rows, made)
        unended = [one for one, tokens in zip(rows, made.tokens, strict=True) if tokens[-1] != EOS]
        live = [row for row, one in enumerate(unended) if not one.full]
        if made.unfinished is None or not live:
            break
        rows = [unended[row] for row in live]
        decoding = made.unfinished.select(np.array(live))


def _extend(task: DecodeTask, rows: Sequence[Continuation], generated: Generated) -> Iterator[Any]:
    """Add tokens to each row's continuation; yield their events if streaming."""
    pieces = []
    for row, (one, tokens, logprobs) in enumerate(
        zip(rows, generated.tokens, generated.log_probs, strict=True)
    ):
        tops = generated.tops[row] if generated.tops else []
        count = len(tokens) - (tokens[-1] == EOS)
        text = one.push(tokens[:count], logprobs[:count], tops[:count])
        ended = None
        if count < len(tokens):
            ended = one.end((EOS, logprobs[-1], tops[-1] if tops else None))
        elif one.full:
            ended = one.end()
        token = (tokens[0], logprobs[0], tops[0] if tops else None) if count else None
        pieces.append(Piece(one.choice, text, token, ended))
    if task.emit is not None:
        yield from task.emit(pieces)


@dataclass(slots=True, eq=False)
class _Spelling:
    """Tokens that spell a part of the text taken back.

    Attributes:
        state: model state after them, one row.
        log_probs: the model's next-token log-probabilities [V].
        rest: bytes still to spell.
        mass: log-probability of the tokens.
        longer: unfinished spellings with one more token, by this token.
        total: log-probability that the rest of the text follows.
    """

    state: Any
    log_probs: FloatArray
    rest: bytes
    mass: float
    longer: dict[int, "_Spelling"] = field(default_factory=dict)
    total: float = -math.inf

    def scores(self, tokens: SortedTokens) -> FloatArray:
        """Return next-token log-probabilities given the text, up to a constant [V]."""
        ids, possible = self.possible(tokens)
        scores = np.full(len(self.log_probs), -np.inf, np.float32)
        scores[ids] = possible
        return scores

    def possible(self, tokens: SortedTokens) -> tuple[TokenIds, FloatArray]:
        """Return the possible next tokens and their `scores`, each [n]."""
        ids = np.concatenate([tokens.with_prefix(self.rest), np.array(list(self.longer), np.int64)])
        totals = [longer.total for longer in self.longer.values()]
        masses = np.zeros(len(ids), np.float32)
        masses[len(ids) - len(totals) :] = totals
        return ids, self.log_probs[ids] + masses


def spell(loaded: TextModel, state: Any, taken: bytes) -> Work[Any, _Spelling]:
    """Find tokenisations of a text and what follows, up to the token that completes it.

    A token's score is the sum over all tokenisations that begin with it. Omitted are those of less
    than a millionth of the mass found, and the least probable that spell as many bytes, to read at most
    `MAX_SEARCH_STEPS` rows or `MAX_CHOICE_ENTRIES` log-probabilities, but at least one row per byte.

    Args:
        loaded: model.
        state: state before the text, one row.
        taken: text, at least one byte.
    """
    tokens, model = loaded.token_trie.exact, loaded.model
    most = min(MAX_SEARCH_STEPS, MAX_CHOICE_ENTRIES // loaded.vocab_size)
    log_probs = yield from Predict(model, state)
    root = _Spelling(state, np.array(log_probs[0]), taken, 0.0)
    found, level, every = -math.inf, [root], [root]
    # spellings and next tokens, by the number of bytes to spell after these
    begun: list[list[tuple[float, _Spelling, int]]] = [[] for _ in taken]
    for num_left in range(len(taken) - 1, 0, -1):
        for node in level:
            complete = node.mass + node.log_probs[tokens.with_prefix(node.rest)]
            found = float(np.logaddexp.reduce(complete, initial=found))
            for token in tokens.proper_prefixes_of(node.rest).tolist():
                left = len(node.rest) - len(loaded.tokenizer.token_bytes[token])
                begun[left].append((node.mass + float(node.log_probs[token]), node, token))
        worth = [one for one in begun[num_left] if one[0] > found + _NEGLIGIBLE]
        worth = nlargest(max(1, (most - len(every)) // num_left), worth, key=itemgetter(0))
        level = []
        if worth:
            before = join_states([node.state for _, node, _ in worth])
            read = np.array([token for _, _, token in worth])
            after, log_probs = yield from Step(model, before, read)
            for row, (mass, node, token) in enumerate(worth):
                rest = taken[-num_left:]
                longer = _Spelling(after.select(np.array([row])), np.array(log_probs[row]), rest, mass)
                node.longer[token] = longer
                level.append(longer)
        every += level
    for node in reversed(every):
        node.total = float(np.logaddexp.reduce(node.possible(tokens)[1], dtype=np.float64, initial=-np.inf))
    return root


def _heal(
    task: DecodeTask, rows: Sequence[Continuation], decoding: DecodeState
) -> Work[Any, tuple[list[Continuation], DecodeState]]:
    """Choose first tokens of R rows, to spell the text taken back; return unfinished rows."""
    spelled, root = None, None  # rows of one prompt follow each other
    unfinished, batches, states, last = [], [], [], []
    for row, one in enumerate(rows):
        alone = decoding.select(np.array([row]))
        batch, state = alone.batch, alone.state
        if one.prompt is not spelled:
            spelled, root = one.prompt, None
            if one.prompt.taken:
                root = yield from spell(task.loaded, state, one.prompt.taken)
        if root is not None:
            yield None
        token, node = -1, root
        while node is not None and token != EOS and not one.full:
            draws = uniform_numbers(batch.seeds, batch.lengths)
            scores = node.scores(task.loaded.token_trie.exact) - np.float32(max(node.total, LOG_ZERO))
            token = int(choose_tokens(scores[None], batch.rows(), draws).tokens[0])
            own, state = node.log_probs[token], node.state
            batch = batch.append(np.array([token]), np.array([own]))
            tops = []
            if task.top:
                top = top_of_rows(node.log_probs[None], task.top)
                tops = [[TopTokens(top.ids[0], top.log_probs[0])]]
            yield from _extend(task, [one], Generated([[token]], [[float(own)]], tops, None))
            node = node.longer.get(token)
        if token != EOS and not one.full:
            unfinished.append(one)
            batches.append(batch)
            states.append(state)
            last.append(token)
    if not unfinished:
        return [], decoding
    read = np.array(last)[:, None]
    result = yield from Read(
        task.loaded.model,
        join_states(states),
        np.maximum(read, EOS),
        (read[:, 0] >= 0).astype(np.int64),
        STATE,
    )
    return unfinished, DecodeState(materialize(result.state), batches[0].concatenate(batches[1:]))


def beam_search(task: DecodeTask, prompts: Sequence[Prompt]) -> Work[Any, list[Continuation]]:
    """Search for the best continuations of each prompt.

    Returns:
        At most `n` continuations per prompt, best first, in the prompts' order.
    """
    done = []
    for part in task.parts(prompts, task.parameters.beams):
        searches = yield from _run_beams(task, part)
        for prompt, search in zip(part, searches, strict=True):
            for rank, finished in enumerate(search.best()):
                built = Continuation(task, prompt, prompt.number * task.parameters.n + rank)
                pieces = []
                for _, token, logprob, top in finished.nodes():
                    text = built.push([token], [logprob], [] if top is None else [top])
                    pieces.append(Piece(built.choice, text, (token, logprob, top), None))
                built.end(finished.eos)
                built.score = finished.score
                if task.emit is not None:
                    last = pieces.pop() if pieces else Piece(built.choice, "", None, None)
                    for piece in (*pieces, last._replace(end=built)):
                        yield from task.emit([piece])
                done.append(built)
    return done


def _run_beams(task: DecodeTask, prompts: Sequence[Prompt]) -> Work[Any, list[BeamSearch]]:
    """Step the beams of all prompts together until all searches end."""
    parameters, model = task.parameters, task.loaded.model
    state = yield from prefill_prompts(task.loaded, prompts)
    log_probs = yield from Predict(model, state)
    batch = SequenceBatch.of([compile_rules(parameters, one.ids, task.biases) for one in prompts])
    tokenizer = task.loaded.tokenizer
    searches = []
    for row, prompt in enumerate(prompts):
        stops = None
        if parameters.stop:
            strip_space = tokenizer.leading_space and not prompt.continues
            stops = StopBytes(task.stops, tokenizer.token_bytes, strip_space=strip_space)
        searches.append(BeamSearch(parameters, row, stops))
    while True:
        tops = top_of_rows(log_probs, task.top) if task.top else None
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
        batch = batch.select(before).append(tokens, np.array([link.logprob for link in links], np.float32))
        if parameters.phrases:
            for beam, change in zip(live, batch.taken_back(), strict=True):
                beam.total += change
        state, log_probs = yield from Step(model, state.select(before), tokens)
