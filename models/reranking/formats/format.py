"""Interface of n-best list formats, with their common lines, fields and grouping.

Files are plain, .gz, .xz, .zst or .bz2, in UTF-8. Reading continues after a `BadLine`, not in UTF-8 or
too long; a missing or damaged file is an error. At most one line and one block are in memory.
White space is ASCII's, as in the formats' programs.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from io import BufferedReader
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Literal, NamedTuple, TypeVar, cast

from models.errors import FormatError, InputError
from models.files import ASCII_WHITESPACE, COMPRESSED_SUFFIXES, check_text, decompressed, report_read_errors
from models.reranking.candidates import Candidate, CandidateList

MAX_LIST_CANDIDATES = 100_000
"""Maximum candidates of a list; without ids, a file could fill the memory."""
MAX_CANDIDATE_LINE_BYTES = 1 << 20
"""Maximum size of a line with one candidate."""
MAX_LIST_BYTES = 1 << 26
"""Maximum size of a list in JSON."""
MAX_DOC_LINE_BYTES = 1 << 28
"""Maximum size of a line of a JSON document, which may have only one."""

ReferenceLayout = Literal["lines", "tab", "utterance", "trn", "manifest"]

T = TypeVar("T")

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SHOWN_CHARS = 40
_LARGEST = 1e300

CandidateRow = tuple[str, int, Candidate | InputError]
"""Id of the candidate's list, its rank there if stated, and the candidate or its error."""

_BLOCK_BYTES = 1 << 20


class TextLine(NamedTuple):
    """Line without its end, or member of a JSON document.

    Attributes:
        number: number of the line, or of the member's first line, from 1.
        text: text of the line, never blank, or value of the member, as JSON.
        key: key of the member, as JSON; None outside an object.
    """

    number: int
    text: str
    key: str | None = None


class BadLine(NamedTuple):
    """Unreadable input; reading continues after it.

    Attributes:
        source: the file.
        number: line number, from 1.
        problem: description of the error.
        loses_list: True if a whole list is lost, not only a candidate or a score.
    """

    source: str
    number: int
    problem: str
    loses_list: bool = False

    def __str__(self) -> str:
        return f"{self.source}:{self.number}: {self.problem}"


ListOrBadLine = CandidateList | BadLine


def unpacked_name(path: PurePath) -> str:
    """Return a file's name without its compression suffix.

    It is the list's name in formats of one list per file.
    """
    return path.stem if path.suffix in COMPRESSED_SUFFIXES else path.name


@dataclass(frozen=True, slots=True, eq=False)
class SourceLines:
    r"""Lines of one source, without line ends (`\n` or `\r\n`) and blank lines; can be iterated once.

    Attributes:
        source: file name, or the name of a stream.
        blocks: its bytes.
        form: format of the lines.
        beam_size: number of candidates of each list, for formats without another separator.
        scores: further files with a score per candidate, by feature.
    """

    source: str
    blocks: Iterable[bytes]
    form: "Format"
    beam_size: int | None = None
    scores: "Mapping[str, SourceLines]" = field(default_factory=dict)

    def __iter__(self) -> Iterator[TextLine | BadLine]:
        limit = self.form.max_line_bytes
        for number, raw in enumerate(raw_lines(self.blocks, limit), start=1):
            if raw is None:
                yield self.bad(number, f"the line is longer than {limit:,} bytes")
                continue
            if not raw.strip():
                continue
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                byte = f"byte {error.start + 1} of the line is 0x{raw[error.start]:02x}"
                yield self.bad(number, f"the text is not UTF-8: {byte}")
                if limit < MAX_DOC_LINE_BYTES:
                    # a document's brackets count: surrogates replace invalid bytes
                    continue
                text = raw.decode("utf-8", errors="surrogateescape")
            if number == 1:
                text = text.removeprefix("\ufeff")  # byte-order mark
            text = text.removesuffix("\r")
            if text.strip(ASCII_WHITESPACE):
                yield TextLine(number, text)

    def bad(self, number: int, problem: str, *, loses_list: bool = False) -> BadLine:
        """Create a `BadLine` of this source."""
        return BadLine(self.source, number, problem, loses_list)


