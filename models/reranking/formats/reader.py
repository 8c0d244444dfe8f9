"""Reading of n-best lists in any format, with format detection and references.

A reference file has one of five layouts:

- `lines`: one reference per line, in order of the lists (a blank line is an empty reference);
- `tab`: an id, a tab, the reference;
- `utterance`: an id, a space, the reference, as in Kaldi's `text` and SRILM's `-refs`;
- `trn`: the reference, then its id in parentheses, as in sclite;
- `manifest`: a JSON object with the key `text` per line, as in NeMo; its id is `id`, or else the
  name of the `audio_filepath` without folder and suffix.

If lines have ids, every list needs a reference with its id, and every reference a list. Files are
read in list order only if no line has the id of a list and the lines do not seem to have
ids (a tab on each, a word in parentheses at the end of each, a digit in each first word, or a
hyphen or underscore in first words that all differ). Any case in between is an error, never a
guess. Several files give each list several references.
"""

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

from models.errors import FormatError, InputError
from models.files import ASCII_WHITESPACE, split_words
from models.reranking.candidates import CandidateList
from models.reranking.formats import json_formats, kaldi, speech_formats, srilm, translations
from models.reranking.formats.format import (
    BadLine,
    Format,
    ListOrBadLine,
    ReferenceLayout,
    SourceLines,
    is_decimal_number,
    read_blocks,
    refuse_to_write,
    shorten,
    unpacked_name,
)
from models.reranking.formats.json_stream import parse_json_object, stripped_value

_MOST_DIGITS = 18
_BLOCK_BYTES = 1 << 16
_REFERENCE_ID_HINT = (
    "each list needs one line with its id; if the lines have no ids, use --reference-layout lines"
)
_REFERENCE_ORDER_HINT = "one line for each list, in the same order"

_TRN = re.compile(r"(.*)\((\S+)\)")
_DIGIT = re.compile("[0-9]")

_ALL_FORMATS = (
    json_formats.JSONL,
    translations.MOSES,
    *srilm.FORMATS,
    kaldi.FORMAT,
    json_formats.MLM_SCORING,
    json_formats.HYPORADISE,
    *speech_formats.FORMATS,
    *translations.FORMATS,
)
FORMATS: Mapping[str, Format] = MappingProxyType({one.name: one for one in _ALL_FORMATS})
FORMAT_NAMES = tuple(FORMATS)
WRITTEN_FORMAT_NAMES = tuple(name for name, one in FORMATS.items() if one.write is not refuse_to_write)

_FORMAT_HINT = f"set it with --format: {', '.join(FORMAT_NAMES)}"
_KALDI = re.compile(r"\S+-[0-9]+(?:[ \t].*)?")

_HEAD_BYTES = 1 << 16

_NO_SCORES: Mapping[str, Path] = MappingProxyType({})

_NAMES = {media_type: name for name, one in FORMATS.items() for media_type in one.media_types}


class _ReferenceEntry(NamedTuple):
    """Reference with its line number, from 1, its id, maybe empty, and its text."""

    number: int
    name: str
    text: str


