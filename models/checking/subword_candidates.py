"""Candidate corrections for subword and character vocabularies: strings near surprising words."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from models.calls import CallGenerator
from models.checking.candidates import (
    CandidateGenerator,
    CheckContext,
    Correction,
    Corrections,
    Floats,
    Indices,
    corrections_from,
)
from models.checking.lexicon import FuzzyLexicon
from models.checking.sentences import (
    CharacterSentenceSplitter,
    SentenceSplitter,
    SpellingModel,
    common_typo_corrections,
    is_alphabetic,
    one_edit_strings,
    word_splits,
)

_RIGHT_PIECES = 8
_RIGHT_CHARACTERS = 20
_ALPHABET_SIZE = 40
_CHARACTER_MODEL_FACTOR = 4
"""Character models have no pieces to rank strings by, so this many times as many strings are tried near fewer words,
by the same factor; 500 characters are about a quarter as much text as 500 pieces."""

_MAX_WORD_LENGTH = 32
"""Maximum characters of a searched word; longer runs of letters are rarely words and have thousands of neighbours."""


class SubwordCandidateGenerator(CandidateGenerator):
    """Proposes strings one edit away, words of the user dictionary and other words of the text.

    Without a word list, only the words of highest surprisal are searched. Of the strings near them, only corrections
    of common typos are scored, and the most probable strings by a character bigram model of the vocabulary's
    pieces.

    Args:
        cutter: splitter for a subword or character tokenizer.
    """

    def __init__(self, cutter: SentenceSplitter) -> None:
        is_character = isinstance(cutter, CharacterSentenceSplitter)
        super().__init__(cutter, _RIGHT_CHARACTERS if is_character else _RIGHT_PIECES)
        spelled = [raw.decode("utf-8", "ignore").strip() for raw in cutter.tokenizer.token_bytes[3:]]
        pieces = [piece.lower() for piece in spelled if piece.isalpha()]
        counts = Counter("".join(pieces))
        self._letters = "".join(letter for letter, _ in counts.most_common(_ALPHABET_SIZE))
        self._spelling = None if is_character else SpellingModel(pieces)

    @override
    def propose(self, context: CheckContext) -> CallGenerator[Corrections]:
        # only the caller's suggestions
        found: list[Correction] = []
        yield from self.add_given(context, found)
        yield None
        return corrections_from(found)

    @override
    def propose_after_reading(
        self, context: CheckContext, state: Any, rows: Indices, log_probs: Floats
    ) -> CallGenerator[Corrections]:
        # strings near the most surprising words
        found: list[Correction] = []
        searched = self._most_surprising(context, log_probs)
        if not searched:
            return corrections_from(found)
        texts = sorted({self.key(word.text) for word in context.words if is_alphabetic(word.text)})
        elsewhere = FuzzyLexicon(texts)
        for number in sorted(searched):
            found += self._similar_strings(context, number, elsewhere, texts)
            yield None
        for left in sorted({left for number in searched for left in (number - 1, number)}):
            found += self._joined(context, left)
        return corrections_from(found)

    def _most_surprising(self, context: CheckContext, log_probs: Floats) -> set[int]:
        """Select the indices of the words to search."""
        before = np.concatenate([[0.0], np.cumsum(log_probs)])
        bits = [
            float(before[slot.first] - before[slot.last]) / np.log(2)
            if not slot.exempt and slot.end - slot.start <= _MAX_WORD_LENGTH
            else 0.0
            for slot in context.slots[: len(context.words)]
        ]
        most = context.search.max_searched_words
        if self._spelling is None:
            most //= _CHARACTER_MODEL_FACTOR
        enough = [number for number, b in enumerate(bits) if b >= context.search.min_surprisal_bits]
        return set(sorted(enough, key=lambda number: -bits[number])[:most])

    def _similar_strings(
        self, context: CheckContext, number: int, elsewhere: FuzzyLexicon, texts: list[str]
    ) -> Iterator[Correction]:
        """Propose strings near a word, and splits of the word."""
        typed = context.words[number].text
        word = self.key(typed)
        spellings = self._spellings(context, word, elsewhere, texts)
        lengths = np.fromiter(map(len, spellings), np.int64, len(spellings))
        edits = np.fromiter(spellings.values(), np.uint8, len(spellings))
        log_probs = context.error_model.unknown_word_log_probs(edits, lengths).tolist()
        meant = list(zip(spellings, log_probs, spellings.values(), strict=True))
        for left, right in word_splits(word):
            meant.append((f"{left} {right}", context.error_model.log_space_error, 1))
        restored = [(self.restored_case(typed, text), log_prob, edits) for text, log_prob, edits in meant]
        return self._corrections(context, number, restored)

    def _joined(self, context: CheckContext, left: int) -> Iterator[Correction]:
        """Join a word and the next one if they are separated by a single space."""
        words = context.words
        if not 0 <= left < len(words) - 1 or context.slots[left].exempt or context.slots[left + 1].exempt:
            return iter(())
        sentence_index, next_sentence = context.sentence_of[context.positions[left : left + 2]].tolist()
        sentence = context.sentences[sentence_index]
        between = sentence.text[words[left].end - sentence.offset : words[left + 1].start - sentence.offset]
        if sentence_index != next_sentence or between != " ":
            return iter(())
        number = context.join_slots(left, log_weight=context.slots[left].log_weight)
        text = words[left].text + words[left + 1].text
        return self._corrections(context, number, [(text, context.error_model.log_space_error, 1)])

    def _corrections(
        self, context: CheckContext, number: int, meant: Sequence[tuple[str, float, int]]
    ) -> Iterator[Correction]:
        """Replace a slot by strings, each with its weight and edits, unless the caller suggests the same string."""
        new = (one for one in meant if not context.is_given(number, one[0]))
        return self.replacements(context, number, new)

    def _spellings(
        self, context: CheckContext, word: str, elsewhere: FuzzyLexicon, texts: list[str]
    ) -> dict[str, int]:
        """Find strings that may be intended, with their edit distances."""
        strings = one_edit_strings(word, self._letters)
        most = context.search.max_spellings
        if self._spelling is None:
            most *= _CHARACTER_MODEL_FACTOR
        else:
            log_prob = self._spelling.log_prob
            strings.sort(key=lambda string: -log_prob(string.lower()))
        spellings = dict.fromkeys([*common_typo_corrections(word), *strings[:most]], 1)
        max_edits = context.error_model.max_edits(word, known=False)
        matches = elsewhere.fuzzy_matches(word, max_edits)
        for index, edits in zip(matches.indices.tolist(), matches.edits.tolist(), strict=True):
            spellings[texts[index]] = edits
        spellings.update(context.dictionary.fuzzy_matches(word, max_edits))
        return spellings
