"""BLEU and chrF on n-grams counted by compiled code.

BLEU is the geometric mean of word n-gram precisions with a brevity penalty (Papineni et al. 2002),
on the tokenisation of NIST's mteval-v13a.pl. chrF is the F-score of character n-grams without white
space (Popović 2015). Both agree with sacrebleu.

N-grams get exact numbers: an n-gram is identified by the number of its first n − 1 units and
its last unit, in one hash table per order. Numbers are unique over all orders; one array by
number holds all counts. The kernels release the interpreter lock. The module is imported on
demand.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import types
from typing_extensions import override

from models.arrays import Float64s, Int32s, Int64s
from models.calls import Steps, map_in_steps, run_to_completion
from models.kernels.compilation import kernel
from models.reranking.metrics.metric import Metric, Statistics

_NGRAMS_PER_STEP = 1 << 14
"""N-grams counted per step, about a millisecond; a longer text takes one step."""

_FREE = np.int64(-1)
_HASH_MIX = np.uint64(0x9E3779B97F4A7C15)

# arguments of kernels
_UNITS = types.Array(types.int32, 1, "C", readonly=True)
_PLACES = types.Array(types.int64, 1, "C", readonly=True)
_PLACES_BY_ORDER = types.Array(types.int64, 2, "C", readonly=True)
_INTS, _LONGS = types.int32[::1], types.int64[::1]
_STARTS, _SHARED = types.int64[:, ::1], types.int64[:, :, ::1]

_ENTITIES_13A = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))
_RULES_13A = (
    # ASCII punctuation except apostrophe, comma, full stop and hyphen
    (re.compile(r"([!-&(-+/:-@\[-`{-~])"), r" \1 "),
    (re.compile(r"([^0-9])([.,])"), r"\1 \2 "),  # a full stop or comma after a non-digit
    (re.compile(r"([.,])([^0-9])"), r" \1 \2"),  # or before a non-digit
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),  # a hyphen after a digit
)
"""Applied in this order, which matters for consecutive characters, as in an ellipsis."""

_SACREBLEU_VERSION = "2.6.0"  # a test compares signatures and scores with it
_SETTINGS = {"bleu": "eff:no|tok:13a|smooth:exp", "chrf": "eff:yes|nc:6|nw:0|space:no"}

BLEU_ORDER = 4

CHRF_ORDER = 6
CHRF_BETA = 2
"""Weight of recall relative to precision."""


class NgramCounts(NamedTuple):
    """N-grams of T texts, of orders 1 to N.

    Attributes:
        grams: distinct n-gram numbers, by order, then by text [E].
        counts: count of each in its text [E].
        starts: first entry of each order and text, and the end of the order [N, T + 1].
        num_grams: upper bound of the numbers.
        lengths: units of each text [T].
    """

    grams: Int32s
    counts: Int32s
    starts: Int64s
    num_grams: int
    lengths: Int64s

    def totals(self, texts: Int64s) -> Int64s:
        """Count the n-grams of texts, by index, by order [..., N]."""
        totals: Int64s = np.maximum(self.lengths[texts][..., None] - np.arange(len(self.starts)), 0)
        return totals

    def matches(self, texts: Int64s, references: Int64s, groups: Int64s) -> Int64s:
        """Count n-grams shared by texts and groups of references, clipped to the group's.

        Args:
            texts: indices of texts [C].
            references: indices of texts, group by group [M].
            groups: start of each group in `references`, and the end [G + 1].

        Returns:
            Σ min(count in the text, largest count in the group) by order [C, G, N].
        """
        shared = np.empty((len(texts), len(groups) - 1, len(self.starts)), np.int64)
        _match_ngrams(self.grams, self.counts, self.starts, self.num_grams, texts, references, groups, shared)
        return shared


def count_ngrams_in_steps(units: Int32s, lengths: Int64s, order: int) -> Steps[NgramCounts]:
    """Count the n-grams of texts, of orders 1 to `order`, in bounded steps.

    Args:
        units: joined units of the texts, ≥ 0 [Σ lengths].
        lengths: units of each text [T].
        order: highest order N.
    """
    ends = np.concatenate(([0], np.cumsum(lengths)))
    grams, counts = np.empty((2, len(units) * order), np.int32)
    starts = np.empty((order, len(lengths) + 1), np.int64)
    num_units = int(units.max(initial=0)) + 1
    slots = 1 << (2 * len(units)).bit_length()
    table = np.empty(slots, np.int64), np.empty(slots, np.int32)
    # (n - 1)-gram that starts at each position
    beginning_at = np.zeros(len(units), np.int32)
    # counts in the current text, by number
    held = np.zeros(len(units) * order + 1, np.int32)
    # next order and text, and the numbers of n-grams and entries so far; n-gram 0 is empty
    at = np.array([0, 0, 1, 0])
    while _count_ngrams(units, num_units, ends, *table, beginning_at, held, at, grams, counts, starts):
        yield
    num_grams, entries = at[2:].tolist()
    return NgramCounts(grams[:entries], counts[:entries], starts, num_grams, lengths)


@kernel(types.boolean(_UNITS, types.int64, _PLACES, _LONGS, *[_INTS] * 3, _LONGS, *[_INTS] * 2, _STARTS))
def _count_ngrams(
    units: Int32s,
    num_units: int,
    ends: Int64s,
    keys: Int64s,
    number_of: Int32s,
    beginning_at: Int32s,
    held: Int32s,
    at: Int64s,
    grams: Int32s,
    counts: Int32s,
    starts: Int64s,
) -> bool:
    """Fill the arrays of `NgramCounts` for texts that end at `ends`, one step.

    Returns True until all are filled. `keys` and `number_of` are the current order's hash table
    [a power of two, above twice the units].
    """
    num_texts = len(ends) - 1
    shift, wrap = np.uint64(64), np.int64(len(keys) - 1)
    while np.int64(1) << np.int64(np.uint64(64) - shift) < len(keys):
        shift -= np.uint64(1)
    n, text, known, entries = at[0], at[1], at[2], at[3]
    read = 0
    while n < len(starts) and read < _NGRAMS_PER_STEP:
        if text == 0:
            keys[:] = _FREE
        if text == num_texts:
            starts[n, text] = entries
            n, text = n + 1, 0
            continue
        starts[n, text] = entries
        read += ends[text + 1] - ends[text] + 1
        for position in range(ends[text], ends[text + 1] - n):
            key = np.int64(beginning_at[position]) * num_units + np.int64(units[position + n])
            slot = np.int64((np.uint64(key) * _HASH_MIX) >> shift)
            while keys[slot] not in (_FREE, key):
                slot = (slot + 1) & wrap
            if keys[slot] == _FREE:
                keys[slot], number_of[slot] = key, known
                known += 1
            gram = number_of[slot]
            beginning_at[position] = gram
            if held[gram] == 0:
                grams[entries] = gram
                entries += 1
            held[gram] += 1
        for entry in range(starts[n, text], entries):
            counts[entry] = held[grams[entry]]
            held[grams[entry]] = 0
        text += 1
    at[0], at[1], at[2], at[3] = n, text, known, entries
    return bool(n < len(starts))


@kernel(types.void(_UNITS, _UNITS, _PLACES_BY_ORDER, types.int64, *[_PLACES] * 3, _SHARED))
def _match_ngrams(
    grams: Int32s,
    counts: Int32s,
    starts: Int64s,
    num_grams: int,
    texts: Int64s,
    references: Int64s,
    groups: Int64s,
    shared: Int64s,
) -> None:
    """Compute the result of `NgramCounts.matches`."""
    # the group's counts of the current order, by number
    held = np.zeros(num_grams, np.int32)
    for n in range(len(starts)):
        for group in range(len(groups) - 1):
            members = references[groups[group] : groups[group + 1]]
            for member in members:
                for entry in range(starts[n, member], starts[n, member + 1]):
                    held[grams[entry]] = max(held[grams[entry]], counts[entry])
            for row in range(len(texts)):
                total = 0
                for entry in range(starts[n, texts[row]], starts[n, texts[row] + 1]):
                    total += min(counts[entry], held[grams[entry]])
                shared[row, group, n] = total
            for member in members:
                for entry in range(starts[n, member], starts[n, member + 1]):
                    held[grams[entry]] = 0


def tokenize_13a(text: str) -> list[str]:
    """Split a text into words and punctuation."""
    text = text.rstrip().replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    if "&" in text:
        for entity, character in _ENTITIES_13A:
            text = text.replace(entity, character)
    text = f" {text} "
    for pattern, spaced in _RULES_13A:
        text = pattern.sub(spaced, text)
    return text.split()


class _NgramMetric(Metric):
    """N-gram metric that agrees with sacrebleu's of the same name."""

    __slots__ = ()

    @property
    @override
    def _settings(self) -> str:
        return f"case:mixed|{_SETTINGS[self.name]}|version:{_SACREBLEU_VERSION}"