def refuse_to_write(_lists: Iterable[CandidateList]) -> Iterator[str]:
    """Refuse to write lists in a format that is only read.

    Raises:
        InputError: always.
    """
    raise InputError("the format is only read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """N-best list format.

    Attributes:
        name: name on the command line.
        read: yields lists, with a `BadLine` for each unreadable line.
        write: yields pieces of text; raises InputError for values that would not be read back; by default
            for any list.
        first_key: key that detects a JSON file of this format, if before other formats' keys.
        features: names of the supported features; None: any.
        custom_feature_names: True if the file's author names the features, not the format's programs.
        carried_fields: those of `id`, `context`, `continuation` and `confidences` that lists keep.
        max_references: maximum references of a list; None: no limit.
        separate_score_files: True if scores have their own files and a single stream has none.
        one_list_per_file: True if a file holds one list, and several need a folder.
        needs_beam_size: True if only the number of candidates separates lists.
        max_line_bytes: maximum size of a line.
        numbered: True if lists' names are their indices, from 0.
        reference_layout: usual layout of reference files for this format.
        media_types: media types in HTTP.
        example: file with one list, if the format is only read.
    """

    name: str
    read: Callable[[SourceLines], Iterator[ListOrBadLine]]
    write: Callable[[Iterable[CandidateList]], Iterator[str]] = refuse_to_write
    first_key: re.Pattern[str] | None = None
    features: frozenset[str] | None = None
    custom_feature_names: bool = False
    carried_fields: frozenset[str] = frozenset({"id"})
    max_references: int | None = 0
    separate_score_files: bool = False
    one_list_per_file: bool = False
    needs_beam_size: bool = False
    max_line_bytes: int = MAX_CANDIDATE_LINE_BYTES
    numbered: bool = False
    reference_layout: ReferenceLayout = "lines"
    media_types: tuple[str, ...] = ()
    example: str = ""

    def dropped_fields(self, one: CandidateList, *, streamed: bool = False) -> set[str]:
        """Return a list's fields that this format, or its stream, drops, such as `features.lm`."""
        given: dict[str, Any] = {
            "id": one.name,
            "context": one.context or None,
            "continuation": one.continuation,
            "confidences": any(candidate.confidences for candidate in one.candidates) or None,
        }
        lost = {field for field, value in given.items() if value is not None} - self.carried_fields
        if self.max_references is not None and len(one.references) > self.max_references:
            lost.add("references" if self.max_references else "reference")
        carried = frozenset[str]() if streamed and self.separate_score_files else self.features
        if carried is not None:
            names = {name for candidate in one.candidates for name in candidate.features}
            lost |= {f"features.{name}" for name in names - carried}
        return lost


def has_whitespace(text: str) -> bool:
    """True if a text has white space or is empty, and so cannot be a field."""
    return not text or any(character in text for character in ASCII_WHITESPACE)


def is_decimal_number(text: str) -> bool:
    """True if a text is a decimal number; `nan` and `inf` are not."""
    return _NUMBER.fullmatch(text) is not None


def parse_number(text: str, what: str) -> float:
    """Parse a finite number, at most 1e300 in magnitude so that sums of millions are finite.

    Raises:
        InputError: it is not such a number; the message starts with `what`.
    """
    value = float(text) if is_decimal_number(text) else math.nan
    if not abs(value) <= _LARGEST:
        raise InputError(f"{what} is {shorten(text)!r}; it must be a finite number")
    return value


def format_number(value: float) -> str:
    """Format a number so that parsing returns the same.

    Raises:
        InputError: it is not finite.
    """
    if not math.isfinite(value):
        raise InputError(f"a score is {value}; scores must be finite")
    return repr(float(value))


def shorten(text: str) -> str:
    """Truncate a text for messages."""
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def parse_lines(lines: SourceLines, parse: Callable[[str], T | None]) -> Iterator[tuple[int, T] | BadLine]:
    """Parse each line, and yield results with line numbers; bad lines are passed on.

    `parse` returns None for a line to skip, and raises InputError for an invalid one.
    """
    for line in lines:
        if isinstance(line, BadLine):
            yield line
            continue
        try:
            parsed = parse(line.text)
        except InputError as error:
            yield lines.bad(line.number, str(error))
            continue
        if parsed is not None:
            yield line.number, parsed


def after_errors(errors: Sequence[BadLine], one: CandidateList | None) -> Iterator[ListOrBadLine]:
    """Yield a list after its errors; without a list, the last error loses it."""
    for index, error in enumerate(errors, start=1):
        yield error._replace(loses_list=one is None and index == len(errors))
    if one is not None:
        yield one


def named_lists(lists: Iterable[CandidateList]) -> Iterator[tuple[str, CandidateList]]:
    """Yield lists with their names, or else their indices from 0.

    Raises:
        InputError: a name is not one word, or equals the one before, so a reader would join both.
    """
    before = None
    for index, one in enumerate(lists):
        name = str(index) if one.name is None else one.name
        if has_whitespace(name):
            raise InputError(f"lists[{index}].id is {shorten(name)!r}; ids of this format must be one word")
        if name == before:
            raise InputError(f"lists[{index}].id is {shorten(name)!r}, the id of the list before it")
        yield name, one
        before = name


def candidate_or_error(parse: Callable[[], Candidate]) -> Candidate | InputError:
    """Return a parsed candidate, or the error of an invalid one, whose list is known."""
    try:
        return parse()
    except InputError as error:
        return error.with_traceback(None)


def _list_of_members(name: str, members: Sequence[tuple[int, Candidate]]) -> CandidateList:
    return CandidateList(name, "", tuple(candidate for _, candidate in members))


def group_candidates(
    rows: Iterable[tuple[int, CandidateRow] | BadLine],
    lines: SourceLines,
    make: Callable[[str, Sequence[tuple[int, Candidate]]], CandidateList | None] = _list_of_members,
) -> Iterator[ListOrBadLine]:
    """Group consecutive candidates with the same id into lists, each after its candidates' errors.

    Args:
        rows: candidates with their line numbers; sorted by rank, and equal ranks keep the order
            of the lines.
        lines: their source, for messages.
        make: makes a list of an id and its ranked candidates, or None; by default of all.
    """
    name, members = "", list[tuple[int, Candidate]]()
    waiting = list[BadLine]()  # the last error of the list, which may lose it

    def close() -> Iterator[ListOrBadLine]:
        members.sort(key=lambda member: member[0])
        yield from after_errors(waiting, make(name, members) if members else None)
        members.clear()
        waiting.clear()

    for row in rows:
        if isinstance(row, BadLine):
            yield row
            continue
        number, (row_name, index, one) = row
        if row_name != name:
            yield from close()
        name = row_name
        if isinstance(one, Candidate) and len(members) < MAX_LIST_CANDIDATES:
            members.append((index, one))
            continue
        if isinstance(one, Candidate):
            one = InputError(f"list {name!r} has more than {MAX_LIST_CANDIDATES:,} candidates")
        yield from waiting
        waiting[:] = [lines.bad(number, str(one))]
    yield from close()


def read_beams(lines: SourceLines, parse: Callable[[str], Candidate]) -> Iterator[ListOrBadLine]:
    """Read lists of `beam_size` lines each.

    A bad line, or one that `parse` refuses, reduces its list by one candidate.

    Raises:
        InputError: the beam size is missing or out of range.
    """
    if lines.beam_size is None or not 1 <= lines.beam_size <= MAX_LIST_CANDIDATES:
        raise InputError.of(
            "beam_size",
            f"is {lines.beam_size}; format {lines.form.name} requires 1 to {MAX_LIST_CANDIDATES:,}",
        )
    rows = parse_lines(lines, parse)
    while batch := list(itertools.islice(rows, lines.beam_size)):
        errors = [row for row in batch if isinstance(row, BadLine)]
        candidates = tuple(row[1] for row in batch if not isinstance(row, BadLine))
        if len(batch) < lines.beam_size:
            last = batch[-1]
            number = last.number if isinstance(last, BadLine) else last[0]
            problem = f"the last list has {len(batch)} of {lines.beam_size} candidates"
            errors.append(lines.bad(number, problem))
        yield from after_errors(errors, CandidateList(None, "", candidates) if candidates else None)


def read_blocks(source: Path | BinaryIO, name: str) -> Iterator[bytes]:
    """Read the decompressed blocks of a file or stream.

    Args:
        source: a file, or a stream, which is read to its end and left open.
        name: name of the source in messages.

    Raises:
        FormatError: it is missing, unreadable or cannot be decompressed.
    """
    if isinstance(source, Path) and source.is_dir():
        raise FormatError(name, "is a folder")
    with report_read_errors(name), ExitStack() as opened:
        if isinstance(source, Path):
            raw = opened.enter_context(source.open("rb"))
        elif isinstance(source, BufferedReader):
            raw = source
        else:
            raw = BufferedReader(cast("Any", source))
            opened.callback(raw.detach)  # else the caller's stream would be closed too
        stream = decompressed(raw)
        head = stream.read(_BLOCK_BYTES)
        check_text(head, name)
        yield from itertools.chain([head], iter(partial(stream.read, _BLOCK_BYTES), b""))


def raw_lines(blocks: Iterable[bytes], max_bytes: int) -> Iterator[bytes | None]:
    """Yield lines as bytes; None for one that is too long, not kept in memory."""
    parts, size = list[bytes](), 0
    for block in blocks:
        first, *others = block.split(b"\n")
        size += len(first)
        parts.append(first)
        if size > max_bytes:
            parts.clear()
        if others:
            yield None if size > max_bytes else b"".join(parts)
            *whole, last = others
            for line in whole:
                yield None if len(line) > max_bytes else line
            parts, size = [last], len(last)
    if size:
        yield None if size > max_bytes else b"".join(parts)
