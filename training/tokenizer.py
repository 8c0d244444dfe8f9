"""Learn a tokenizer from text, and encode a corpus with it."""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import sentencepiece
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from models.checking.lexicon import HunspellDictionary
from models.errors import FormatError, InputError
from models.kernels.threads import THREADS, run_parts
from models.language_model import CONTROL_TOKENS, UNK, Vocabulary
from models.misspellings import Misspellings
from models.normaliser import Normaliser
from models.slots import CLASS_NAME, MemberMatcher, Slots, class_mark, word_spans
from models.tokenizers import CharacterTokenizer, PieceTokenizer, Tokenizer, WordTokenizer
from models.word_index import TextSize, WordCounter, WordSplitter, compile_pattern, measure_text
from models.words import UNSPACED, word_pattern
from training.corpus import Corpus, EncodedCorpus, Sentences
from training.misspellings import find_misspellings
from training.progress import SILENT, Progress

Item = TypeVar("Item")
_DEFAULT_PIECES = 8000
_SAMPLE_SENTENCES = 1_000_000
_SAMPLE_SEED = 1
_LEXICON_SENTENCES = 4_000_000
"""Maximum sample for the lexicon, whose word counts take several hundred megabytes."""
_MAX_LEXICON = 200_000
_MIN_WORDS_TO_DROP_RARE = 1_000_000
"""Minimum text to drop words of one occurrence: many are misspelled."""
# of a regular expression, only at its start
_FLAGS = re.compile(r"\A((?:\(\?[aiLmsux]+\))*)")
_UNSPACED_RUN = re.compile(f"({UNSPACED.pattern})(?:\\w|{UNSPACED.pattern})*")
_REQUIRED = re.compile(r"required_chars\. \d+ vs (\d+)")
_MAX_SEGMENT_CHARS = 10_000
"""Maximum segment: SentencePiece takes quadratic time on repetitive ones."""


class TokenizerSettings(BaseModel):
    """The recipe's `[tokenizer]` table.

    Attributes:
        kind: `word`, `char`, or the SentencePiece types `bpe` and `unigram`.
        vocab_size: vocabulary size, including control tokens. Words and characters: the maximum; the most
            frequent are kept, all if unset. Pieces: the exact size, an error if the text is too small; unset
            requests 8000 and accepts fewer.
        min_count: minimum count of a word or character; rarer ones become `<unk>`.
        normalise: Unicode form of the training text and of all later texts: `none`, as given; `nfc`, composed, so `e`
            with a combining accent becomes `é`; `nfkc`, also without typographic variants such as `ﬁ` or full-width
            letters; `casefold`, NFKC without differences of case.
        lowercase: lower-case the text, after `normalise` (words only).
        pattern: regular expression that matches a word, in which no repetition reads one text in several ways; unset
            splits at white space (words only).
        marked_unknown: meaning of "<unk>" in a text: `word`, an ordinary word; `unknown`, the unknown word,
            for corpora in which it replaces rare words (words only).
        unicode_spaces: split at all white space of Unicode, such as no-break spaces, instead of that of ASCII only
            (words without a pattern only).
        normalization: SentencePiece normalisation rule; `identity` leaves the text unchanged.
        byte_fallback: encode characters outside the vocabulary as bytes, so no text is lost (pieces only).
        slots: for each class, the path of a file of its members, one per line; the mark of the class, such as `$city`,
            replaces them in the text. Empty if the text already contains the marks (words and pieces only).
        dictionary: path of a Hunspell dictionary of the text's language, FILE.dic, or empty: rare words that it lacks,
            one typing error from a frequent one that it has, are not offered; its words are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["word", "char", "bpe", "unigram"] = "word"
    vocab_size: int | None = Field(None, ge=4, le=2**31 - 1)
    min_count: int = Field(1, ge=1)
    normalise: Literal["none", "nfc", "nfkc", "casefold"] = "none"
    lowercase: bool = False
    pattern: str | None = None
    marked_unknown: Literal["word", "unknown"] = "word"
    unicode_spaces: bool = False
    normalization: Literal["identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"] = "identity"
    byte_fallback: bool = True
    slots: dict[str, str] = {}
    dictionary: str = ""

    @field_validator("slots")
    @classmethod
    def _check_slots(cls, slots: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if slots and info.data.get("kind") == "char":
            raise ValueError("slots require tokenizer.kind=word, bpe or unigram, given char")
        if slots and info.data.get("normalization", "identity") != "identity":
            problem = "slots require tokenizer.normalization=identity; set tokenizer.normalise instead"
            raise ValueError(problem)
        for name in slots:
            if not CLASS_NAME.fullmatch(name):
                raise ValueError(f"a class is named {name!r:.40}; names match {CLASS_NAME.pattern}")
        return slots

    @property
    def words_pattern(self) -> str | None:
        """Regular expression of a word or the mark of a class; None to split at white space."""
        if self.pattern is None or not self.slots:
            return self.pattern
        marks = "|".join(re.escape(class_mark(name)) for name in sorted(self.slots))
        _, flags, rest = _FLAGS.split(self.pattern, maxsplit=1)
        return rf"{flags}(?:{marks})\b|{rest}"

    def misspelling_finder(self) -> Callable[..., Misspellings]:
        """Return `find_misspellings` with the dictionary, if any.

        Raises:
            InputError: the dictionary cannot be read, or the extra `dictionary` is not installed.
        """
        if not self.dictionary:
            return find_misspellings
        try:
            dictionary = HunspellDictionary(Path(self.dictionary))
        except FormatError as error:
            raise InputError(f"tokenizer.dictionary: {error}", param="tokenizer.dictionary") from error
        return partial(find_misspellings, is_right=dictionary.__contains__)

    def word_splitter(self) -> WordSplitter:
        """Create a splitter of texts into the tokenizer's words."""
        return WordSplitter(self.words_pattern, unicode_spaces=self.unicode_spaces)

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        try:
            compile_pattern(pattern or "")
        except InputError as error:
            raise ValueError(str(error)) from None
        return pattern


