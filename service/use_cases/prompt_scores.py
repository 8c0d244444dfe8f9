"""How probable the tokens of prompts are, and what else might have stood in their places.

A distribution has V numbers, so those of all places of a long prompt would fill the memory: states
are gathered until their distributions are a block of bounded size, and of that only the most
probable tokens are kept.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.decoding.ranking import top_tokens_of_rows
from models.protocol import LanguageModel, TopTokens
from models.scoring import pad_sequences
from service.engine.calls import consume, next_log_probs, score
from service.engine.job import Work
from service.engine.rows import StateView, concatenate_states
from service.use_cases.prefill import chunks_by_length

BLOCK_ENTRIES = 1 << 20
"""Numbers of the distributions computed at once (4 MiB)."""


class PromptTokens(NamedTuple):
    """What is read of a prompt.

    Attributes:
        ids: [T], at least one.
        after_bos: whether the model stands after `<s>` before them, else nothing stands before them at all.
    """

    ids: TokenIds
    after_bos: bool


class PromptScores(NamedTuple):
    """What a model says of a prompt's tokens.

    Attributes:
        log_probs: natural-log probability of each token given those before it [T]; the first one's means nothing.
        tops: the most probable tokens in the place of each [T, k], k possibly 0; likewise.
    """

    log_probs: FloatArray
    tops: TopTokens

    def at(self, place: int) -> TopTokens:
        """The most probable tokens in one place."""
        return TopTokens(self.tops.ids[place], self.tops.log_probs[place])


def score_prompt_tokens(
    model: LanguageModel[Any], prompts: Sequence[PromptTokens], *, top: int
) -> Work[Any, list[PromptScores]]:
    """Score every token of some prompts but the first of each; a use case.

    Args:
        model: any.
        prompts: equal ones are read once.
        top: how many of the most probable tokens to find in each place; without, sequences are scored whole.
    """
    places: dict[tuple[bytes, bool], int] = {}
    distinct: list[PromptTokens] = []
    rows = []
    for prompt in prompts:
        row = places.setdefault((prompt.ids.tobytes(), prompt.after_bos), len(distinct))
        if row == len(distinct):
            distinct.append(prompt)
        rows.append(row)
    answers: dict[int, PromptScores] = {}
    read = _score_with_top if top else _score_plain
    for chunk in chunks_by_length(np.array([len(prompt.ids) for prompt in distinct], dtype=np.int64)):
        some = yield from read(model, [distinct[row] for row in chunk], top)
        answers.update(zip(chunk.tolist(), some, strict=True))
    return [answers[row] for row in rows]


def _score_plain(
    model: LanguageModel[Any], prompts: Sequence[PromptTokens], _top: int
) -> Work[Any, list[PromptScores]]:
    tokens, lengths = pad_sequences([prompt.ids for prompt in prompts])
    log_probs = yield from score(model, _initial_states(model, prompts), tokens, lengths)
    none = np.zeros((tokens.shape[1], 0))
    return [
        PromptScores(
            row[:length], TopTokens(none[:length].astype(np.int64), none[:length].astype(np.float32))
        )
        for row, length in zip(log_probs, lengths.tolist(), strict=True)
    ]


def _score_with_top(
    model: LanguageModel[Any], prompts: Sequence[PromptTokens], top: int
) -> Work[Any, list[PromptScores]]:
    tokens, lengths = pad_sequences([prompt.ids for prompt in prompts])
    size = len(model.vocabulary)
    found = _PromptTopScores(tokens, min(top, size))
    waiting: list[tuple[Any, TokenIds]] = []
    room = most = max(BLOCK_ENTRIES // size, 1)
    rows = np.arange(len(prompts))
    state: Any = _initial_states(model, prompts)
    for place in range(1, tokens.shape[1]):
        alive = lengths[rows] > place
        if not alive.all():
            rows, state = rows[alive], state.select(np.flatnonzero(alive))
        state = yield from consume(
            model, state, tokens[rows, place - 1 : place], np.ones(len(rows), np.int64)
        )
        waiting.append((state, rows + place * len(prompts)))
        room -= len(rows)
        if room <= 0:
            yield from _score_waiting(model, waiting, found, most)
            room = most
    yield from _score_waiting(model, waiting, found, most)
    return found.answers(lengths)


def _score_waiting(
    model: LanguageModel[Any], waiting: list[tuple[Any, TokenIds]], found: "_PromptTopScores", most: int
) -> Work[Any, None]:
    """Find what was waited for, a block at a time."""
    if not waiting:
        return
    states = concatenate_states([state for state, _ in waiting])
    places = np.concatenate([where for _, where in waiting])
    waiting.clear()
    for first in range(0, len(places), most):
        block = np.arange(first, min(first + most, len(places)))
        log_probs = yield from next_log_probs(model, states.select(block))
        found.keep(places[block], log_probs)


class _PromptTopScores:
    """What is kept of the distributions in the places of tokens [B, T]."""

    def __init__(self, tokens: TokenIds, top: int) -> None:
        self._tokens = tokens
        self._log_probs = np.zeros(tokens.shape, dtype=np.float32)
        self._top_ids = np.zeros((*tokens.shape, top), dtype=np.int32)
        self._tops = np.zeros((*tokens.shape, top), dtype=np.float32)

    def keep(self, places: TokenIds, log_probs: FloatArray) -> None:
        """Keep what matters of distributions [N, V], each of the place of which this is the number [N]."""
        column, row = np.divmod(places, len(self._tokens))
        every = np.arange(len(places))
        self._log_probs[row, column] = log_probs[every, self._tokens[row, column]]
        best = top_tokens_of_rows(log_probs, self._tops.shape[2])
        self._top_ids[row, column] = best.ids
        self._tops[row, column] = best.log_probs

    def answers(self, lengths: TokenIds) -> list[PromptScores]:
        """Of each row."""
        return [
            PromptScores(
                self._log_probs[row, :length],
                TopTokens(self._top_ids[row, :length].astype(np.int64), self._tops[row, :length]),
            )
            for row, length in enumerate(lengths.tolist())
        ]


def _initial_states(model: LanguageModel[Any], prompts: Sequence[PromptTokens]) -> StateView:
    """The state before each prompt."""
    both = concatenate_states([model.initial_state(1), model.empty_state(1)])
    return both.select(np.array([0 if prompt.after_bos else 1 for prompt in prompts], dtype=np.int64))
