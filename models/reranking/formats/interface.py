"""What every format of n-best lists is: a pair of functions over lines, and what it can carry."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal, NamedTuple

from models.packed_files import COMPRESSED_SUFFIXES
from models.reranking.lists import CandidateList

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
    """What could not be read; the lines around it are served.

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


class SourceLines:
    """The lines of one source, to be gone through once; blank ones are left out.

    Attributes:
        source: the file's name, or what a stream is called.
    """

    def __init__(self, source: str, lines: Iterable[TextLine | BadLine]) -> None:
        self.source = source
        self._lines = iter(lines)

    def __iter__(self) -> Iterator[TextLine | BadLine]:
        return self._lines

    def bad(self, number: int, problem: str, *, loses_list: bool = False) -> BadLine:
        """A complaint about a line."""
        return BadLine(self.source, number, problem, loses_list)

    @property
    def list_name(self) -> str:
        """What the list of a file is called that holds one: the file's name, without the ending of a packed one."""
        path = PurePath(self.source)
        return path.stem if path.suffix in COMPRESSED_SUFFIXES else path.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a format does not say itself.

    Attributes:
        beam_size: candidates of each list, where nothing else separates lists.
        scores: further files with a score for each candidate, by the feature that the score becomes.
    """

    beam_size: int | None = None
    scores: Mapping[str, SourceLines] = field(default_factory=dict)


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
        yields_undecodable: whether a line that is not UTF-8 follows its complaint, as its brackets count.
        numbered: whether lists' names are their places, from 0.
        reference_layout: how files of references for it usually look.
        media_types: in HTTP.
    """

    name: str
    read: Callable[[SourceLines, ReadOptions], Iterator[ListOrBadLine]]
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
        """What of a list would be lost in this format, or in a stream of it: such as `context`, `features.lm`."""
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
