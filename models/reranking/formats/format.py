"""Interface of n-best list formats, with the lines, fields and grouping that they share.

Files are plain, .gz, .xz or .zst, in UTF-8. A line that is not UTF-8 or too long is a `BadLine`,
and the others are read; a missing or damaged file is an error. At most one line and one block are
in memory. White space is ASCII's, as in the programs that the formats come from: a no-break space
is part of a word.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Literal, NamedTuple, TypeVar, cast

from models.errors import FormatError, InvalidInputError
from models.files import COMPRESSED_SUFFIXES, DECOMPRESSION_ERRORS, decompressed
from models.reranking.candidates import Candidate, CandidateList

MAX_LIST_CANDIDATES = 100_000
"""Candidates of one list, at most: a file without ids would otherwise fill the memory."""
MAX_CANDIDATE_LINE_BYTES = 1 << 20
"""One candidate on a line."""
MAX_LIST_BYTES = 1 << 26
"""One list in JSON."""
MAX_DOCUMENT_LINE_BYTES = 1 << 28
"""A whole JSON document may stand on one line."""

ReferenceLayout = Literal["lines", "tab", "utterance", "trn", "manifest"]


class TextLine(NamedTuple):
    """A line without its end.

    Attributes:
        number: from 1.
        text: what stands there; never blank.
    """

    number: int
    text: str


class BadLine(NamedTuple):
    """Unreadable input; the lines around it are served.

    Attributes:
        source: the file.
        number: of the line, from 1.
        problem: what is wrong with it.
        loses_list: whether a whole list is lost, or else only a candidate or a score of one.
    """

    source: str
    number: int
    problem: str
    loses_list: bool = False

    def __str__(self) -> str:
        return f"{self.source}:{self.number}: {self.problem}"


ListOrBadLine = CandidateList | BadLine


def unpacked_name(path: PurePath) -> str:
    """A file's name, without the ending of a packed one; so is the list of a file called that holds one."""
    return path.stem if path.suffix in COMPRESSED_SUFFIXES else path.name


