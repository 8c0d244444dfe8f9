"""Read ARPA files, compressed or not: every n-gram with its weights, as `build_automaton` takes them.

Files of lmplz, SRILM and IRSTLM are read as they are: missing back-offs are 0, suffixes may be
missing, `<s>` may have the log-probability 0 or -99 and is never predicted, `<UNK>` is `<unk>`.
Every other fault is refused with its line number.

Files are read in blocks of whole lines, the next block in a thread while one is parsed. Words that
ARPA cannot hold (white space, spellings of control tokens) are written with `%` and two hexadecimal
digits for a byte, as in URLs; a comment in the file says so, and the empty word is a lone `%`.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, NoReturn, Self, cast

import numpy as np
import numpy.typing as npt

from models.errors import FormatError
from models.files import DECOMPRESSION_ERRORS, decompressed
from models.ngram import arpa_kernels
from models.ngram.arpa_kernels import (
    IntArray,
    NGramRows,
    ParseStop,
    PrefixTrie,
    extend_trie,
    nearest_float,
    sort_rows,
)
from models.ngram.build import MAX_LOG10_BACKOFF, NGrams, NGramWeights
from models.vocabulary import BOS, CONTROL_TOKENS, EOS, UNK, Vocabulary
from models.word_kernels import WordTable

BLOCK_BYTES = 1 << 22
MAX_LINE_BYTES = 1 << 20
_MAGIC_BYTES = 64

_DAMAGED_HINT = "compress or download it again"
_FIELD = re.compile(rb"[^ \t\r\n]+")
_KNOWN_FORMATS = {
    b"mmap lm http://kheafield.com/code": "it is a binary file of KenLM; give the ARPA file that it was built from",
    b"SRILM_BINARY_NGRAM": "it is a binary file of SRILM; ngram -lm FILE -write-lm ARPA makes an ARPA file of it",
    b"blmt": "it is a binary file of IRSTLM; compile-lm --text=yes FILE ARPA makes an ARPA file of it",
    b"Qblmt": "it is a binary file of IRSTLM; compile-lm --text=yes FILE ARPA makes an ARPA file of it",
    b"iARPA": "it is IRSTLM's own iARPA; compile-lm --text=yes FILE ARPA makes an ARPA file of it",
    b"<": "it looks like a page of the web; was the download refused?",
    b"PK\x03\x04": "it is a zip archive; unpack it first",
    b"BZh": "it is packed with bzip2; unpack it first",
    b"\xff\xfe": "it is UTF-16; convert it first, for example with iconv -t utf-8",
    b"\xfe\xff": "it is UTF-16; convert it first, for example with iconv -t utf-8",
}


class ArpaSource:
    """Reader of a file block by block; use it as a context manager.

    Args:
        path: the file; how it is packed is seen by its first bytes, not by its name.
        on_read: told of bytes as they are read from disk.

    Attributes:
        block: whole lines, each with its end.
        offset: how far the block has been used up.
        line: the number of the line at that offset, from 1.
        cut: whether the file ended within the line after the block.

    Raises:
        FormatError: the file cannot be read or unpacked; from every method.
    """

    def __init__(self, path: Path, *, on_read: Callable[[int], None]) -> None:
        self.path = path
        self.block: npt.NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        self.offset = 0
        self.line = 1
        self.cut = False
        self._whole = b""  # the block
        self._tail = b""  # the beginning of the line after it
        self._first_bytes = b""
        self._on_read = on_read
        self._reported = 0
        self._stream: BinaryIO | None = None

    def __enter__(self) -> Self:
        try:
            self._file = _HashedFile(self.path)
        except FileNotFoundError:
            raise FormatError(self.path, "there is no such file") from None
        except OSError as error:
            raise FormatError(self.path, f"cannot be read: {error.strerror or error}") from None
        self._thread = ThreadPoolExecutor(1)
        self._next = self._thread.submit(self._next_chunk)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()
        self._file.close()

    @property
    def sha256(self) -> str:
        """The hash, in hex, of the file as it lies on disk, once it is read to its end."""
        return self._file.digest.hexdigest()

    def refill(self) -> bool:
        """Advance to the next block after the present one is used up; False at the end of the file."""
        pieces = [self._tail]
        while chunk := self._read():
            end = chunk.rfind(b"\n") + 1
            if end > 0:
                self._use(b"".join([*pieces, chunk[:end]]), tail=chunk[end:])
                return True
            pieces.append(chunk)
            if sum(map(len, pieces)) > MAX_LINE_BYTES:
                if self.line == 1:
                    self.refuse()
                self.fail(f"the line is longer than {MAX_LINE_BYTES} bytes")
        rest = b"".join(pieces)
        self.cut = rest.strip() not in {b"", b"\\end\\"}
        self._use(b"" if self.cut or not rest else rest + b"\n", tail=b"")
        return self.offset < len(self.block)

    def read_line(self) -> bytes | None:
        """Use up one line; it comes without the white space around it. None at the end of the file."""
        if self.offset == len(self.block) and not self.refill():
            return None
        end = self._whole.index(b"\n", self.offset)
        text = self._whole[self.offset : end].strip()
        self.offset = end + 1
        self.line += 1
        return text

    def field_at(self, offset: int) -> bytes:
        """Return the field at an offset of the block, up to the next space, tab or line end."""
        match = _FIELD.match(self._whole, offset)
        return match.group() if match else b""

    def fields_at(self, offset: int) -> list[bytes]:
        """The fields of the line that starts at an offset of the block."""
        return _FIELD.findall(self._whole, offset, self._whole.index(b"\n", offset))

    def drain(self) -> None:
        """Read to the end of the file, so that its hash is whole and damage is seen."""
        while self._read():
            pass

    def fail(self, problem: str, *, line: int | None = None, hint: str = "") -> NoReturn:
        """Refuse the file for what is wrong in a line; in the present line, if none is given."""
        raise FormatError(self.path, f"line {self.line if line is None else line}: {problem}", hint=hint)

    def fail_ended(self, expected: str) -> NoReturn:
        """Refuse the file for ending here, in a line or before one."""
        where = "in the middle of this line" if self.cut else "here"
        self.fail(
            f"the file ends {where}, before {expected}", hint="it was cut off: copy or download it again"
        )

    def refuse(self) -> NoReturn:
        """Refuse the file for being something else; the hint says what it looks like."""
        if self._file.num_bytes == 0:
            raise FormatError(self.path, "is empty (0 bytes)", hint="give an ARPA file")
        if not self._first_bytes:
            raise FormatError(self.path, "is damaged: nothing can be unpacked", hint=_DAMAGED_HINT)
        known = (
            hint for magic, hint in _KNOWN_FORMATS.items() if self._first_bytes.lstrip().startswith(magic)
        )
        hint = next(known, "an ARPA file begins with the line \\data\\, perhaps after comments")
        raise FormatError(self.path, "is no ARPA file", hint=hint)

    def _use(self, lines: bytes, *, tail: bytes) -> None:
        self._whole, self._tail = lines, tail
        self.block, self.offset = np.frombuffer(lines, dtype=np.uint8), 0

    def _read(self) -> bytes:
        try:
            chunk = self._next.result()
        except DECOMPRESSION_ERRORS as error:
            raise FormatError(self.path, f"is damaged: {error}", hint=_DAMAGED_HINT) from None
        except OSError as error:
            raise FormatError(self.path, f"cannot be read: {error.strerror or error}") from None
        if chunk:
            self._next = self._thread.submit(self._next_chunk)
        if len(self._first_bytes) < _MAGIC_BYTES:
            self._first_bytes += chunk[:_MAGIC_BYTES]
        position = self._file.num_bytes
        self._on_read(position - self._reported)
        self._reported = position
        return chunk

    def _next_chunk(self) -> bytes:
        """Read a chunk in the thread, so that errors of the file are raised where its chunks are awaited."""
        if self._stream is None:
            self._stream = decompressed(cast("BufferedReader", self._file))
        return self._stream.read(BLOCK_BYTES)


class _HashedFile:
    """A file that keeps count and hash of what was read of it."""

    def __init__(self, path: Path) -> None:
        self._raw = path.open("rb")
        self.digest = hashlib.sha256()
        self.num_bytes = 0

    def peek(self, size: int) -> bytes:
        """The next bytes, some; they stay to be read."""
        return self._raw.peek(size)

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes; none at the end."""
        chunk = self._raw.read(size)
        self.digest.update(chunk)
        self.num_bytes += len(chunk)
        return chunk

    def close(self) -> None:
        """Close the file."""
        self._raw.close()