class References:
    """The references of one file.

    Args:
        path: plain, .gz, .xz, .zst or .bz2.
        layout: None: detected from the lines and the id of the first list.
        usual: usual reference layout of the lists' format; with `utterance`, lines have ids.
        numbered: True if a list's name is its line number, from 0, in files without ids.

    Raises:
        FormatError: the file cannot be read, or has another layout.
    """

    def __init__(
        self, path: Path, *, layout: ReferenceLayout | None, usual: ReferenceLayout, numbered: bool
    ) -> None:
        self._path, self._numbered = path, numbered
        lines = _read_reference_lines(path)
        written = [(number, line) for number, line in enumerate(lines, 1) if line.strip(ASCII_WHITESPACE)]
        if layout is None and lines and lines[0].lstrip(ASCII_WHITESPACE).startswith("{"):
            layout = "manifest"
        self._readings: dict[ReferenceLayout, list[_ReferenceEntry]] = {}
        self._expected: ReferenceLayout | None = None
        if layout == "manifest":
            self._in_order, has_ids = _parse_manifest(path, written)
            self._readings[layout] = self._in_order
            self._expected = layout if has_ids else None
        else:
            self._in_order = [_parse_reference(number, line, "lines") for number, line in enumerate(lines, 1)]
            tried: Sequence[ReferenceLayout] = ("tab", "trn", "utterance") if layout is None else (layout,)
            for reading in tried if layout != "lines" else ():
                self._readings[reading] = [_parse_reference(*line, reading) for line in written]
            if layout is None and usual != "utterance":
                self._expected = _detect_layout([line for _, line in written])
            elif layout != "lines":
                self._expected = layout or usual
        self._by_name: dict[str, _ReferenceEntry] = {}
        self._line_of: dict[str, int] = {}
        self._num_on_lines = 0
        self._used: set[_ReferenceEntry] = set()
        self._num_lists = self._num_bad = 0

    def skip(self, bad: BadLine) -> None:
        """Count unreadable input, which may have lost a list."""
        self._num_lists += bad.loses_list
        self._num_bad += 1

    def of(self, one: CandidateList) -> str:
        """Return the next list's reference, by its id or position.

        Raises:
            FormatError: it is missing or also another list's, or the layout is ambiguous.
        """
        if not self._used:
            self._decide(one)
        place, self._num_lists = self._num_lists, self._num_lists + 1
        if not self._by_name:
            entry = self._of_position(one, place)
        elif one.name is None:
            entry = next(iter(self._by_name.values()))
            raise self._wrong(
                f"line {entry.number} seems to have the id {shorten(entry.name)!r}, but list {place + 1} has no id"
            )
        elif one.name in self._by_name:
            entry = self._by_name[one.name]
        else:
            raise self._wrong(f"has no line with the id of list {place + 1}, {_quoted_id(one)}")
        if entry in self._used:
            raise self._wrong(
                f"line {entry.number} is the reference of two lists: list {place + 1} has the id {_quoted_id(one)}, "
                "like an earlier list",
                "each list needs a unique id",
            )
        self._used.add(entry)
        return entry.text

    def check_all_used(self) -> None:
        """Check that the references belong to the lists, after the last list.

        Raises:
            FormatError: it has other lists' references, or an ambiguous layout.
        """
        left, count = list[_ReferenceEntry](), self._num_lists
        if self._by_name:
            left = [one for one in self._by_name.values() if one not in self._used]
        elif not self._used:
            return
        elif 2 * self._num_on_lines > count:
            raise self._wrong(
                f"lines seem to have the ids of {self._num_on_lines} of {count} lists, but not every line has an id"
            )
        elif self._numbered:
            left = [one for one in self._in_order if one.text and one not in self._used]
        elif len(self._in_order) != count:
            problem = f"has {len(self._in_order)} references, but there are {count} lists"
            raise self._wrong(problem, _REFERENCE_ORDER_HINT)
        if len(left) > self._num_bad:
            name = left[0].name or str(left[0].number - 1)
            raise self._wrong(
                f"line {left[0].number}: no list has the id {shorten(name)!r} ({len(left)} such lines)",
                "give only the references of these lists, with their ids",
            )

    def _decide(self, first: CandidateList) -> None:
        """Decide from the first list if references are found by their ids."""
        layout = self._expected
        for reading, entries in self._readings.items():
            names = {entry.name for entry in entries}
            # a sentence may start with a number, so a list's number there is no evidence
            may_be_words = reading == "utterance" != self._expected and _has_numeric_id(first)
            if first.name in names and "" not in names and not may_be_words:
                layout = reading
                break
        if layout is None or (layout == "manifest" and first.name is None):
            entries = [entry for parsed in self._readings.values() for entry in parsed if entry.name]
            self._line_of = {entry.name: entry.number for entry in entries}
            return
        for entry in self._readings[layout]:
            if not entry.name:
                raise self._wrong(f"line {entry.number} has no id beside the reference")
            before = self._by_name.setdefault(entry.name, entry)
            if before is not entry:
                raise self._wrong(
                    f"line {entry.number} has the id {shorten(entry.name)!r}, like line {before.number}"
                )

    def _of_position(self, one: CandidateList, slot: int) -> _ReferenceEntry:
        index = int((one.name or "")[:_MOST_DIGITS]) if self._numbered and _has_numeric_id(one) else slot
        if index >= len(self._in_order):
            raise self._wrong(
                f"has {len(self._in_order)} references, so there is none for list {slot + 1} "
                f"({shorten(one.name or 'without an id')})",
                _REFERENCE_ORDER_HINT,
            )
        entry = self._in_order[index]
        line = self._line_of.get(one.name or "")
        if line is not None and (line == entry.number or not _has_numeric_id(one)):
            raise self._wrong(
                f"line {line} seems to have the id of list {slot + 1}, {_quoted_id(one)}, but not every line has "
                "an id"
            )
        self._num_on_lines += line is not None
        return entry

    def _wrong(self, problem: str, hint: str = _REFERENCE_ID_HINT) -> FormatError:
        return FormatError(self._path, problem, hint=hint)


