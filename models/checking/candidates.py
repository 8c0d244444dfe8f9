"""Candidate corrections of words.

`Corrections` holds M candidates in arrays: the slot of the text that each replaces, its tokens and
its error-model weight. A `CandidateGenerator` finds them for one tokenizer.

`Replacer` re-tokenises only up to the white space on both sides of a replaced span if its tokens
there are those of the whole text; otherwise it re-tokenises the whole sentence.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import OSA, Postfix, Prefix

from models.arrays import FloatArray, TokenIds
from models.calls import CallGenerator, ScoreChoices
from models.checking.error_model import CandidateSettings, ErrorModel, GivenSpan
from models.checking.lexicon import UserDictionary
from models.checking.sentences import Sentence, SentenceSplitter, Word, split_affixes
from models.language_model import (
    LanguageModel,
)
from models.vocabulary import UNK

Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Slot(NamedTuple):
    """A place where something else may have been meant: a word, two neighbours, or a span of a caller's.

    Attributes:
        start: where it begins in the whole text, in code points.
        end: where it ends.
        first: its first token, by its place among those of the batch.
        last: the token after its last.
        known: whether the model knows its words.
        exempt: whether it cannot be wrong, since it is in the caller's dictionary.
        log_weight: ln of how probable it is to be typed so when it is meant, spellings of unknown words included.
    """

    start: int
    end: int
    first: int
    last: int
    known: bool
    exempt: bool
    log_weight: float


class Corrections(NamedTuple):
    """M token sequences that may stand in the place of some tokens of a batch.

    Attributes:
        slots: the place of each [M].
        firsts: the token that each begins at, by its place among those of the batch [M].
        lasts: the token that follows each [M].
        tokens: of all, one after the other [K].
        offsets: where the tokens of each begin, and K at the end [M + 1].
        log_weights: ln of how probable what was typed is when this is meant [M].
        edits: how far each is from what was typed [M].
        texts: how each is spelled; None where its one token says so [M].
    """

    slots: Indices
    firsts: Indices
    lasts: Indices
    tokens: TokenIds
    offsets: Indices
    log_weights: Floats
    edits: Indices
    texts: npt.NDArray[Any]

    @property
    def lengths(self) -> Indices:
        """Tokens of each [M]."""
        return np.diff(self.offsets)

    def select(self, rows: Indices) -> "Corrections":
        """Select a subset."""
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - self.offsets[rows], lengths)
        return Corrections(
            self.slots[rows],
            self.firsts[rows],
            self.lasts[rows],
            self.tokens[inside],
            offsets,
            self.log_weights[rows],
            self.edits[rows],
            self.texts[rows],
        )


def concatenate_corrections(parts: Sequence[Corrections]) -> Corrections:
    """All alternatives of several; at least one."""
    if len(parts) == 1:
        return parts[0]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    lengths = np.concatenate([part.lengths for part in parts])
    return Corrections(*columns)._replace(offsets=np.concatenate([[0], np.cumsum(lengths)]))


class Correction(NamedTuple):
    """One of few corrections that are found one at a time; see `Corrections`."""

    slot: int
    first: int
    last: int
    tokens: Sequence[int]
    log_weight: float
    edits: int
    text: str


def corrections_from(found: Sequence[Correction]) -> Corrections:
    """Collect corrections that were found one at a time."""
    columns = list(zip(*found, strict=True)) if found else [()] * len(Correction._fields)
    slots, firsts, lasts, tokens, log_weights, edits, texts = columns
    return Corrections(
        np.array(slots, dtype=np.int64),
        np.array(firsts, dtype=np.int64),
        np.array(lasts, dtype=np.int64),
        np.array([token for own in tokens for token in own], dtype=np.int64),
        np.cumsum([0, *map(len, tokens)], dtype=np.int64),
        np.array(log_weights, dtype=np.float64),
        np.array(edits, dtype=np.int64),
        np.array(texts, dtype=object),
    )


class SentenceBatch:
    """Sentences side by side: all their tokens in one array, each sentence with what follows it.

    Args:
        sentences: at least one; one that goes on with the sentence before it stands alone.

    Attributes:
        sentences: these.
        lengths: tokens of each with those that follow it [S].
        bases: where each begins in `tokens` [S].
        tokens: of all [P].
        sentence_of: of each token [P].
    """

    def __init__(self, sentences: Sequence[Sentence]) -> None:
        self.sentences = tuple(sentences)
        runs = [np.concatenate([sentence.ids, sentence.after]) for sentence in sentences]
        self.lengths = np.fromiter(map(len, runs), np.int64, len(runs))
        self.bases = np.cumsum(self.lengths) - self.lengths
        self.tokens = np.concatenate(runs)
        self.sentence_of = np.repeat(np.arange(len(runs)), self.lengths)

    @property
    def ends(self) -> Indices:
        """Ends of each sentence's tokens, with those that follow it [S]."""
        return self.bases + self.lengths