def quote_bytes(text: bytes) -> str:
    """The beginning of some bytes of a file, as messages quote it."""
    return repr(text[:80].decode("utf-8", "backslashreplace"))


MAX_ARPA_ORDER = 20
MAX_COUNT = 2**31 - 1
COMMENT_MARK = "# gramophone:"
"""Begins a comment that says how this file writes what ARPA has no way to say."""

LOG_ZERO_OPTION = "log-zero"
"""In that comment: the back-off weight that stands for minus infinity."""

BACKWARD_OPTION = ("direction", "backward")
"""In that comment: words are predicted from those after them."""

DATA_HEADING, END_HEADING = b"\\data\\", b"\\end\\"
_IARPA = b"iARPA"  # looks like ARPA from the next line on, but its numbers mean something else
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MOST_COMMENT_BYTES = 1 << 20
_COUNT = re.compile(rb"ngram\s+(\d{1,30})\s*=\s*(\d{1,30})")
_OPTION = re.compile(r"(\S+?)=(\S+)")


class ArpaHeader(NamedTuple):
    """Contents of the head of a file.

    Attributes:
        counts: how many n-grams there are, by order from 1.
        options: keys and values of our own comment, if there is one.
    """

    counts: tuple[int, ...]
    options: Mapping[str, str]