def learn_tokenizer(
    settings: TokenizerSettings,
    sentences: Sentences,
    *,
    known: Iterable[str] = (),
    progress: Progress = SILENT,
) -> Tokenizer:
    """Learn a tokenizer from text; only word counts and a sample are in memory.

    The vocabulary of words or characters begins with the `known` ones.

    Raises:
        InputError: too little text for the settings; the message names the limit. Or the dictionary cannot be read.
    """
    find = settings.misspelling_finder()  # an error before the text is counted
    if settings.kind == "word":
        words = _count_tokens(settings, sentences, progress)
        if settings.marked_unknown == "unknown":
            words = {word: count for word, count in words.items() if word != CONTROL_TOKENS[UNK]}
        rules = settings.model_dump(include={"lowercase", "marked_unknown", "normalise", "unicode_spaces"})
        vocabulary = _most_frequent(words, settings, known)
        learnt = WordTokenizer(vocabulary, pattern=settings.words_pattern, **rules)
        if name := next((name for name in settings.slots if name not in learnt.classes), None):
            raise InputError(
                f"tokenizer.slots.{name}: {class_mark(name)} is not in the vocabulary, because the training text has "
                "neither the mark nor enough members of the list",
                param=f"tokenizer.slots.{name}",
            )
        learnt.misspellings = find(_inner_words(learnt, words))
        return learnt
    if settings.kind == "char":
        counts = _count_tokens(settings, sentences, progress)
        tokenizer: Tokenizer = CharacterTokenizer(
            _most_frequent(counts, settings, known), normalise=settings.normalise
        )
    else:
        tokenizer = _learn_pieces(settings, sentences, progress)
    words = count_words(tokenizer, sentences, progress)
    tokenizer.lexicon = learn_lexicon(words)
    tokenizer.misspellings = find(words)
    return tokenizer


