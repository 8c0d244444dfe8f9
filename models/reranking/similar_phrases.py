"""Proposals of phrases that are spelled like the words of a candidate, split or joined in any way.

Each phrase is aligned with all letters of a candidate at once, by the bits of a machine word, for the fewest edits up
to each end of a word. The few ends with few edits are aligned again, from there to the beginnings of words, with edits
that sounds explain at half the cost: of vowels, of consonants that sound alike, of doubled letters.

On misheard words these costs are nearly as good as costs learned from pairs of words (Ristad and Yianilos
1998, "Learning string-edit distance") and as these costs with Metaphone keys; see bench_phrases.

Source: Myers (1999), "A fast bit-vector algorithm for approximate string matching based on dynamic programming".
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from string import ascii_lowercase
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numba import types

from models.arrays import Float64s, Int32s
from models.kernels.compilation import kernel
from models.phrases import Phrase, PhraseList
from models.reranking.amounts import split_tail
from models.reranking.proposals import DISTANCE, Proposal

MAX_LETTERS = 64
"""Letters of the longest phrase that is proposed: bits of a machine word."""

_MAX_SPAN = 1.75
"""Letters of the longest span that is aligned with a phrase, by the phrase's: longer ones need too many edits."""

_SOUNDS = ("aeiouyh", "bfpv", "cgjkqsxz", "dt", "mn", "lr")
"""Letters that are misheard for one another: vowels, and the groups of the Soundex key."""

_LETTER, _EDIT, _NONE, _FIRST, _KNOWN = 0.95, 2.7, 4.2, 1.3, 4.3
"""Log-odds of a phrase: for each letter; against it for each edit, always, if the first letters differ, and if the
model knows all words. Chosen between the coefficients of two logistic regressions: on misheard rare words of Common
Voice, among 1,300 phrases, and on the garbled names of bench_phrases, among 1,000."""

_USUAL_PHRASES = 1000
"""Number of phrases up to which each is equally probable."""

_MIN_LOG_ODDS = -1.25
"""Minimum log-odds of a phrase; lower ones are rarely right."""

_MAX_PLACES = 8
"""Maximum ends of words up to which a phrase is aligned, per candidate: those with the fewest edits."""

_MAX_TEXT_LETTERS = 4096
"""Letters of the longest text in which phrases are searched; the time is proportional."""

_LANES = 8
"""Phrases that are compared with the text at once."""

_LETTERS_PER_STEP = 1 << 18
"""Letters of phrases compared with letters of a candidate per step, some milliseconds."""

_MAX_CACHED_WORDS = 4096

_INDIAN = "\u0900"
"""First letter of the scripts whose vowels are marks."""

_POSSESSIVE = re.compile("['\u2019]s?$")


@kernel(
    types.void(
        types.int32[:, ::1], types.int64[:, ::1], types.int64[::1], types.int64, types.int64, types.int64
    )
)
def _keep_end(ends: Any, edits: Any, own: Any, lane: Any, at: Any, fewest: Any) -> Any:
    """Keep an end of a word for the phrase of a lane, in place of that with the most edits if there is no room."""
    place = own[lane]
    if place < ends.shape[1]:
        own[lane] += 1
    else:
        place = edits[lane].argmax()
        if edits[lane, place] <= fewest:
            return
    ends[lane, place], edits[lane, place] = at, fewest


