"""Generators of candidate corrections, for vocabularies of words, of subwords and of characters.

For words, the candidates are near words of the vocabulary, missing and extra spaces, and for unknown
words also the user dictionary's and those that the model predicts there. For
pieces and characters, they are strings near surprising words.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import log
from operator import itemgetter
from typing import Any

import numpy as np
from rapidfuzz.distance import OSA
from typing_extensions import override

from models.arrays import Float64s, Int64s, TokenIds
from models.calls import Predict, Work
from models.checking.candidates import (
    CandidateGenerator,
    CheckBatch,
    Correction,
    Corrections,
    corrections_from,
    join_corrections,
)
from models.checking.lexicon import MAX_SEARCHED_LENGTH, NO_FUZZY_MATCHES, FuzzyLexicon, FuzzyMatches
from models.checking.sentences import (
    CharacterSplitter,
    SentenceSplitter,
    SpellingModel,
    Word,
    WordSentenceSplitter,
    common_typo_corrections,
    one_edit_strings,
    word_splits,
)
from models.language_model import EOS, UNK
from models.words import MAX_WORD_LENGTH, NO_AFFIXES, is_alphabetic, split_affixes

_WORDS_PER_STEP = 16
"""Words looked up between yields: about a millisecond."""

_MAX_ROWS = 64
_RIGHT_TOKENS = 5
_DICTIONARY_SHARE = 0.5
"""Prior share of each dictionary among unknown words."""

_RIGHT_PIECES = 8
_RIGHT_CHARS = 20
_ALPHABET_SIZE = 40
_MAX_SEARCHED_WORDS = 32
"""Maximum words searched per batch (about 500 tokens), by descending surprisal."""
_MAX_SPELLINGS, _MAX_SPELLINGS_BESIDE_WORDS, _MAX_WORDS = 96, 32, 48
"""Maximum strings tried near each, by the probability of their characters; fewer if the tokenizer lists
words; and maximum words of that list, by frequency."""
_CHARACTER_MODEL_FACTOR = 4
"""Character models have no pieces to rank strings by, so this many times more are tried near fewer
words, by the same factor; 500 characters are about a quarter as much text as 500 pieces."""


class WordGenerator(CandidateGenerator):
    """Proposes vocabulary words of letters, with the typed word's punctuation."""

    splitter: WordSentenceSplitter

    def __init__(self, cutter: WordSentenceSplitter) -> None:
        super().__init__(cutter, _RIGHT_TOKENS)
        tokens = cutter.tokenizer.vocabulary.tokens
        hidden = cutter.tokenizer.misspellings.words
        words = [
            (i, word)
            for i, token in enumerate(tokens)
            if i > EOS and (word := split_affixes(token)) and word.core.lower() not in hidden
        ]
        self._ids = np.array([i for i, _ in words], np.int64)
        self._id_of = {tokens[i]: i for i, _ in words}
        self._longest = max(map(len, self._id_of), default=0)
        self._members: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self._cores = [""] * len(tokens)  # without punctuation
        for i, word in words:
            self._members.setdefault(word.affixes, []).append((i, word.core))
            self._cores[i] = word.core
        self._groups: dict[tuple[str, str], tuple[TokenIds, FuzzyLexicon]] = {}  # by punctuation
        self._lengths = np.fromiter(map(len, self._cores), np.int64, len(tokens))
        self._spelling = SpellingModel(list({word.core for _, word in words}))
        if NO_AFFIXES in self._members:  # built now because most requests need it
            self._group(NO_AFFIXES)

    @override
    def log_spelling(self, word: str) -> float:
        return self._spelling.log_prob(self.core(word))

    def core(self, word: str) -> str:
        """Return a word in the vocabulary's spelling, without punctuation if alphabetic."""
        found = split_affixes(self.key(word))
        return found.core if found else self.key(word[:MAX_WORD_LENGTH])

    @override
    def propose(self, batch: CheckBatch) -> Work[Any, Corrections]:
        # near words; spaces; user dictionary for unknown words; the caller's suggestions
        nearby = []
        owners = []
        found: list[Correction] = []
        for number, word in enumerate(batch.words):
            if number % _WORDS_PER_STEP == _WORDS_PER_STEP - 1:
                yield None
            if batch.slots[number].exempt:
                continue
            chunk = self._nearby_words(batch, word)
            if chunk.indices.size:
                nearby.append(chunk)
                owners.append(number)
            found += self._respaced(batch, number)
            if not word.known:
                found += yield from self._from_dictionary(batch, number)
        yield from self.add_given(batch, found)
        more = corrections_from(found)
        if not nearby:
            return more
        slots = np.repeat(owners, [len(chunk.indices) for chunk in nearby])
        tokens, edits = map(np.concatenate, zip(*nearby, strict=True))
        log_weights = np.where(
            np.array([word.known for word in batch.words])[slots],
            batch.error_model.known_word_log_probs(edits),
            batch.error_model.unknown_word_log_probs(edits, self._lengths[tokens]),
        )
        words = Corrections(
            slots,
            batch.positions[slots],
            batch.positions[slots] + 1,
            tokens,
            np.arange(len(slots) + 1),
            log_weights,
            edits.astype(np.int64),
            np.full(len(slots), None, object),
        )
        return join_corrections([_exclude_given(words, more, len(self._cores)), more])

    @override
    def weigh_shortlisted(self, batch: CheckBatch, found: Corrections) -> Corrections:
        # only for words not in small letters; other `texts` stay None
        recased = [
            n for n, word in enumerate(batch.words) if not (word.text.isascii() and word.text.islower())
        ]
        for row in np.flatnonzero(np.isin(found.slots, recased)).tolist():
            if found.texts[row] is not None:
                continue
            word = batch.words[found.slots[row]]
            spelled = self.splitter.tokenizer.vocabulary[int(found.tokens[found.offsets[row]])]
            found.texts[row] = self.restored(word, spelled)
            if word.text != word.text.lower() == spelled.lower():
                found.edits[row], found.log_weights[row] = 0, batch.error_model.log_correct
        if batch.error_model.settings.errors is None:
            return found
        rows, pairs, known = [], [], []
        for row in np.flatnonzero((found.lengths == 1) & (found.slots < len(batch.words))).tolist():
            slot, text = int(found.slots[row]), found.texts[row]
            token = int(found.tokens[found.offsets[row]])
            if token != UNK and found.edits[row] and (text is None or not batch.is_given(slot, text)):
                rows.append(row)
                pairs.append((self.core(batch.words[slot].text), self._cores[token]))
                known.append(batch.words[slot].known)
        log_weights = found.log_weights.copy()
        edits = found.edits[rows].astype(np.uint8)
        log_weights[rows] += batch.error_model.log_ratios(pairs, edits, np.array(known, bool))
        return found._replace(log_weights=log_weights)

    @override
    def propose_after_reading(
        self, batch: CheckBatch, state: Any, rows: Int64s, log_probs: Float64s
    ) -> Work[Any, Corrections]:
        # words that the model predicts for unknown ones, with errors of any kind
        found: list[Correction] = []
        count = min(batch.search.likeliest, len(self._ids))
        unknown = [
            number
            for number, word in enumerate(batch.words)
            if count and not word.known and not batch.slots[number].exempt
        ]
        for first in range(0, len(unknown), _MAX_ROWS):
            chunk = unknown[first : first + _MAX_ROWS]
            predicted = yield from Predict(batch.model, state.select(rows[batch.positions[chunk]]))
            word_log_probs = predicted[:, self._ids]
            best = np.argpartition(-word_log_probs, count - 1, axis=1)[:, :count]
            for number, indices in zip(chunk, best, strict=True):
                found += self._expected(batch, number, self._ids[indices].tolist())
        return corrections_from(found)

    def _nearby_words(self, batch: CheckBatch, word: Word) -> FuzzyMatches:
        """Find the ids of the words near a typed word."""
        found = []
        for typed in filter(None, map(split_affixes, self.keys(word))):
            if typed.affixes in self._members:
                ids, lexicon = self._group(typed.affixes)
                max_edits = batch.error_model.max_edits(typed.core, known=word.known)
                matches = lexicon.fuzzy_matches(typed.core, max_edits)
                found.append(FuzzyMatches(ids[matches.indices], matches.edits))
        if len(found) < 2:
            return found[0] if found else NO_FUZZY_MATCHES
        indices, edits = map(np.concatenate, zip(*found, strict=True))
        order = np.lexsort((edits, indices))  # the fewest edits of each
        first = order[np.diff(indices[order], prepend=-1) > 0]
        return FuzzyMatches(indices[first], edits[first])

    def _group(self, affixes: tuple[str, str]) -> tuple[TokenIds, FuzzyLexicon]:
        """Return the words with these affixes; built on first use."""
        group = self._groups.get(affixes)
        if group is None:
            ids, cores = zip(*self._members[affixes], strict=True)
            group = self._groups[affixes] = np.array(ids, np.int64), FuzzyLexicon(cores)
        return group

    def _respaced(self, batch: CheckBatch, number: int) -> Iterator[Correction]:
        """Split the word in two, and join it with the next."""
        word, log_weight = batch.words[number], batch.error_model.log_space_error
        if len(word.text) > 2 * self._longest:  # unknown words can have any length
            return
        splits = (split for key in self.keys(word) for split in word_splits(key))
        for left, right in splits:
            if left in self._id_of and right in self._id_of:
                ids, text = (self._id_of[left], self._id_of[right]), f"{left} {right}"
                text = self.restored(word, text)
                yield from batch.correct_slot(number, ids, log_weight=log_weight, edits=1, text=text)
        if number + 1 == len(batch.words) or batch.slots[number + 1].exempt:
            return
        following = batch.words[number + 1]
        joined = self._id_of.get(self.key(word.text + following.text))
        slot, next_slot = batch.slots[number], batch.slots[number + 1]
        if joined is None or next_slot.first != slot.last:
            return
        both = slot.log_weight + next_slot.log_weight - batch.error_model.log_correct
        last = batch.join_slots(number, log_weight=both)
        text = word.text + following.text
        yield from batch.correct_slot(last, (joined,), log_weight=log_weight, edits=1, text=text)

    def _from_dictionary(self, batch: CheckBatch, number: int) -> Work[Any, list[Correction]]:
        """Find dictionary words near an unknown word, unknown to the model too."""
        word, error_model = batch.words[number].text, batch.error_model
        max_edits = error_model.max_edits(word, known=False)
        found: list[Correction] = []
        for text, edits, share in (yield from batch.dictionary.fuzzy_matches(word, max_edits)):
            if self.key(text) not in self._id_of:
                channel = float(
                    error_model.unknown_word_log_probs(np.array([edits]), np.array([len(text)]))[0]
                    + error_model.log_ratios([(word, text)], np.array([edits]), np.zeros(1, bool))[0]
                )
                log_weight = channel + log(_DICTIONARY_SHARE * share)
                found += batch.correct_slot(number, (UNK,), log_weight=log_weight, edits=edits, text=text)
        return found

    def _expected(self, batch: CheckBatch, number: int, ids: list[int]) -> Iterator[Correction]:
        word = batch.words[number]
        key = self.key(word.text)
        nearby = set(self._nearby_words(batch, word).indices.tolist())
        log_weight = batch.error_model.log_far_error + self.log_spelling(word.text)
        for token in ids:
            if token not in nearby:
                spelling = self.splitter.tokenizer.vocabulary[token]
                edits, text = OSA.distance(key, spelling), self.restored(word, spelling)
                yield from batch.correct_slot(number, (token,), log_weight=log_weight, edits=edits, text=text)