def mark_members(
    tokenizer: TokenizerSettings | Tokenizer, slots: Slots, texts: Sequence[Corpus], *, progress: Progress
) -> tuple[list[Corpus], Slots]:
    """Put the marks of classes in place of their members.

    Args:
        tokenizer: the tokenizer of the texts, learnt or not.
        slots: the members of each class.
        texts: the texts.
        progress: counts sentences.

    Returns:
        The texts, and the count of each member in the first text, plus one.
    """
    if isinstance(tokenizer, Tokenizer):
        normaliser, matcher = tokenizer.normaliser, tokenizer.member_matcher(tokenizer.slots)
    else:
        is_word = tokenizer.kind == "word"
        spans = tokenizer.word_splitter().spans if is_word else word_spans
        normaliser = Normaliser(tokenizer.normalise, lowercase=tokenizer.lowercase and is_word)
        matcher = MemberMatcher(tokenizer.slots, spans, words_only=is_word)
    members = [(name, member) for name, of_class in slots.items() for member in of_class]
    for number, (name, member) in enumerate(members):
        matcher.add(normaliser(member), name, number)
    counts = np.ones(len(members), np.int64)
    marked: list[Corpus] = []
    with progress.stage("looking for members of classes", sum(len(text.sentences) for text in texts)):
        for text in texts:
            lines: list[str] = []
            marked.append(text._replace(sentences=lines))
            for batch in batches(text.sentences):
                found = [matcher.mark(normaliser(sentence), keep_marks=True) for sentence in batch]
                lines += [sentence.text for sentence in found]
                if text is texts[0]:
                    np.add.at(counts, [number for sentence in found for number in sentence.members], 1)
                progress.advance(len(batch))
    rest = iter(counts.tolist())
    return marked, {name: dict(zip(of_class, rest, strict=False)) for name, of_class in slots.items()}


def count_words(tokenizer: Tokenizer, sentences: Sentences, progress: Progress) -> Counter[str]:
    """Count the words of a text, or of a sample if it is large, as a tokenizer spells them.

    A run of a script without spaces is cut after its first character of the script.
    """
    sample = sentences[:: 1 + len(sentences) // _LEXICON_SENTENCES]
    return _inner_words(tokenizer, _count_tokens(TokenizerSettings(), sample, progress, _shorten_runs))


def _inner_words(tokenizer: Tokenizer, parts: Mapping[str, int]) -> Counter[str]:
    """Count the words in parts of texts between white space."""
    counts: Counter[str] = Counter()
    for part, count in parts.items():
        for word in word_pattern().findall(tokenizer.normalise_word(part)):
            counts[word] += count
    return counts


def learn_lexicon(counts: Counter[str]) -> tuple[str, ...]:
    """Return words that completions may offer, the most frequent first."""
    if sum(counts.values()) >= _MIN_WORDS_TO_DROP_RARE:
        counts = Counter({word: count for word, count in counts.items() if count > 1})
    return tuple(sorted(counts, key=lambda word: (-counts[word], word))[:_MAX_LEXICON])


def encode_corpus(
    tokenizer: Tokenizer, sentences: Sentences, *, progress: Progress = SILENT
) -> EncodedCorpus:
    """Encode every sentence, and count the original text's words and bytes."""
    with progress.stage("tokenising", len(sentences)):
        blocks: list[EncodedCorpus] = []
        for group in batches(batches(sentences), THREADS.most):  # compiled tokenizers release the lock
            blocks += run_parts(partial(encode_block, tokenizer), group)
            progress.advance(sum(map(len, group)))
    lengths = [np.diff(block.offsets) for block in blocks]
    return EncodedCorpus(
        np.concatenate([np.zeros(0, np.int32), *(block.tokens for block in blocks)]),
        np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths])),
        sum(block.num_words for block in blocks),
        sum(block.num_bytes for block in blocks),
    )


def encode_block(tokenizer: Tokenizer, block: list[str]) -> EncodedCorpus:
    """Encode a batch of sentences in one call."""
    ids, offsets = tokenizer.encode_ragged(block)
    if isinstance(tokenizer, WordTokenizer) and tokenizer.tokens_are_words:
        size = TextSize(len(ids), len("".join(block).encode("utf-8", "surrogatepass")))
    else:
        size = measure_text(block)
    return EncodedCorpus(ids.copy(), offsets, size.num_words, size.num_bytes)  # ids may be a view


