"""Candidate corrections of words.

`token_replacer` re-tokenises only between the white space around a replaced span if the tokens
there do not depend on the rest of the sentence; otherwise it re-tokenises the sentence.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import log
from typing import Any, NamedTuple

import numpy as np
from rapidfuzz.distance import OSA, Postfix, Prefix

from models.arrays import AnyArray, Float64s, Int64s, TokenIds
from models.calls import Work, map_in_steps
from models.checking.error_model import ErrorModel, GivenSpan
from models.checking.sentences import Sentence, SentenceSplitter, Word
from models.language_model import UNK, LanguageModel
from models.words import is_identifier, match_case, split_affixes, surrounding_words, word_forms

_MAX_RUN = 1024
"""Maximum characters to the nearest white space on one side of a span."""


class Slot(NamedTuple):
    """Span that may be wrong: a word, two adjacent words, or a span that the caller gave.

    Attributes:
        start: its start in the whole text, in code points.
        end: its end.
        first: index of its first token in the batch.
        last: index of the token after its last.
        known: True if all its words are known.
        exempt: True if in the user dictionary or not a word of letters, so never wrong.
        log_weight: ln P(typed | intended) of the typed text itself, with the spelling of unknown words.
    """

    start: int
    end: int
    first: int
    last: int
    known: bool
    exempt: bool
    log_weight: float


class Corrections(NamedTuple):
    """M token sequences, each a replacement for some tokens of a batch.

    Attributes:
        slots: slot of each [M].
        firsts: index in the batch of each one's first replaced token [M].
        lasts: index of the token after the last replaced one [M].
        tokens: joined tokens [K].
        offsets: start of the tokens of each, and K at the end [M + 1].
        log_weights: ln P(typed | this is intended) [M].
        edits: edits of each from the typed text; 0: the typed word in another case, thus right [M].
        texts: spelling of each; None if its only token spells it [M].
    """

    slots: Int64s
    firsts: Int64s
    lasts: Int64s
    tokens: TokenIds
    offsets: Int64s
    log_weights: Float64s
    edits: Int64s
    texts: AnyArray

    @property
    def lengths(self) -> Int64s:
        """Number of tokens of each [M]."""
        return np.diff(self.offsets)

    def select(self, rows: Int64s) -> "Corrections":
        """Select rows."""
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - self.offsets[rows], lengths)
        others = self._replace(tokens=self.slots, offsets=self.slots)  # one of each [M]
        chosen = Corrections._make(column[rows] for column in others)
        return chosen._replace(tokens=self.tokens[inside], offsets=offsets)


def join_corrections(parts: Sequence[Corrections]) -> Corrections:
    """Join one or more sets of corrections."""
    if len(parts) == 1:
        return parts[0]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    lengths = np.concatenate([part.lengths for part in parts])
    return Corrections(*columns)._replace(offsets=np.concatenate([[0], np.cumsum(lengths)]))


class Correction(NamedTuple):
    """Single correction; see `Corrections`."""

    slot: int
    first: int
    last: int
    tokens: Sequence[int]
    log_weight: float
    edits: int
    text: str


def corrections_from(found: Sequence[Correction]) -> Corrections:
    """Collect single corrections into arrays."""
    columns = list(zip(*found, strict=True)) if found else [()] * len(Correction._fields)
    slots, firsts, lasts, tokens, log_weights, edits, texts = columns
    return Corrections(
        np.array(slots, np.int64),
        np.array(firsts, np.int64),
        np.array(lasts, np.int64),
        np.array([token for own in tokens for token in own], np.int64),
        np.cumsum([0, *map(len, tokens)], dtype=np.int64),
        np.array(log_weights, np.float64),
        np.array(edits, np.int64),
        np.array(texts, object),
    )


def token_replacer(
    splitter: SentenceSplitter, sentence: Sentence, start: int, end: int
) -> tuple[Callable[[str], tuple[int, int, tuple[int, ...]] | None], int]:
    """Return a function that replaces a sentence's characters from `start` to `end` by a text.

    Also return the number of characters that it tokenises around the text.

    The function returns the first token that changes, the token after the last changed one, and the
    new tokens between them; None if both texts have the same tokens. Replacing an unknown word by
    another is a change although the tokens are equal.
    """
    text = sentence.text
    left, right = _whitespace_bounds(text, start, end)
    tokens = splitter.tokens_in(sentence, left, right)
    before = sentence.ids[tokens].tolist()
    if splitter.encode(text[left:right]) != before:
        left, right, tokens = 0, len(text), slice(0, len(sentence.ids))
        before = sentence.ids.tolist()
    begin: int = tokens.start

    def replace(new: str) -> tuple[int, int, tuple[int, ...]] | None:
        after = splitter.encode(text[left:start] + new + text[end:right])
        if before == after:
            return (begin, begin + len(before), tuple(after)) if UNK in before else None
        same = Prefix.similarity(before, after)
        rest = min(len(before), len(after)) - same
        same_end = min(Postfix.similarity(before, after), rest)
        return begin + same, begin + len(before) - same_end, tuple(after[same : len(after) - same_end])

    return replace, right - left


def _whitespace_bounds(text: str, start: int, end: int) -> tuple[int, int]:
    """Extend a span to the nearest white space on both sides; to the text's ends if far."""
    left, right = start, end
    while left and start - left < _MAX_RUN and not text[left - 1].isspace():
        left -= 1
    while right < len(text) and right - end < _MAX_RUN and not text[right].isspace():
        right += 1
    is_far = max(start - left, right - end) == _MAX_RUN
    return (0, len(text)) if is_far else (left, right)