def choice_log_probs(
    model: LanguageModel[Any], state: Any, rows: TokenIds, tokens: TokenIds
) -> CallGenerator[FloatArray]:
    """Log-probabilities [C] of tokens as the next of rows, in any order."""
    order = np.argsort(rows, kind="stable")
    out = np.empty(len(rows), dtype=np.float32)
    out[order] = yield from ScoreChoices(model, state, rows[order], tokens[order])
    return out


class Replacement(NamedTuple):
    """A sentence's tokens from `first` on and before `last` are replaced.

    Attributes:
        first: place of the first token that changes, or before which some are put in.
        last: that after the last.
        tokens: what stands there instead.
    """

    first: int
    last: int
    tokens: tuple[int, ...]


class Replacer:
    """Puts texts in the place of some characters of a sentence.

    Args:
        cutter: of the sentence's tokenizer.
        sentence: any.
        start: where the characters begin in it.
        end: where they end.
    """

    def __init__(self, cutter: SentenceSplitter, sentence: Sentence, start: int, end: int) -> None:
        text = sentence.text
        left, right = _whitespace_bounds(text, start, end)
        tokens = cutter.tokens_in(sentence, left, right)
        ids = sentence.ids[tokens].tolist()
        if cutter.tokenizer.encode(text[left:right]) != ids:
            left, right, tokens = 0, len(text), slice(0, len(sentence.ids))
            ids = sentence.ids.tolist()
        self._splitter = cutter
        self._before, self._behind = text[left:start], text[end:right]
        self._begin, self._ids = tokens.start, ids

    def put(self, text: str) -> Replacement | None:
        """The change of tokens if a text stands there; None if the tokenizer does not distinguish the two.

        An unknown word for another is a change, though the tokens are the same.
        """
        before = self._ids
        after = self._splitter.tokenizer.encode(self._before + text + self._behind)
        if before == after:
            if UNK not in before:
                return None
            return Replacement(self._begin, self._begin + len(before), tuple(after))
        same = Prefix.similarity(before, after)
        rest = min(len(before), len(after)) - same
        same_end = min(Postfix.similarity(before, after), rest)
        return Replacement(
            self._begin + same,
            self._begin + len(before) - same_end,
            tuple(after[same : len(after) - same_end]),
        )


def _whitespace_bounds(text: str, start: int, end: int) -> tuple[int, int]:
    """The nearest white space, or the text's ends, on both sides of some characters."""
    while start and not text[start - 1].isspace():
        start -= 1
    while end < len(text) and not text[end].isspace():
        end += 1
    return start, end


