"""ARPA files in: every n-gram with its weights, as `build_automaton` takes them.

Files of lmplz, SRILM and IRSTLM are read as they are: missing back-offs are 0, suffixes may
be missing, `<s>` may have the log-probability 0 or -99 and is never predicted, `<UNK>` is
`<unk>`. Whatever else is wrong is refused with the line it stands in.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from models.errors import FormatError
from models.ngram.arpa.decimals import nearest_float
from models.ngram.arpa.header import (
    BACKWARD_OPTION,
    END_HEADING,
    LOG_ZERO_OPTION,
    ArpaHeader,
    read_header,
    section_heading,
)
from models.ngram.arpa.kernels import NGramRows, PrefixTrie
from models.ngram.arpa.lexicon import ArpaLexicon, read_lexicon
from models.ngram.arpa.sections import ArpaSection
from models.ngram.arpa.sorting import extend_trie, sort_rows
from models.ngram.arpa.source import ArpaSource, quote_bytes
from models.ngram.arpa.words import ESCAPED_OPTION
from models.ngram.build import NGrams, NGramWeights
from models.vocabulary import BOS, Vocabulary
from models.word_table import WordTable

MISSING_UNKNOWN_LOG10 = -100.0
"""The log-probability of `<unk>` where a file has none, as with KenLM."""


class ArpaReport(NamedTuple):
    """What a reader of a model may want to know of its file.

    Attributes:
        sha256: of the file as it lies on disk, hex.
        lists_unknown: whether it lists `<unk>`.
        missing_backoffs: n-grams below the highest order without a back-off weight; it is 0 then.
        ignored_backoffs: n-grams of the highest order with a back-off weight, which means nothing.
        ignored_starts: n-grams that predict `<s>`, apart from the unigram; nothing does here.
        split_words: words with white space inside, such as U+00A0, which texts are split at.
        escaped: whether words were escaped.
        backward: whether it says that the model reads right to left.
    """

    sha256: str
    lists_unknown: bool
    missing_backoffs: int
    ignored_backoffs: int
    ignored_starts: int
    split_words: int
    escaped: bool
    backward: bool


class ArpaModel(NamedTuple):
    """A back-off model as a file has it.

    Attributes:
        vocabulary: the words in the order of the file.
        orders: n-grams and weights of the orders 1, 2, …; suffixes are all −1, not known.
        report: remarks on the file.
    """

    vocabulary: Vocabulary
    orders: list[tuple[NGrams, NGramWeights]]
    report: ArpaReport


def read_arpa(path: Path, *, on_read: Callable[[int], None] = lambda _: None) -> ArpaModel:
    """Read an ARPA file, packed or not.

    Log-probabilities and back-off weights become the nearest floats. Needs about 40 bytes of
    memory for an n-gram of the largest order, 20 for the others.

    Args:
        path: plain, gzip, xz or Zstandard, whatever its name.
        on_read: told of bytes read from disk, with those of the whole file in the end.

    Raises:
        FormatError: it cannot be read, or is no valid ARPA file; the message has the line and a hint.
    """
    with ArpaSource(path, on_read=on_read) as source:
        header = read_header(source)
        log_zero = _log_zero(path, header)
        words = WordTable()
        trie = PrefixTrie(np.zeros(0, np.int32), np.zeros(1, np.int64), 0, 0)
        section = ArpaSection(source, order=1, declared=header.counts[0])
        section.read(words, trie.words, trie)
        order_of_model = len(header.counts)
        if order_of_model > 1:
            section.check_backoffs(highest=order_of_model)
        escaped = ESCAPED_OPTION in header.options.items()
        lexicon = read_lexicon(source, words, section.rows.lines, escaped=escaped)
        size = len(lexicon.vocabulary)
        orders = [_make_unigrams(section.rows, lexicon)]
        missing = [section.missing_backoffs]
        trie = trie._replace(vocab_size=size)
        for order, declared in enumerate(header.counts[1:], start=2):
            _expect_heading(source, section_heading(order))
            section = ArpaSection(source, order=order, declared=declared)
            section.read(words, lexicon.ids, trie)
            num_prefixes = len(orders[-1][0].words)
            orders.append(_sort_section(section, num_prefixes=num_prefixes, vocab_size=size))
            missing.append(section.missing_backoffs)
            if order < order_of_model:
                section.check_backoffs(highest=order_of_model)
                trie = extend_trie(trie, orders[-1][0], num_prefixes=num_prefixes)
        _expect_heading(source, END_HEADING)
        source.drain()
    ignored_starts = sum(_normalise_weights(ngrams, weights, log_zero) for ngrams, weights in orders) - 1
    highest = orders[-1][1].log10_backoffs
    report = ArpaReport(
        sha256=source.sha256,
        lists_unknown=lexicon.lists_unknown,
        missing_backoffs=sum(missing[:-1]),
        ignored_backoffs=int(np.count_nonzero(highest)),
        ignored_starts=ignored_starts,
        split_words=sum(len(word.split()) != 1 for word in lexicon.vocabulary.ids),
        escaped=escaped,
        backward=BACKWARD_OPTION in header.options.items(),
    )
    highest[:] = 0
    return ArpaModel(lexicon.vocabulary, orders, report)


def _log_zero(path: Path, header: ArpaHeader) -> np.float32 | None:
    """The back-off weight that stands for minus infinity in the file; None if none does."""
    if LOG_ZERO_OPTION not in header.options:
        return None
    value = nearest_float(header.options[LOG_ZERO_OPTION].encode())
    if value is None or not value < 0:
        raise FormatError(
            path,
            f"{LOG_ZERO_OPTION} is {header.options[LOG_ZERO_OPTION]!r:.80} in its comment, it must be a number below 0",
        )
    return value


def _expect_heading(source: ArpaSource, expected: bytes) -> None:
    while (text := source.read_line()) != expected:
        if text is None:
            source.fail_ended(expected.decode())
        if text:
            source.fail(f"{quote_bytes(text)} stands where {expected.decode()} is due", line=source.line - 1)


def _make_unigrams(rows: NGramRows, lexicon: ArpaLexicon) -> tuple[NGrams, NGramWeights]:
    """One unigram for each id; rows are in the order of the file."""
    size = len(lexicon.vocabulary)
    ids = lexicon.ids[: len(rows.words)]
    log10_probs = np.full(size, MISSING_UNKNOWN_LOG10, dtype=np.float32)
    log10_backoffs = np.zeros(size, dtype=np.float32)
    log10_probs[ids] = rows.log10_probs
    log10_backoffs[ids] = rows.log10_backoffs
    log10_probs[BOS] = -np.inf
    nowhere = np.zeros(size, dtype=np.int32)
    return NGrams(np.arange(size, dtype=np.int32), nowhere, nowhere), NGramWeights(
        log10_probs, log10_backoffs
    )


def _sort_section(section: ArpaSection, *, num_prefixes: int, vocab_size: int) -> tuple[NGrams, NGramWeights]:
    """The n-grams of a section in the order of their words."""
    prefixes, words, log10_probs, log10_backoffs, lines = section.rows
    order, twin = sort_rows(prefixes, words, num_prefixes=num_prefixes, vocab_size=vocab_size)
    if order is not None:
        if twin >= 0:
            section.fail_duplicate(int(lines[order[twin - 1]]), int(lines[order[twin]]))
        prefixes, words = prefixes[order], words[order]
        log10_probs, log10_backoffs = log10_probs[order], log10_backoffs[order]
    unknown = np.full(len(words), -1, dtype=np.int32)
    return NGrams(words, prefixes, unknown), NGramWeights(log10_probs, log10_backoffs)


def _normalise_weights(ngrams: NGrams, weights: NGramWeights, log_zero: np.float32 | None) -> int:
    """What files write instead of what they mean: in place, how many n-grams predicted `<s>`."""
    log10_probs, log10_backoffs = weights
    np.minimum(log10_probs, 0, out=log10_probs)  # rounding errors
    if log_zero is not None:
        log10_backoffs[log10_backoffs == log_zero] = -np.inf
    starts = ngrams.words == BOS
    log10_probs[starts] = -np.inf
    return int(np.count_nonzero(starts))
