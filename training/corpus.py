"""Text files as sentences, and encoded corpora.

Files may be plain or compressed (.gz, .xz, .zst, .bz2) and must be UTF-8. Empty, binary
and wrongly encoded files are rejected; the error gives the path and the first bad
byte's offset in the decompressed text. Encodings are not guessed, nor bytes replaced.

Running text is split into sentences at blank lines, then at end marks: `.`, `!` or `?` with
optional closing quotes or brackets, before white space and the beginning of a sentence. Common
abbreviations and initials do not end a sentence. For exact sentences, give one per line.

An encoded corpus is one array of all sentences' token ids, with offsets.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from models.arrays import Int32s, Int64s
from models.errors import FormatError, InputError
from models.files import ASCII_WHITESPACE, check_text, decompressed, report_read_errors, split_words
from models.language_model import BOS, EOS
from training.progress import Progress

_CLOSING = "[\"'\u201d\u2019)\\]]*"
_OPENING = "[\"'\u201c\u2018(\\[]*"
_BOUNDARY = re.compile(rf"(?<=[.!?]){_CLOSING}(?P<space>\s+)(?={_OPENING}[A-Z0-9])")
_ABBREVIATION_END = re.compile(
    rf"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|vs|etc|e\.g|i\.e|cf|Fig|No|Vol|pp|approx)\.{_CLOSING}$"
)
UNITS = ("line", "paragraph")

Sentences: TypeAlias = "Sequence[str] | FileSentences"
"""Re-iterable sentences, not necessarily in memory."""

MAX_LINE_BYTES = 1 << 27
"""Maximum line: bounds memory, but allows text8, one line of 100 MB."""

_CHUNK_BYTES = 1 << 20
_ARPA_HEADER = re.compile(rb"(?:\xef\xbb\xbf)?\s*\\data\\\s")


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yield runs of non-blank lines, each joined by single spaces."""
    for has_words, block in groupby(map(split_words, lines), key=bool):
        if has_words:
            yield " ".join(map(" ".join, block))


