"""Read ARPA files, compressed or not: n-grams and weights, as input of `build_automaton`.

Files of lmplz, SRILM and IRSTLM are supported: missing back-offs are 0, suffixes and prefixes may be missing,
`<s>` may have the log-probability 0 or -99 and is never predicted, `<UNK>` is `<unk>`. Any other
deviation is an error with its line number.

Words that ARPA cannot represent (white space, spellings of control tokens) are escaped by `%`
and two hexadecimal digits per byte, as in URLs; the empty word is a single `%`. A comment in
the file says so.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from models.arrays import Int32s, Int64s
from models.errors import FormatError
from models.files import split_words
from models.language_model import BOS, CONTROL_TOKENS, EOS, UNK, Vocabulary
from models.ngram import arpa_kernels
from models.ngram.arpa_kernels import (
    ListedArcs,
    NGramRows,
    ParseStop,
    first_out_of_order,
    nearest_float,
    sort_rows,
)
from models.ngram.arpa_source import ArpaSource, quote_bytes
from models.ngram.automaton import LN_10
from models.ngram.build import MAX_LOG10_BACKOFF, NGrams, NGramWeights, build_automaton, number_arcs
from models.ngram.scoring import score_spans
from models.word_kernels import WordTable

MAX_ARPA_ORDER = 20
MAX_COUNT = 2**31 - 1
COMMENT_MARK = "# gramophone:"
"""Start of the comment with this project's extensions of ARPA."""

LOG_ZERO_OPTION = "log-zero"
"""Key in that comment: the back-off weight for minus infinity."""

BACKWARD_OPTION = ("direction", "backward")
"""Option in that comment: words are predicted from the words after them."""

ESCAPED_OPTION = ("escapes", "percent")
"""Option in that comment: words are escaped."""

CONTROL_IDS = {"<unk>": UNK, "<UNK>": UNK, "<s>": BOS, "</s>": EOS}
"""Spellings of the control tokens in ARPA files."""

MISSING_UNKNOWN_LOG10 = -100.0
"""Log-probability of an unlisted `<unk>`, as in KenLM."""

DATA_HEADING, END_HEADING = b"\\data\\", b"\\end\\"
_IARPA = b"iARPA"  # as ARPA from the next line on, but its numbers mean something else
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MOST_COMMENT_BYTES = 1 << 20
_COUNT = re.compile(rb"ngram\s+(\d{1,30})\s*=\s*(\d{1,30})")
_OPTION = re.compile(r"(\S+?)=(\S+)")

# spellings of words
_SPECIAL = re.compile(r"[\x00-\x20\x7f%]")
_ESCAPED = re.compile(r"%([0-9A-F]{2})")
_NEEDS_ESCAPE = re.compile(r"[\x00-\x20\x7f]")

# arrays of a section
_INITIAL_ROWS = 1 << 16  # arrays grow by doubling: a header may declare more than the file has
_MAX_HARD_NUMBERS = 256
_NO_IDS = np.zeros(0, np.int32)
_NO_ARCS = (np.zeros(0, np.int64), np.zeros(0, np.uint32), _NO_IDS)
_COUNTS_HINT = "correct the header, or write the file again"


def section_heading(order: int) -> bytes:
    """Return the line before the n-grams of an order."""
    return b"\\%d-grams:" % order


def read_header(source: ArpaSource) -> tuple[tuple[int, ...], Mapping[str, str]]:
    """Read up to and including the heading of the unigrams.

    Returns:
        The number of n-grams by order from 1; keys and values of this project's comment, if any.

    Raises:
        FormatError: the file is not an ARPA file, or its header has invalid orders or counts.
    """
    options = _find_data(source)
    counts: list[int] = []
    while (text := source.read_line()) != section_heading(1):
        if text is None:
            source.fail_ended(section_heading(1).decode())
        if not text:
            continue
        line = source.line - 1
        match = _COUNT.fullmatch(text)
        if match is None:
            source.fail(
                f"found {quote_bytes(text)}, expected a line such as ngram 1=1000 or \\1-grams:",
                line=line,
            )
        order, count = map(int, match.groups())
        if order > MAX_ARPA_ORDER:
            problem = f"the file has n-grams of order {order}, orders up to {MAX_ARPA_ORDER} are supported"
            source.fail(problem, line=line)
        if order != len(counts) + 1:
            source.fail(f"found order {order}, expected order {len(counts) + 1}", line=line)
        if count > MAX_COUNT:
            problem = f"the header declares {count} n-grams of order {order}; the limit is {MAX_COUNT}"
            source.fail(problem, line=line)
        counts.append(count)
    if not counts:
        source.fail(
            "no line such as ngram 1=1000 gives the number of n-grams of each order",
            line=source.line - 1,
        )
    return tuple(counts), options


