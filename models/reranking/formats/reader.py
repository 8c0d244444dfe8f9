"""Reading of n-best lists in any format, with format detection and references.

A file of references has one of five layouts:

- `lines`: one per line, in the order of the lists (a blank line is an empty reference);
- `tab`: an id, a tab, the reference;
- `utterance`: an id, a space, the reference, as in Kaldi's `text` and SRILM's `-refs`;
- `trn`: the reference, then its id in parentheses, as in sclite;
- `manifest`: a JSON object with the key `text` per line, as in NeMo; its id is `id`, or else the
  name of the `audio_filepath` without folder and suffix.

Where lines have ids, every list has the reference of its id, and every reference its list. A file
is read in the order of the lists only if no line has the id of a list, and its lines do not look as
if they had ids (a tab on each, a word in parentheses at the end of each, a digit in the first word
of each, or a hyphen or underscore in first words that are all different). Anything in between is an
error, never a guess. Several files give each list several references.
"""

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

from models.errors import FormatError, InvalidInputError
from models.reranking.candidates import CandidateList
from models.reranking.formats import json_formats, kaldi, moses, nemo, srilm
from models.reranking.formats.format import (
    ASCII_WHITESPACE,
    BadLine,
    Format,
    ListOrBadLine,
    ReferenceLayout,
    SourceLines,
    is_decimal_number,
    read_blocks,
    shorten,
    split_words,
    unpacked_name,
)
from models.reranking.formats.json_stream import id_value, parse_json_object, string_value

_MOST_DIGITS = 18
_REFERENCE_ID_HINT = (
    "each list needs one line with its id; if lines have no ids, say so: --reference-layout lines"
)
_REFERENCE_ORDER_HINT = "one line for each list, in the same order"
_TRN = re.compile(r"(.*)\((\S+)\)")
_DIGIT = re.compile("[0-9]")


class _ReferenceEntry(NamedTuple):
    """A reference: the number of its line, from 1, its id, empty where there is none, and the text."""

    number: int
    name: str
    text: str


