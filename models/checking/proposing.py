"""What both ways of proposing alternatives share: slots of words, and the caller's own suggestions."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rapidfuzz.distance import OSA

from models.checking.alternatives import Corrections, CorrectionsBuilder, Floats, Indices, SentenceBatch, Slot
from models.checking.asking import CallGenerator
from models.checking.channel import ErrorModel
from models.checking.dictionary import UserDictionary
from models.checking.letters import split_affixes
from models.checking.replacing import Replacer
from models.checking.sentences import Sentence, SentenceSplitter, Word
from models.checking.settings import CandidateSettings, GivenSpan
from models.vocabulary import UNK


class CheckContext:
    """One batch of a request, and what is collected about it.

    Args:
        batch: its sentences.
        error_model: the error model.
        search: how far to look.
        dictionary: the caller's words.
        given: the caller's suggestions, by the number of the sentence.

    Attributes:
        words: of all sentences, in order.
        positions: the first token of each word among those of the batch [N].
        slots: first one for each word, then others.
    """

    def __init__(
        self,
        batch: SentenceBatch,
        *,
        error_model: ErrorModel,
        search: CandidateSettings,
        dictionary: UserDictionary,
        given: Mapping[int, Sequence[GivenSpan]],
    ) -> None:
        self.batch, self.error_model, self.search = batch, error_model, search
        self.dictionary, self.given = dictionary, given
        self._given_texts = {
            (span.start, span.end): frozenset(suggestion.text for suggestion in span.suggestions)
            for spans in given.values()
            for span in spans
        }
        self.words: list[Word] = [word for sentence in batch.sentences for word in sentence.words]
        counts = [len(sentence.words) for sentence in batch.sentences]
        firsts = np.fromiter((word.first for word in self.words), np.int64, len(self.words))
        self.positions: Indices = firsts + np.repeat(batch.bases, counts)
        self.slots: list[Slot] = []

    def is_correct(self, word: str) -> bool:
        """Whether a word is in the caller's dictionary, punctuation aside."""
        if word in self.dictionary:
            return True
        found = split_affixes(word) if len(self.dictionary) else None
        return found is not None and found.core in self.dictionary

    def is_given(self, start: int, end: int, text: str) -> bool:
        """Whether the caller suggests a text for just this span: then what the caller says of it counts."""
        return text in self._given_texts.get((start, end), ())

    def add_to_slot(
        self,
        found: CorrectionsBuilder,
        number: int,
        tokens: Sequence[int],
        *,
        log_weight: float,
        edits: int,
        text: str,
    ) -> None:
        """One more alternative in the place of a slot's tokens, unless the caller suggests it.

        Args:
            found: grows.
            number: of the slot.
            tokens: that stand there instead.
            log_weight: see `Corrections`.
            edits: likewise.
            text: likewise.
        """
        slot = self.slots[number]
        if not self.is_given(slot.start, slot.end, text):
            span = (slot.first, slot.last)
            found.add(number, span, tokens, log_weight=log_weight, edits=edits, text=text)


class CandidateGenerator(ABC):
    """Finds what may have been meant, for one tokenizer.

    Args:
        splitter: of its texts.
    """

    def __init__(self, splitter: SentenceSplitter) -> None:
        self.splitter = splitter

    @abstractmethod
    def right_tokens(self) -> int:
        """Tokens after a word that its alternatives must explain too, of a model that remembers far."""

    @abstractmethod
    def propose(self, context: CheckContext) -> CallGenerator[Corrections]:
        """Alternatives that can be told from the text alone; makes the words' slots."""

    @abstractmethod
    def propose_after_reading(
        self, context: CheckContext, state: Any, rows: Indices, log_probs: Floats
    ) -> CallGenerator[Corrections]:
        """Further ones, once the model has read the text.

        Args:
            context: with its slots.
            state: before every token of the batch.
            rows: of the state, by token [P].
            log_probs: of every token [P].
        """

    @abstractmethod
    def log_spelling(self, word: str) -> float:
        """Logarithm of P(spelling | unknown word), where the model has one token for all of these; else 0."""

    def add_given(self, context: CheckContext, found: CorrectionsBuilder) -> CallGenerator[None]:
        """The caller's own suggestions; those for a word stand in its slot, with what else was found for it."""
        by_span = {(slot.start, slot.end): number for number, slot in enumerate(context.slots)}
        for number, spans in context.given.items():
            sentence, base = context.batch.sentences[number], int(context.batch.bases[number])
            for span in spans:
                place = by_span.get((span.start, span.end))
                if place is None:
                    place = by_span[span.start, span.end] = len(context.slots)
                    context.slots.append(self._slot_of(context, sentence, base, span))
                typed = sentence.text[span.start - sentence.offset : span.end - sentence.offset]
                # numbers and the like, which nothing is proposed for, can be wrong if the caller says so
                context.slots[place] = context.slots[place]._replace(exempt=context.is_correct(typed))
                self._add_span(context, found, (sentence, base, span), place)
                yield None

    def _slot_of(self, context: CheckContext, sentence: Sentence, base: int, span: GivenSpan) -> Slot:
        inside = self.splitter.tokens_in(sentence, span.start - sentence.offset, span.end - sentence.offset)
        words = [word for word in sentence.words if word.start < span.end and word.end > span.start]
        spelled = sum(self.log_spelling(word.text) for word in words if not word.known)
        return Slot(
            span.start,
            span.end,
            base + inside.start,
            base + inside.stop,
            all(word.known for word in words),
            exempt=False,
            log_weight=context.error_model.log_correct + spelled,
        )

    def _add_span(
        self,
        context: CheckContext,
        found: CorrectionsBuilder,
        where: tuple[Sentence, int, GivenSpan],
        place: int,
    ) -> None:
        sentence, base, span = where
        start, end = span.start - sentence.offset, span.end - sentence.offset
        typed = sentence.text[start:end]
        replacer = Replacer(self.splitter, sentence, start, end)
        for suggestion in span.suggestions:
            if suggestion.text == typed:
                if suggestion.log_prob is not None:
                    slot = context.slots[place]
                    unknown = slot.log_weight - context.error_model.log_correct
                    context.slots[place] = slot._replace(log_weight=suggestion.log_prob + unknown)
                continue
            change = replacer.put(suggestion.text)
            if change is None:
                continue
            log_prob = suggestion.log_prob
            if log_prob is None:
                log_prob = context.error_model.given_log_prob(len(span.suggestions))
            found.add(
                place,
                (base + change.first, base + change.last),
                change.tokens,
                log_weight=log_prob + self._log_unknown(suggestion.text, change.tokens),
                edits=OSA.distance(typed, suggestion.text),
                text=suggestion.text,
            )

    def _log_unknown(self, text: str, tokens: Sequence[int]) -> float:
        """Logarithm of how probable the spellings of a suggestion's unknown words are."""
        if UNK not in tokens:
            return 0.0
        sentence = self.splitter.sentence(text)
        return sum(self.log_spelling(word.text) for word in sentence.words if not word.known)