class CheckBatch:
    """One batch of sentences of a request, with its tokens, words and slots.

    Args:
        model: any left-to-right model.
        sentences: at least one; one that continues the previous sentence is alone in its batch.
        error_model: the error model, with the check's settings.
        given: the caller's suggestions, by sentence index.

    Attributes:
        lengths: number of tokens of each sentence with its `after` [S].
        bases: start of each sentence in `tokens` [S].
        tokens: joined tokens of the sentences, each with its `after` [P].
        sentence_of: sentence index of each token [P].
        words: words of all sentences, in order.
        positions: index of each word's first token in the batch [N].
        slots: one for each word, then the others.
    """

    def __init__(
        self,
        model: LanguageModel[Any],
        sentences: Sequence[Sentence],
        error_model: ErrorModel,
        given: Mapping[int, Sequence[GivenSpan]],
    ) -> None:
        self.model, self.sentences = model, sentences
        self.error_model, self.given = error_model, given
        self.search = error_model.settings.search
        self.dictionary = error_model.settings.dictionary
        self._given_texts = {
            (span.start, span.end): frozenset(text for text, _ in span.suggestions)
            for spans in given.values()
            for span in spans
        }
        runs = [np.concatenate([one.ids, one.after]) for one in sentences]
        self.lengths = np.fromiter(map(len, runs), np.int64, len(runs))
        self.bases = np.cumsum(self.lengths) - self.lengths
        self.tokens = np.concatenate(runs)
        self.sentence_of = np.repeat(np.arange(len(runs)), self.lengths)
        self.words: list[Word] = [word for one in sentences for word in one.words]
        counts = [len(one.words) for one in sentences]
        firsts = np.fromiter((word.first for word in self.words), np.int64, len(self.words))
        self.positions: Int64s = firsts + np.repeat(self.bases, counts)
        self.slots: list[Slot] = []

    def unknown_words(self) -> Iterator[str]:
        """Yield checked words unknown to the model, and longer words around them."""
        for number, word in enumerate(self.words):
            if word.checked and not word.known:
                yield from surrounding_words(*self.place(number))

    def place(self, number: int) -> tuple[str, int, int]:
        """Return a word's sentence, start and end there."""
        word = self.words[number]
        sentence = self.sentences[self.sentence_of[self.positions[number]]]
        return sentence.text, word.start - sentence.offset, word.end - sentence.offset

    def is_given(self, number: int, text: str) -> bool:
        """True if the caller suggests a text for exactly this slot.

        The caller's probability then takes precedence.
        """
        slot = self.slots[number]
        return text in self._given_texts.get((slot.start, slot.end), ())

    def join_slots(self, number: int, *, log_weight: float) -> int:
        """Join the slots of a word and the next one into a new slot; return its index."""
        slot, after = self.slots[number : number + 2]
        known = slot.known and after.known
        self.slots.append(slot._replace(end=after.end, last=after.last, known=known, log_weight=log_weight))
        return len(self.slots) - 1

    def correct_slot(
        self, number: int, tokens: Sequence[int], *, log_weight: float, edits: int, text: str
    ) -> Iterator[Correction]:
        """Yield a correction of a slot, unless the caller suggests the same text."""
        slot = self.slots[number]
        if not self.is_given(number, text):
            yield Correction(number, slot.first, slot.last, tokens, log_weight, edits, text)