class SourceLines:
    r"""The lines of one source, without their ends (`\n` or `\r\n`), to be gone through once; blank ones are left out.

    Attributes:
        source: the file's name, or what a stream is called.
        beam_size: candidates of each list, where nothing else separates lists.
        scores: further files with a score for each candidate, by the feature that the score becomes.
    """

    def __init__(
        self,
        source: str,
        blocks: Iterable[bytes],
        form: "Format",
        *,
        beam_size: int | None = None,
        scores: "Mapping[str, SourceLines] | None" = None,
    ) -> None:
        self.source = source
        self.beam_size = beam_size
        self.scores = scores or {}
        self._blocks, self._form = blocks, form

    def __iter__(self) -> Iterator[TextLine | BadLine]:
        limit = self._form.max_line_bytes
        for number, raw in enumerate(_raw_lines(self._blocks, limit), start=1):
            if raw is None:
                yield self.bad(number, f"the line is longer than {limit:,} bytes")
                continue
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                byte = f"byte {error.start + 1} of the line is 0x{raw[error.start]:02x}"
                yield self.bad(number, f"the text is not UTF-8: {byte}")
                if not self._form.yields_undecodable:
                    continue
                text = raw.decode("utf-8", errors="surrogateescape")
            if number == 1:
                text = text.removeprefix("\ufeff")  # a byte-order mark is no part of the text
            text = text.removesuffix("\r")
            if text.strip(ASCII_WHITESPACE):
                yield TextLine(number, text)

    def bad(self, number: int, problem: str, *, loses_list: bool = False) -> BadLine:
        """A complaint about a line."""
        return BadLine(self.source, number, problem, loses_list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of n-best lists.

    Attributes:
        name: as the command line has it.
        read: lists as their lines come; what cannot be read is a `BadLine` between them.
        write: pieces of text; raises InvalidInputError for what would not be read back.
        features: names of those it can carry; None: any.
        custom_feature_names: whether features are named by whoever writes the file, and not by the format's programs.
        carries_names: whether lists keep their names.
        carries_context: whether lists keep their context and continuation.
        max_references: how many a list may have; None: any number.
        separate_score_files: whether scores have files of their own, so that a stream of text is without them.
        one_list_per_file: whether a file holds a single list, so that several need a folder.
        max_line_bytes: a longer line is refused.
        yields_undecodable: whether a line that is not UTF-8 follows its complaint, with surrogates for bad bytes, as
            its brackets count.
        numbered: whether lists' names are their places, from 0.
        reference_layout: how files of references for it usually look.
        media_types: in HTTP.
    """

    name: str
    read: Callable[[SourceLines], Iterator[ListOrBadLine]]
    write: Callable[[Iterable[CandidateList]], Iterator[str]]
    features: frozenset[str] | None = None
    custom_feature_names: bool = False
    carries_names: bool = True
    carries_context: bool = False
    max_references: int | None = 0
    separate_score_files: bool = False
    one_list_per_file: bool = False
    max_line_bytes: int = MAX_CANDIDATE_LINE_BYTES
    yields_undecodable: bool = False
    numbered: bool = False
    reference_layout: ReferenceLayout = "lines"
    media_types: tuple[str, ...] = ()

    def dropped_fields(self, one: CandidateList, *, streamed: bool = False) -> set[str]:
        """Parts of a list lost in this format, or in a stream of it: such as `context`, `features.lm`."""
        lost = set()
        if one.name is not None and not self.carries_names:
            lost.add("id")
        if one.context and not self.carries_context:
            lost.add("context")
        if one.continuation is not None and not self.carries_context:
            lost.add("continuation")
        if self.max_references is not None and len(one.references) > self.max_references:
            lost.add("references" if self.max_references else "reference")
        carried = frozenset[str]() if streamed and self.separate_score_files else self.features
        if carried is not None:
            given = {name for candidate in one.candidates for name in candidate.features}
            lost |= {f"features.{name}" for name in given - carried}
        return lost


T = TypeVar("T")

ASCII_WHITESPACE = " \t\r\n\f\v"
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SHOWN_CHARACTERS = 40
_LARGEST = 1e300


def split_words(text: str) -> list[str]:
    """Fields between white space."""
    line = collapse_whitespace(text)
    return line.split(" ") if line else []


def collapse_whitespace(text: str) -> str:
    """A text with one space for every run of white space, and none around it."""
    # bytes are split at ASCII's white space alone, and faster than by a regular expression
    return b" ".join(text.encode(errors="surrogatepass").split()).decode(errors="surrogatepass")


def has_whitespace(text: str) -> bool:
    """Return whether there is white space in a text, or the text is empty, so that it could not be one field."""
    return not text or any(character in text for character in ASCII_WHITESPACE)


def is_decimal_number(text: str) -> bool:
    """Return whether a text is a decimal number; `nan` and `inf` are none."""
    return _NUMBER.fullmatch(text) is not None


def parse_number(text: str, what: str) -> float:
    """A text as a finite number, of which some millions can be added up.

    Raises:
        InvalidInputError: it is none; the message begins with `what`.
    """
    value = float(text) if is_decimal_number(text) else math.nan
    if not abs(value) <= _LARGEST:
        raise InvalidInputError(f"{what} is {shorten(text)!r}; it must be a finite number")
    return value


def format_number(value: float) -> str:
    """A number as text that reads back as the same number.

    Raises:
        InvalidInputError: it is not finite.
    """
    if not math.isfinite(value):
        raise InvalidInputError(f"a score is {value}; only finite numbers can be written")
    return repr(float(value))


def shorten(text: str) -> str:
    """The beginning of a text, for messages."""
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def parse_lines(lines: SourceLines, parse: Callable[[str], T]) -> Iterator[tuple[int, T] | BadLine]:
    """Apply a function to each line, with the line's number.

    Args:
        lines: bad ones are handed on.
        parse: raises InvalidInputError for a line that it cannot read.
    """
    for line in lines:
        if isinstance(line, BadLine):
            yield line
            continue
        try:
            yield line.number, parse(line.text)
        except InvalidInputError as error:
            yield lines.bad(line.number, str(error))


def named_lists(lists: Iterable[CandidateList]) -> Iterator[tuple[str, CandidateList]]:
    """Lists with names to write: their own, or else their places, from 0.

    Raises:
        InvalidInputError: a name has white space, or is that of the list before, with which a reader would join it.
    """
    before = None
    for index, one in enumerate(lists):
        name = str(index) if one.name is None else one.name
        if has_whitespace(name):
            raise InvalidInputError(
                f"lists[{index}].id is {shorten(name)!r}; this format's ids have no white space"
            )
        if name == before:
            raise InvalidInputError(f"lists[{index}].id is {shorten(name)!r}, as that of the list before it")
        yield name, one
        before = name


CandidateRow = tuple[str, int, Candidate]
"""The id of the list that a candidate belongs to, its place there as far as the line says it, the candidate."""


def group_candidates(
    rows: Iterable[tuple[int, CandidateRow] | BadLine], lines: SourceLines
) -> Iterator[ListOrBadLine]:
    """Lists of candidates with the same id in a row; a list is closed when the id changes.

    Args:
        rows: of each line its number and what stands there. Candidates are sorted by their places;
            equal places stay in the order of the lines.
        lines: where they come from, for messages.
    """
    name, members = "", list[tuple[int, Candidate]]()

    def close() -> CandidateList:
        members.sort(key=lambda member: member[0])
        return CandidateList(name, "", tuple(candidate for _, candidate in members))

    for row in rows:
        if isinstance(row, BadLine):
            yield row
            continue
        number, (row_name, index, candidate) = row
        if members and row_name != name:
            yield close()
            members = []
        name = row_name
        if len(members) < MAX_LIST_CANDIDATES:
            members.append((index, candidate))
        else:
            yield lines.bad(number, f"list {name!r} has more than {MAX_LIST_CANDIDATES:,} candidates")
    if members:
        yield close()


_BLOCK_BYTES = 1 << 20


def read_blocks(source: Path | BinaryIO, name: str) -> Iterator[bytes]:
    """Content of a file or stream, unpacked.

    Args:
        source: a stream is read to its end and left open.
        name: what it is called in messages.

    Raises:
        FormatError: it is missing, or cannot be read or unpacked.
    """
    try:
        if isinstance(source, Path):
            with source.open("rb") as raw:
                yield from _blocks(decompressed(raw))
        elif isinstance(source, BufferedReader):
            yield from _blocks(decompressed(source))
        else:
            buffered = BufferedReader(cast("Any", source))
            try:
                yield from _blocks(decompressed(buffered))
            finally:
                buffered.detach()  # else the caller's stream would be closed with it
    except FileNotFoundError:
        raise FormatError(name, "there is no such file") from None
    except IsADirectoryError:
        raise FormatError(name, "is a folder") from None
    except DECOMPRESSION_ERRORS as error:
        raise FormatError(name, f"is damaged: {error}", hint="compress or download it again") from None
    except OSError as error:
        raise FormatError(name, f"cannot be read: {error.strerror or error}") from None


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    while block := stream.read(_BLOCK_BYTES):
        yield block


def _raw_lines(blocks: Iterable[bytes], max_bytes: int) -> Iterator[bytes | None]:
    """Lines as bytes; None in place of one that is too long, of which nothing is kept."""
    parts, size = list[bytes](), 0
    for block in blocks:
        first, *rest = block.split(b"\n")
        size += len(first)
        parts.append(first)
        if size > max_bytes:
            parts.clear()
        for piece in rest:
            yield None if size > max_bytes else b"".join(parts)
            parts, size = [piece], len(piece)
            if size > max_bytes:
                parts.clear()
    if size:
        yield None if size > max_bytes else b"".join(parts)
