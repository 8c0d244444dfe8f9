"""Candidate corrections of words.

`Corrections` holds M candidates in arrays: the slot of the text that each replaces, its tokens and
its error-model weight. A `CandidateGenerator` finds them for one tokenizer.

`token_replacer` re-tokenises only up to the white space on both sides of a replaced span if its tokens
there are those of the whole text; otherwise it re-tokenises the whole sentence.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


def choice_log_probs(
    model: LanguageModel[Any], state: Any, rows: TokenIds, tokens: TokenIds
) -> CallGenerator[FloatArray]:
    """Log-probabilities [C] of tokens as the next of rows, in any order."""
    order = np.argsort(rows, kind="stable")
    out = np.empty(len(rows), dtype=np.float32)
    out[order] = yield from ScoreChoices(model, state, rows[order], tokens[order])
    return out


def token_replacer(
    splitter: SentenceSplitter, sentence: Sentence, start: int, end: int
) -> Callable[[str], tuple[int, int, tuple[int, ...]] | None]:
    """Return a function that puts a text in the place of the characters of a sentence from `start` to `end`.

    It returns the first token of the sentence that changes, the one after the last, and the tokens that stand there
    instead; None if the tokenizer does not distinguish the two texts. An unknown word for another is a change, though
    the tokens are the same.
    """
    text = sentence.text
    left, right = _whitespace_bounds(text, start, end)
    tokens = splitter.tokens_in(sentence, left, right)
    before = sentence.ids[tokens].tolist()
    if splitter.tokenizer.encode(text[left:right]) != before:
        left, right, tokens = 0, len(text), slice(0, len(sentence.ids))
        before = sentence.ids.tolist()
    begin: int = tokens.start

    def replace(new: str) -> tuple[int, int, tuple[int, ...]] | None:
        after = splitter.tokenizer.encode(text[left:start] + new + text[end:right])
        if before == after:
            return (begin, begin + len(before), tuple(after)) if UNK in before else None
        same = Prefix.similarity(before, after)
        rest = min(len(before), len(after)) - same
        same_end = min(Postfix.similarity(before, after), rest)
        return begin + same, begin + len(before) - same_end, tuple(after[same : len(after) - same_end])

    return replace


def _whitespace_bounds(text: str, start: int, end: int) -> tuple[int, int]:
    """The nearest white space, or the text's ends, on both sides of some characters."""
    while start and not text[start - 1].isspace():
        start -= 1
    while end < len(text) and not text[end].isspace():
        end += 1
    return start, end


class CheckContext:
    """One batch of a request: sentences side by side, and what is collected about them.

    Args:
        model: any that reads from left to right.
        sentences: at least one; one that goes on with the sentence before it stands alone.
        error_model: the error model.
        search: how far to look.
        dictionary: the caller's words.
        given: the caller's suggestions, by the number of the sentence.

    Attributes:
        lengths: tokens of each sentence with those that follow it [S].
        bases: where each begins in `tokens` [S].
        tokens: of all, each sentence with what follows it [P].
        sentence_of: of each token [P].
        words: of all sentences, in order.
        positions: the first token of each word among those of the batch [N].
        slots: first one for each word, then others.
    """

    def __init__(
        self,
        model: LanguageModel[Any],
        sentences: Sequence[Sentence],
        *,
        error_model: ErrorModel,
        search: CandidateSettings,
        dictionary: UserDictionary,
        given: Mapping[int, Sequence[GivenSpan]],
    ) -> None:
        self.model, self.sentences = model, sentences
        self.error_model, self.search = error_model, search
        self.dictionary, self.given = dictionary, given
        self._given_texts = {
            (span.start, span.end): frozenset(text for text, _ in span.suggestions)
            for spans in given.values()
            for span in spans
        }
        runs = [np.concatenate([sentence.ids, sentence.after]) for sentence in sentences]
        self.lengths = np.fromiter(map(len, runs), np.int64, len(runs))
        self.bases = np.cumsum(self.lengths) - self.lengths
        self.tokens = np.concatenate(runs)
        self.sentence_of = np.repeat(np.arange(len(runs)), self.lengths)
        self.words: list[Word] = [word for sentence in sentences for word in sentence.words]
        counts = [len(sentence.words) for sentence in sentences]
        firsts = np.fromiter((word.first for word in self.words), np.int64, len(self.words))
        self.positions: Indices = firsts + np.repeat(self.bases, counts)
        self.slots: list[Slot] = []

    def is_correct(self, word: str) -> bool:
        """Return whether a word is in the caller's dictionary, punctuation aside."""
        if word in self.dictionary:
            return True
        found = split_affixes(word) if len(self.dictionary) else None
        return found is not None and found.core in self.dictionary

    def is_given(self, number: int, text: str) -> bool:
        """Return whether the caller suggests a text for just this slot; the caller's values then count."""
        slot = self.slots[number]
        return text in self._given_texts.get((slot.start, slot.end), ())

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
        if not self.is_given(number, text):
            yield Correction(number, slot.first, slot.last, tokens, log_weight, edits, text)


