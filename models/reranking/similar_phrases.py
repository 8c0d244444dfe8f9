"""Proposals of phrases that are spelled like the words of a candidate, split or joined in any way.

Each phrase is aligned with all letters of a candidate at once, by the bits of a machine word, for the fewest edits up
to each end of a word. Only the few ends with few edits are aligned word by word.

Source: Myers (1999), "A fast bit-vector algorithm for approximate string matching based on dynamic programming".
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numba import types
from rapidfuzz.distance import Levenshtein

from models.kernels.compilation import kernel
from models.phrases import Phrase, PhraseList
from models.reranking.amounts import split_tail
from models.reranking.proposals import DISTANCE, Proposal

MAX_LETTERS = 64
"""Letters of the longest phrase that is proposed: bits of a machine word."""

_MIN_LETTERS = 4
"""Letters of the shortest phrase that is proposed for other letters."""

_MAX_SHARE = 0.34
"""Maximum edits, as a share of the longer one's letters."""

_LETTER, _EDIT, _NONE, _FIRST, _KNOWN = 1.24, 1.93, 8.4, 1.39, 6.0
"""Log-odds of a phrase: for each letter; against it for each edit, always, if the first letters differ, and if the
model knows all words. Logistic regression on the names of bench_phrases among 1,000 phrases."""

_MIN_LOG_ODDS = -4.0
"""Minimum log-odds of a phrase; lower ones are rarely right."""

_MAX_PLACES = 8
"""Maximum ends of words up to which a phrase is aligned, per candidate."""

_MAX_ENDS = 256
"""Maximum phrases and ends of words that are aligned word by word, per step."""

_LETTERS_PER_STEP = 1 << 19
"""Letters of phrases compared with letters of a candidate per step, some milliseconds."""

_ENDING = re.compile("(?<=[^.,;:!?])(?:['\u2019]s?)?[.,;:!?]*$")
"""End of a word that a phrase keeps: of a possessive, and punctuation."""


@kernel(
    types.int64(
        types.int32[::1], types.boolean[::1], types.int32[::1], types.int64[::1], types.uint64[::1], types.int64[::1],
        types.int64, types.int32[:, ::1],
    )
)  # fmt: skip
def find_similar(
    text: Any, is_end: Any, letters: Any, offsets: Any, masks: Any, most: Any, places: Any, found: Any
) -> Any:
    """Find phrases with few edits up to the ends of words; return how many.

    Args:
        text: letters of the candidate, by number from 1; 0 for those in no phrase [N].
        is_end: whether a word ends with each [N].
        letters: letters of the phrases, joined.
        offsets: start of each phrase, and the end [P + 1]; at most 64 letters each.
        masks: zeros, one for each letter of the phrases and one for others; unchanged at the end.
        most: maximum edits of each phrase [P].
        places: maximum ends of words reported for each phrase.
        found: output: phrase and last letter, in order [F, 2].
    """
    count, one = 0, np.uint64(1)
    for phrase in range(len(offsets) - 1):
        first, past = offsets[phrase], offsets[phrase + 1]
        size, own = past - first, 0
        for place in range(size):
            masks[letters[first + place]] |= one << np.uint64(place)
        # column of the edit matrix as vertical differences: +1 and −1; the first row is 0, so a match starts anywhere
        plus, minus = ~np.uint64(0), np.uint64(0)
        score, last = size, one << np.uint64(size - 1)
        for at in range(len(text)):
            equal = masks[text[at]]
            vertical = equal | minus
            equal = (((equal & plus) + plus) ^ plus) | equal
            horizontal_plus = minus | ~(equal | plus)
            horizontal_minus = plus & equal
            if horizontal_plus & last:
                score += 1
            if horizontal_minus & last:
                score -= 1
            horizontal_plus <<= one
            horizontal_minus <<= one
            plus = horizontal_minus | ~(vertical | horizontal_plus)
            minus = horizontal_plus & vertical
            if score <= most[phrase] and is_end[at] and count < len(found) and own < places:
                found[count, 0], found[count, 1] = phrase, at
                count += 1
                own += 1
        for place in range(size):
            masks[letters[first + place]] = 0
    return count


class _Span(NamedTuple):
    """Words that may be a phrase, and the log-odds that they are."""

    value: float
    begin: int
    end: int


def _log_odds(num_letters: Any, edits: int) -> Any:
    return _LETTER * num_letters - _EDIT * edits - _NONE


def letters_of(word: str) -> str:
    """Return the letters and digits of a word, without case and accents."""
    plain = unicodedata.normalize("NFKD", word.casefold())
    return "".join(filter(str.isalnum, plain))


