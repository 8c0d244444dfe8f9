"""Eight-bit codes for probabilities and back-offs: a file of less than two thirds of the size.

The codes' values are found by Lloyd's algorithm in one dimension: every code stands for the
mean of the values nearest to it. Source: Lloyd (1982), "Least squares quantization in PCM".
Minus infinity and 0, which mean more than a number, keep their exact value, and so does the
probability of `<unk>`, which every unknown word is charged.
"""

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.ngram.automaton import Automaton
from models.ngram.ranked import rank_arcs
from models.vocabulary import UNK

NUM_CODES = 256
MAX_QUANTISED_WORDS = 1 << 24
_HISTOGRAM_BINS = 1 << 16
_MAX_ITERATIONS = 100


def quantise_automaton(automaton: Automaton) -> Automaton:
    """The same automaton with codes of eight bits for its values and three bytes for a word.

    Raises:
        InvalidInputError: the vocabulary has more words than three bytes can tell apart.
    """
    if automaton.vocab_size > MAX_QUANTISED_WORDS:
        raise InvalidInputError(
            f"the vocabulary has {automaton.vocab_size} words, a quantised model can have {MAX_QUANTISED_WORDS}",
            parameter="ngram.quantize_bits",
        )
    prob_values, probs = encode_values(automaton.log10_probs, kept=automaton.log10_probs[[UNK]])
    backoff_values, backoffs = encode_values(automaton.log10_backoffs)
    ranked = rank_arcs(automaton.first_arcs, prob_values[probs])
    words = automaton.words.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3]
    made = automaton._replace(
        words=np.ascontiguousarray(words),
        log10_probs=probs,
        log10_backoffs=backoffs,
        prob_values=prob_values,
        backoff_values=backoff_values,
        ranked_arcs=ranked.arcs,
        ranked_masses=ranked.masses,
    )
    return made.frozen()


def dequantise_automaton(automaton: Automaton) -> Automaton:
    """The same automaton with values instead of codes; what was rounded stays so."""
    words = np.zeros((automaton.num_arcs, 4), np.uint8)
    words[:, :3] = automaton.words
    made = automaton._replace(
        words=words.view("<i4").reshape(-1),
        log10_probs=automaton.prob_values[automaton.log10_probs],
        log10_backoffs=automaton.backoff_values[automaton.log10_backoffs],
        prob_values=automaton.prob_values[:0],
        backoff_values=automaton.backoff_values[:0],
    )
    return made.frozen()


def encode_values(
    values: npt.NDArray[np.float32], *, kept: npt.NDArray[np.float32] | None = None
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """What 256 codes stand for, in rising order, and the code of each value [n].

    Args:
        values: to be coded.
        kept: a few of them that keep their exact value, as 0 and minus infinity do.
    """
    special = np.isinf(values) | (values == 0) | np.isin(values, [] if kept is None else kept)
    ordinary = values[~special]
    levels = np.unique(values[special])
    room = NUM_CODES - len(levels)
    if len(ordinary):
        levels = np.unique(np.concatenate([levels, _lloyd(ordinary, room)]))
    table = np.full(NUM_CODES, levels[-1], np.float32)
    table[: len(levels)] = levels
    finite = np.isfinite(levels)
    first = int(np.argmax(finite))
    bounds = (levels[first:-1].astype(np.float64) + levels[first + 1 :]) / 2
    codes = (first + np.searchsorted(bounds, values)).astype(np.uint8)
    codes[values == -np.inf] = 0
    return table, codes


def _lloyd(values: npt.NDArray[np.float32], room: int) -> npt.NDArray[np.float32]:
    """At most `room` levels for finite values [n], by Lloyd's algorithm on their histogram."""
    if len(values) <= _HISTOGRAM_BINS and len(distinct := np.unique(values)) <= room:
        return distinct
    counts, edges = np.histogram(values, bins=_HISTOGRAM_BINS)
    centres = (edges[:-1] + edges[1:]) / 2
    filled = counts > 0
    counts, centres = counts[filled].astype(np.float64), centres[filled]
    mass = np.concatenate([[0], np.cumsum(counts)])
    moment = np.concatenate([[0], np.cumsum(counts * centres)])
    spread = np.cumsum(np.cbrt(counts))  # levels as dense as the cube root of the values is best for many
    levels = centres[np.searchsorted(spread, (np.arange(room) + 0.5) / room * spread[-1])]
    for _ in range(_MAX_ITERATIONS):
        cuts = np.searchsorted(centres, (levels[:-1] + levels[1:]) / 2)
        begins, ends = np.concatenate([[0], cuts]), np.concatenate([cuts, [len(centres)]])
        inside = mass[ends] - mass[begins]
        means = np.divide(moment[ends] - moment[begins], inside, out=levels.copy(), where=inside > 0)
        if np.abs(means - levels).max() < 1e-7:
            break
        levels = means
    single: npt.NDArray[np.float32] = levels.astype(np.float32)
    return single