class CheckContext:
    """One batch of a request, and what is collected about it.

    Args:
        model: any that reads from left to right.
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
        model: LanguageModel[Any],
        batch: SentenceBatch,
        *,
        error_model: ErrorModel,
        search: CandidateSettings,
        dictionary: UserDictionary,
        given: Mapping[int, Sequence[GivenSpan]],
    ) -> None:
        self.model, self.batch = model, batch
        self.error_model, self.search = error_model, search
        self.dictionary, self.given = dictionary, given
        self._given_texts = {
            (span.start, span.end): frozenset(text for text, _ in span.suggestions)
            for spans in given.values()
            for span in spans
        }
        self.words: list[Word] = [word for sentence in batch.sentences for word in sentence.words]
        counts = [len(sentence.words) for sentence in batch.sentences]
        firsts = np.fromiter((word.first for word in self.words), np.int64, len(self.words))
        self.positions: Indices = firsts + np.repeat(batch.bases, counts)
        self.slots: list[Slot] = []

    def is_correct(self, word: str) -> bool:
        """Return whether a word is in the caller's dictionary, punctuation aside."""
        if word in self.dictionary:
            return True
        found = split_affixes(word) if len(self.dictionary) else None
        return found is not None and found.core in self.dictionary

    def is_given(self, start: int, end: int, text: str) -> bool:
        """Return whether the caller suggests a text for just this span; the caller's values then count."""
        return text in self._given_texts.get((start, end), ())

    def join_slots(self, number: int, *, log_weight: float) -> int:
        """Make a slot of a word's and the next one's; return its number."""
        slot, following = self.slots[number : number + 2]
        known = slot.known and following.known
        self.slots.append(
            slot._replace(end=following.end, last=following.last, known=known, log_weight=log_weight)
        )
        return len(self.slots) - 1

    def correct_slot(
        self, number: int, tokens: Sequence[int], *, log_weight: float, edits: int, text: str
    ) -> Iterator[Correction]:
        """Yield a correction in the place of a slot's tokens, unless the caller suggests it."""
        slot = self.slots[number]
        if not self.is_given(slot.start, slot.end, text):
            yield Correction(number, slot.first, slot.last, tokens, log_weight, edits, text)


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
        """Alternatives found from the text alone; makes the words' slots."""

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

    def key(self, word: str) -> str:
        """Return a word as the vocabulary spells it."""
        return word

    def word_slot(self, context: CheckContext, number: int) -> Slot:
        """Return the slot of a word of the batch; what is no word of letters cannot be wrong."""
        word, position = context.words[number], int(context.positions[number])
        return Slot(
            word.start,
            word.end,
            position,
            position + word.last - word.first,
            word.known,
            exempt=split_affixes(self.key(word.text)) is None or context.is_correct(word.text),
            log_weight=context.error_model.log_correct + self._log_unknown([word]),
        )

    def add_given(self, context: CheckContext, found: list[Correction]) -> CallGenerator[None]:
        """The caller's own suggestions; those for a word stand in its slot, with what else was found for it."""
        by_span = {(slot.start, slot.end): number for number, slot in enumerate(context.slots)}
        for number, spans in context.given.items():
            sentence, base = context.batch.sentences[number], int(context.batch.bases[number])
            for span in spans:
                index = by_span.get((span.start, span.end))
                if index is None:
                    index = by_span[span.start, span.end] = len(context.slots)
                    context.slots.append(self._span_slot(context, sentence, base, span))
                typed = sentence.text[span.start - sentence.offset : span.end - sentence.offset]
                # numbers and the like, which nothing is proposed for, can be wrong if the caller says so
                context.slots[index] = context.slots[index]._replace(exempt=context.is_correct(typed))
                found += self._span_corrections(context, sentence, base, span, index)
                yield None

    def _span_slot(self, context: CheckContext, sentence: Sentence, base: int, span: GivenSpan) -> Slot:
        inside = self.splitter.tokens_in(sentence, span.start - sentence.offset, span.end - sentence.offset)
        words = [word for word in sentence.words if word.start < span.end and word.end > span.start]
        return Slot(
            span.start,
            span.end,
            base + inside.start,
            base + inside.stop,
            all(word.known for word in words),
            exempt=False,
            log_weight=context.error_model.log_correct + self._log_unknown(words),
        )

    def _span_corrections(
        self, context: CheckContext, sentence: Sentence, base: int, span: GivenSpan, index: int
    ) -> Iterator[Correction]:
        start, end = span.start - sentence.offset, span.end - sentence.offset
        typed = sentence.text[start:end]
        replacer = Replacer(self.splitter, sentence, start, end)
        for text, log_prob in span.suggestions:
            if text == typed:
                if log_prob is not None:
                    slot = context.slots[index]
                    unknown = slot.log_weight - context.error_model.log_correct
                    context.slots[index] = slot._replace(log_weight=log_prob + unknown)
                continue
            change = replacer.put(text)
            if change is None:
                continue
            log_weight = (
                context.error_model.given_log_prob(len(span.suggestions)) if log_prob is None else log_prob
            )
            if UNK in change.tokens:
                log_weight += self._log_unknown(self.splitter.sentence(text).words)
            first, last = base + change.first, base + change.last
            yield Correction(index, first, last, change.tokens, log_weight, OSA.distance(typed, text), text)

    def _log_unknown(self, words: Sequence[Word]) -> float:
        """Logarithm of how probable the spellings of the unknown ones of some words are."""
        return sum(self.log_spelling(word.text) for word in words if not word.known)