class _PhraseLetters:
    """Letters of phrases, as the search for similar ones needs them.

    Args:
        phrases: the phrases; those of more than `MAX_LETTERS` letters are left out.

    Attributes:
        written: the phrases [P].
        spelled: their letters [P].
        numbers: number of each letter, from 1.
        letters: numbers of all phrases' letters, joined.
        offsets: start of each phrase, and the end [P + 1].
        most: maximum edits of each phrase, 0 for short ones [P].
    """

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        spelled = {phrase.text: letters_of(phrase.text) for phrase in phrases}
        self.written = [text for text, letters in spelled.items() if 0 < len(letters) <= MAX_LETTERS]
        self.spelled = [spelled[text] for text in self.written]
        numbers = self.numbers = {letter: n for n, letter in enumerate(sorted(set("".join(self.spelled))), 1)}
        self.letters = np.array([numbers[letter] for letter in "".join(self.spelled)], np.int32)
        sizes = np.array([len(letters) for letters in self.spelled], np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(sizes)])
        # edits may insert letters, so that the longer one is the span
        share = _MAX_SHARE / (1 - _MAX_SHARE) * sizes
        self.most = np.maximum(np.minimum(share, (_log_odds(sizes, 0) - _MIN_LOG_ODDS) / _EDIT), 0).astype(
            np.int64
        )


_spelled = WeakKeyDictionary[PhraseList, _PhraseLetters]()


class SimilarPhrases:
    """Proposer of phrases with nearly the letters of a candidate's words.

    The value of a proposal is the log-odds that the phrase was said, fitted on misheard names in Common Voice. Words
    that have exactly the letters of a phrase are not replaced by another.

    Args:
        phrases: the phrases.
        is_known: whether the model knows a word, which is then less probably wrong; None if that is not recorded.
    """

    def __init__(self, phrases: PhraseList, is_known: Callable[[str], bool] | None = None) -> None:
        self._is_known = is_known or (lambda _: False)
        if phrases not in _spelled:
            _spelled[phrases] = _PhraseLetters(phrases.phrases)
        self._phrases = _spelled[phrases]

    def propose(self, words: Sequence[str]) -> Iterator[Proposal | None]:
        """Yield phrases for spans of words, the most probable first; None between steps of the search."""
        endings = [_ENDING.search(word) for word in words]
        stems = [
            word if end is None else word[: end.start()] for word, end in zip(words, endings, strict=True)
        ]
        spelled = [letters_of(stem) for stem in stems]
        is_lower = all(word == word.lower() for word in words)
        exact, found = list[_Span](), list[tuple[_Span, str]]()
        for hit in self._find(spelled):
            if hit is None:
                yield None
                continue
            phrase, end = hit
            nearest = self._nearest(self._phrases.spelled[phrase], stems, spelled, end)
            if nearest is None:
                continue
            written = self._phrases.written[phrase]
            *others, last = words[nearest.begin : end]
            given = {
                " ".join([*others, one]).casefold() for one in (last, split_tail(last)[0], stems[end - 1])
            }
            if " ".join(written.casefold().split()) in given:
                exact.append(nearest)
            else:
                found.append((nearest, written))
        taken = {written: [*exact] for _, written in found}
        for span, written in sorted(found, key=lambda one: -one[0].value):
            if not any(span.begin < other.end and other.begin < span.end for other in taken[written]):
                taken[written].append(span)
                ending = endings[span.end - 1]
                text, kept = written.lower() if is_lower else written, "" if ending is None else ending[0]
                text += "" if text.casefold().endswith(kept.casefold()) else kept
                yield Proposal(span.begin, span.end, text, DISTANCE, span.value, span.value)

    def _find(self, spelled: Sequence[str]) -> Iterator[tuple[int, int] | None]:
        """Yield phrases with few edits up to the end of a word, and the word after it; None between steps."""
        given, numbers = self._phrases, self._phrases.numbers
        ends = {
            end - 1: word for word, end in enumerate(accumulate(map(len, spelled)), 1) if spelled[word - 1]
        }
        text = np.array([numbers.get(letter, 0) for letter in "".join(spelled)], np.int32)
        is_end, found = np.zeros(len(text), np.bool_), np.empty((_MAX_ENDS, 2), np.int32)
        is_end[[*ends]] = True
        masks = np.zeros(len(numbers) + 1, np.uint64)
        step = max(_LETTERS_PER_STEP // max(len(text), 1), 1)
        for first in range(0, len(given.most), step):
            most, offsets = given.most[first : first + step], given.offsets[first : first + step + 1]
            count = find_similar(text, is_end, given.letters, offsets, masks, most, _MAX_PLACES, found)
            yield from ((first + phrase, ends[last]) for phrase, last in found[:count].tolist())
            yield None

    def _nearest(self, target: str, stems: Sequence[str], spelled: Sequence[str], end: int) -> _Span | None:
        """Return the span up to a word with the greatest log-odds; None if all differ too much."""
        best: _Span | None = None
        span, begin, is_known = "", end, True
        while begin and len(span) < len(target) / (1 - _MAX_SHARE):
            begin -= 1
            span = spelled[begin] + span
            most = int(_MAX_SHARE * max(len(span), len(target))) if len(target) >= _MIN_LETTERS else 0
            edits = Levenshtein.distance(span, target, score_cutoff=most)
            is_known = is_known and (not spelled[begin] or self._is_known(stems[begin].casefold()))
            value = (
                float(_log_odds(len(target), edits)) - _FIRST * (span[:1] != target[:1]) - _KNOWN * is_known
            )
            if (
                edits <= most
                and (not edits or value > _MIN_LOG_ODDS)
                and (best is None or value > best.value)
            ):
                best = _Span(value, begin, end)
        return best