def _find_data(source: ArpaSource) -> dict[str, str]:
    options: dict[str, str] = {}
    passed = 0
    while True:
        text = source.read_line()
        if text is None or text == _IARPA or passed > _MOST_COMMENT_BYTES:
            source.refuse()
        text = text.removeprefix(_BYTE_ORDER_MARK)
        if text == DATA_HEADING:
            return options
        if text.startswith(COMMENT_MARK.encode()):
            options = dict(_OPTION.findall(text.decode("utf-8", "replace").removeprefix(COMMENT_MARK)))
        passed += len(text) + 1


def escape_tokens(tokens: Sequence[str]) -> tuple[Sequence[str], int]:
    """Return tokens' spellings in ARPA, and the number that need escaping.

    If none needs it, none is escaped.
    """
    words = tokens[len(CONTROL_TOKENS) :]
    special = sum(not word or word in CONTROL_IDS or bool(_NEEDS_ESCAPE.search(word)) for word in words)
    return (*CONTROL_TOKENS, *map(_escape, words)) if special else tokens, special


def _escape(word: str) -> str:
    if word == "":
        return "%"
    if word in CONTROL_IDS:
        return f"%{ord('<'):02X}{word[1:]}"
    return _SPECIAL.sub(lambda match: f"%{ord(match[0]):02X}", word)


def read_lexicon(
    source: ArpaSource, words: WordTable, lines: Int64s, *, escaped: bool
) -> tuple[Vocabulary, Int32s, bool]:
    """Assign ids to words; missing `<unk>` and `<UNK>` are added to the table.

    Args:
        source: for messages.
        words: words of the unigrams, as in the file.
        lines: line of each word [W].
        escaped: whether the words are escaped.

    Returns:
        The vocabulary, with ids from 3 on in file order; the id of each word of the table [W]; True if
        the file lists `<unk>` in either spelling.

    Raises:
        FormatError: a word is not UTF-8 or wrongly escaped; `<s>` or `</s>` is missing.
    """
    ids = np.zeros(words.size, np.int32)
    ordinary: list[str] = []
    controls: dict[int, int] = {}  # line of each control id found so far
    for number, spelled in enumerate(words.all_words()):
        line = int(lines[number])
        word = _decode_word(source, spelled, line)
        control = CONTROL_IDS.get(word)
        if control is not None:
            if control in controls:
                source.fail(
                    f"{word!r} is {CONTROL_TOKENS[control]!r}, which is listed already, in line {controls[control]}",
                    line=line,
                )
            controls[control] = line
            ids[number] = control
            continue
        if escaped:
            plain = "" if word == "%" else _ESCAPED.sub(lambda match: chr(int(match[1], 16)), word)
            if _escape(plain) != word:
                source.fail(f"{word!r} is not escaped, but the file declares escaped words", line=line)
            word = plain
        ids[number] = len(CONTROL_TOKENS) + len(ordinary)
        ordinary.append(word)
    for control in (BOS, EOS):
        if control not in controls:
            raise FormatError(
                source.path,
                f"{CONTROL_TOKENS[control]!r} is not listed among the 1-grams",
                hint="sentences need both <s> and </s>: train the model on text with sentence boundaries",
            )
    for unknown in (b"<unk>", b"<UNK>"):
        words.add(unknown)
    added = np.full(words.size - len(ids), UNK, np.int32)
    return Vocabulary(ordinary), np.concatenate([ids, added]), UNK in controls


