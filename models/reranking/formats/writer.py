"""Writing of n-best lists to files, folders and streams, in any format."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from models.errors import FormatError, InvalidInputError
from models.files import COMPRESSED_SUFFIXES, atomic_writer
from models.reranking.candidates import CandidateList
from models.reranking.formats import kaldi
from models.reranking.formats.format import Format, named_lists, shorten
from models.reranking.formats.reader import format_by_name

_PIECE_CHARACTERS = 1 << 18
_MAX_FILE_NAME_BYTES = 200


def format_lists(lists: Iterable[CandidateList], format_name: str) -> Iterator[str]:
    """Lists as pieces of text.

    Raises:
        InvalidInputError: there is no such format, or it cannot say a name, a text or a score.
    """
    return format_by_name(format_name).write(lists)


def write_lists(lists: Iterable[CandidateList], target: Path | BinaryIO, format_name: str) -> None:
    """Write lists as they come.

    Args:
        lists: what the format cannot carry of them is left out (`Format.dropped_fields`).
        target: a file, which is packed as its name's ending says, and has its name once it is whole; a stream; or,
            for kaldi (words, and an archive for each feature) and SRILM's formats (a list a file), a folder.
        format_name: one of `FORMAT_NAMES`.

    Raises:
        FormatError: the file system refuses.
        InvalidInputError: there is no such format, or it cannot say a name, a text or a score.
    """
    form = format_by_name(format_name)
    if not isinstance(target, Path):
        _write_pieces(form.write(lists), target.write)
    elif form.separate_score_files:
        _write_archives(lists, make_folder(target))
    elif form.one_list_per_file:
        _write_list_files(lists, make_folder(target), form)
    else:
        with atomic_writer(target) as write:
            _write_pieces(form.write(lists), write)


def _write_pieces(pieces: Iterable[str], write: Callable[[bytes], object]) -> None:
    """Write text in UTF-8, in pieces of some size."""
    waiting, size = list[str](), 0
    for piece in itertools.chain(pieces, [None]):
        if piece is not None:
            waiting.append(piece)
            size += len(piece)
        if piece is None or size >= _PIECE_CHARACTERS:
            text = "".join(waiting)
            try:
                write(text.encode())
            except UnicodeEncodeError as error:
                excerpt = shorten(text[max(0, error.start - 20) :])
                raise InvalidInputError(
                    f"half of a surrogate pair is no text and cannot be written: {excerpt!r}"
                ) from None
            waiting, size = [], 0


def make_folder(path: Path) -> Path:
    """A folder to write files into, which may be there already.

    Raises:
        FormatError: it cannot be made.
    """
    try:
        path.mkdir(exist_ok=True)
    except FileExistsError:
        raise FormatError(path, "is a file, but this format is written into a folder") from None
    except OSError as error:
        raise FormatError(path, f"cannot be made: {error.strerror or error}") from None
    return path


def _write_list_files(lists: Iterable[CandidateList], folder: Path, form: Format) -> None:
    written: set[str] = set()
    for index, one in enumerate(lists):
        name = str(index) if one.name is None else one.name
        if not is_valid_file_name(name) or name in written:
            raise InvalidInputError(
                f"lists[{index}].id is {shorten(name)!r}, which cannot be the name of a file of its own"
            )
        written.add(name)
        with atomic_writer(folder / name) as write:
            _write_pieces(form.write([one]), write)


def is_valid_file_name(name: str) -> bool:
    """Return whether a file can have a name, so that reading the folder gives the name back."""
    return (
        0 < len(name.encode(errors="replace")) <= _MAX_FILE_NAME_BYTES
        and name.isprintable()
        and "/" not in name
        and not name.startswith(".")
        and not name.endswith(COMPRESSED_SUFFIXES)
    )


def _write_archives(lists: Iterable[CandidateList], folder: Path) -> None:
    """Kaldi's archives: the words, and the costs of each feature that the first candidate has."""
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
                    raise InvalidInputError(
                        f"{name}-{index} has {shorten(lost)!r}, but the first candidate of all has not: its archive "
                        "needs it of every candidate"
                    )
            _write_pieces(kaldi.word_lines(name, one), words)
            for feature, write in archives.items():
                _write_pieces(kaldi.cost_lines(name, one, feature), write)