def batches(items: Iterable[Item], size: int = 8192) -> Iterator[list[Item]]:
    """Yield items, such as sentences, in batches that by default amortise a call."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def _shorten_runs(lines: Sequence[str]) -> Sequence[str]:
    """Reduce runs of scripts without spaces, almost all different, to bound memory."""
    return [line if line.isascii() else _UNSPACED_RUN.sub(r"\1 ", line) for line in lines]


def _count_tokens(
    settings: TokenizerSettings,
    sentences: Sentences,
    progress: Progress,
    convert: Callable[[Sequence[str]], Sequence[str]] | None = None,
) -> Mapping[str, int]:
    """Count characters or words of converted lines.

    Words without a pattern take one compiled pass, on all cores.
    """
    is_char, is_plain = settings.kind == "char", settings.pattern is None and not settings.unicode_spaces
    split: Callable[[str], Iterable[str]] | None = (
        str if is_char else None if is_plain else settings.word_splitter()
    )
    counts: Counter[str] = Counter()
    counters: list[WordCounter] = []
    if convert is None:
        convert = Normaliser(settings.normalise, lowercase=settings.lowercase and settings.kind == "word").all
    with progress.stage(f"counting {'characters' if is_char else 'words'}", len(sentences)):
        for group in batches(batches(sentences), THREADS.most):
            lines = list(map(convert, group))
            if split is not None:
                counts.update(chain.from_iterable(map(split, chain.from_iterable(lines))))
            else:
                counters += [WordCounter() for _ in group[len(counters) :]]
                run_parts(lambda part: part[0].add(part[1]), list(zip(counters, lines, strict=False)))
            progress.advance(sum(map(len, group)))
    for counter in counters:
        counts.update(counter.counts())
    return counts


def _most_frequent(
    counts: Mapping[str, int], settings: TokenizerSettings, known: Iterable[str]
) -> Vocabulary:
    """Sort by descending count, then spelling, so equal texts give equal ids; known tokens first."""
    tokens = sorted((t for t, n in counts.items() if n >= settings.min_count), key=lambda t: (-counts[t], t))
    if not tokens:
        problem = f"is {settings.min_count}; no {settings.kind} of the training text occurs that often"
        raise InputError.of("tokenizer.min_count", problem)
    max_tokens = None if settings.vocab_size is None else settings.vocab_size - len(CONTROL_TOKENS)
    return Vocabulary(list(dict.fromkeys((*known, *tokens)))[:max_tokens])


def _learn_pieces(settings: TokenizerSettings, sentences: Sentences, progress: Progress) -> Tokenizer:
    size = settings.vocab_size or _DEFAULT_PIECES
    model = io.BytesIO()
    normalised = partial(map, Normaliser(settings.normalise, lowercase=False), sentences)
    with progress.stage(f"learning {size} {settings.kind} pieces"):
        # SentencePiece's default of 4,192 bytes would silently drop longer lines
        num_segments = longest = 0
        for segment in chain.from_iterable(map(_segments, normalised())):
            num_segments += 1
            longest = max(longest, len(segment.encode()))
        sentencepiece.set_random_generator_seed(_SAMPLE_SEED)
        try:
            sentencepiece.SentencePieceTrainer.Train(
                sentence_iterator=chain.from_iterable(map(_segments, normalised())),
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
                max_sentence_length=max(longest, 10),  # SentencePiece accepts no less
                user_defined_symbols=list(map(class_mark, settings.slots)),
                num_threads=1,  # whatever the number of cores
                minloglevel=2,
            )
        except (RuntimeError, OSError) as error:
            reason = str(error).rsplit("] ", maxsplit=1)[-1].strip() or str(error)
            # the library names its program's option
            if needed := _REQUIRED.search(reason):
                what = "characters and bytes" if settings.byte_fallback else "characters"
                reason = f"its {what} need {needed[1]} pieces; set tokenizer.vocab_size={needed[1]} or more"
            problem = f"is {size}, which does not fit the training text: {reason}"
            raise InputError.of("tokenizer.vocab_size", problem) from None
    return PieceTokenizer(model.getvalue(), normalise=settings.normalise, classes=[*settings.slots])


def _segments(sentence: str) -> Iterator[str]:
    """Cut a sentence into segments of bounded length, at spaces where possible."""
    begin = 0
    while len(sentence) - begin > _MAX_SEGMENT_CHARS:
        space = sentence.rfind(" ", begin + _MAX_SEGMENT_CHARS // 2, begin + _MAX_SEGMENT_CHARS)
        end = begin + _MAX_SEGMENT_CHARS if space < 0 else space
        yield sentence[begin:end]
        begin = end if space < 0 else end + 1
    yield sentence[begin:]