class CandidateGenerator(ABC):
    """Finds candidate corrections for one tokenizer.

    Args:
        splitter: splitter for the tokenizer.
        right_tokens: tokens after a word that also count, for models with a long context.
    """

    def __init__(self, splitter: SentenceSplitter, right_tokens: int) -> None:
        self.splitter, self.right_tokens = splitter, right_tokens

    @abstractmethod
    def propose(self, batch: CheckBatch) -> Work[Any, Corrections]:
        """Find candidates from the text alone, and the caller's suggestions."""

    @abstractmethod
    def propose_after_reading(
        self, batch: CheckBatch, state: Any, rows: Int64s, log_probs: Float64s
    ) -> Work[Any, Corrections]:
        """Find further candidates after the model has read the text.

        Args:
            batch: the batch, with its slots.
            state: model states before the tokens of the batch.
            rows: row of `state` for each token [P].
            log_probs: log-probability of each token [P].
        """

    def weigh_shortlisted(self, batch: CheckBatch, found: Corrections) -> Corrections:  # noqa: ARG002 - overriding methods use it
        """Weigh, by the table of edits, those of `propose` that the left context leaves."""
        return found

    def log_spelling(self, word: str) -> float:  # noqa: ARG002 - overriding methods use the word
        """Return ln P(spelling | unknown word) if one token stands for all, else 0."""
        return 0.0

    def key(self, word: str) -> str:
        """Return a word as the model reads it, in the vocabulary's spelling."""
        return self.splitter.tokenizer.normaliser(self.splitter.read(word)[0])

    def keys(self, word: Word) -> list[str]:
        """Return a known word's key, else those of all its forms."""
        if word.known:
            return [self.key(word.text)]
        forms = word_forms(word.text)
        plain = [form for form in forms if form != word.text or form == forms[0]]
        return list(dict.fromkeys(self.splitter.tokenizer.normaliser.all(plain)))

    def restored(self, word: Word, text: str) -> str:
        """Apply a word's case to a suggestion, unless the model knows the typed word."""
        if word.text.isascii() and word.text.islower():
            return text
        normaliser = self.splitter.tokenizer.normaliser
        is_typed = word.known and not normaliser.changes_case and self.key(word.text) == normaliser(word.text)
        return text if is_typed else match_case(word.text, text)

    def word_slot(self, batch: CheckBatch, number: int) -> Slot:
        """Create a word's slot, exempt if not alphabetic."""
        word, position = batch.words[number], int(batch.positions[number])
        slot = self._slot(batch, word, slice(position, position + word.last - word.first), [word])
        return slot._replace(
            exempt=not word.checked
            or (is_identifier(word.text) and not batch.dictionary.has_near(word.text))
            or split_affixes(self.key(word.text)) is None
            or batch.dictionary.has_at(*batch.place(number), known=word.known)
        )

    def add_given(self, batch: CheckBatch, found: list[Correction]) -> Work[Any, None]:
        """Append the caller's suggestions to `found`; those for a word share its slot."""
        by_span = {(slot.start, slot.end): number for number, slot in enumerate(batch.slots)}
        for number, spans in batch.given.items():
            sentence = batch.sentences[number]
            for span in spans:
                first, past = span.start - sentence.offset, span.end - sentence.offset
                index = by_span.get((span.start, span.end))
                if index is None:
                    index = by_span[span.start, span.end] = len(batch.slots)
                    inside = self.splitter.tokens_in(sentence, first, past)
                    base = int(batch.bases[number])
                    words = [one for one in sentence.words if one.start < span.end and one.end > span.start]
                    tokens = slice(base + inside.start, base + inside.stop)
                    batch.slots.append(self._slot(batch, span, tokens, words))
                typed = sentence.text[first:past]
                if not batch.slots[index].known:
                    yield from batch.dictionary.look_up([typed])
                # a number, never searched, can be an error if the caller suggests a correction
                slot = batch.slots[index]
                batch.slots[index] = slot._replace(exempt=batch.dictionary.has(typed, known=slot.known))
                meant = self._meant(batch, span, index, typed)
                found += yield from self.replacements(batch, index, meant)

    def _slot(self, batch: CheckBatch, place: Word | GivenSpan, tokens: slice, words: Sequence[Word]) -> Slot:
        log_weight = batch.error_model.log_correct + self._log_unknown(words)
        known = all(word.known for word in words)
        return Slot(
            place.start, place.end, tokens.start, tokens.stop, known, exempt=False, log_weight=log_weight
        )

    def _meant(
        self, batch: CheckBatch, span: GivenSpan, index: int, typed: str
    ) -> Iterator[tuple[str, float, int]]:
        for text, log_prob in span.suggestions:
            if text != typed:
                ours = batch.error_model.log_error - log(len(span.suggestions))  # equally probable
                yield text, ours if log_prob is None else log_prob, OSA.distance(typed, text)
            elif log_prob is not None:
                slot = batch.slots[index]
                unknown = slot.log_weight - batch.error_model.log_correct
                batch.slots[index] = slot._replace(log_weight=log_prob + unknown)

    def replacements(
        self,
        batch: CheckBatch,
        number: int,
        meant: Iterable[tuple[str, float, int]],
        restored: Callable[[str], str] = str,
    ) -> Work[Any, list[Correction]]:
        """Return corrections of a slot by texts that change it.

        Args:
            batch: the batch.
            number: index of the slot.
            meant: text as the model reads it, error-model weight and edit distance of each.
            restored: returns a text as it is suggested.
        """
        slot = batch.slots[number]
        index = int(batch.sentence_of[slot.first])
        sentence, base = batch.sentences[index], int(batch.bases[index])
        start, end = slot.start - sentence.offset, slot.end - sentence.offset
        replace, size = token_replacer(self.splitter, sentence, start, end)
        found = []

        def add(one: tuple[str, float, int]) -> None:
            text, log_weight, edits = one
            if (change := replace(text)) is not None:
                first, last, tokens = change
                unknown = self.splitter.sentence(text).words if UNK in tokens else ()
                weight = log_weight + self._log_unknown(unknown)
                found.append(
                    Correction(number, base + first, base + last, tokens, weight, edits, restored(text))
                )

        yield from map_in_steps(meant, add, size=lambda one: size + len(one[0]))
        return found

    def _log_unknown(self, words: Sequence[Word]) -> float:
        """Sum the log-probabilities of the spellings of the unknown words."""
        return sum(self.log_spelling(word.text) for word in words if not word.known)