@kernel(
    types.int64(
        types.int32[::1], types.boolean[::1], types.int32[::1], types.int64[::1], types.uint64[:, ::1],
        types.int64[::1], types.int64, types.int32[:, ::1],
    )
)  # fmt: skip
def find_similar(  # noqa: C901 - phrases, letters and ends of words
    text: Any, is_end: Any, letters: Any, offsets: Any, masks: Any, most: Any, places: Any, found: Any
) -> Any:
    """Find phrases with few edits up to the ends of words, the fewest of each; return how many.

    Args:
        text: letters of the candidate, by number from 1; 0 for those in no phrase [N].
        is_end: whether a word ends with each [N].
        letters: letters of the phrases, joined.
        offsets: start of each phrase, and the end [P + 1]; at most 64 letters each.
        masks: zeros, by letter; unchanged at the end [L, `_LANES`].
        most: maximum edits of each phrase [P].
        places: maximum ends of words reported for each phrase.
        found: output: phrase and last letter [P * places, 2].
    """
    count, one, zero = 0, np.uint64(1), np.uint64(0)
    lanes = masks.shape[1]  # no constant: the loop over few lanes would be unrolled instead of vectorised
    # columns of the edit matrix as vertical differences +1 and −1, the last letter's bit, and the edits so far
    plus, minus, last, score = 0, 1, 2, 3
    state = np.empty((4, lanes), np.uint64)
    # ends of words that are reported, and their edits
    own, ends, edits = (
        np.empty(lanes, np.int64),
        np.empty((lanes, places), np.int32),
        np.empty((lanes, places), np.int64),
    )
    for begin in range(0, len(most), lanes):
        used = min(lanes, len(most) - begin)
        # the matrix's first row is 0, so a match starts anywhere
        state[plus], state[minus], state[last], state[score], own[:] = ~zero, zero, zero, zero, 0
        for lane in range(used):
            first = offsets[begin + lane]
            size = offsets[begin + lane + 1] - first
            state[score, lane], state[last, lane] = size, one << np.uint64(size - 1)
            for place in range(size):
                masks[letters[first + place], lane] |= one << np.uint64(place)
        for at in range(len(text)):
            letter = text[at]
            for lane in range(lanes):
                equal, above, below, bit = (
                    masks[letter, lane],
                    state[plus, lane],
                    state[minus, lane],
                    state[last, lane],
                )
                vertical = equal | below
                equal = (((equal & above) + above) ^ above) | equal
                horizontal_plus, horizontal_minus = below | ~(equal | above), above & equal
                more = one if horizontal_plus & bit else zero
                fewer = one if horizontal_minus & bit else zero
                state[score, lane] = state[score, lane] + more - fewer
                horizontal_plus <<= one
                state[plus, lane] = (horizontal_minus << one) | ~(vertical | horizontal_plus)
                state[minus, lane] = horizontal_plus & vertical
            if not is_end[at]:
                continue
            for lane in range(used):
                fewest = np.int64(state[score, lane])
                if fewest <= most[begin + lane]:
                    _keep_end(ends, edits, own, lane, at, fewest)
        for lane in range(used):
            for place in range(own[lane]):
                found[count, 0], found[count, 1] = begin + lane, ends[lane, place]
                count += 1
        for place in range(offsets[begin], offsets[begin + used]):
            masks[letters[place]] = zero
    return count


@kernel(
    types.void(
        types.int32[::1], types.float64[::1], types.int32[::1], types.boolean[::1], types.int32[::1],
        types.float64[::1], types.int64[::1], types.int8[::1], types.int32[:, ::1], types.float64,
        types.int32[::1], types.float64[::1],
    )
)  # fmt: skip
def align_words(
    text: Any,
    text_gaps: Any,
    words: Any,
    known: Any,
    letters: Any,
    gaps: Any,
    offsets: Any,
    sounds: Any,
    found: Any,
    rarity: Any,
    begins: Any,
    values: Any,
) -> Any:
    """Align phrases with the words up to given ends; keep the beginning with the greatest log-odds.

    Args:
        text: letters of the candidate, by number [N].
        text_gaps: cost of each without a counterpart [N].
        words: word of each [N].
        known: whether the model knows each word [W].
        letters: letters of the phrases, joined.
        gaps: cost of each without a counterpart.
        offsets: start of each phrase, and the end [P + 1].
        sounds: sound of each letter, 0 if it has none [L].
        found: phrase and last letter [F, 2].
        rarity: log-odds against each phrase.
        begins: output: first word [F].
        values: output: log-odds; −∞ if too many edits are needed [F].
    """
    column = np.empty(MAX_LETTERS + 1, np.float64)
    for row in range(len(found)):
        first, past, last = offsets[found[row, 0]], offsets[found[row, 0] + 1], found[row, 1]
        size, all_known = past - first, True
        values[row] = -np.inf
        # backwards: column[i] is the cost of the phrase's last i letters against the text's letters from `at` to `last`
        column[0] = 0.0
        for i in range(1, size + 1):
            column[i] = column[i - 1] + gaps[past - i]
        at = last
        while at >= 0 and last - at <= _MAX_SPAN * size:
            diagonal, gap, sound = column[0], text_gaps[at], sounds[text[at]]
            column[0] += gap
            for i in range(1, size + 1):
                letter, before = letters[past - i], column[i]
                if letter != text[at]:
                    diagonal += 0.5 if sound and sounds[letter] == sound else 1.0
                column[i] = min(diagonal, before + gap, column[i - 1] + gaps[past - i])
                diagonal = before
            if at == 0 or words[at - 1] != words[at]:
                all_known = all_known and known[words[at]]
                cost = column[size]
                value = _LETTER * size - _EDIT * cost - _NONE - rarity - _KNOWN * all_known
                if text[at] != letters[first]:
                    value -= _FIRST
                if (value > _MIN_LOG_ODDS or cost == 0.0) and value > values[row]:
                    values[row], begins[row] = value, words[at]
            at -= 1


