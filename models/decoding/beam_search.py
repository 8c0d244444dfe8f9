"""Beam search over one prompt, with a compiled search for the best one-token extensions.

`BeamSearch` holds no model states: a step takes the log-probabilities of the rows of its live
beams, and `live` lists the rows and tokens to continue with.

Source: diverse groups, Vijayakumar et al. 2016. The diversity penalty affects the choice of beams, not
their totals.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numba import types

from models.arrays import FloatArray
from models.decoding.choices import GeneratedToken
from models.decoding.parameters import DecodingParameters
from models.decoding.rules import KernelRows, StopBytes, Tail, buffers_for
from models.decoding.sampling import BUFFERS_TYPE, LOG_PROBS_TYPE, ROWS_TYPE, adjust_scores, insert_sorted
from models.kernels.compilation import kernel
from models.kernels.math import copy_values
from models.language_model import EOS, TopTokens

_INTS, _DOUBLES = types.int64[::1], types.float64[::1]

_EMPTY_TAIL = Tail()


@kernel(
    types.void(LOG_PROBS_TYPE, ROWS_TYPE, _INTS, _DOUBLES, _INTS, _DOUBLES, BUFFERS_TYPE, _INTS, _DOUBLES)
)
def _rank_extensions(
    log_probs: Any,
    rows: Any,
    members: Any,
    totals: Any,
    shunned: Any,
    by: Any,
    buffers: Any,
    indices: Any,
    ranks: Any,
) -> None:
    scores, width, last = buffers.scores, log_probs.shape[1], len(ranks) - 1
    least = ranks[last]
    for beam in range(len(members)):
        row, total = members[beam], totals[beam]
        copy_values(log_probs[row], scores)
        adjust_scores(scores, row, rows, buffers.counts)
        for index in range(len(shunned)):
            scores[shunned[index]] -= by[index]
        for token in range(width):
            rank = total + scores[token]
            if rank > least:
                insert_sorted(ranks, indices, rank, beam * width + token)
                least = ranks[last]


class HypothesisNode(NamedTuple):
    """Token of a hypothesis, linked to the tokens before it.

    Attributes:
        logprob: the model's own log-probability of the token.
        top: the most probable tokens, if requested.
    """

    previous: "HypothesisNode | None"
    token: int
    logprob: float
    top: TopTokens | None


@dataclass(slots=True)
class Beam:
    """Unfinished hypothesis.

    Attributes:
        row: its row in the batch.
        total: sum of its tokens' scores.
        end: its last token; None before the first.
        tail: the end of its text, which may be the beginning of a stop string.
    """

    row: int
    total: float = 0.0
    end: HypothesisNode | None = None
    tail: Tail = _EMPTY_TAIL


class FinishedBeam(NamedTuple):
    """Finished hypothesis.

    Attributes:
        score: its total over length ** length_penalty.
        end: its last token without `</s>`; None if it has none.
        eos: the `</s>` that ended it; None if it ended otherwise.
    """

    score: float
    end: HypothesisNode | None
    eos: GeneratedToken | None

    def nodes(self) -> list[HypothesisNode]:
        """Return the tokens of the hypothesis in order, without `</s>`."""
        links, link = [], self.end
        while link is not None:
            links.append(link)
            link = link.previous
        return links[::-1]


@dataclass(slots=True)
class _Group:
    """Beams that compete with each other, and the best finished ones."""

    live: list[Beam]
    finished: list[FinishedBeam] = field(default_factory=list)


class BeamSearch:
    """Search for continuations of one prompt.

    Args:
        parameters: parameters of the request.
        row: row of the prompt in the batch.
        stops: search for stop strings; None without any.
    """

    def __init__(self, parameters: DecodingParameters, row: int, stops: StopBytes | None = None) -> None:
        self._parameters = parameters
        self._stops = stops
        self._size = parameters.beams // parameters.num_beam_groups
        self._groups = [_Group([Beam(row)]) for _ in range(parameters.num_beam_groups)]
        self._steps = 0

    @property
    def live(self) -> list[Beam]:
        """Unfinished beams; empty at the end of the search."""
        return [beam for group in self._groups for beam in group.live]

    def step(self, log_probs: FloatArray, rows: KernelRows, tops: TopTokens | None) -> None:
        """Extend all beams by a token.

        Args:
            log_probs: the model's log-probabilities of all rows of the batch [R, V].
            rows: rules of the rows.
            tops: the most probable tokens of each row [R, k], if requested.
        """
        self._steps += 1
        taken: Counter[int] = Counter()
        for group in self._groups:
            if not group.live:
                continue
            shunned = {token: self._parameters.diversity_penalty * times for token, times in taken.items()}
            taken.update(self._extend(group, log_probs, rows, tops, shunned if any(shunned.values()) else {}))
            if self._is_done(group):
                group.live = []

    def best(self) -> list[FinishedBeam]:
        """Return up to `n` distinct finished hypotheses, best first."""
        every = sorted((f for group in self._groups for f in group.finished), key=lambda one: -one.score)
        seen: dict[tuple[int, ...], FinishedBeam] = {}
        for finished in every:
            seen.setdefault(tuple(link.token for link in finished.nodes()), finished)
        return list(seen.values())[: self._parameters.n]

    def _extend(
        self,
        group: _Group,
        log_probs: FloatArray,
        rows: KernelRows,
        tops: TopTokens | None,
        shunned: dict[int, float],
    ) -> list[int]:
        """Replace a group's beams by the best extensions; return tokens, with `</s>`.

        The best come first; equal ones by beam, then by id. `shunned` affects the ranking, not totals.
        Finished extensions count only among the best. Twice as many extensions as beams are computed,
        because every beam may end.
        """
        before, group.live, width = group.live, [], log_probs.shape[1]
        indices, ranks = np.empty(2 * self._size, np.int64), np.full(2 * self._size, -np.inf)
        members = np.array([beam.row for beam in before], np.int64)
        totals = np.array([beam.total for beam in before])
        penalties = np.array([*shunned], np.int64), np.array([*shunned.values()], np.float64)
        found = buffers_for(width), indices, ranks
        _rank_extensions(np.ascontiguousarray(log_probs), rows, members, totals, *penalties, *found)
        taken = []
        full = self._steps == self._parameters.max_tokens
        possible = indices[ranks > -np.inf].tolist()
        for rank, index in enumerate(possible):
            beam, token = before[index // width], index % width
            total = float(ranks[rank]) + shunned.get(token, 0.0)
            top = None if tops is None else TopTokens(tops.ids[beam.row], tops.log_probs[beam.row])
            link = HypothesisNode(beam.end, token, float(log_probs[beam.row, token]), top)
            if token == EOS:
                if rank < self._size:
                    self._finish(group, total, beam.end, eos=link[1:])
                    taken.append(token)
                continue
            tail = self._stops.advance(beam.tail, token) if self._stops else beam.tail
            if tail.stopped or full:
                if rank < self._size or full:
                    self._finish(group, total, link)
                    taken.append(token)
            elif len(group.live) < self._size:
                group.live.append(Beam(beam.row, total, link, tail))
                taken.append(token)
        if not possible:  # no token is possible
            for beam in before:
                self._finish(group, beam.total, beam.end)
        return taken

    def _finish(
        self, group: _Group, total: float, end: HypothesisNode | None, *, eos: GeneratedToken | None = None
    ) -> None:
        score = total / self._steps**self._parameters.length_penalty
        group.finished.append(FinishedBeam(score, end, eos))
        group.finished.sort(key=lambda one: -one.score)
        del group.finished[self._size :]

    def _is_done(self, group: _Group) -> bool:
        """True if no beam of a group can surpass finished ones, or early stopping applies."""
        given = self._parameters
        if len(group.finished) < self._size:
            return False
        if given.early_stopping or given.beams == 1:
            return True
        if not given.never_raises_scores:
            return False
        best = max((beam.total for beam in group.live), default=0.0)
        # totals never increase, so the bound uses the length that divides by the most
        length = given.max_tokens if given.length_penalty > 0 else self._steps + 1
        return bool(best / length**given.length_penalty <= group.finished[-1].score)