class References:
    """The references of one file.

    Args:
        path: plain, .gz, .xz or .zst.
        layout: None: as the lines look, and as the first list's id says.
        usual: how files beside the lists' format usually look; with `utterance`, lines have ids.
        numbered: whether a list's name is the number of its line, from 0, where lines have no ids.

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
        self._expected: ReferenceLayout | None = None if layout == "lines" else layout
        if layout == "manifest":
            self._in_order, has_ids = _parse_manifest(path, written)
            self._readings[layout] = self._in_order
            self._expected = layout if has_ids else None
        else:
            self._in_order = [
                _ReferenceEntry(number, "", line.strip(ASCII_WHITESPACE))
                for number, line in enumerate(lines, 1)
            ]
            tried: Sequence[ReferenceLayout] = ("tab", "trn", "utterance") if layout is None else (layout,)
            for reading in tried if layout != "lines" else ():
                self._readings[reading] = [
                    _parse_reference(number, line, reading) for number, line in written
                ]
            if layout is None:
                self._expected = (
                    usual if usual == "utterance" else _detect_layout([one for _, one in written])
                )
        self._decided = False
        self._by_name: dict[str, _ReferenceEntry] = {}
        self._line_of: dict[str, int] = {}
        self._num_on_lines = 0
        self._used: set[_ReferenceEntry] = set()
        self._num_lists = self._num_bad = 0

    def skip(self, bad: BadLine) -> None:
        """Take note of what could not be read, with which a list may have been lost."""
        self._num_lists += bad.loses_list
        self._num_bad += 1

    def of(self, one: CandidateList) -> str:
        """The reference of the next list, by its id or its place in the file.

        Raises:
            FormatError: there is none, it is another list's too, or the file can be read in two ways.
        """
        if not self._decided:
            self._decide(one)
            self._decided = True
        place, self._num_lists = self._num_lists, self._num_lists + 1
        if not self._by_name:
            entry = self._of_position(one, place)
        elif one.name is None:
            entry = next(iter(self._by_name.values()))
            raise self._wrong(
                f"line {entry.number} looks as if it had an id, {shorten(entry.name)!r}, but list {place + 1} has none"
            )
        elif one.name in self._by_name:
            entry = self._by_name[one.name]
        else:
            raise self._wrong(f"has no line with the id of list {place + 1}, {_quoted_id(one)}")
        if entry in self._used:
            raise self._wrong(
                f"line {entry.number} is the reference of two lists: list {place + 1} has the id {_quoted_id(one)}, as "
                "one before it",
                "each list needs an id of its own",
            )
        self._used.add(entry)
        return entry.text

    def check_all_used(self) -> None:
        """See whether the file belongs to the lists, once there are no more of them.

        Raises:
            FormatError: it has references of other lists, or can be read in two ways.
        """
        num_lists = self._num_lists
        if self._by_name:
            left = [one for one in self._by_name.values() if one not in self._used]
        elif self._decided and 2 * self._num_on_lines > num_lists:
            raise self._wrong(
                f"the ids of {self._num_on_lines} of {num_lists} lists stand where ids would be, but not on every line"
            )
        elif self._decided and self._numbered:
            left = [one for one in self._in_order if one.text and one not in self._used]
        elif self._decided and len(self._in_order) != num_lists:
            problem = f"has {len(self._in_order)} references, but there are {num_lists} lists"
            raise self._wrong(problem, _REFERENCE_ORDER_HINT)
        else:
            left = []
        if len(left) > self._num_bad:
            name = left[0].name or str(left[0].number - 1)
            raise self._wrong(
                f"line {left[0].number}: there is no list with the id {shorten(name)!r} ({len(left)} such lines)",
                "give these lists' references alone, with their ids",
            )

    def _decide(self, first: CandidateList) -> None:
        """See by the first list whether references are found by their ids."""
        layout = self._expected
        for reading, entries in self._readings.items():
            names = {entry.name for entry in entries}
            # a sentence may begin with a number, so that some list's number there says nothing
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
                raise self._wrong(f"line {entry.number}: there is no id beside the reference")
            before = self._by_name.setdefault(entry.name, entry)
            if before is not entry:
                raise self._wrong(
                    f"line {entry.number} has the id {shorten(entry.name)!r}, as line {before.number} has"
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
                f"line {line} has {_quoted_id(one)}, the id of list {slot + 1}, where an id would be, but not every "
                "line has one"
            )
        self._num_on_lines += line is not None
        return entry

    def _wrong(self, problem: str, hint: str = _REFERENCE_ID_HINT) -> FormatError:
        return FormatError(self._path, problem, hint=hint)


def _attach_references(
    items: Iterable[ListOrBadLine], files: Sequence[References]
) -> Iterator[ListOrBadLine]:
    """Lists with the references of all files, in place of their own."""
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
        raise FormatError(path, f"line {number}: is not UTF-8", hint="convert it first, with iconv") from None
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _detect_layout(lines: Sequence[str]) -> ReferenceLayout | None:
    """The layout with ids that all lines look like; None if they look like references alone."""
    if lines and all("\t" in line for line in lines):
        return "tab"
    if len(lines) < 2:  # of a single line, the look may be chance
        return None
    if all(_TRN.fullmatch(line.strip(ASCII_WHITESPACE)) for line in lines):
        return "trn"
    firsts = [split_words(line)[0] for line in lines]
    parted = len({*firsts}) == len(firsts) and all("-" in first or "_" in first for first in firsts)
    return "utterance" if parted or all(map(_DIGIT.search, firsts)) else None


def _parse_reference(number: int, line: str, layout: ReferenceLayout) -> _ReferenceEntry:
    if layout == "tab":
        name, tab, text = line.partition("\t")
        return _ReferenceEntry(
            number, name.strip(ASCII_WHITESPACE) if tab else "", text.strip(ASCII_WHITESPACE)
        )
    if layout == "trn":
        match = _TRN.fullmatch(line.strip(ASCII_WHITESPACE))
        name, text = (match[2], match[1]) if match else ("", line)
        return _ReferenceEntry(number, name, text.strip(ASCII_WHITESPACE))
    name, *words = split_words(line)
    return _ReferenceEntry(number, name, " ".join(words))


def _parse_manifest(path: Path, lines: Iterable[tuple[int, str]]) -> tuple[list[_ReferenceEntry], bool]:
    """The references of a manifest, and whether it gives them ids, and not only names of files."""
    entries, has_ids = list[_ReferenceEntry](), False
    for number, line in lines:
        try:
            value = parse_json_object(line)
            name = id_value(value.get("id"), "id")
            has_ids |= name is not None
            if name is None:
                name = PurePath(string_value(value.get("audio_filepath", ""), "audio_filepath")).stem
            entries.append(
                _ReferenceEntry(number, name, string_value(value.get("text"), "text").strip(ASCII_WHITESPACE))
            )
        except InvalidInputError as error:
            raise FormatError(
                path, f"line {number}: {error}", hint="a manifest has an object with a text on each line"
            ) from None
    return entries, has_ids


def _has_numeric_id(one: CandidateList) -> bool:
    """Return whether a list's id is digits alone."""
    return one.name is not None and one.name.isascii() and one.name.isdigit()