def attach_references(items: Iterable[Any], files: Sequence[References]) -> Iterator[Any]:
    """Replace the references of lists, or of lattices, by those in the files, which must match."""
    for item in items:
        if isinstance(item, BadLine):
            for file in files:
                file.skip(item)
            yield item
        else:
            yield replace(item, references=tuple(file.of(item) for file in files))
    for file in files:
        file.check_all_used()


def _read_reference_lines(path: Path) -> list[str]:
    data = b"".join(read_blocks(path, str(path)))
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise FormatError(path, f"line {number} is not UTF-8", hint="convert the file with iconv") from None
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _detect_layout(lines: Sequence[str]) -> ReferenceLayout | None:
    """Detect a layout with ids that fits all lines; None if they seem mere references."""
    if lines and all("\t" in line for line in lines):
        return "tab"
    if len(lines) < 2:  # a single line may match by chance
        return None
    if all(_TRN.fullmatch(line.strip(ASCII_WHITESPACE)) for line in lines):
        return "trn"
    firsts = [split_words(line)[0] for line in lines]
    parted = len({*firsts}) == len(firsts) and all("-" in first or "_" in first for first in firsts)
    return "utterance" if parted or all(map(_DIGIT.search, firsts)) else None


def _parse_reference(number: int, line: str, layout: ReferenceLayout) -> _ReferenceEntry:
    name, text = "", line
    if layout == "tab":
        name, tab, text = line.partition("\t")
        name = name if tab else ""
    elif layout == "trn":
        match = _TRN.fullmatch(line.strip(ASCII_WHITESPACE))
        name, text = (match[2], match[1]) if match else (name, text)
    elif layout == "utterance":
        name, *words = split_words(line)
        text = " ".join(words)
    return _ReferenceEntry(number, name.strip(ASCII_WHITESPACE), text.strip(ASCII_WHITESPACE))


def _parse_manifest(path: Path, lines: Iterable[tuple[int, str]]) -> tuple[list[_ReferenceEntry], bool]:
    """Parse a manifest; return its references, and True if they have ids, not only file names."""
    entries, has_ids = list[_ReferenceEntry](), False
    for number, line in lines:
        try:
            value = parse_json_object(line)
            name, is_id = speech_formats.manifest_id(value)
            has_ids |= is_id
            entries.append(_ReferenceEntry(number, name or "", stripped_value(value.get("text"), "text")))
        except InputError as error:
            raise FormatError(
                path, f"line {number}: {error}", hint="each line of a manifest is a JSON object with a text"
            ) from None
    return entries, has_ids


def _has_numeric_id(one: CandidateList) -> bool:
    return one.name is not None and one.name.isascii() and one.name.isdigit()


def _quoted_id(one: CandidateList) -> str:
    return repr(shorten(one.name or ""))