def _decode_word(source: ArpaSource, spelled: bytes, line: int) -> str:
    if 0 in spelled:
        source.fail("the word has a NUL byte", line=line, hint="the file is damaged or not text")
    try:
        return spelled.decode("utf-8")
    except UnicodeDecodeError as error:
        source.fail(
            f"the word {spelled[:80]!r} is not UTF-8 (byte 0x{spelled[error.start]:02x})",
            line=line,
            hint="convert the file first, for example with iconv -t utf-8",
        )


class ArpaSection:
    """Reader of the n-grams of one order.

    Args:
        source: at the line after the section's heading.
        order: words in an n-gram.
        counts: number of n-grams of each order in the header; arrays grow up to it during reading.

    Attributes:
        rows: n-grams in file order; in the end as many as declared.
        missing_backoffs: number of lines without a back-off weight.

    Raises:
        FormatError: a line is invalid, or their number is not as declared; from every method.
    """

    def __init__(self, source: ArpaSource, order: int, counts: Sequence[int]) -> None:
        self.missing_backoffs = 0
        self._source, self._order, self._highest = source, order, len(counts)
        self._declared, self._count = counts[order - 1], 0
        self._hard = np.zeros((_MAX_HARD_NUMBERS, 4), np.int64)
        self._unlisted = np.zeros((_MAX_HARD_NUMBERS, order - 1), np.int32)
        self._num_unlisted = 0
        capacity = min(self._declared, _INITIAL_ROWS)
        kinds = np.int32, np.int32, np.float32, np.float32, np.int64
        columns: list[Any] = [np.zeros(capacity, kind) for kind in kinds]
        self.rows = NGramRows(*columns)

    def read(self, words: WordTable, ids: Int32s = _NO_IDS, listed: ListedArcs = _NO_ARCS) -> None:
        """Read the section.

        Args:
            words: words of all unigrams; for unigrams empty: the word of row i becomes number i.
            ids: id of each word; not read for unigrams.
            listed: arcs of the lower orders; likewise.
        """
        source, order = self._source, self._order
        while True:
            stop = arpa_kernels.read_ngrams(
                source.block,
                source.offset,
                source.line,
                self.rows,
                self._count,
                order,
                words.table,
                ids,
                listed,
                self._hard,
                self._unlisted,
                self._num_unlisted,
            )
            source.offset, source.line, self._count = stop.offset, stop.line, stop.filled
            self.missing_backoffs += stop.missing
            self._num_unlisted = stop.num_unlisted
            if order == 1:
                words.size = stop.filled
            self._read_hard_numbers(stop)
            if stop.code == arpa_kernels.SECTION_ENDS:
                break
            if stop.code == arpa_kernels.BLOCK_ENDS:
                if not source.refill():
                    source.fail_ended(f"\\end\\, after {self._count} of the {self._promised()}")
            elif stop.code == arpa_kernels.FULL:
                self._grow(words)
            else:
                self._refuse(stop, words)
        if self._count < self._declared:
            source.fail(f"the section ends after {self._count} of the {self._promised()}", hint=_COUNTS_HINT)
        if order < self._highest:
            self._check_backoffs()

    @property
    def unlisted(self) -> Int32s:
        """Word ids of the unlisted prefixes, for each n-gram with one [K, order - 1]."""
        return self._unlisted[: self._num_unlisted]

    def _check_backoffs(self) -> None:
        """Reject back-offs that overflow if charged at every length."""
        most, backoffs = MAX_LOG10_BACKOFF // (self._highest - 1), self.rows.log10_backoffs
        row = int(backoffs.argmax()) if len(backoffs) else -1
        if row >= 0 and backoffs[row] > most:
            self._source.fail(
                f"the back-off weight is {backoffs[row]:g}, the logarithm to base 10 of a factor; "
                f"at order {self._highest} it can be at most {most:g}",
                line=int(self.rows.lines[row]),
            )

    def fail_duplicate(self, first: int, second: int) -> NoReturn:
        """Reject the file: two lines, by number, list one n-gram."""
        first, second = sorted((first, second))
        self._source.fail(
            f"this {self._order}-gram is listed already, in line {first}",
            line=second,
            hint="keep one of them",
        )

    def _promised(self) -> str:
        return f"{self._declared} n-grams of order {self._order} that the header declares"

    def _grow(self, words: WordTable) -> None:
        if self._count == self._declared:
            self._source.fail(f"there are more than the {self._promised()}", hint=_COUNTS_HINT)
        if self._count == len(self.rows.words):
            capacity = min(self._declared, 2 * self._count)
            for array in self.rows:
                # in place; there are no other views
                array.resize(capacity, refcheck=False)
        if self._num_unlisted == len(self._unlisted):
            self._unlisted = np.concatenate([self._unlisted, np.zeros_like(self._unlisted)])
        if self._order == 1:
            words.grow(len(self._source.block))  # upper bound of a word's length

    def _read_hard_numbers(self, stop: ParseStop) -> None:
        """Convert numbers that the kernel left; reject invalid ones."""
        block = self._source.block
        for row, column, start, end in self._hard[: stop.num_hard].tolist():
            line = int(self.rows.lines[row]) if row < self._count else stop.line
            field = block[start:end].tobytes()
            value, given = nearest_float(field), quote_bytes(field)
            is_prob = column == arpa_kernels.PROB
            name = "log-probability" if is_prob else "back-off weight"
            if value is None:
                self._source.fail(f"found {given}, expected a {name}", line=line, hint=self._layout())
            if np.isnan(value):
                self._source.fail(f"the {name} is not a number: {given}", line=line)
            if is_prob and value > arpa_kernels.MAX_LOG_PROB:
                self._fail_positive(field, line)
            if value == np.inf:
                self._source.fail(f"the {name} is infinite: {given}", line=line)
            (self.rows.log10_probs if is_prob else self.rows.log10_backoffs)[row] = value

    def _refuse(self, stop: ParseStop, words: WordTable) -> NoReturn:
        """Raise the error of the line where the kernel stopped."""
        field = self._source.field_at(stop.field)
        if stop.code == arpa_kernels.POSITIVE_LOG_PROB:
            self._fail_positive(field, stop.line)
        if stop.code == arpa_kernels.DUPLICATE:
            self.fail_duplicate(int(self.rows.lines[words.add(field)]), stop.line)
        problem = f"{quote_bytes(field)} is one field too many"
        if stop.code == arpa_kernels.UNKNOWN_WORD:
            problem = f"the word {quote_bytes(field)} is not listed among the 1-grams"
        elif stop.code == arpa_kernels.TOO_FEW_WORDS:
            problem = "there is no word" if self._order == 1 else f"there are fewer than {self._order} words"
        self._source.fail(problem, hint=self._layout())

    def _fail_positive(self, field: bytes, line: int) -> NoReturn:
        self._source.fail(
            f"the log-probability {quote_bytes(field)} is above 0: no probability is above 1", line=line
        )

    def _layout(self) -> str:
        words = "a word" if self._order == 1 else f"{self._order} words"
        return f"a line here has a log-probability, {words} and an optional back-off weight"