class CandidateGenerator(ABC):
    """Finds what may have been meant, for one tokenizer.

    Args:
        splitter: of its texts.
        right_tokens: after a word, that its alternatives must explain too, of a model that remembers far.
    """

    def __init__(self, splitter: SentenceSplitter, right_tokens: int) -> None:
        self.splitter, self.right_tokens = splitter, right_tokens

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

    def log_spelling(self, word: str) -> float:  # noqa: ARG002 - what overrides it looks at the word
        """Logarithm of P(spelling | unknown word), where the model has one token for all of these; else 0."""
        return 0.0

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
            sentence = context.sentences[number]
            for span in spans:
                index = by_span.get((span.start, span.end))
                if index is None:
                    index = by_span[span.start, span.end] = len(context.slots)
                    context.slots.append(self._span_slot(context, number, span))
                typed = sentence.text[span.start - sentence.offset : span.end - sentence.offset]
                # numbers and the like, which nothing is proposed for, can be wrong if the caller says so
                context.slots[index] = context.slots[index]._replace(exempt=context.is_correct(typed))
                found += self._span_corrections(context, span, index, typed)
                yield None

    def _span_slot(self, context: CheckContext, number: int, span: GivenSpan) -> Slot:
        sentence, base = context.sentences[number], int(context.bases[number])
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
        self, context: CheckContext, span: GivenSpan, index: int, typed: str
    ) -> Iterator[Correction]:
        meant: list[tuple[str, float, int]] = []
        for text, log_prob in span.suggestions:
            if text != typed:
                ours = context.error_model.given_log_prob(len(span.suggestions))
                meant.append((text, ours if log_prob is None else log_prob, OSA.distance(typed, text)))
            elif log_prob is not None:
                slot = context.slots[index]
                unknown = slot.log_weight - context.error_model.log_correct
                context.slots[index] = slot._replace(log_weight=log_prob + unknown)
        return self.replacements(context, index, meant)

    def replacements(
        self, context: CheckContext, number: int, meant: Iterable[tuple[str, float, int]]
    ) -> Iterator[Correction]:
        """Yield corrections that put texts in the place of a slot's characters; none for one that is no change.

        Args:
            context: the batch.
            number: of the slot.
            meant: each text, its error-model weight, and how many edits it is away.
        """
        slot = context.slots[number]
        index = int(context.sentence_of[slot.first])
        sentence, base = context.sentences[index], int(context.bases[index])
        start, end = slot.start - sentence.offset, slot.end - sentence.offset
        replace = token_replacer(self.splitter, sentence, start, end)
        for text, log_weight, edits in meant:
            change = replace(text)
            if change is not None:
                first, last, tokens = change
                unknown = self.splitter.sentence(text).words if UNK in tokens else ()
                weight = log_weight + self._log_unknown(unknown)
                yield Correction(number, base + first, base + last, tokens, weight, edits, text)

    def _log_unknown(self, words: Sequence[Word]) -> float:
        """Logarithm of how probable the spellings of the unknown ones of some words are."""
        return sum(self.log_spelling(word.text) for word in words if not word.known)
