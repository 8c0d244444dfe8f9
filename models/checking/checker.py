"""Checks texts with one model: what is built once for it, and the way of one text through the parts of this package."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from models.checking.alternatives import SentenceBatch
from models.checking.asking import CallGenerator
from models.checking.channel import ErrorModel
from models.checking.dictionary import UserDictionary
from models.checking.piece_proposals import SubwordCandidateGenerator
from models.checking.proposing import CandidateGenerator, CheckContext
from models.checking.sentences import (
    MAX_SENTENCE_TOKENS,
    Sentence,
    SentenceSplitter,
    WordSentenceSplitter,
    sentence_splitter_for,
)
from models.checking.settings import CandidateSettings, CheckSettings, GivenSpan
from models.checking.weighing import RescoredBatch, rescore_batch
from models.checking.word_proposals import WordCandidateGenerator
from models.errors import InvalidInputError
from models.protocol import LanguageModel
from models.tokenizers import Tokenizer

_MAX_BATCH_TOKENS = 512
"""Of the sentences of a batch, or one sentence: the states before all of them are held at once."""


class Checker:
    """What checking knows of a tokenizer: its words, or its pieces.

    Building one takes some hundredths of a second for large vocabularies; it refers to no model.

    Args:
        tokenizer: of the models that it is used with.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.splitter: SentenceSplitter = sentence_splitter_for(tokenizer)
        self._proposer: CandidateGenerator = (
            WordCandidateGenerator(self.splitter)
            if isinstance(self.splitter, WordSentenceSplitter)
            else SubwordCandidateGenerator(self.splitter)
        )

    def sentences(self, text: str, offset: int = 0) -> Iterator[Sentence]:
        """The sentences of a text that have a token; it begins so many characters into the whole text."""
        return self.splitter.sentences(text, lookahead=self._proposer.right_tokens(), offset=offset)

    def rescore_all(
        self, model: LanguageModel[Any], sentences: Sequence[Sentence], options: CheckSettings
    ) -> Iterator[CallGenerator[RescoredBatch]]:
        """The works that weigh some sentences, a batch each, in order; each is done before the next is taken.

        Raises:
            InvalidInputError: a caller's suggestions are for no place in the sentences.
        """
        given = _spans_by_sentence(sentences, options.given)
        dictionary, channel = UserDictionary(options.dictionary), ErrorModel(options.errors)
        right_tokens = self._right_tokens(model, options.search)
        carried: list[Any] = []

        def work(first: int, batch: Sequence[Sentence]) -> CallGenerator[RescoredBatch]:
            context = CheckContext(
                SentenceBatch(batch),
                error_model=channel,
                search=options.search,
                dictionary=dictionary,
                given={place: given[first + place] for place in range(len(batch)) if first + place in given},
            )
            state = carried.pop() if batch[0].continues_line else None
            weighed = yield from rescore_batch(
                model, self._proposer, context, state=state, right_tokens=right_tokens
            )
            if weighed.state is not None:
                carried.append(weighed.state)
            return weighed

        first = 0
        for batch in _batches(sentences):
            yield work(first, batch)
            first += len(batch)

    def _right_tokens(self, model: LanguageModel[Any], search: CandidateSettings) -> int:
        """As many as the model can tell apart, if that is known to be few."""
        if search.right_tokens is not None:
            return search.right_tokens
        if model.family == "ngram":
            return int(getattr(model, "order", 1)) - 1
        return self._proposer.right_tokens()


def _batches(sentences: Sequence[Sentence]) -> Iterator[list[Sentence]]:
    """Sentences in runs of a bounded size; one whose line goes on ends its run, and its successor is one alone."""
    batch: list[Sentence] = []
    size = 0
    for sentence in sentences:
        if batch and (
            sentence.continues_line
            or size + len(sentence.ids) > _MAX_BATCH_TOKENS
            or batch[-1].continues_line
        ):
            yield batch
            batch, size = [], 0
        batch.append(sentence)
        size += len(sentence.ids)
    if batch:
        yield batch


def _spans_by_sentence(
    sentences: Sequence[Sentence], given: Sequence[GivenSpan]
) -> Mapping[int, Sequence[GivenSpan]]:
    """The caller's spans by the sentences that they lie in."""
    found: dict[int, list[GivenSpan]] = {}
    offsets = [sentence.offset for sentence in sentences]
    for span in given:
        place = bisect_right(offsets, span.start) - 1
        if place < 0 or span.end > offsets[place] + len(sentences[place].text):
            raise InvalidInputError(
                f"{span.parameter} is from {span.start} to {span.end}; that lies in no line of the text with a word "
                f"in it, or across a place where a line of more than {MAX_SENTENCE_TOKENS} tokens is cut",
                parameter=span.parameter,
            )
        found.setdefault(place, []).append(span)
    return found