def section_heading(order: int) -> bytes:
    """The line before the n-grams of an order."""
    return b"\\%d-grams:" % order


def read_header(source: ArpaSource) -> ArpaHeader:
    """Read up to the heading of the unigrams, which is used up.

    Raises:
        FormatError: it is no ARPA file, or lists orders or counts that cannot be.
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
                f"{quote_bytes(text)} stands where a line such as ngram 1=1000 or \\1-grams: is due",
                line=line,
            )
        counts.append(_checked_count(source, line, len(counts) + 1, *map(int, match.groups())))
    if not counts:
        source.fail(
            "no line such as ngram 1=1000 says how many n-grams of which orders there are",
            line=source.line - 1,
        )
    return ArpaHeader(tuple(counts), options)


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


def _checked_count(source: ArpaSource, line: int, expected: int, order: int, count: int) -> int:
    if order > MAX_ARPA_ORDER:
        source.fail(
            f"the file has n-grams of order {order}, orders up to {MAX_ARPA_ORDER} are supported", line=line
        )
    if order != expected:
        source.fail(f"order {order} is listed where order {expected} is due", line=line)
    if count > MAX_COUNT:
        source.fail(
            f"there are {count} n-grams of order {order}, it says; at most {MAX_COUNT} are supported",
            line=line,
        )
    return count


CONTROL_IDS = {"<unk>": UNK, "<UNK>": UNK, "<s>": BOS, "</s>": EOS}
"""What the control tokens are called in ARPA files."""

ESCAPED_OPTION = ("escapes", "percent")
"""The option in the comment of a file whose words are escaped."""

_SPECIAL = re.compile(r"[\x00-\x20\x7f%]")
_ESCAPED = re.compile(r"%([0-9A-F]{2})")
_NEEDS_ESCAPE = re.compile(r"[\x00-\x20\x7f]")


def escape_tokens(tokens: Sequence[str]) -> tuple[Sequence[str], int]:
    """The tokens of a vocabulary as they are written, and how many cannot be written as they are.

    If none is such, all are written as they are.
    """
    special = sum(not _writable(token) for token in tokens[len(CONTROL_TOKENS) :])
    if special == 0:
        return tokens, 0
    return (*CONTROL_TOKENS, *map(_escape, tokens[len(CONTROL_TOKENS) :])), special


def unescape_word(word: str) -> str | None:
    """The word that was written so; None if none is."""
    if word == "%":
        return ""
    plain = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), word)
    return plain if _escape(plain) == word else None


def _writable(word: str) -> bool:
    return word != "" and word not in CONTROL_IDS and _NEEDS_ESCAPE.search(word) is None


def _escape(word: str) -> str:
    if word == "":
        return "%"
    if word in CONTROL_IDS:
        return f"%{ord('<'):02X}{word[1:]}"
    return _SPECIAL.sub(lambda match: f"%{ord(match[0]):02X}", word)


class ArpaLexicon(NamedTuple):
    """The words of a file.

    Attributes:
        vocabulary: ids from 3 on are in the order of the file.
        ids: the id of each word of the table [W], int32.
        lists_unknown: whether `<unk>` is among them, however it is spelled.
    """

    vocabulary: Vocabulary
    ids: npt.NDArray[np.int32]
    lists_unknown: bool


def read_lexicon(
    source: ArpaSource, words: WordTable, lines: npt.NDArray[np.int64], *, escaped: bool
) -> ArpaLexicon:
    """Give every word its id; `<unk>` and `<UNK>` are entered into the table if they are missing.

    Args:
        source: for messages.
        words: the unigrams' words as they are spelled in the file.
        lines: the line of each [W].
        escaped: whether they are escaped.

    Raises:
        FormatError: a word is not UTF-8 or not what escaping makes; `<s>` or `</s>` is missing.
    """
    ids = np.zeros(words.size, dtype=np.int32)
    ordinary: list[str] = []
    controls: dict[int, int] = {}  # the line of each id that was met
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
            plain = unescape_word(word)
            if plain is None:
                source.fail(f"{word!r} is not escaped as the file says its words are", line=line)
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
    for word, control in CONTROL_IDS.items():
        if control == UNK:
            words.add(word.encode())
    added = np.full(words.size - len(ids), UNK, dtype=np.int32)
    return ArpaLexicon(Vocabulary(ordinary), np.concatenate([ids, added]), UNK in controls)


def _decode_word(source: ArpaSource, spelled: bytes, line: int) -> str:
    if 0 in spelled:
        source.fail("the word has a NUL byte", line=line, hint="the file is damaged, or no text")
    try:
        return spelled.decode("utf-8")
    except UnicodeDecodeError as error:
        source.fail(
            f"the word {spelled[:80]!r} is not UTF-8 (byte 0x{spelled[error.start]:02x})",
            line=line,
            hint="convert the file first, for example with iconv -t utf-8",
        )


_INITIAL_ROWS = 1 << 16
_MAX_HARD_NUMBERS = 256
_COUNTS_HINT = "correct its head, or make the file again"


class ArpaSection:
    """The n-grams of one order, read line by line.

    Args:
        source: at the line after the section's heading.
        order: words in an n-gram.
        declared: how many n-grams the head of the file promises; arrays grow as they come.

    Attributes:
        rows: in the order of the file; what was read is as long as promised.
        missing_backoffs: how many lines have no back-off weight.

    Raises:
        FormatError: a line is wrong, or there are more or fewer than promised; from every method.
    """

    def __init__(self, source: ArpaSource, *, order: int, declared: int) -> None:
        self.missing_backoffs = 0
        self._source = source
        self._order = order
        self._declared = declared
        self._count = 0
        self._hard = np.zeros((_MAX_HARD_NUMBERS, 4), dtype=np.int64)
        capacity = min(declared, _INITIAL_ROWS)
        self.rows = NGramRows(
            prefixes=np.zeros(capacity, dtype=np.int32),
            words=np.zeros(capacity, dtype=np.int32),
            log10_probs=np.zeros(capacity, dtype=np.float32),
            log10_backoffs=np.zeros(capacity, dtype=np.float32),
            lines=np.zeros(capacity, dtype=np.int64),
        )

    def read(self, words: WordTable, ids: IntArray, trie: PrefixTrie) -> None:
        """Read the section.

        Args:
            words: of all unigrams; to read those, an empty one, which gets the word of row i as number i.
            ids: the id of each of the words; not read for unigrams.
            trie: the orders below.
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
                trie,
                self._hard,
            )
            source.offset, source.line, self._count = stop.offset, stop.line, stop.filled
            self.missing_backoffs += stop.missing
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

    def check_backoffs(self, *, highest: int) -> None:
        """Refuse a back-off weight that, charged at every length, would be more than a number can hold.

        Args:
            highest: the order of the longest n-grams.
        """
        most = MAX_LOG10_BACKOFF // max(highest - 1, 1)
        row = int(self.rows.log10_backoffs.argmax()) if len(self.rows.log10_backoffs) else -1
        if row >= 0 and self.rows.log10_backoffs[row] > most:
            self._source.fail(
                f"the back-off weight is {self.rows.log10_backoffs[row]:g}, the logarithm to base 10 of a factor; "
                f"at order {highest} it can be at most {most:g}",
                line=int(self.rows.lines[row]),
            )

    def fail_duplicate(self, first: int, second: int) -> NoReturn:
        """Refuse the file for two lines, given by their numbers, that list the same n-gram."""
        first, second = sorted((first, second))
        self._source.fail(
            f"this {self._order}-gram is listed already, in line {first}",
            line=second,
            hint="keep one of them",
        )

    def _promised(self) -> str:
        return f"{self._declared} n-grams of order {self._order} that the head of the file promises"

    def _grow(self, words: WordTable) -> None:
        if self._count == self._declared:
            self._source.fail(f"there are more than the {self._promised()}", hint=_COUNTS_HINT)
        if self._count == len(self.rows.words):
            capacity = min(self._declared, 2 * self._count)
            for array in self.rows:
                array.resize(capacity, refcheck=False)  # in place; nobody else holds a view
        if self._order == 1:
            words.grow(len(self._source.block))  # no word is longer

    def _read_hard_numbers(self, stop: ParseStop) -> None:
        """Fill in the numbers that the kernel has left, and refuse those that cannot be."""
        block = self._source.block
        for row, column, start, end in self._hard[: stop.num_hard].tolist():
            line = int(self.rows.lines[row]) if row < self._count else stop.line
            field = block[start:end].tobytes()
            value = nearest_float(field)
            name = "log-probability" if column == arpa_kernels.PROB else "back-off weight"
            if value is None:
                self._source.fail(
                    f"{quote_bytes(field)} stands where a {name} is due", line=line, hint=self._layout()
                )
            if np.isnan(value):
                self._source.fail(f"the {name} is not a number: {quote_bytes(field)}", line=line)
            if column == arpa_kernels.PROB:
                if value > arpa_kernels.MAX_LOG_PROB:
                    self._fail_positive(field, line)
                self.rows.log10_probs[row] = value
            else:
                if value == np.inf:
                    self._source.fail(f"the {name} is infinite: {quote_bytes(field)}", line=line)
                self.rows.log10_backoffs[row] = value

    def _refuse(self, stop: ParseStop, words: WordTable) -> NoReturn:
        """Raise the error of the line that the kernel stopped at."""
        field = self._source.field_at(stop.field)
        if stop.code == arpa_kernels.POSITIVE_LOG_PROB:
            self._fail_positive(field, stop.line)
        if stop.code == arpa_kernels.DUPLICATE:
            self.fail_duplicate(int(self.rows.lines[words.add(field)]), stop.line)
        if stop.code == arpa_kernels.NO_PREFIX:
            prefix = self._source.fields_at(stop.offset)[1 : self._order]
            problem = f"{quote_bytes(b' '.join(prefix))} is not listed among the {self._order - 1}-grams"
            hint = "all but the last word of an n-gram must be listed, too, with the back-off weight"
        elif stop.code == arpa_kernels.UNKNOWN_WORD:
            problem, hint = f"the word {quote_bytes(field)} is not listed among the 1-grams", self._layout()
        elif stop.code == arpa_kernels.TOO_FEW_WORDS:
            problem = "there is no word" if self._order == 1 else f"there are fewer than {self._order} words"
            hint = self._layout()
        else:
            problem, hint = f"{quote_bytes(field)} is one field too many", self._layout()
        self._source.fail(problem, hint=hint)

    def _fail_positive(self, field: bytes, line: int) -> NoReturn:
        self._source.fail(
            f"the log-probability {quote_bytes(field)} is above 0: no probability is above 1", line=line
        )

    def _layout(self) -> str:
        words = "a word" if self._order == 1 else f"{self._order} words"
        return f"a line here has a log-probability, {words} and perhaps a back-off weight"


MISSING_UNKNOWN_LOG10 = -100.0
"""The log-probability of `<unk>` where a file has none, as with KenLM."""


class ArpaReport(NamedTuple):
    """Properties of a model's file.

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
    """Normalise unusual weights in place; return the number of n-grams that predicted `<s>`."""
    log10_probs, log10_backoffs = weights
    np.minimum(log10_probs, 0, out=log10_probs)  # rounding errors
    if log_zero is not None:
        log10_backoffs[log10_backoffs == log_zero] = -np.inf
    starts = ngrams.words == BOS
    log10_probs[starts] = -np.inf
    return int(np.count_nonzero(starts))
