"""Candidate corrections for subword and character vocabularies: strings near surprising words.

There is no word list: only the words of highest surprisal are searched, and of the strings near
them only common typos and those that the character bigrams of the vocabulary's pieces find likely.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from models.calls import CallGenerator
from models.checking.candidates import (
    CandidateGenerator,
    CheckContext,
    Corrections,
    CorrectionsBuilder,
    Floats,
    Indices,
    Replacer,
    Slot,
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
"""Models of characters have no pieces to tell which strings are likely: so many times as many strings are looked at,
near so many times fewer words, as five hundred tokens are a quarter as much text."""

_MAX_WORD_LENGTH = 32
"""Longer runs of letters are no words of a language, and have thousands of strings near them."""


class SubwordCandidateGenerator(CandidateGenerator):
    """Proposes strings one edit from a word, words of the dictionary and words that stand elsewhere in the text.

    There is no list of words: only the most surprising words are searched, and of the strings near them
    only those are weighed that the commonest slips lead to, and those whose characters go together best, by the bigrams
    of characters in the vocabulary's pieces.

    Args:
        cutter: of a tokenizer of pieces or characters.
    """

    def __init__(self, cutter: SentenceSplitter) -> None:
        super().__init__(cutter)
        spelled = [raw.decode("utf-8", "ignore").strip() for raw in cutter.tokenizer.token_bytes[3:]]
        pieces = [piece.lower() for piece in spelled if piece.isalpha()]
        counts = Counter("".join(pieces))
        self._letters = "".join(letter for letter, _ in counts.most_common(_ALPHABET_SIZE))
        self._spelling = None if isinstance(cutter, CharacterSentenceSplitter) else SpellingModel(pieces)

    def right_tokens(self) -> int:
        """Tokens after a word that its alternatives must explain too, of a model that remembers far."""
        return _RIGHT_CHARACTERS if isinstance(self.splitter, CharacterSentenceSplitter) else _RIGHT_PIECES

    def log_spelling(self, word: str) -> float:  # noqa: ARG002 - the model spells every word itself
        """Return 0: the model's own tokens spell a word."""
        return 0.0

    def propose(self, context: CheckContext) -> CallGenerator[Corrections]:
        """The caller's own suggestions."""
        for number, word in enumerate(context.words):
            position = int(context.positions[number])
            context.slots.append(
                Slot(
                    word.start,
                    word.end,
                    position,
                    position + word.last - word.first,
                    word.known,
                    exempt=word.text in context.dictionary or not is_alphabetic(word.text),
                    log_weight=context.error_model.log_correct,
                )
            )
        found = CorrectionsBuilder()
        yield from self.add_given(context, found)
        yield None
        return found.build()

    def propose_after_reading(
        self,
        context: CheckContext,
        state: Any,  # noqa: ARG002 - models of words look at it
        rows: Indices,  # noqa: ARG002 - likewise
        log_probs: Floats,
    ) -> CallGenerator[Corrections]:
        """Strings near the most surprising words."""
        found = CorrectionsBuilder()
        searched = self._most_surprising(context, log_probs)
        if not searched:
            return found.build()
        texts = sorted({word.text for word in context.words if is_alphabetic(word.text)})
        elsewhere = FuzzyLexicon(texts)
        for number in sorted(searched):
            self._add_similar_strings(context, number, (elsewhere, texts), found)
            yield None
        for left in sorted({left for number in searched for left in (number - 1, number)}):
            self._add_joined(context, left, found)
        return found.build()

    def _most_surprising(self, context: CheckContext, log_probs: Floats) -> set[int]:
        """The numbers of words that are searched."""
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

    def _add_similar_strings(
        self,
        context: CheckContext,
        number: int,
        elsewhere: tuple[FuzzyLexicon, list[str]],
        found: CorrectionsBuilder,
    ) -> None:
        """Strings near a word, and the word as two."""
        word = context.words[number].text
        spellings = self._spellings(context, word, elsewhere)
        lengths = np.fromiter(map(len, spellings), np.int64, len(spellings))
        edits = np.fromiter(spellings.values(), np.uint8, len(spellings))
        weights = dict(
            zip(spellings, context.error_model.unknown_word_log_probs(edits, lengths).tolist(), strict=True)
        )
        for left, right in word_splits(word):
            weights[f"{left} {right}"] = context.error_model.log_space_error
        self._put(context, number, weights, spellings, found)

    def _add_joined(self, context: CheckContext, left: int, found: CorrectionsBuilder) -> None:
        """A word and the next one as one, if a space is all that stands between."""
        words, batch = context.words, context.batch
        if not 0 <= left < len(words) - 1 or context.slots[left].exempt or context.slots[left + 1].exempt:
            return
        sentence_index, next_sentence = batch.sentence_of[context.positions[left : left + 2]].tolist()
        sentence = batch.sentences[sentence_index]
        between = sentence.text[words[left].end - sentence.offset : words[left + 1].start - sentence.offset]
        if sentence_index == next_sentence and between == " ":
            slot, following = context.slots[left], context.slots[left + 1]
            known = slot.known and following.known
            context.slots.append(slot._replace(end=following.end, last=following.last, known=known))
            text = words[left].text + words[left + 1].text
            self._put(context, len(context.slots) - 1, {text: context.error_model.log_space_error}, {}, found)

    def _put(
        self,
        context: CheckContext,
        number: int,
        weights: Mapping[str, float],
        edits: Mapping[str, int],
        found: CorrectionsBuilder,
    ) -> None:
        """Add strings in the row of a slot's characters, each with its weight; an edit each unless given otherwise."""
        slot, batch = context.slots[number], context.batch
        sentence_index = int(batch.sentence_of[slot.first])
        sentence, base = batch.sentences[sentence_index], int(batch.bases[sentence_index])
        replacer = Replacer(self.splitter, sentence, slot.start - sentence.offset, slot.end - sentence.offset)
        for text, weight in weights.items():
            change = None if context.is_given(slot.start, slot.end, text) else replacer.put(text)
            if change is not None:
                span, count = (base + change.first, base + change.last), edits.get(text, 1)
                found.add(number, span, change.tokens, log_weight=weight, edits=count, text=text)

    def _spellings(
        self, context: CheckContext, word: str, elsewhere: tuple[FuzzyLexicon, list[str]]
    ) -> dict[str, int]:
        """Strings that may have been meant, and how many edits they are away."""
        strings = one_edit_strings(word, self._letters)
        most = context.search.max_spellings
        if self._spelling is None:
            most *= _CHARACTER_MODEL_FACTOR
        else:
            log_prob = self._spelling.log_prob
            strings.sort(key=lambda string: -log_prob(string.lower()))
        spellings = dict.fromkeys([*common_typo_corrections(word), *strings[:most]], 1)
        max_edits = context.error_model.max_edits(word, known=False)
        lexicon, texts = elsewhere
        matches = lexicon.fuzzy_matches(word, max_edits)
        for sentence, edits in zip(matches.indices.tolist(), matches.edits.tolist(), strict=True):
            spellings[texts[sentence]] = edits
        spellings.update(context.dictionary.fuzzy_matches(word, max_edits))
        return spellings