def split_sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences; joined by spaces, they restore it."""
    sentences: list[str] = []
    start = 0
    for match in _BOUNDARY.finditer(paragraph):
        end = match.start("space")
        # searching all text before takes quadratic time in a run of initials
        last_word = max(start, paragraph.rfind(" ", start, end))
        if not _ABBREVIATION_END.search(paragraph, last_word, end):
            sentences.append(paragraph[start:end])
            start = match.end()
    rest = paragraph[start:].strip()
    return [*sentences, rest] if rest else sentences


class Corpus(NamedTuple):
    """Sentences and their source files.

    Attributes:
        sentences: stripped, non-empty strings.
        sha256: hash of all files' decompressed bytes in order, hex.
        sources: names of the files.
    """

    sentences: Sentences
    sha256: str
    sources: list[str]


def read_corpus(paths: Sequence[Path], *, unit: str, stream: bool = False, progress: Progress) -> Corpus:
    """Read files as sentences.

    Args:
        paths: the files; at least one.
        unit: `line`: each non-blank line is a sentence. `paragraph`: paragraphs, separated by
            blank lines, are split into sentences.
        stream: read the sentences block by block for each pass, not keep them in memory.
        progress: counts bytes read from disk.

    Raises:
        FormatError: a file is missing, empty, binary, damaged or not UTF-8, or is a pipe to be read again.
        InputError: the unit is unknown.
    """
    if unit not in UNITS:
        problem = f"is {unit!r}; it must be {' or '.join(UNITS)}"
        raise InputError.of("corpus.unit", problem)
    if stream:
        check_rereadable(paths)
    digest = hashlib.sha256()
    with progress.stage("reading text", sum(p.stat().st_size for p in paths if p.is_file())):
        read = (
            s for path in paths for s in read_sentences(path, unit=unit, digest=digest, progress=progress)
        )
        kept = range(sum(1 for _ in read)) if stream else list(read)
        sentences = FileSentences(paths, unit=unit, indices=kept) if isinstance(kept, range) else kept
    return Corpus(sentences, digest.hexdigest(), [path.name for path in paths])


class FileSentences:
    """Sentences of files at evenly spaced indices, read block by block.

    Args:
        files: files to read in order, again for each pass.
        unit: `line` or `paragraph`; see `read_corpus`.
        indices: range of sentence indices.
    """

    def __init__(self, files: Sequence[Path], *, unit: str, indices: range) -> None:
        self._files = files
        self._unit = unit
        self._indices = indices
        self._stamps = [_file_stamp(file) for file in files]

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, part: slice) -> "FileSentences":
        return FileSentences(self._files, unit=self._unit, indices=self._indices[part])

    def __iter__(self) -> Iterator[str]:
        """Iterate over the sentences in order.

        Raises:
            FormatError: a file has changed since the first pass.
        """
        sentences = (s for file in self._files for s in read_sentences(file, unit=self._unit))
        yield from islice(sentences, self._indices.start, self._indices.stop, self._indices.step)
        for file, stamp in zip(self._files, self._stamps, strict=True):
            if _file_stamp(file) != stamp:
                raise FormatError(file, "was changed while it was read", hint="run the command again")


def _file_stamp(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_ino, found.st_size


def read_sentences(
    path: Path, *, unit: str, digest: "hashlib._Hash | None" = None, progress: Progress | None = None
) -> Iterator[str]:
    """Yield a file's sentences, read block by block; `digest` gets its decompressed bytes.

    Raises:
        FormatError: see `read_corpus`.
    """
    lines = read_lines(path, digest=digest, progress=progress)
    sentences: Iterator[str]
    if unit == "line":
        sentences = (line.strip(ASCII_WHITESPACE) for line in lines if line.strip())
    else:
        sentences = (s for block in paragraphs(lines) for s in split_sentences(block))
    first = next(sentences, None)
    if first is None:
        raise FormatError(path, "contains no sentence", hint="give a text file with at least one line")
    yield first
    yield from sentences


def read_lines(
    path: Path, *, digest: "hashlib._Hash | None" = None, progress: Progress | None = None
) -> Iterator[str]:
    r"""Yield the lines of one file, without line ends (`\n` or `\r\n`).

    Raises:
        FormatError: see `read_corpus`.
    """
    offset = 0
    pending = [b""]  # pieces of the unfinished line
    for chunk in _chunks(path, progress):
        if digest is not None:
            digest.update(chunk)
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            pending.append(chunk)
            if sum(map(len, pending)) > MAX_LINE_BYTES:
                problem = f"has a line of more than {MAX_LINE_BYTES:,} bytes, which begins at byte {offset}"
                raise FormatError(path, problem, hint="put one sentence or paragraph on each line")
            continue
        block = b"".join([*pending, head])
        yield from _decode(path, block, offset).removesuffix("\r").split("\n")  # its "\n" is cut off
        offset += len(block) + 1
        pending = [tail]
    if last := b"".join(pending):
        yield _decode(path, last, offset)
    elif offset == 0:
        raise FormatError(path, "is empty (0 bytes)", hint="give a text file")


def check_rereadable(paths: Iterable[Path]) -> None:
    """Check that no file is a pipe, which can be read only once.

    Raises:
        FormatError: one is.
    """
    for path in paths:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise FormatError(path, "cannot be read several times", hint="save it as a file first")


def read_members(files: Mapping[str, Path]) -> dict[str, list[str]]:
    """Read lists of classes' members, one a line, by class name.

    Raises:
        FormatError: a list cannot be read as text.
    """
    return {name: list(filter(None, map(str.strip, read_lines(path)))) for name, path in files.items()}


def _decode(path: Path, block: bytes, offset: int) -> str:
    if offset == 0:
        check_text(block, path)
    if offset == 0 and _ARPA_HEADER.match(block):
        problem = "looks like an ARPA file, not like text"
        raise FormatError(path, problem, hint="use gramophone models import-arpa")
    zero = block.find(0)
    if zero >= 0:
        problem = f"is binary: byte {offset + zero} is NUL"
        raise FormatError(path, problem, hint="give text, plain or compressed (.gz, .xz, .zst, .bz2)")
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8: byte {offset + error.start} is 0x{block[error.start]:02x} ({error.reason})"
        raise FormatError(path, problem, hint="convert it first, for example with iconv -t utf-8") from None
    text = text.replace("\r\n", "\n")
    return text.removeprefix("\ufeff") if offset == 0 else text  # drop the byte-order mark


def _chunks(path: Path, progress: Progress | None) -> Iterator[bytes]:
    if path.is_dir():
        raise FormatError(path, "is a folder", hint="name the files in it")
    with report_read_errors(path), path.open("rb") as raw:
        stream = decompressed(raw)
        last_position = 0
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk
            position = raw.tell() if raw.seekable() else 0  # of a pipe
            if progress is not None:
                progress.advance(position - last_position)
            last_position = position


class EncodedCorpus(NamedTuple):
    """Sentences of token ids, without `<s>` and `</s>`.

    Attributes:
        tokens: ids of all sentences, concatenated [N], int32.
        offsets: start of each sentence, then N [S + 1], int64.
        num_words: white-space words, for figures per word.
        num_bytes: UTF-8 bytes without line ends, for figures per byte.
    """

    tokens: Int32s
    offsets: Int64s
    num_words: int
    num_bytes: int

    @property
    def num_sentences(self) -> int:
        """Number of sentences, S."""
        return len(self.offsets) - 1

    @property
    def num_tokens(self) -> int:
        """Number of predicted tokens: every token and one `</s>` per sentence."""
        return len(self.tokens) + self.num_sentences

    def sentence(self, index: int) -> Int32s:
        """Return the ids of one sentence [T]."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def with_boundaries(self) -> Int32s:
        """Return the text with control tokens [N + 2S]: `<s> w w </s> <s> w w </s> …`."""
        sentences = np.arange(self.num_sentences)
        starts, ends = self.offsets[:-1] + 2 * sentences, self.offsets[1:] + 2 * sentences + 1
        text = np.empty(len(self.tokens) + 2 * self.num_sentences, np.int32)
        is_token = np.ones(len(text), np.bool_)
        is_token[starts] = is_token[ends] = False
        text[starts], text[ends], text[is_token] = BOS, EOS, self.tokens
        return text

    def reversed(self) -> "EncodedCorpus":
        """Return the corpus with reversed sentences, in the same order."""
        lengths = np.diff(self.offsets)
        mirrored = np.repeat(self.offsets[:-1] + self.offsets[1:] - 1, lengths) - np.arange(len(self.tokens))
        return self._replace(tokens=self.tokens[mirrored])

    def token_hash(self) -> str:
        """Return the SHA-256 (hex) of the tokens and sentence ends."""
        digest = hashlib.sha256(self.tokens.tobytes())
        digest.update(self.offsets.tobytes())
        return digest.hexdigest()

    @classmethod
    def from_sentences(
        cls, sentences: Iterable[Sequence[int]], *, num_words: int = 0, num_bytes: int = 0
    ) -> "EncodedCorpus":
        """Build a corpus from encoded sentences."""
        rows = [np.asarray(s, np.int32) for s in sentences]
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        tokens = np.concatenate(rows) if rows else np.zeros(0, np.int32)
        return cls(tokens, offsets, num_words, num_bytes)
