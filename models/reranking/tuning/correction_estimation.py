"""Learning of corrections from lists with references.

Each hypothesis is aligned with its reference, in blocks of words changed together. A block
with up to 4 words on both sides, alone or with neighbours as context, is evidence for a correction.
Every reference counts once, however many lists and hypotheses repeat its errors.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice, product
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from rapidfuzz.distance import Levenshtein

from models.arrays import Int64s
from models.calls import Steps
from models.files import split_words
from models.reranking.candidates import CandidateList
from models.reranking.corrections import (
    MAX_CORRECTIONS,
    MAX_PHRASE_CHARS,
    MAX_PHRASE_WORDS,
    CorrectionTable,
    PhraseCorrection,
)
from models.reranking.proposals import CORRECTION, Proposer, sum_of, variants

_MIN_LISTS = 2
"""Minimum lists with a correction, so that each is confirmed by another list."""

_KEPT_PRIOR = 2.0
"""Times that every phrase is assumed to be kept, besides those counted."""

_MIN_LOG_ODDS = -2.0
"""Minimum log-odds of a correction; lower ones are rarely right."""

_MIN_CONTEXT_GAIN = 0.5
"""Minimum log-odds that a correction's context adds; else the shorter one is enough."""

_MAX_ERROR_SHARE = 0.5
"""Maximum share of wrong words of a hypothesis; worse ones align arbitrarily."""

_MAX_HYPOTHESES = 10
"""Maximum hypotheses of a list to learn from, the first ones."""

_MAX_SPLIT_WORDS = 8
"""Maximum words on either side of a span divided into blocks."""

Words: TypeAlias = list[str]

_Hypotheses: TypeAlias = list[tuple[Words, Words]]
"""Hypotheses of a list as words, each with its reference."""

Pair: TypeAlias = tuple[str, str]
"""A phrase that was heard and the phrase of the reference."""


class _Block(NamedTuple):
    """Words of a hypothesis and their counterpart in the reference."""

    heard: tuple[str, ...]
    written: tuple[str, ...]


def _align(heard: Words, right: Words) -> list[_Block]:
    """Align a hypothesis with a reference: equal words one by one, changed spans in blocks."""
    blocks: list[_Block] = []
    begin = stop = 0
    for same in Levenshtein.editops(heard, right).as_matching_blocks():
        blocks += _split_span(tuple(heard[begin : same.a]), tuple(right[stop : same.b]))
        blocks += [_Block((word,), (word,)) for word in heard[same.a : same.a + same.size]]
        begin, stop = same.a + same.size, same.b + same.size
    return blocks


def _split_span(heard: tuple[str, ...], written: tuple[str, ...]) -> list[_Block]:
    """Divide a changed span into blocks.

    They have the fewest changed characters, spaces aside, and are then the most. A span of more than
    `_MAX_SPLIT_WORDS` words on either side is one block.
    """
    if max(len(heard), len(written)) > _MAX_SPLIT_WORDS:
        return [_Block(heard, written)]
    # best split of each pair of prefixes
    best: dict[tuple[int, int], tuple[int, int, list[_Block]]] = {(0, 0): (0, 0, [])}
    for end, stop in product(range(len(heard) + 1), range(len(written) + 1)):
        ways = []
        for begin, start in product(
            range(max(end - MAX_PHRASE_WORDS, 0), end + 1),
            range(max(stop - MAX_PHRASE_WORDS, 0), stop + 1),
        ):
            if (begin, start) != (end, stop):
                block = _Block(heard[begin:end], written[start:stop])
                changed, number, blocks = best[begin, start]
                changed += Levenshtein.distance("".join(block.heard), "".join(block.written))
                ways.append((changed, number - 1, [*blocks, block]))
        if ways:
            best[end, stop] = min(ways)
    return best[len(heard), len(written)][2]


def _pairs(blocks: Sequence[_Block]) -> dict[Pair, None]:
    """Return an alignment's changed phrases.

    They are runs of blocks of at most `MAX_PHRASE_WORDS` words on both sides. None begins with inserted
    words, which two corrections, of the word before and the word after, would insert twice.
    """
    pairs: dict[Pair, None] = {}
    for first in range(len(blocks)):
        if first and not blocks[first].heard:
            continue
        heard, written = _Block((), ())
        for block in blocks[first:]:
            heard, written = heard + block.heard, written + block.written
            if max(len(heard), len(written)) > MAX_PHRASE_WORDS:
                break
            if heard and heard != written:
                pairs[" ".join(heard), " ".join(written)] = None
    return pairs