class ArpaReport(NamedTuple):
    """Properties of an ARPA file.

    Attributes:
        sha256: hash of the file on disk, still compressed, in hex.
        lists_unknown: whether the file lists `<unk>`.
        missing_backoffs: number of n-grams below the highest order without back-off weight, read as 0.
        missing_prefixes: number of unlisted prefixes of n-grams, read as listed with weight 0.
        ignored_backoffs: number of n-grams of the highest order with a back-off weight, without effect.
        ignored_starts: number of n-grams, except the unigram, that predict `<s>`, never predicted here.
        split_words: number of words with white space, such as a form feed, at which texts are split.
        escaped: whether words are escaped.
        backward: whether the file says that the model reads right to left.
    """

    sha256: str
    lists_unknown: bool
    missing_backoffs: int
    missing_prefixes: int
    ignored_backoffs: int
    ignored_starts: int
    split_words: int
    escaped: bool
    backward: bool


class ArpaModel(NamedTuple):
    """Back-off model of an ARPA file.

    Attributes:
        vocabulary: the words in file order.
        orders: n-grams and weights of the orders 1, 2, …; all suffixes are −1 (unknown).
        report: properties of the file.
    """

    vocabulary: Vocabulary
    orders: list[tuple[NGrams, NGramWeights]]
    report: ArpaReport