def _quoted_id(one: CandidateList) -> str:
    return repr(shorten(one.name or ""))


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        one.name: one
        for one in (
            json_formats.JSONL,
            moses.FORMAT,
            *srilm.FORMATS,
            kaldi.FORMAT,
            json_formats.MLM_SCORING,
            json_formats.HYPORADISE,
            nemo.FORMAT,
        )
    }
)
FORMAT_NAMES = tuple(FORMATS)

_FORMAT_HINT = f"name it with --format: {', '.join(FORMAT_NAMES)}"
_JSONL = re.compile(r'"candidates"\s*:\s*\[')
_MLM_SCORING = re.compile(r'"hyp_[0-9]+"\s*:\s*\{')
_KALDI = re.compile(r"\S+-[0-9]+(?:[ \t].*)?")


def format_by_name(name: str) -> Format:
    """The format of a name.

    Raises:
        InvalidInputError: there is none.
    """
    if name not in FORMATS:
        raise InvalidInputError(
            f"format is {shorten(name)!r}, it can be {', '.join(FORMAT_NAMES)}", parameter="format"
        )
    return FORMATS[name]


def format_name_of_media_type(content_type: str) -> str | None:
    """The name of the format of a Content-Type; None for any other."""
    media_type = content_type.partition(";")[0].strip().lower()
    return next((name for name, one in FORMATS.items() if media_type in one.media_types), None)


def detect_format(head: bytes, source: str) -> Format:
    """The format that a file's first bytes look like.

    Args:
        head: unpacked; a few lines are enough.
        source: the file's name, for the message.

    Raises:
        FormatError: they look like none.
    """
    text = head.decode("utf-8", errors="replace").removeprefix("\ufeff").strip(ASCII_WHITESPACE)
    first = text.partition("\n")[0].strip(ASCII_WHITESPACE)
    if not first:
        raise FormatError(source, "is empty, so its format cannot be told", hint=_FORMAT_HINT)
    _, tab, last = first.rpartition("\t")
    name = None
    if first[0] == "[":
        name = "hyporadise"
    elif first[0] == "{":
        found = {"jsonl": _JSONL.search(text), "mlm-scoring": _MLM_SCORING.search(text)}
        positions = {name: match.start() for name, match in found.items() if match}
        name = min(positions, key=positions.__getitem__, default=None)
    elif "|||" in first:
        name = "moses"
    elif srilm.is_srilm_line(first):
        name = "srilm"
    elif tab and is_decimal_number(last):
        name = "nemo"
    elif _KALDI.fullmatch(first):
        name = "kaldi"
    if name is None:
        raise FormatError(
            source, f"is in no format that is known: it begins {shorten(first)!r}", hint=_FORMAT_HINT
        )
    return FORMATS[name]


