"""Learning of corrections from lists with references.

Each hypothesis is aligned with its reference, in blocks of words that were changed together. A block
with up to 4 words on both sides, alone or with its neighbours as context, is evidence for a correction.
Every list counts once, however many hypotheses repeat its errors.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice, product
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from rapidfuzz.distance import Levenshtein

from models.reranking.candidates import CandidateList, Steps, map_in_steps
from models.reranking.corrections import (
    MAX_CORRECTIONS,
    MAX_PHRASE_CHARACTERS,
    MAX_PHRASE_WORDS,
    CorrectionTable,
    PhraseCorrection,
    corrected_size,
    sum_log_odds,
    with_corrections,
)
from models.reranking.tuning.problem import Ints

_MIN_LISTS = 2
"""Minimum lists with a correction; so each one is confirmed by a list that others were learnt from."""

_KEPT_PRIOR = 2.0
"""Number of times that every phrase is assumed to have been kept, in addition to those counted."""

_MIN_LOG_ODDS = -2.0
"""Minimum log-odds of a correction; lower ones add candidates that are rarely right."""

_MIN_CONTEXT_GAIN = 0.5
"""Minimum log-odds that the context of a correction adds; otherwise the shorter correction is enough."""

_MAX_ERROR_SHARE = 0.5
"""Maximum share of wrong words of a hypothesis; alignments of worse ones are arbitrary."""

_MAX_HYPOTHESES = 10
"""Maximum hypotheses of a list that corrections are learnt from, the first ones."""

_MAX_SPLIT_WORDS = 8
"""Maximum words on either side of a changed span that is divided into blocks."""

_ALIGNMENT_WORK = 16
"""Work of an alignment, relative to reading the texts."""

_PAIRS_PER_STEP = 4096

Words: TypeAlias = list[str]


class _Block(NamedTuple):
    """Words of a hypothesis and their counterpart in the reference."""

    heard: tuple[str, ...]
    written: tuple[str, ...]


def _align(heard: Words, right: Words) -> list[_Block]:
    """Align a hypothesis with a reference: equal words one by one, changed spans in blocks."""
    blocks: list[_Block] = []
    begin = right_begin = 0
    for same in Levenshtein.editops(heard, right).as_matching_blocks():
        blocks += _split_span(tuple(heard[begin : same.a]), tuple(right[right_begin : same.b]))
        blocks += [_Block((word,), (word,)) for word in heard[same.a : same.a + same.size]]
        begin, right_begin = same.a + same.size, same.b + same.size
    return blocks


def _split_span(heard: tuple[str, ...], written: tuple[str, ...]) -> list[_Block]:
    """Divide a changed span into blocks with the fewest changed characters, spaces aside, and then the most blocks.

    A span of more than `_MAX_SPLIT_WORDS` words on either side is one block.
    """
    if max(len(heard), len(written)) > _MAX_SPLIT_WORDS:
        return [_Block(heard, written)]
    best: dict[tuple[int, int], tuple[int, int, list[_Block]]] = {(0, 0): (0, 0, [])}
    for end, written_end in product(range(len(heard) + 1), range(len(written) + 1)):
        ways = []
        for begin, written_begin in product(
            range(max(end - MAX_PHRASE_WORDS, 0), end + 1),
            range(max(written_end - MAX_PHRASE_WORDS, 0), written_end + 1),
        ):
            if (begin, written_begin) != (end, written_end):
                block = _Block(heard[begin:end], written[written_begin:written_end])
                changed, number, blocks = best[begin, written_begin]
                changed += Levenshtein.distance("".join(block.heard), "".join(block.written))
                ways.append((changed, number - 1, [*blocks, block]))
        if ways:
            best[end, written_end] = min(ways)
    return best[len(heard), len(written)][2]


Pair: TypeAlias = tuple[str, str]
"""A phrase that was heard and the phrase of the reference."""


def _pairs(blocks: Sequence[_Block]) -> set[Pair]:
    """Return the changed phrases of an alignment: runs of blocks of at most `MAX_PHRASE_WORDS` words on both sides.

    A run does not begin with inserted words: two corrections, of the word before and the word after, would insert them
    twice.
    """
    pairs = set()
    for first in range(len(blocks)):
        if first and not blocks[first].heard:
            continue
        heard, written = _Block((), ())
        for block in blocks[first:]:
            heard, written = heard + block.heard, written + block.written
            if max(len(heard), len(written)) > MAX_PHRASE_WORDS:
                break
            if heard and heard != written:
                pairs.add((" ".join(heard), " ".join(written)))
    return pairs


class CorrectionCounts(NamedTuple):
    """Evidence of lists; each list has weight 1, shared equally by its hypotheses.

    Attributes:
        lists: number of lists with each replacement.
        replaced: weight of the lists with each replacement.
        heard: weight of the lists with each phrase that some list replaces.
    """

    lists: Counter[Pair]
    replaced: defaultdict[Pair, float]
    heard: defaultdict[str, float]

    @classmethod
    def empty(cls) -> "CorrectionCounts":
        """Return counts of no lists."""
        return cls(Counter(), defaultdict(float), defaultdict(float))


class _Evidence(NamedTuple):
    """Hypotheses of a list with the reference of each, as words, and the counts that they belong to."""

    hypotheses: list[tuple[Words, Words]]
    counts: CorrectionCounts

    @property
    def size(self) -> int:
        return _ALIGNMENT_WORK * sum(len(words) for words, _ in self.hypotheses)

    def count_pairs(self) -> None:
        pairs = Counter(pair for texts in self.hypotheses for pair in _pairs(_align(*texts)))
        self.counts.lists.update(pairs.keys())
        for pair, count in pairs.items():
            self.counts.replaced[pair] += count / len(self.hypotheses)

    def count_phrases(self, phrases: set[str]) -> None:
        for words, _ in self.hypotheses:
            runs = (
                " ".join(words[begin : begin + length])
                for begin in range(len(words))
                for length in range(1, MAX_PHRASE_WORDS + 1)
            )
            for phrase in phrases.intersection(runs):
                self.counts.heard[phrase] += 1 / len(self.hypotheses)


def count_corrections(lists: Sequence[CandidateList], folds: Ints) -> Steps[list[CorrectionCounts]]:
    """Count replacements and phrases in the lists of each fold, in bounded steps.

    Args:
        lists: lists with references.
        folds: fold of each list, from 0 [N].
    """
    counts = [CorrectionCounts.empty() for _ in range(int(folds.max()) + 1)]
    evidence = [
        _Evidence(_hypotheses(one), counts[fold]) for one, fold in zip(lists, folds.tolist(), strict=True)
    ]
    yield
    yield from map_in_steps(evidence, _Evidence.count_pairs, size=attrgetter("size"))
    phrases = {heard for own in counts for heard, _ in own.lists}
    yield from map_in_steps(evidence, lambda one: one.count_phrases(phrases), size=attrgetter("size"))
    return counts


def _hypotheses(one: CandidateList) -> list[tuple[Words, Words]]:
    """Return the hypotheses that are good enough to align, each with its closest reference, as words."""
    references = [reference.split() for reference in one.references]
    texts = dict.fromkeys(candidate.text for candidate in one.candidates)
    found = []
    for text in islice(texts, _MAX_HYPOTHESES):
        words = text.split()
        errors, closest = min((Levenshtein.distance(words, right), right) for right in references)
        if errors <= _MAX_ERROR_SHARE * len(closest):
            found.append((words, closest))
    return found


def learn_corrections(counts: Sequence[CorrectionCounts]) -> Steps[list[PhraseCorrection]]:
    """Learn corrections, those with the most evidence first, in bounded steps.

    A correction whose context adds little to a shorter one is left out.
    """
    total, replaced = CorrectionCounts.empty(), defaultdict[str, float](float)
    for own in counts:
        total.lists.update(own.lists)
        for pair, weight in own.replaced.items():
            total.replaced[pair] += weight
            replaced[pair[0]] += weight
        for phrase, weight in own.heard.items():
            total.heard[phrase] += weight
        yield
    found = []
    for (heard, written), num_lists in total.lists.items():
        if num_lists >= _MIN_LISTS and max(len(heard), len(written)) <= MAX_PHRASE_CHARACTERS:
            kept = max(total.heard[heard] - replaced[heard], 0.0) + _KEPT_PRIOR
            log_odds = round(math.log(total.replaced[heard, written] / kept), 4)
            if log_odds >= _MIN_LOG_ODDS:
                found.append(
                    PhraseCorrection(heard=heard, written=written, log_odds=log_odds, lists=num_lists)
                )
    yield
    found.sort(key=lambda correction: (correction.heard.count(" "), -correction.log_odds, correction.heard))
    table, useful = CorrectionTable(), []
    for number, correction in enumerate(found, start=1):
        shorter = dict(table.correct(correction.heard)).get(correction.written)
        if shorter is None or correction.log_odds - sum_log_odds(shorter) > _MIN_CONTEXT_GAIN:
            table.add(correction)
            useful.append(correction)
        if number % _PAIRS_PER_STEP == 0:
            yield
    useful.sort(key=lambda correction: (-correction.lists, correction.heard, correction.written))
    return useful[:MAX_CORRECTIONS]


def correct_by_fold(
    lists: Sequence[CandidateList], folds: Ints, counts: Sequence[CorrectionCounts], max_tokens: int
) -> Steps[list[CandidateList]]:
    """Append corrected candidates to lists, by corrections learnt without the fold of each.

    Args:
        lists: the lists.
        folds: fold of each list, from 0 [N].
        counts: counts of each fold.
        max_tokens: maximum tokens of a corrected text with its context.
    """
    tables = []
    for fold in range(len(counts)):
        others = [own for number, own in enumerate(counts) if number != fold]
        tables.append(CorrectionTable((yield from learn_corrections(others))))
    return (
        yield from map_in_steps(
            zip(lists, folds.tolist(), strict=True),
            lambda pair: with_corrections(pair[0], tables[pair[1]], max_tokens),
            size=lambda pair: corrected_size(pair[0]),
        )
    )
