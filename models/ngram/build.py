"""From n-grams with their weights, order by order, to the automaton.

This is the seam between estimators or file formats on one side and serving on the other:
whoever can list n-grams in lexicographic order, with the place of each one's prefix and
suffix among the shorter n-grams, gets an automaton.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.ngram.automaton import Automaton

MAX_NGRAMS = 2**32 - 1


class NGrams(NamedTuple):
    """The n-grams of one order, in lexicographic order of their word ids.

    Unigrams are dense: one for each id of the vocabulary. Prefixes and suffixes of unigrams
    are all 0, the empty context.

    Attributes:
        words: the last word [n], int32.
        prefixes: the place, among the n-grams one shorter, of all but the last word [n], int32.
        suffixes: likewise of all but the first word [n], int32.
    """

    words: npt.NDArray[np.int32]
    prefixes: npt.NDArray[np.int32]
    suffixes: npt.NDArray[np.int32]


class Weights(NamedTuple):
    """What a back-off model knows of the n-grams of one order.

    Attributes:
        log10_probs: of the last word after the others [n], float32.
        log10_backoffs: of the n-gram as a context [n], float32; not read for the highest order.
    """

    log10_probs: npt.NDArray[np.float32]
    log10_backoffs: npt.NDArray[np.float32]


def build_automaton(orders: Sequence[tuple[NGrams, Weights]]) -> Automaton:
    """Turn n-grams into states and arcs.

    An n-gram below the highest order is a state if a longer n-gram continues it or if its
    back-off weight is not 1; any other says nothing that its suffix does not say as well.
    Arcs come out sorted because n-grams are.

    Args:
        orders: n-grams and weights of the orders 1, 2, ….

    Raises:
        InvalidInputError: there are more n-grams than the file format can number.
    """
    num_ngrams = sum(len(ngrams.words) for ngrams, _ in orders)
    if num_ngrams > MAX_NGRAMS:
        raise InvalidInputError(
            f"the model would have {num_ngrams} n-grams, at most {MAX_NGRAMS} are possible: lower the order",
            parameter="ngram.order",
        )
    length_starts = [0, 1]
    suffixes = [np.zeros(1, np.int32)]
    backoffs = [np.zeros(1, np.float32)]
    fan_outs = [np.array([len(orders[0][0].words)])]
    targets = []
    reached = np.zeros(1, np.int32)  # [n of the order before]: the state after each of its n-grams
    for (ngrams, weights), longer in zip(orders, [*(ngrams for ngrams, _ in orders[1:]), None], strict=True):
        reached = reached[ngrams.suffixes]
        if longer is not None:
            fan_out = np.bincount(longer.prefixes, minlength=len(ngrams.words))
            is_state = (fan_out > 0) | (weights.log10_backoffs != 0)
            suffixes.append(reached[is_state])
            backoffs.append(weights.log10_backoffs[is_state])
            fan_outs.append(fan_out[is_state])
            end = length_starts[-1] + len(suffixes[-1])
            reached[is_state] = np.arange(length_starts[-1], end, dtype=np.int32)
            length_starts.append(end)
        targets.append(reached)
    first_arcs = np.zeros(length_starts[-1] + 1, dtype=np.uint32)
    first_arcs[1:] = np.cumsum(np.concatenate(fan_outs))
    automaton = Automaton(
        length_starts=np.array(length_starts, dtype=np.int64),
        first_arcs=first_arcs,
        log10_backoffs=np.concatenate(backoffs),
        suffixes=np.concatenate(suffixes),
        words=np.concatenate([ngrams.words for ngrams, _ in orders]),
        log10_probs=np.concatenate([weights.log10_probs for _, weights in orders]),
        targets=np.concatenate(targets),
    )
    for array in automaton:
        array.flags.writeable = False
    return automaton
