"""Learn a tokenizer from text, and encode a corpus with it."""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Literal

import numpy as np
import sentencepiece
from pydantic import BaseModel, ConfigDict, Field, field_validator

from models.errors import InvalidInputError
from models.tokenizers import (
    CharacterTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    WordSplitter,
    WordTokenizer,
)
from models.vocabulary import CONTROL_TOKENS, UNK, Vocabulary
from models.word_index import WordCounter, measure_text
from training.corpus import EncodedCorpus, Sentences
from training.progress import SILENT, Progress

_BATCH = 8192
_DEFAULT_PIECES = 8000
_SAMPLE_SENTENCES = 1_000_000
_SAMPLE_SEED = 1
_MAX_SEGMENT_CHARACTERS = 10_000
"""Maximum segment given to SentencePiece, whose time is quadratic in repetitive segments."""


class TokenizerSettings(BaseModel):
    """The recipe's `[tokenizer]` table.

    Attributes:
        kind: `word`, `char`, or SentencePiece's `bpe` or `unigram`.
        vocab_size: number of tokens, control tokens included. Words and characters: the maximum,
            filled with the most frequent; None keeps all. Pieces: the exact number, an error if the
            text is too small for it; None requests 8000 and accepts fewer from a small text.
        min_count: words or characters with a lower count become `<unk>`.
        lowercase: lower-case the text first (word).
        pattern: regular expression whose matches are the words; None: split at white space (word).
        marked_unknown: the meaning of "<unk>" in a text: `word`, an ordinary word; `unknown`, the
            unknown word itself, for corpora with rare words replaced by it (word).
        normalization: SentencePiece's normalisation rule; `identity` keeps every text as it is.
        byte_fallback: encode characters outside the vocabulary as bytes, so that none is lost.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["word", "char", "bpe", "unigram"] = "word"
    vocab_size: int | None = Field(default=None, ge=4, le=2**31 - 1)
    min_count: int = Field(default=1, ge=1)
    lowercase: bool = False
    pattern: str | None = None
    marked_unknown: Literal["word", "unknown"] = "word"
    normalization: Literal["identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"] = "identity"
    byte_fallback: bool = True

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"it is not a regular expression: {error}") from None
        return pattern


def learn_tokenizer(
    settings: TokenizerSettings, sentences: Sentences, *, progress: Progress = SILENT
) -> Tokenizer:
    """Learn a tokenizer from training text, with only word counts and a sample in memory.

    Raises:
        InvalidInputError: the text does not yield such a vocabulary; the message names the limit.
    """
    if settings.kind == "word":
        words = _count_tokens(settings, sentences, progress)
        if settings.marked_unknown == "unknown":
            words = {word: count for word, count in words.items() if word != CONTROL_TOKENS[UNK]}
        return WordTokenizer(
            Vocabulary(_most_frequent(words, settings)),
            pattern=settings.pattern,
            lowercase=settings.lowercase,
            marked_unknown=settings.marked_unknown,
        )
    if settings.kind == "char":
        characters = _count_tokens(settings, sentences, progress)
        return CharacterTokenizer(Vocabulary(_most_frequent(characters, settings)))
    return _learn_pieces(settings, sentences, progress)


def encode_corpus(
    tokenizer: Tokenizer, sentences: Sentences, *, progress: Progress = SILENT
) -> EncodedCorpus:
    """Encode every sentence; words and bytes are those of the original text."""
    progress.start("tokenising", len(sentences))
    blocks: list[EncodedCorpus] = []
    for batch in batches(sentences):
        blocks.append(encode_block(tokenizer, batch))
        progress.advance(len(batch))
    progress.finish()
    lengths = [np.diff(block.offsets) for block in blocks]
    return EncodedCorpus(
        np.concatenate([np.zeros(0, np.int32), *(block.tokens for block in blocks)]),
        np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths])),
        sum(block.num_words for block in blocks),
        sum(block.num_bytes for block in blocks),
    )


def encode_block(tokenizer: Tokenizer, block: list[str]) -> EncodedCorpus:
    """Encode some sentences in one call."""
    ids, offsets = tokenizer.encode_ragged(block)
    size = measure_text(block)
    return EncodedCorpus(ids.copy(), offsets, size.num_words, size.num_bytes)  # ids may be a view


def batches(sentences: Iterable[str]) -> Iterator[list[str]]:
    """Yield sentences in batches of thousands, enough to amortise a call."""
    rest = iter(sentences)
    while batch := list(islice(rest, _BATCH)):
        yield batch


def _count_tokens(settings: TokenizerSettings, sentences: Sentences, progress: Progress) -> Mapping[str, int]:
    """Count characters, or words: in one compiled pass unless the tokenizer has a pattern."""
    split: Callable[[str], Iterable[str]] | None = None
    if settings.kind == "char":
        split = str
    elif settings.pattern is not None:
        split = WordSplitter(settings.pattern, lowercase=settings.lowercase)
    counts: Counter[str] = Counter()
    words = WordCounter()
    progress.start(f"counting {'characters' if settings.kind == 'char' else 'words'}", len(sentences))
    for batch in batches(sentences):
        if split is not None:
            counts.update(chain.from_iterable(map(split, batch)))
        else:
            words.add([s.lower() for s in batch] if settings.lowercase else batch)
        progress.advance(len(batch))
    progress.finish()
    return words.counts() if split is None else counts


def _most_frequent(counts: Mapping[str, int], settings: TokenizerSettings) -> list[str]:
    """Sort by descending count, then by spelling, so that equal texts give equal ids."""
    tokens = sorted((t for t, n in counts.items() if n >= settings.min_count), key=lambda t: (-counts[t], t))
    if not tokens:
        raise InvalidInputError(
            f"no {settings.kind} occurs {settings.min_count} times (tokenizer.min_count) in the training text",
            parameter="tokenizer.min_count",
        )
    max_tokens = None if settings.vocab_size is None else settings.vocab_size - len(CONTROL_TOKENS)
    return tokens[:max_tokens]


def _learn_pieces(settings: TokenizerSettings, sentences: Sentences, progress: Progress) -> Tokenizer:
    size = settings.vocab_size or _DEFAULT_PIECES
    model = io.BytesIO()
    progress.start(f"learning {size} {settings.kind} pieces", None)
    # SentencePiece's own maximum of 4,192 bytes would silently leave longer lines out
    num_segments = longest = 0
    for segment in chain.from_iterable(map(_segments, sentences)):
        num_segments += 1
        longest = max(longest, len(segment.encode()))
    sentencepiece.set_random_generator_seed(_SAMPLE_SEED)
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=chain.from_iterable(map(_segments, sentences)),
            model_writer=model,
            model_type=settings.kind,
            vocab_size=size,
            hard_vocab_limit=settings.vocab_size is not None,
            character_coverage=1.0 if not settings.byte_fallback else 0.9995,
            byte_fallback=settings.byte_fallback,
            normalization_rule_name=settings.normalization,
            remove_extra_whitespaces=settings.normalization != "identity",
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=-1,
            input_sentence_size=_SAMPLE_SENTENCES,
            shuffle_input_sentence=num_segments > _SAMPLE_SENTENCES,
            max_sentence_length=max(longest, 10),  # the minimum accepted
            num_threads=1,  # the result must not depend on the number of cores
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        reason = str(error).rsplit("] ", maxsplit=1)[-1].strip() or str(error)
        raise InvalidInputError(
            f"tokenizer.vocab_size {size} does not fit the training text: {reason}",
            parameter="tokenizer.vocab_size",
        ) from None
    progress.finish()
    return SentencePieceTokenizer(model.getvalue())


def _segments(sentence: str) -> Iterator[str]:
    """Cut a sentence into segments of bounded length, at spaces where possible."""
    begin = 0
    while len(sentence) - begin > _MAX_SEGMENT_CHARACTERS:
        space = sentence.rfind(" ", begin + _MAX_SEGMENT_CHARACTERS // 2, begin + _MAX_SEGMENT_CHARACTERS)
        end = begin + _MAX_SEGMENT_CHARACTERS if space < 0 else space
        yield sentence[begin:end]
        begin = end if space < 0 else end + 1
    yield sentence[begin:]