class Bleu(_NgramMetric):
    """BLEU with sacrebleu's defaults.

    Statistics are both lengths, then shared and all n-grams by order [C, 10]. A text is compared with
    all references together. The score is 0 for texts too short for an n-gram of every order.
    """

    __slots__ = ()

    @override
    def count(self, texts: Sequence[str], references: Sequence[str]) -> Statistics:
        counts = run_to_completion(count_word_ngrams([*texts, *references]))
        all_texts = np.arange(len(texts) + len(references))
        one_group = np.array([0, len(references)])
        return bleu_statistics(counts, all_texts[: len(texts)], all_texts[len(texts) :], one_group)[:, 0]

    @override
    def score(self, totals: Statistics) -> Float64s:
        scores, orders = effective_bleu(totals)
        return np.where(orders == BLEU_ORDER, scores, 0.0)


def effective_bleu(totals: Statistics) -> tuple[Float64s, Int64s]:
    """Compute BLEU over the texts' orders, as sacrebleu's `sentence_bleu`, and their number.

    An order without a shared n-gram counts as 1/2, 1/4, … n-gram (mteval-v13a.pl's smoothing; Chen & Cherry
    2014, method 3); without any shared word the score is 0.

    Args:
        totals: statistics [..., 10].

    Returns:
        Percent [...], and numbers of orders [...].
    """
    length, wanted = totals[..., 0], totals[..., 1]
    shared, all_ngrams = totals[..., 2 : 2 + BLEU_ORDER], totals[..., 2 + BLEU_ORDER :]
    present = np.logical_and.accumulate(all_ngrams > 0, axis=-1)
    halvings = np.cumsum(present & (shared == 0), axis=-1)
    precisions = np.where(shared > 0, shared, 0.5**halvings) / np.maximum(all_ngrams, 1)
    orders = present.sum(axis=-1)
    mean_log = np.where(present, np.log(precisions), 0.0).sum(axis=-1) / np.maximum(orders, 1)
    brevity = np.minimum(0.0, 1 - wanted / np.maximum(length, 1))
    return np.where(shared.any(axis=-1), 100 * np.exp(brevity + mean_log), 0.0), orders