class _Span(NamedTuple):
    """Words that may be a phrase, and the log-odds that they are."""

    value: float
    begin: int
    end: int


def letters_of(word: str) -> str:
    """Return the letters and digits of a word, without case and accents, with the vowel signs of Indian scripts."""
    if word.isascii() and word.isalnum():
        return word.lower()
    plain = unicodedata.normalize("NFKD", word.casefold()).casefold()
    return "".join(
        one for one in plain if one.isalnum() or (one >= _INDIAN and unicodedata.category(one)[0] == "M")
    )


def _split_edges(word: str) -> tuple[str, str, str]:
    """Split a word into the punctuation before it, itself, and the punctuation after it, with a possessive's end."""
    if word.isalnum():
        return "", word, ""
    first, past = 0, len(word)
    while past > first and unicodedata.category(word[past - 1])[0] in "PS":
        past -= 1
    while first < past and unicodedata.category(word[first])[0] in "PS":
        first += 1
    if first < past and (owner := _POSSESSIVE.search(word, first + 1, past)):
        past = owner.start()
    return word[:first], word[first:past], word[past:]


class _PhraseLetters:
    """Letters of phrases, as the search for similar ones needs them.

    Args:
        phrases: the phrases; those of more than `MAX_LETTERS` letters are left out.

    Attributes:
        written: the phrases [P].
        numbers: number of each letter, from 1.
        sounds: sound of each letter by number, from 1; 0 if it has none [L].
        letters: numbers of all phrases' letters, joined.
        gaps: cost of each without a counterpart.
        offsets: start of each phrase, and the end [P + 1].
        rarity: log-odds against each of many phrases.
        most: maximum edits of each phrase, 0 for short ones [P].
    """

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        spelled = {phrase.text: letters_of(phrase.text) for phrase in phrases}
        self.written = [text for text, letters in spelled.items() if 0 < len(letters) <= MAX_LETTERS]
        joined = "".join(spelled[text] for text in self.written)
        others = sorted(set(joined).difference(ascii_lowercase))
        self.numbers = {letter: number for number, letter in enumerate([*ascii_lowercase, *others], 1)}
        self.sounds = np.zeros(len(self.numbers) + 1, np.int8)
        for sound, alike in enumerate(_SOUNDS, 1):
            self.sounds[[self.numbers[letter] for letter in alike]] = sound
        sizes = np.array([len(spelled[text]) for text in self.written], np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(sizes)])
        self.letters, self.gaps = self.numbered(joined, self.offsets[:-1])
        self.rarity = max(math.log(max(len(sizes), 1) / _USUAL_PHRASES), 0.0)
        # an edit costs at least one half
        paid = 2 * (_LETTER * sizes - _NONE - self.rarity - _MIN_LOG_ODDS) / _EDIT
        self.most = np.maximum(paid, 0).astype(np.int64)

    def numbered(self, joined: str, starts: Any) -> tuple[Int32s, Float64s]:
        """Return the numbers of joined letters, 0 for others, and the cost of each without a counterpart."""
        letters = np.array([self.numbers.get(letter, 0) for letter in joined], np.int32)
        doubled = np.zeros(len(letters), np.bool_)
        doubled[1:] = (letters[1:] == letters[:-1]) & (letters[1:] > 0)
        doubled[starts] = False
        return letters, np.where(doubled | (self.sounds[letters] == 1), 0.5, 1.0)