def format_by_name(name: str, *, to_write: bool = False) -> Format:
    """Return the format with this name.

    Raises:
        InputError: the name is unknown, or the format is only read.
    """
    names = WRITTEN_FORMAT_NAMES if to_write else FORMAT_NAMES
    if name not in names:
        field = "output format" if to_write else "format"
        raise InputError(
            f"{field} is {shorten(name)!r}; it must be one of {', '.join(names)}", param="format"
        )
    return FORMATS[name]


def format_of_media_type(content_type: str) -> str | None:
    """Return the format name for a Content-Type; None if it is not a format's."""
    return _NAMES.get(content_type.partition(";")[0].strip().lower())


def detect_format(head: bytes, source: str) -> Format:
    """Detect the format of a file from its first bytes.

    Args:
        head: decompressed; a few lines suffice.
        source: file name for the error message.

    Raises:
        FormatError: no format matches.
    """
    text = head.decode("utf-8", errors="replace").removeprefix("\ufeff").strip(ASCII_WHITESPACE)
    first = text.partition("\n")[0].strip(ASCII_WHITESPACE)
    if not first:
        raise FormatError(source, "is empty, so its format cannot be detected", hint=_FORMAT_HINT)
    _, tab, last = first.rpartition("\t")
    name = None
    if first[0] in "[{":
        found = {one.name: one.first_key.search(text) for one in FORMATS.values() if one.first_key}
        positions = {name: match.start() for name, match in found.items() if match}
        default = "hyporadise" if first[0] == "[" else None
        name = min(positions, key=positions.__getitem__, default=default)
    elif translations.FAIRSEQ_HYPOTHESIS.search(text):
        name = "fairseq"
    elif translations.is_scored_line(first):
        name = "ctranslate2"
    elif "|||" in first:
        name = "moses"
    elif srilm.is_srilm_line(first):
        name = "srilm"
    elif tab and is_decimal_number(last):
        name = "nemo"
    elif _KALDI.fullmatch(first):
        lines = text.split("\n")
        kaldi.check_content(lines[:-1] if len(head) >= _HEAD_BYTES and lines[1:] else lines, source)
        name = "kaldi"
    if name is None:
        raise FormatError(
            source, f"unknown format; the file starts with {shorten(first)!r}", hint=_FORMAT_HINT
        )
    return FORMATS[name]


def read_lists(
    source: Path | BinaryIO,
    *,
    format_name: str | None = None,
    references: Sequence[Path] = (),
    reference_layout: ReferenceLayout | None = None,
    beam_size: int | None = None,
    scores: Mapping[str, Path] = _NO_SCORES,
    reserved: Callable[[str], bool] | None = None,
    source_name: str | None = None,
) -> Iterator[ListOrBadLine]:
    """Yield lists, and a `BadLine` for each unreadable part; the first `next` opens the files.

    Args:
        source: plain, .gz, .xz, .zst or .bz2, whatever its suffix; a folder for formats with several files.
        format_name: None: detected from the first lines.
        references: reference files; each gives every list one reference. See the module docstring.
        reference_layout: None: detected from the file and the format's usual layout.
        beam_size: number of candidates of every list, for formats that need it.
        scores: cost archives for format kaldi, by feature, in addition to those of a folder.
        reserved: True for names of computed features, which get the prefix `old_`. In jsonl, with our own
            names, they are dropped and reported.
        source_name: name of a stream in messages.

    Raises:
        FormatError: a file is missing, damaged or of unknown format, or references do not match.
        InputError: an option is invalid or not an option of the format.
    """
    name = source_name or (str(source) if isinstance(source, Path) else "<stream>")
    if isinstance(source, Path) and source.is_dir():
        is_kaldi = any((source / file).is_file() for file in kaldi.WORD_FILES)
        form = format_by_name(format_name or ("kaldi" if is_kaldi else "srilm"))
        items = _read_folder(source, form, _open_scores(form, beam_size, scores))
    else:
        blocks = read_blocks(source, name)
        first = next(blocks, b"")
        form = format_by_name(format_name) if format_name else detect_format(first[:_HEAD_BYTES], name)
        opened = _open_scores(form, beam_size, scores)
        blocks = itertools.chain([first], blocks)
        items = form.read(SourceLines(name, blocks, form, beam_size=beam_size, scores=opened))
    if references:
        usual, numbered = form.reference_layout, form.numbered
        opened_by = partial(References, layout=reference_layout, usual=usual, numbered=numbered)
        items = attach_references(items, list(map(opened_by, references)))
    if reserved is not None:
        items = _rename_reserved(items, reserved, drop_from=name if form.custom_feature_names else None)
    yield from items


