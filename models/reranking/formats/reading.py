"""Lists from files, folders, streams and bytes, in any of the formats."""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from models.errors import FormatError, InvalidInputError
from models.packed_files import COMPRESSED_SUFFIXES
from models.reranking.formats import kaldi
from models.reranking.formats.interface import (
    BadLine,
    Format,
    ListOrBadLine,
    ReadOptions,
    ReferenceLayout,
    SourceLines,
)
from models.reranking.formats.lines import read_blocks, split_lines
from models.reranking.formats.references import References, attach_references
from models.reranking.formats.table import detect_folder_format, detect_format, format_by_name
from models.reranking.lists import CandidateList

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
        form = format_by_name(format_name) if format_name else detect_folder_format(source)
        items = _read_folder(source, form, _options(form, beam_size, scores))
    else:
        blocks = read_blocks(source, name)
        head, blocks = _head(blocks)
        form = format_by_name(format_name) if format_name else detect_format(head, name)
        items = form.read(_lines_of(blocks, name, form), _options(form, beam_size, scores))
    if references:
        usual, numbered = form.reference_layout, form.numbered
        files = [
            References(path, layout=reference_layout, usual=usual, numbered=numbered) for path in references
        ]
        items = attach_references(items, files)
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
    items = form.read(_lines_of([body], source_name, form), _options(form, beam_size, _NO_SCORES))
    return items if reserved is None or form.custom_feature_names else _rename_reserved(items, reserved)


def _head(blocks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes, and all of them."""
    first: list[bytes] = []
    for block in blocks:
        first.append(block)
        if sum(map(len, first)) >= _HEAD_BYTES:
            break
    return b"".join(first)[:_HEAD_BYTES], itertools.chain(first, blocks)


def _options(form: Format, beam_size: int | None, scores: Mapping[str, Path]) -> ReadOptions:
    if beam_size is not None and form.name != "nemo":
        raise InvalidInputError(
            f"beam_size belongs to format nemo, not to {form.name}", parameter="beam_size"
        )
    if scores and not form.separate_score_files:
        raise InvalidInputError(f"scores belong to format kaldi, not to {form.name}", parameter="scores")
    return ReadOptions(
        beam_size=beam_size,
        scores={feature: _file_lines(path, form) for feature, path in scores.items()},
    )


def _file_lines(path: Path, form: Format) -> SourceLines:
    return _lines_of(read_blocks(path, str(path)), str(path), form)


def _lines_of(blocks: Iterable[bytes], name: str, form: Format) -> SourceLines:
    limit, keep = form.max_line_bytes, form.yields_undecodable
    return SourceLines(name, split_lines(blocks, name, max_line_bytes=limit, keep_bad_text=keep))


def _read_folder(folder: Path, form: Format, options: ReadOptions) -> Iterator[ListOrBadLine]:
    if form.separate_score_files:
        return form.read(*_kaldi_folder(folder, form, options))
    if form.one_list_per_file:
        files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name[0] != "."]
        if not files:
            raise FormatError(folder, "is a folder without files", hint="its files should be lists, one each")
        return itertools.chain.from_iterable(form.read(_file_lines(path, form), options) for path in files)
    raise FormatError(
        folder, f"is a folder; format {form.name} has files with all lists", hint="name the files in it"
    )


def _kaldi_folder(folder: Path, form: Format, options: ReadOptions) -> tuple[SourceLines, ReadOptions]:
    files = {_unpacked_name(path): path for path in sorted(folder.iterdir()) if path.is_file()}
    words = next((files[name] for name in kaldi.WORD_FILES if name in files), None)
    if words is None:
        raise FormatError(folder, f"has no file {' or '.join(kaldi.WORD_FILES)}")
    archives = {
        feature: _file_lines(path, form)
        for name, path in files.items()
        if (feature := kaldi.feature_of_file(name)) is not None
    }
    return _file_lines(words, form), replace(options, scores={**archives, **options.scores})


def _unpacked_name(path: Path) -> str:
    return path.stem if path.suffix in COMPRESSED_SUFFIXES else path.name


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
        yield _rename_features(item, renamed) if renamed else item


def _free_name(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name = f"old_{name}"
    return name


def _rename_features(one: CandidateList, renamed: Mapping[str, str]) -> CandidateList:
    candidates = (
        replace(c, features={renamed.get(name, name): value for name, value in c.features.items()})
        for c in one.candidates
    )
    return replace(one, candidates=tuple(candidates))