def read_arpa(path: Path, *, on_read: Callable[[int], None] = lambda _: None) -> ArpaModel:
    """Read an ARPA file, compressed or not.

    Log-probabilities and back-off weights become the nearest floats. Takes about 40 bytes of
    memory per n-gram of the largest order and 20 per other, more if prefixes are unlisted.

    Args:
        path: plain, gzip, xz, Zstandard or bzip2, detected by content.
        on_read: called with the bytes read from disk since the last call; their sum is the file size.

    Raises:
        FormatError: the file cannot be read or is invalid; the message has the line and a hint.
    """
    with closing(ArpaSource(path, on_read=on_read)) as source:
        counts, options = read_header(source)
        log_zero = _log_zero(path, options)
        words = WordTable()
        section, ended = ArpaSection(source, 1, counts), False
        section.read(words)
        escaped = ESCAPED_OPTION in options.items()
        vocabulary, ids, lists_unknown = read_lexicon(source, words, section.rows.lines, escaped=escaped)
        size = len(vocabulary)
        orders = [_make_unigrams(section.rows, ids[: len(section.rows.words)], size)]
        backoffs = prefixes = 0
        for order in range(2, len(counts) + 1):
            backoffs += section.missing_backoffs
            section = ArpaSection(source, order, counts)
            may_end = not any(counts[order - 1 :])
            ended = ended or _read_heading(source, section_heading(order), may_end=may_end)
            if not ended:
                section.read(words, ids, number_arcs([ngrams for ngrams, _ in orders]))
            if len(section.unlisted):
                prefixes += _add_prefixes(orders, section)
            orders.append(_sort_section(section, num_prefixes=len(orders[-1][0].words), vocab_size=size))
        if not ended:
            _read_heading(source, END_HEADING)
        source.drain()
    starts = sum(_normalise_weights(ngrams, weights, log_zero) for ngrams, weights in orders) - 1
    highest = orders[-1][1].log10_backoffs
    report = ArpaReport(
        sha256=source.sha256,
        lists_unknown=lists_unknown,
        missing_backoffs=backoffs,
        missing_prefixes=prefixes,
        ignored_backoffs=int(np.count_nonzero(highest)),
        ignored_starts=starts,
        split_words=sum(split_words(word) != [word] for word in vocabulary.ids),
        escaped=escaped,
        backward=BACKWARD_OPTION in options.items(),
    )
    highest[:] = 0
    return ArpaModel(vocabulary, orders, report)


def _log_zero(path: Path, options: Mapping[str, str]) -> np.float32 | None:
    """Return the back-off weight for minus infinity in the file, or None."""
    if LOG_ZERO_OPTION not in options:
        return None
    value = nearest_float(options[LOG_ZERO_OPTION].encode())
    if value is None or not value < 0:
        raise FormatError(
            path,
            f"{LOG_ZERO_OPTION} is {options[LOG_ZERO_OPTION]!r:.80} in its comment, it must be a number below 0",
        )
    return value


def _read_heading(source: ArpaSource, expected: bytes, *, may_end: bool = False) -> bool:
    """Read the next heading; True if the file ends instead, as `may_end` allows."""
    while (text := source.read_line()) != expected:
        if text is None:
            source.fail_ended(expected.decode())
        if may_end and text == END_HEADING:
            return True
        if text:
            source.fail(f"found {quote_bytes(text)}, expected {expected.decode()}", line=source.line - 1)
    return False


