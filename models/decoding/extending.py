"""The best one-token extensions of several beams, compiled."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from models.arrays import FloatArray, TokenIds
from models.decoding.adjusting import adjust_scores
from models.decoding.choosing import BUFFERS_TYPE, LOG_PROBS_TYPE, ROWS_TYPE
from models.decoding.rows import KernelRows, buffers_for
from models.decoding.top import insert_sorted


class BeamExtensions(NamedTuple):
    """Beams with one more token, the best first; of equal ones the earlier beam, then the smaller id.

    Attributes:
        beams: which beam of those given [k].
        tokens: its new token [k].
        totals: its score with that [k].
    """

    beams: TokenIds
    tokens: TokenIds
    totals: npt.NDArray[np.float64]


def best_extensions(
    log_probs: FloatArray,
    rows: KernelRows,
    *,
    members: Sequence[int],
    totals: Sequence[float],
    count: int,
    penalties: Mapping[int, float],
) -> BeamExtensions:
    """The best extensions of M beams by any token.

    Args:
        log_probs: a model's own [R, V]; they are not changed.
        rows: the rules of all R rows.
        members: each beam's row [M].
        totals: each beam's score so far [M].
        count: how many extensions, if so many are possible.
        penalties: what to subtract from the score of a token while ranking; the totals given have it not.
    """
    places = np.empty(count, np.int64)
    ranks = np.full(count, -np.inf)
    width = log_probs.shape[1]
    _rank_extensions(
        np.ascontiguousarray(log_probs),
        rows,
        np.array(members, np.int64),
        np.array(totals),
        np.fromiter(penalties.keys(), np.int64, len(penalties)),
        np.fromiter(penalties.values(), np.float64, len(penalties)),
        buffers_for(width),
        places,
        ranks,
    )
    possible = ranks > -np.inf
    beams, tokens = np.divmod(places[possible], width)
    back = np.array([penalties.get(token, 0.0) for token in tokens.tolist()]) if penalties else 0.0
    return BeamExtensions(beams, tokens, ranks[possible] + back)


@numba.njit(
    types.void(
        LOG_PROBS_TYPE,
        ROWS_TYPE,
        types.int64[::1],
        types.float64[::1],
        types.int64[::1],
        types.float64[::1],
        BUFFERS_TYPE,
        types.int64[::1],
        types.float64[::1],
    ),
    nogil=True,
    cache=True,
)
def _rank_extensions(
    log_probs: Any,
    rows: Any,
    members: Any,
    totals: Any,
    shunned: Any,
    by: Any,
    room: Any,
    places: Any,
    ranks: Any,
) -> None:
    scores, width, last = room.scores, log_probs.shape[1], len(ranks) - 1
    least = ranks[last]
    for beam in range(len(members)):
        row, total = members[beam], totals[beam]
        scores[:width] = log_probs[row]
        adjust_scores(scores, row, rows, room.counts)
        for place in range(len(shunned)):
            scores[shunned[place]] -= by[place]
        for token in range(width):
            rank = total + scores[token]
            if rank > least:
                insert_sorted(ranks, places, rank, beam * width + token)
                least = ranks[last]