def _exclude_given(words: Corrections, additions: Corrections, vocab_size: int) -> Corrections:
    """Remove words that the caller suggests for the same slot.

    The caller's probabilities have precedence.
    """
    single = np.flatnonzero(additions.lengths == 1)
    if not single.size:
        return words
    given = additions.slots[single] * vocab_size + additions.tokens[additions.offsets[single]]
    return words.select(np.flatnonzero(~np.isin(words.slots * vocab_size + words.tokens, given)))


class SubwordGenerator(CandidateGenerator):
    """Proposes strings one edit away, and words of the user dictionary and the text.

    Only the words of highest surprisal are searched. Of the strings near them, only words of the training
    text, corrections of common typos and the likeliest by a character bigram model of the vocabulary's pieces
    are scored.

    Args:
        cutter: splitter for a subword or character tokenizer.
    """

    def __init__(self, cutter: SentenceSplitter) -> None:
        single = isinstance(cutter, CharacterSplitter)
        super().__init__(cutter, _RIGHT_CHARS if single else _RIGHT_PIECES)
        spelled = [raw.decode("utf-8", "ignore").strip() for raw in cutter.tokenizer.token_bytes[3:]]
        pieces = [piece.lower() for piece in spelled if piece.isalpha()]
        counts = Counter("".join(pieces))
        self._letters = "".join(letter for letter, _ in counts.most_common(_ALPHABET_SIZE))
        self._spelling = None if single else SpellingModel(pieces)
        self._hidden = cutter.tokenizer.misspellings.words
        listed = dict.fromkeys(word.lower() for word in cutter.tokenizer.lexicon if is_alphabetic(word))
        self._listed = FuzzyLexicon(list(listed))
        factor = _CHARACTER_MODEL_FACTOR if single else 1
        self._max_searched = _MAX_SEARCHED_WORDS // factor
        self._max_spellings = (_MAX_SPELLINGS_BESIDE_WORDS if listed else _MAX_SPELLINGS) * factor

    @override
    def propose(self, batch: CheckBatch) -> Work[Any, Corrections]:
        # only the caller's suggestions
        found: list[Correction] = []
        yield from self.add_given(batch, found)
        yield None
        return corrections_from(found)

    @override
    def propose_after_reading(
        self, batch: CheckBatch, state: Any, rows: Int64s, log_probs: Float64s
    ) -> Work[Any, Corrections]:
        # strings near the most surprising words
        found: list[Correction] = []
        searched = self._most_surprising(batch, log_probs)
        if not searched:
            return corrections_from(found)
        texts = {self.key(word.text) for word in batch.words if word.checked and is_alphabetic(word.text)}
        elsewhere = FuzzyLexicon(sorted(texts | set(map(str.lower, texts))))
        for number in sorted(searched):
            found += yield from self._similar_strings(batch, number, elsewhere)
        for left in sorted({left for number in searched for left in (number - 1, number)}):
            found += yield from self._joined(batch, left)
        return corrections_from(found)

    def _most_surprising(self, batch: CheckBatch, log_probs: Float64s) -> set[int]:
        """Select the indices of the words to search."""
        before = np.concatenate([[0.0], np.cumsum(log_probs)])
        bits = [
            float(before[slot.first] - before[slot.last]) / np.log(2)
            if not slot.exempt and slot.end - slot.start <= MAX_SEARCHED_LENGTH
            else 0.0
            for slot in batch.slots[: len(batch.words)]
        ]
        enough = [number for number, b in enumerate(bits) if b >= batch.search.min_surprisal_bits]
        return set(heapq.nlargest(self._max_searched, enough, key=bits.__getitem__))

    def _similar_strings(
        self, batch: CheckBatch, number: int, elsewhere: FuzzyLexicon
    ) -> Work[Any, list[Correction]]:
        """Propose strings near a word, and splits of the word."""
        typed = batch.words[number]
        word = self.keys(typed)[-1]
        word = word if typed.known else word.lower()
        found = yield from self._spellings(batch, word, elsewhere)
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        edits = np.fromiter(found.values(), np.uint8, len(found))
        log_probs = batch.error_model.unknown_word_log_probs(edits, lengths)
        unknown = np.zeros(len(found), bool)
        log_probs += batch.error_model.log_ratios([(word, text) for text in found], edits, unknown)
        meant = list(zip(found, log_probs.tolist(), found.values(), strict=True))
        for left, right in word_splits(word):
            meant.append((f"{left} {right}", batch.error_model.log_space_error, 1))
        # the model may know a word in one case, and after a space only, which brackets lack
        if self.splitter.has_case(word):
            meant.append((word, batch.error_model.log_correct, 0))
        text, start, _ = batch.place(number)
        is_after_sign = start > 0 and not text[start - 1].isspace()

        def restored(read: str) -> str:
            return self.restored(typed, read.removeprefix(" "))

        read = [
            (space + form, log_prob, edits)
            for text, log_prob, edits in meant
            for form in dict.fromkeys([restored(text), text])
            if form == text or self.splitter.has_case(form)
            for space in ("", " ")[: 1 + (is_after_sign and not self.splitter.lacks_space(form))]
            if edits or space + form not in {typed.text, self.key(typed.text)}
        ]
        return (yield from self._corrections(batch, number, read, restored))

    def _joined(self, batch: CheckBatch, left: int) -> Work[Any, list[Correction]]:
        """Join a word and the next one if a single space separates them."""
        words = batch.words
        if not 0 <= left < len(words) - 1 or batch.slots[left].exempt or batch.slots[left + 1].exempt:
            return []
        line, _, end = batch.place(left)
        other, start, _ = batch.place(left + 1)
        if other is not line or line[end:start] != " ":
            return []
        number = batch.join_slots(left, log_weight=batch.slots[left].log_weight)
        text = words[left].text + words[left + 1].text
        meant = [(text, batch.error_model.log_space_error, 1)]
        return (yield from self._corrections(batch, number, meant))

    def _corrections(
        self,
        batch: CheckBatch,
        number: int,
        meant: Sequence[tuple[str, float, int]],
        restored: Callable[[str], str] = str,
    ) -> Work[Any, list[Correction]]:
        """Replace a slot by strings with weights and edits, but not the caller's."""
        new = (one for one in meant if not batch.is_given(number, restored(one[0])))
        return self.replacements(batch, number, new, restored)

    def _spellings(self, batch: CheckBatch, word: str, elsewhere: FuzzyLexicon) -> Work[Any, dict[str, int]]:
        """Find strings that may be intended, with edits."""
        strings = one_edit_strings(word, self._letters)
        if self._spelling is not None:
            scores = self._spelling.log_probs(list(map(str.lower, strings)))
            strings = [strings[index] for index in np.argsort(-scores, kind="stable").tolist()]
        found = dict.fromkeys([*common_typo_corrections(word), *strings[: self._max_spellings]], 1)
        max_edits = batch.error_model.max_edits(word, known=False)
        found |= heapq.nsmallest(_MAX_WORDS, self._listed.nearby(word, max_edits), itemgetter(1))
        found = {text: edits for text, edits in found.items() if text.lower() not in self._hidden}
        found |= elsewhere.nearby(word, max_edits)
        near = yield from batch.dictionary.fuzzy_matches(word, max_edits)
        found |= {text: edits for text, edits, _ in near}
        return found