@dataclass(frozen=True, slots=True)
class CorrectionCounts:
    """Evidence of lists; each list has weight 1, shared equally by its hypotheses.

    Attributes:
        lists: number of lists with each replacement.
        replaced: weight of the lists with each replacement; those of a reference share it.
        kept: weight of the lists with each phrase, less that of its replacements.
    """

    lists: Counter[Pair] = field(default_factory=Counter)
    replaced: defaultdict[Pair, float] = field(default_factory=lambda: defaultdict(float))
    kept: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add_replacements(self, hypotheses: _Hypotheses, weight: float) -> None:
        """Count the replacements in a list."""
        pairs = Counter(pair for texts in hypotheses for pair in _pairs(_align(*texts)))
        self.lists.update(pairs.keys())
        for pair, count in pairs.items():
            self.replaced[pair] += weight * count / len(hypotheses)
            self.kept[pair[0]] -= weight * count / len(hypotheses)

    def add_phrases(self, hypotheses: _Hypotheses, phrases: set[str], weight: float) -> None:
        """Count the phrases that are in a list."""
        for words, _ in hypotheses:
            runs = (
                " ".join(words[begin : begin + length])
                for begin in range(len(words))
                for length in range(1, MAX_PHRASE_WORDS + 1)
            )
            for phrase in phrases.intersection(runs):
                self.kept[phrase] += weight / len(hypotheses)


def with_closest_forms(lists: Sequence[CandidateList], forms: Proposer) -> Steps[list[CandidateList]]:
    """Give candidates the proposed forms that are closest to a reference, so that corrections need not learn forms."""
    found = []
    for one in lists:
        references = [split_words(reference) for reference in one.references]
        candidates = []
        for candidate in one.candidates[:_MAX_HYPOTHESES]:
            words = split_words(candidate.text)
            first = len(words)  # of those replaced, from the right: places after it have moved
            for begin, group in groupby(
                reversed([*filter(None, forms.propose(words))]), key=attrgetter("begin")
            ):
                texts = [words]
                texts += [
                    [*words[:begin], *one.written.split(), *words[one.end :]]
                    for one in group
                    if one.end <= first
                ]
                closest = min(texts, key=lambda text: min(Levenshtein.distance(text, r) for r in references))
                if closest is not words:
                    words, first = closest, begin
            candidates.append(replace(candidate, text=" ".join(words)))
            yield
        found.append(replace(one, candidates=(*candidates,)))
    return found


def count_corrections(lists: Sequence[CandidateList], folds: Int64s) -> Steps[list[CorrectionCounts]]:
    """Count recurring replacements, and how often their phrases are kept, in each fold's lists.

    Args:
        lists: lists with references.
        folds: fold of each list, from 0 [N].
    """
    counts = [CorrectionCounts() for _ in range(int(folds.max()) + 1)]
    evidence = []
    sizes = Counter(one.references for one in lists)
    for one, fold in zip(lists, folds.tolist(), strict=True):
        references, good = [split_words(reference) for reference in one.references], []
        for text in islice(dict.fromkeys(candidate.text for candidate in one.candidates), _MAX_HYPOTHESES):
            words = split_words(text)
            errors, closest = min((Levenshtein.distance(words, right), right) for right in references)
            if errors <= _MAX_ERROR_SHARE * len(closest):
                good.append((words, closest))
        evidence.append((counts[fold], good, 1 / sizes[one.references]))
        counts[fold].add_replacements(good, 1 / sizes[one.references])
        yield
    in_all = sum((own.lists for own in counts), Counter[Pair]())
    for own in counts:
        for pair in [pair for pair in own.lists if in_all[pair] < _MIN_LISTS]:
            del own.lists[pair], own.replaced[pair]
        yield
    phrases = {heard for own in counts for heard, _ in own.lists}
    for own, hypotheses, weight in evidence:
        own.add_phrases(hypotheses, phrases, weight)
        yield
    return counts


def learn_corrections(counts: Sequence[CorrectionCounts]) -> Steps[list[PhraseCorrection]]:
    """Learn corrections, by descending evidence.

    A correction whose context adds little to a shorter one is left out.
    """
    found = []
    for pair in dict.fromkeys(pair for own in counts for pair in own.lists):
        num_lists = sum(own.lists[pair] for own in counts)
        kept = max(sum(own.kept[pair[0]] for own in counts), 0.0) + _KEPT_PRIOR
        log_odds = round(math.log(sum(own.replaced[pair] for own in counts) / kept), 4)
        if num_lists >= _MIN_LISTS and log_odds >= _MIN_LOG_ODDS and max(map(len, pair)) <= MAX_PHRASE_CHARS:
            found.append(PhraseCorrection(heard=pair[0], written=pair[1], log_odds=log_odds, lists=num_lists))
    yield
    found.sort(key=lambda one: (one.heard.count(" "), -one.log_odds, one.heard, one.written))
    table, useful = CorrectionTable(), []
    for correction in found:
        words = split_words(correction.heard)
        proposals = list(table.propose(words))
        shorter = dict(variants(words, proposals, [one.prior for one in proposals])).get(correction.written)
        if shorter is None or correction.log_odds - sum_of(CORRECTION, shorter) > _MIN_CONTEXT_GAIN:
            table.add(correction)
            useful.append(correction)
        yield
    useful.sort(key=lambda one: (-one.lists, one.heard, one.written))
    return useful[:MAX_CORRECTIONS]