_HEAD_BYTES = 1 << 16
_NO_SCORES: Mapping[str, Path] = MappingProxyType({})


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
    """Lists as they come, and what could not be read between them; nothing is opened before the first is asked for.

    Args:
        source: plain, .gz, .xz or .zst, whatever its name; a folder for formats of several files.
        format_name: None: as the first lines look.
        references: files that give each list a reference each; see `references`.
        reference_layout: None: as the file looks and the format usually has it.
        beam_size: candidates of every list, for format nemo.
        scores: archives of costs for format kaldi, by the feature that each becomes; beside those of a folder.
        reserved: names that features must not have, as they are computed: such get `old_` before them. In jsonl
            names are the caller's own and stay.
        source_name: what a stream is called in messages.

    Raises:
        FormatError: a file is missing or damaged, of no known format, or references do not fit.
        InvalidInputError: an option is wrong, or does not belong to the format.
    """
    name = source_name or (str(source) if isinstance(source, Path) else "<stream>")
    if isinstance(source, Path) and source.is_dir():
        is_kaldi = any((source / file).is_file() for file in kaldi.WORD_FILES)
        form = format_by_name(format_name or ("kaldi" if is_kaldi else "srilm"))
        items = _read_folder(source, form, _open_scores(form, beam_size, scores))
    else:
        blocks = read_blocks(source, name)
        head, blocks = _head(blocks)
        form = format_by_name(format_name) if format_name else detect_format(head, name)
        opened = _open_scores(form, beam_size, scores)
        items = form.read(SourceLines(name, blocks, form, beam_size=beam_size, scores=opened))
    if references:
        usual, numbered = form.reference_layout, form.numbered
        files = [
            References(path, layout=reference_layout, usual=usual, numbered=numbered) for path in references
        ]
        items = _attach_references(items, files)
    yield from items if reserved is None or form.custom_feature_names else _rename_reserved(items, reserved)


def read_bytes(
    body: bytes,
    format_name: str,
    *,
    source_name: str = "body",
    beam_size: int | None = None,
    reserved: Callable[[str], bool] | None = None,
) -> Iterator[ListOrBadLine]:
    """Lists from memory; nothing is unpacked.

    Raises:
        InvalidInputError: an option is wrong, or does not belong to the format.
    """
    form = format_by_name(format_name)
    _open_scores(form, beam_size, _NO_SCORES)
    items = form.read(SourceLines(source_name, [body], form, beam_size=beam_size))
    return items if reserved is None or form.custom_feature_names else _rename_reserved(items, reserved)


def _head(blocks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes, and all of them."""
    first: list[bytes] = []
    for block in blocks:
        first.append(block)
        if sum(map(len, first)) >= _HEAD_BYTES:
            break
    return b"".join(first)[:_HEAD_BYTES], itertools.chain(first, blocks)


def _open_scores(form: Format, beam_size: int | None, scores: Mapping[str, Path]) -> dict[str, SourceLines]:
    """Lines of the files of scores, by feature; refuse options that do not belong to the format."""
    if beam_size is not None and form.name != "nemo":
        raise InvalidInputError(
            f"beam_size belongs to format nemo, not to {form.name}", parameter="beam_size"
        )
    if scores and not form.separate_score_files:
        raise InvalidInputError(f"scores belong to format kaldi, not to {form.name}", parameter="scores")
    return {feature: _file_lines(path, form) for feature, path in scores.items()}


def _file_lines(path: Path, form: Format, scores: Mapping[str, SourceLines] | None = None) -> SourceLines:
    return SourceLines(str(path), read_blocks(path, str(path)), form, scores=scores)


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
            folder, f"is a folder; format {form.name} has files with all lists", hint="name the files in it"
        )
    lists = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name[0] != "."]
    if not lists:
        raise FormatError(folder, "is a folder without files", hint="its files should be lists, one each")
    return itertools.chain.from_iterable(form.read(_file_lines(path, form)) for path in lists)


def _rename_reserved(
    items: Iterable[ListOrBadLine], reserved: Callable[[str], bool]
) -> Iterator[ListOrBadLine]:
    """Lists whose features have no reserved names."""
    for item in items:
        if isinstance(item, BadLine):
            yield item
            continue
        names = {name for candidate in item.candidates for name in candidate.features}
        renamed = {name: _free_name(name, names) for name in names if reserved(name)}
        if not renamed:
            yield item
            continue
        candidates = (
            replace(c, features={renamed.get(name, name): value for name, value in c.features.items()})
            for c in item.candidates
        )
        yield replace(item, candidates=tuple(candidates))


def _free_name(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name = f"old_{name}"
    return name