def count_word_ngrams(texts: Sequence[str]) -> Steps[NgramCounts]:
    """Count the word n-grams of texts up to BLEU's highest order, in bounded steps."""
    tokens = yield from map_in_steps(texts, tokenize_13a, size=len)
    number_of: dict[str, int] = {}
    numbers = [number_of.setdefault(word, len(number_of)) for text in tokens for word in text]
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    return (yield from count_ngrams_in_steps(np.array(numbers, np.int32), lengths, BLEU_ORDER))


def bleu_statistics(counts: NgramCounts, texts: Int64s, references: Int64s, groups: Int64s) -> Statistics:
    """Count each text's statistics against each group of references.

    Args:
        counts: n-grams of all texts.
        texts: indices of texts [C].
        references: indices of texts, group by group [M].
        groups: start of each group in `references`, and the end [G + 1].

    Returns:
        [C, G, 10]: the text's words, the closest length in the group, shared and all n-grams by order.
    """
    shared = counts.matches(texts, references, groups)
    lengths, wanted = counts.lengths[texts][:, None], counts.lengths[references]
    # the reference length closest to the text's, the shorter of ties: distance and length are packed
    # into one number, so that one minimum finds both
    bound = 2 * max(wanted.max(initial=0), lengths.max(initial=0)) + 1
    keys = np.abs(lengths - wanted) * bound + wanted
    closest = np.minimum.reduceat(keys, groups[:-1], axis=1) % bound
    in_text = np.broadcast_to(counts.totals(texts)[:, None], shared.shape)
    return np.concatenate(
        [np.broadcast_to(lengths, closest.shape)[..., None], closest[..., None], shared, in_text], axis=-1
    )


