"""What may have been meant where words are made of pieces or characters: strings near the words that surprise."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from models.checking.alternatives import Alternatives, AlternativesList, Indices, Numbers, Slot
from models.checking.asking import Work
from models.checking.edit_strings import halves_of, one_edit_from, slips_of
from models.checking.letters import is_letters
from models.checking.lexicon import Lexicon
from models.checking.proposing import Context, Proposer
from models.checking.replacing import Replacer
from models.checking.sentences import CharacterCutter, Cutter
from models.checking.spelling import SpellingModel

_RIGHT_PIECES = 8
_RIGHT_CHARACTERS = 20
_MAX_LETTERS = 40
_CHARACTERS_FACTOR = 4
"""Models of characters have no pieces to tell which strings are likely: so many times as many strings are looked at,
near so many times fewer words, as five hundred tokens are a quarter as much text."""

_LONGEST_WORD = 32
"""Longer runs of letters are no words of a language, and have thousands of strings near them."""


class PieceProposer(Proposer):
    """Proposes strings one edit from a word, words of the dictionary and words that stand elsewhere in the text.

    There is no list of words: only the most surprising words are searched, and of the strings near them
    only those are weighed that the commonest slips lead to, and those whose characters go together best, by the bigrams
    of characters in the vocabulary's pieces.

    Args:
        cutter: of a tokenizer of pieces or characters.
    """

    def __init__(self, cutter: Cutter) -> None:
        super().__init__(cutter)
        spelled = [raw.decode("utf-8", "ignore").strip() for raw in cutter.tokenizer.token_bytes[3:]]
        pieces = [piece.lower() for piece in spelled if piece.isalpha()]
        counts = Counter("".join(pieces))
        self._letters = "".join(letter for letter, _ in counts.most_common(_MAX_LETTERS))
        self._spelling = None if isinstance(cutter, CharacterCutter) else SpellingModel(pieces)

    def right_tokens(self) -> int:
        """Tokens after a word that its alternatives must explain too, of a model that remembers far."""
        return _RIGHT_CHARACTERS if isinstance(self.splitter, CharacterCutter) else _RIGHT_PIECES

    def log_spelling(self, word: str) -> float:  # noqa: ARG002 - the model spells every word itself
        """Nothing: the model's own tokens spell a word."""
        return 0.0

    def propose(self, context: Context) -> Work[Alternatives]:
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
                    exempt=word.text in context.dictionary or not is_letters(word.text),
                    log_weight=context.error_model.log_correct,
                )
            )
        found = AlternativesList()
        yield from self.add_given(context, found)
        yield None
        return found.build()

    def propose_after_reading(
        self,
        context: Context,
        state: Any,  # noqa: ARG002 - models of words look at it
        rows: Indices,  # noqa: ARG002 - likewise
        log_probs: Numbers,
    ) -> Work[Alternatives]:
        """Strings near the most surprising words."""
        found = AlternativesList()
        searched = self._most_surprising(context, log_probs)
        if not searched:
            return found.build()
        texts = sorted({word.text for word in context.words if is_letters(word.text)})
        elsewhere = Lexicon(texts)
        for number in sorted(searched):
            self._add_similar_strings(context, number, (elsewhere, texts), found)
            yield None
        for left in sorted({left for number in searched for left in (number - 1, number)}):
            self._add_joined(context, left, found)
        return found.build()

    def _most_surprising(self, context: Context, log_probs: Numbers) -> set[int]:
        """The numbers of words that are searched."""
        before = np.concatenate([[0.0], np.cumsum(log_probs)])
        bits = [
            float(before[slot.first] - before[slot.last]) / np.log(2)
            if not slot.exempt and slot.end - slot.start <= _LONGEST_WORD
            else 0.0
            for slot in context.slots[: len(context.words)]
        ]
        most = context.search.max_searched_words
        if self._spelling is None:
            most //= _CHARACTERS_FACTOR
        enough = [number for number, b in enumerate(bits) if b >= context.search.min_surprisal_bits]
        return set(sorted(enough, key=lambda number: -bits[number])[:most])

    def _add_similar_strings(
        self, context: Context, number: int, elsewhere: tuple[Lexicon, list[str]], found: AlternativesList
    ) -> None:
        """Strings near a word, and the word as two."""
        word = context.words[number].text
        spellings = self._spellings(context, word, elsewhere)
        lengths = np.fromiter(map(len, spellings), np.int64, len(spellings))
        edits = np.fromiter(spellings.values(), np.uint8, len(spellings))
        weights = dict(
            zip(spellings, context.error_model.unknown_word_log_probs(edits, lengths).tolist(), strict=True)
        )
        for left, right in halves_of(word):
            weights[f"{left} {right}"] = context.error_model.log_space_error
        self._put(context, number, weights, spellings, found)

    def _add_joined(self, context: Context, left: int, found: AlternativesList) -> None:
        """A word and the next one as one, if a space is all that stands between."""
        words, batch = context.words, context.batch
        if not 0 <= left < len(words) - 1 or context.slots[left].exempt or context.slots[left + 1].exempt:
            return
        place, other = batch.sentence_of[context.positions[left : left + 2]].tolist()
        sentence = batch.sentences[place]
        between = sentence.text[words[left].end - sentence.offset : words[left + 1].start - sentence.offset]
        if place == other and between == " ":
            slot, following = context.slots[left], context.slots[left + 1]
            known = slot.known and following.known
            context.slots.append(slot._replace(end=following.end, last=following.last, known=known))
            text = words[left].text + words[left + 1].text
            self._put(context, len(context.slots) - 1, {text: context.error_model.log_space_error}, {}, found)

    def _put(
        self,
        context: Context,
        number: int,
        weights: Mapping[str, float],
        edits: Mapping[str, int],
        found: AlternativesList,
    ) -> None:
        """Add strings in the place of a slot's characters, each with its weight; an edit each unless told otherwise."""
        slot, batch = context.slots[number], context.batch
        place = int(batch.sentence_of[slot.first])
        sentence, base = batch.sentences[place], int(batch.bases[place])
        replacer = Replacer(self.splitter, sentence, slot.start - sentence.offset, slot.end - sentence.offset)
        for text, weight in weights.items():
            change = None if context.is_given(slot.start, slot.end, text) else replacer.put(text)
            if change is not None:
                span, count = (base + change.first, base + change.last), edits.get(text, 1)
                found.add(number, span, change.tokens, log_weight=weight, edits=count, text=text)

    def _spellings(self, context: Context, word: str, elsewhere: tuple[Lexicon, list[str]]) -> dict[str, int]:
        """Strings that may have been meant, and how many edits they are away."""
        strings = one_edit_from(word, self._letters)
        most = context.search.max_spellings
        if self._spelling is None:
            most *= _CHARACTERS_FACTOR
        else:
            log_prob = self._spelling.log_prob
            strings.sort(key=lambda string: -log_prob(string.lower()))
        spellings = dict.fromkeys([*slips_of(word), *strings[:most]], 1)
        max_edits = context.error_model.max_edits(word, known=False)
        lexicon, texts = elsewhere
        near = lexicon.fuzzy_matches(word, max_edits)
        for place, edits in zip(near.indices.tolist(), near.edits.tolist(), strict=True):
            spellings[texts[place]] = edits
        spellings.update(context.dictionary.fuzzy_matches(word, max_edits))
        return spellings