def _add_prefixes(orders: list[tuple[NGrams, NGramWeights]], section: ArpaSection) -> int:
    """Add unlisted prefixes to the lower orders; return their number.

    They get the probabilities of backing off, and back-off weights of 0, so no other probability
    changes.
    """
    unlisted, vocab_size, count = section.unlisted, len(orders[0][0].words), 0
    old, new = np.arange(vocab_size), unlisted[:, 0].astype(np.int64)
    for length, (ngrams, weights) in enumerate(orders[1:], start=2):
        listed = ngrams._replace(prefixes=old[ngrams.prefixes].astype(np.int32))
        keys = np.concatenate([old[ngrams.prefixes], new]) * vocab_size
        keys += np.concatenate([ngrams.words, unlisted[:, length - 1]])
        keys, firsts, numbers = np.unique(keys, return_index=True, return_inverse=True)
        old, new = np.split(numbers, [len(ngrams.words)])
        is_new = firsts >= len(ngrams.words)
        added = unlisted[firsts[is_new] - len(ngrams.words), :length]
        prefixes, words = (part.astype(np.int32) for part in np.divmod(keys, vocab_size))
        probs, backoffs = np.zeros((2, len(keys)), np.float32)
        probs[old], backoffs[old] = weights
        # backing off is scored by the n-grams listed so far
        tokens, out = added.astype(np.int64), np.zeros(added.shape, np.float32)
        begins, flat = np.arange(len(added)) * length, out.reshape(-1)
        automaton = build_automaton([*orders[: length - 1], (listed, weights)])
        spans = np.zeros(len(added), np.int32), tokens.reshape(-1), begins, begins + length
        score_spans(automaton, *spans, flat, np.zeros(0, np.uint8), flat[:0])
        probs[is_new] = out[:, -1] / np.float32(LN_10)
        unknown = np.full(len(keys), -1, np.int32)
        orders[length - 1] = NGrams(words, prefixes, unknown), NGramWeights(probs, backoffs)
        count += len(added)
    # the k-th unlisted prefix is −1 − k, which counts from the end
    own = section.rows.prefixes
    own[:] = np.concatenate([old, new[::-1]])[own]
    return count


def _make_unigrams(rows: NGramRows, ids: Int32s, size: int) -> tuple[NGrams, NGramWeights]:
    """Return a unigram per id from rows in file order."""
    probs = np.full(size, MISSING_UNKNOWN_LOG10, np.float32)
    backoffs = np.zeros(size, np.float32)
    probs[ids] = rows.log10_probs
    backoffs[ids] = rows.log10_backoffs
    probs[BOS] = -np.inf
    nowhere = np.zeros(size, np.int32)
    return NGrams(np.arange(size, dtype=np.int32), nowhere, nowhere), NGramWeights(probs, backoffs)


def _sort_section(section: ArpaSection, *, num_prefixes: int, vocab_size: int) -> tuple[NGrams, NGramWeights]:
    """Return the n-grams of a section in lexicographic order."""
    prefixes, words, probs, backoffs, lines = section.rows
    if first_out_of_order(prefixes, words) < len(words):
        order = sort_rows(prefixes, words, num_prefixes=num_prefixes, vocab_size=vocab_size)
        prefixes, words = prefixes[order], words[order]
        twin = first_out_of_order(prefixes, words)
        if twin < len(words):
            section.fail_duplicate(int(lines[order[twin - 1]]), int(lines[order[twin]]))
        probs, backoffs = probs[order], backoffs[order]
    unknown = np.full(len(words), -1, np.int32)
    return NGrams(words, prefixes, unknown), NGramWeights(probs, backoffs)


def _normalise_weights(ngrams: NGrams, weights: NGramWeights, log_zero: np.float32 | None) -> int:
    """Normalise special weights in place; return how many n-grams predict `<s>`."""
    probs, backoffs = weights
    np.minimum(probs, 0, out=probs)  # remove rounding errors
    if log_zero is not None:
        backoffs[backoffs == log_zero] = -np.inf
    starts = ngrams.words == BOS
    probs[starts] = -np.inf
    return int(np.count_nonzero(starts))