class ChrF(_NgramMetric):
    """chrF2 with sacrebleu's defaults.

    Statistics are n-grams of text, reference and both, by order [C, 18].
    A text is compared with the reference with the best chrF, the first of equals. The score is the F-score
    of mean precision and mean recall over the orders that both sides have.
    """

    __slots__ = ()

    @override
    def count(self, texts: Sequence[str], references: Sequence[str]) -> Statistics:
        counts = run_to_completion(count_character_ngrams([*texts, *references]))
        all_texts = np.arange(len(texts) + len(references))
        pairs = chrf_statistics(counts, all_texts[: len(texts)], all_texts[len(texts) :])
        best: Statistics = pairs[np.arange(len(texts)), self.score(pairs).argmax(axis=1)]
        return best

    @override
    def score(self, totals: Statistics) -> Float64s:
        shape = totals.shape[:-1]
        precision, recall, orders = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        # in sacrebleu's order of operations, so results and ties are the same to the last bit
        for n in range(CHRF_ORDER):
            in_text, wanted, shared = np.moveaxis(totals[..., 3 * n : 3 * n + 3], -1, 0)
            both = (in_text > 0) & (wanted > 0)
            precision += np.where(both, shared / np.maximum(in_text, 1), 0.0)
            recall += np.where(both, shared / np.maximum(wanted, 1), 0.0)
            orders += both
        precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
        divisor = CHRF_BETA**2 * precision + recall
        return 100 * ((1 + CHRF_BETA**2) * precision * recall / np.where(divisor > 0, divisor, 1.0))


def count_character_ngrams(texts: Sequence[str]) -> Steps[NgramCounts]:
    """Count the character n-grams of texts up to chrF's highest order, in bounded steps."""
    strings = yield from map_in_steps(texts, lambda text: "".join(text.split()), size=len)
    points = np.frombuffer("".join(strings).encode("utf-32-le", "surrogatepass"), np.int32)
    lengths = np.fromiter(map(len, strings), np.int64, len(strings))
    return (yield from count_ngrams_in_steps(points, lengths, CHRF_ORDER))


def chrf_statistics(counts: NgramCounts, texts: Int64s, references: Int64s) -> Statistics:
    """Count each text's statistics against each reference.

    Args:
        counts: n-grams of all texts.
        texts: indices of texts [C].
        references: indices of texts [R].

    Returns:
        [C, R, 18]: by order, n-grams of the text, of the reference, and shared ones.
    """
    shared = counts.matches(texts, references, np.arange(len(references) + 1))
    in_reference = np.broadcast_to(counts.totals(references), shared.shape)
    # orders too long for the reference do not count
    in_text = np.where(in_reference > 0, counts.totals(texts)[:, None], 0)
    return np.stack([in_text, in_reference, shared], axis=-1).reshape(*shared.shape[:2], 3 * CHRF_ORDER)