_spelled = WeakKeyDictionary[PhraseList, _PhraseLetters]()


class SimilarPhrases:
    """Proposer of phrases with nearly the letters of a candidate's words.

    The value of a proposal is the log-odds that the phrase was said. Words that are a phrase already, apart from case,
    are not replaced by another.

    Args:
        phrases: the phrases.
        is_known: whether the model knows a word, which is then less probably wrong; None if that is not recorded.
    """

    def __init__(self, phrases: PhraseList, is_known: Callable[[str], bool] | None = None) -> None:
        self._is_known = lru_cache(_MAX_CACHED_WORDS)(is_known or (lambda _: False))
        if phrases not in _spelled:
            _spelled[phrases] = _PhraseLetters(phrases.phrases)
        self._phrases = _spelled[phrases]

    def propose(self, words: Sequence[str]) -> Iterator[Proposal | None]:
        """Yield phrases for spans of words, the most probable first; None between steps of the search."""
        edges = [*map(_split_edges, words)]
        stems = [stem for _, stem, _ in edges]
        is_lower = all(word == word.lower() for word in words)
        exact, found = list[_Span](), list[tuple[_Span, str]]()
        for hit in self._find(stems):
            if hit is None:
                yield None
                continue
            span, written = hit
            said = " ".join(words[span.begin : span.end])[len(edges[span.begin][0]) :].casefold()
            kept = edges[span.end - 1][2].casefold()
            given = {said, split_tail(said)[0], said.removesuffix(kept)}
            if " ".join(written.casefold().split()) in given:
                exact.append(span)
            else:
                found.append((span, written))
        taken = {written: [*exact] for _, written in found}
        for span, written in sorted(found, key=lambda one: -one[0].value):
            if not any(span.begin < other.end and other.begin < span.end for other in taken[written]):
                taken[written].append(span)
                opening, kept = edges[span.begin][0], edges[span.end - 1][2]
                text = opening + (written.lower() if is_lower else written)
                text += "" if text.casefold().endswith(kept.casefold()) else kept
                yield Proposal(span.begin, span.end, text, DISTANCE, span.value, span.value)

    def _find(self, stems: Sequence[str]) -> Iterator[tuple[_Span, str] | None]:
        """Yield spans of words and phrases with nearly their letters; None between steps."""
        given = self._phrases
        spelled = [*map(letters_of, stems)]
        known = np.array(
            [not own or self._is_known(stem.casefold()) for stem, own in zip(stems, spelled, strict=True)],
            np.bool_,
        )
        sizes = np.array([*map(len, spelled)], np.int64)
        ends = np.cumsum(sizes)
        text, gaps = given.numbered("".join(spelled), (ends - sizes)[sizes > 0])
        of_letters = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        is_end = np.zeros(len(text), np.bool_)
        is_end[ends[sizes > 0] - 1] = True
        masks = np.zeros((len(given.sounds), _LANES), np.uint64)
        if len(text) > _MAX_TEXT_LETTERS:
            return
        step = max(_LETTERS_PER_STEP // max(len(text), 1), 1)
        for first in range(0, len(given.most), step):
            most, offsets = given.most[first : first + step], given.offsets[first : first + step + 1]
            found = np.empty((len(most) * _MAX_PLACES, 2), np.int32)
            count = find_similar(text, is_end, given.letters, offsets, masks, most, _MAX_PLACES, found)
            begins, values = np.empty(count, np.int32), np.empty(count)
            align_words(
                text,
                gaps,
                of_letters,
                known,
                given.letters,
                given.gaps,
                offsets,
                given.sounds,
                found[:count],
                given.rarity,
                begins,
                values,
            )
            for row in np.flatnonzero(np.isfinite(values)).tolist():
                phrase, last = found[row].tolist()
                end = int(of_letters[last]) + 1
                yield _Span(float(values[row]), int(begins[row]), end), given.written[first + phrase]
            yield None