def read_bytes(
    body: bytes, format_name: str, *, reserved: Callable[[str], bool] | None = None
) -> Iterator[ListOrBadLine]:
    """Read lists from memory, without decompression.

    Raises:
        InputError: the format is unknown, or needs a beam size.
    """
    form = format_by_name(format_name)
    blocks = (body[begin : begin + _BLOCK_BYTES] for begin in range(0, len(body), _BLOCK_BYTES))
    items = form.read(SourceLines("body", blocks, form))
    return items if reserved is None or form.custom_feature_names else _rename_reserved(items, reserved)


def _open_scores(form: Format, beam_size: int | None, scores: Mapping[str, Path]) -> dict[str, SourceLines]:
    """Open score files by feature; refuse options of other formats."""
    if beam_size is not None and not form.needs_beam_size:
        needing = " and ".join(one.name for one in FORMATS.values() if one.needs_beam_size)
        raise InputError.of("beam_size", f"is for {needing}, not for {form.name}")
    if scores and not form.separate_score_files:
        raise InputError.of("scores", f"are for format kaldi, not for {form.name}")
    return {feature: _file_lines(path, form) for feature, path in scores.items()}


def _file_lines(path: Path, form: Format, scores: Mapping[str, SourceLines] | None = None) -> SourceLines:
    return SourceLines(str(path), read_blocks(path, str(path)), form, scores=scores or {})


def _read_folder(folder: Path, form: Format, scores: Mapping[str, SourceLines]) -> Iterator[ListOrBadLine]:
    files = {unpacked_name(path): path for path in sorted(folder.iterdir()) if path.is_file()}
    if form.separate_score_files:
        words = next((files[name] for name in kaldi.WORD_FILES if name in files), None)
        if words is None:
            raise FormatError(folder, f"has no file {' or '.join(kaldi.WORD_FILES)}")
        archives = {
            feature: _file_lines(path, form)
            for name, path in files.items()
            if (feature := kaldi.feature_of_file(name)) is not None
        }
        return form.read(_file_lines(words, form, {**archives, **scores}))
    if not form.one_list_per_file:
        raise FormatError(
            folder, f"is a folder; format {form.name} has all lists in one file", hint="give the file"
        )
    lists = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name[0] != "."]
    if not lists:
        raise FormatError(folder, "is a folder without files", hint="it needs one file per list")
    return itertools.chain.from_iterable(form.read(_file_lines(path, form)) for path in lists)


def _rename_reserved(
    items: Iterable[ListOrBadLine], reserved: Callable[[str], bool], *, drop_from: str | None = None
) -> Iterator[ListOrBadLine]:
    """Prefix features of reserved names with `old_`, or drop a source's and report them once."""
    reported = False
    for item in items:
        given = () if isinstance(item, BadLine) else item.candidates
        names = {name for candidate in given for name in candidate.features}
        renamed = {name: _free_name(name, names) for name in names if reserved(name)}
        if isinstance(item, BadLine) or not renamed:
            yield item
            continue
        kept = {name: renamed.get(name, name) for name in names if drop_from is None or name not in renamed}
        if drop_from is not None and not reported:
            reported = True
            yield BadLine(drop_from, 1, f"features that are computed again: {', '.join(sorted(renamed))}")
        candidates = (
            replace(c, features={kept[name]: value for name, value in c.features.items() if name in kept})
            for c in given
        )
        yield replace(item, candidates=tuple(candidates))


def _free_name(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name = f"old_{name}"
    return name
