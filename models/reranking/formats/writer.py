"""Writing of n-best lists to files, folders and streams, in any format."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from models.errors import FormatError, InputError
from models.files import COMPRESSED_SUFFIXES, atomic_writer
from models.language_model import finite_logprob
from models.reranking.candidates import CandidateList
from models.reranking.formats import kaldi
from models.reranking.formats.format import named_lists, shorten
from models.reranking.formats.reader import format_by_name

_PIECE_CHARS = 1 << 18
_MAX_FILE_NAME_BYTES = 200


def write_lists(lists: Iterable[CandidateList], target: Path | BinaryIO, format_name: str) -> None:
    """Write lists as they come.

    Args:
        lists: fields that the format lacks are dropped (`Format.dropped_fields`); minus infinity is written
            as `LOG_ZERO`.
        target: a file, compressed by its suffix and replaced atomically; a stream; or a folder, for kaldi
            (words, and an archive per feature) and for SRILM's formats (one file per list).
        format_name: one of `WRITTEN_FORMAT_NAMES`.

    Raises:
        FormatError: the file system reports an error.
        InputError: the format is unknown, only read, or cannot represent a name, text or score.
    """
    form = format_by_name(format_name, to_write=True)
    lists = map(_finite, lists)
    if not isinstance(target, Path):
        _write_pieces(form.write(lists), target.write)
    elif form.separate_score_files:
        _write_archives(lists, make_folder(target))
    elif form.one_list_per_file:
        named = ((i, str(i) if one.name is None else one.name, one) for i, one in enumerate(lists))
        refusal = "lists[{}].id is {!r}; it must be a file name that no other list has"
        files = ((name, form.write([one]), refusal.format(i, shorten(name))) for i, name, one in named)
        write_folder(files, target)
    else:
        with atomic_writer(target) as write:
            _write_pieces(form.write(lists), write)


def _finite(one: CandidateList) -> CandidateList:
    if not any(-math.inf in candidate.features.values() for candidate in one.candidates):
        return one
    scores = [{k: finite_logprob(v) for k, v in c.features.items()} for c in one.candidates]
    of_texts = zip(one.candidates, scores, strict=True)
    return replace(one, candidates=tuple(replace(c, features=features) for c, features in of_texts))


def _write_pieces(pieces: Iterable[str], write: Callable[[bytes], object]) -> None:
    """Write text as UTF-8, in pieces of about `_PIECE_CHARS`."""
    waiting, size = list[str](), 0
    for piece in itertools.chain(pieces, [None]):
        if piece is not None:
            waiting.append(piece)
            size += len(piece)
        if piece is None or size >= _PIECE_CHARS:
            text = "".join(waiting)
            try:
                write(text.encode())
            except UnicodeEncodeError as error:
                excerpt = shorten(text[max(0, error.start - 20) :])
                raise InputError(f"half a surrogate pair cannot be written as UTF-8: {excerpt!r}") from None
            waiting, size = [], 0


def make_folder(path: Path) -> Path:
    """Create a folder for output files unless it exists.

    Raises:
        FormatError: it cannot be created.
    """
    try:
        path.mkdir(exist_ok=True)
    except FileExistsError:
        raise FormatError(path, "is a file, but this format needs a folder") from None
    except OSError as error:
        raise FormatError(path, f"cannot be created: {error.strerror or error}") from None
    return path


def write_folder(files: Iterable[tuple[str, Iterable[str], str]], folder: Path) -> None:
    """Write files into a folder, given by name, pieces, and the message for an invalid name.

    Raises:
        FormatError: the file system reports an error.
        InputError: a file cannot have a name, or the folder's reader would not return it.
    """
    make_folder(folder)
    written: set[str] = set()
    for name, pieces, refusal in files:
        is_valid = (
            0 < len(name.encode(errors="replace")) <= _MAX_FILE_NAME_BYTES
            and name.isprintable()
            and "/" not in name
            and not name.startswith(".")
            and not name.endswith(COMPRESSED_SUFFIXES)
        )
        if not is_valid or name in written:
            raise InputError(refusal)
        written.add(name)
        with atomic_writer(folder / name) as write:
            _write_pieces(pieces, write)


def _write_archives(lists: Iterable[CandidateList], folder: Path) -> None:
    """Write Kaldi's archives: words, and costs of each feature of the first candidate."""
    with contextlib.ExitStack() as files:
        words = files.enter_context(atomic_writer(folder / kaldi.WORD_FILES[0]))
        archives: dict[str, Callable[[bytes], None]] | None = None
        for name, one in named_lists(lists):
            if archives is None:
                archives = {
                    feature: files.enter_context(atomic_writer(folder / kaldi.file_of_feature(feature)))
                    for feature in one.candidates[0].features
                }
            for index, candidate in enumerate(one.candidates, start=1):
                lost = next((feature for feature in candidate.features if feature not in archives), None)
                if lost is not None:
                    raise InputError(
                        f"{name}-{index} has {shorten(lost)!r}, but the first candidate of the first list does not; "
                        "every candidate must have the same features"
                    )
            _write_pieces(kaldi.word_lines(name, one), words)
            for feature, write in archives.items():
                _write_pieces(kaldi.cost_lines(name, one, feature), write)
