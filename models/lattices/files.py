"""Files of lattices, SLF or Kaldi: plain, .gz, .xz, .zst or .bz2; folders of SLF files."""

import codecs
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from io import BufferedReader
from pathlib import Path, PurePath
from typing import BinaryIO, Literal

from models.errors import FormatError
from models.files import atomic_writer
from models.lattices.formats import format_kaldi, format_slf, read_kaldi, read_slf
from models.lattices.lattice import Lattice, SymbolTable, read_symbols
from models.reranking.formats.format import BadLine, raw_lines, read_blocks, unpacked_name
from models.reranking.formats.writer import write_folder

LatticeFormat = Literal["slf", "kaldi"]
MAX_LATTICE_LINE_BYTES = 1 << 24
"""Maximum line length; an arc of Kaldi's has a transition-id per frame."""

_SLF_SUFFIXES = (".slf", ".lat", ".htk")
_SLF = re.compile(rb"(?:\s*#[^\n]*\n)*\s*[A-Za-z]+=\S*(?:[ \t]+[A-Za-z]+=\S*)*[ \t]*\r?\n")
_KALDI = re.compile(
    rb"(?:\S+[ \t]*\r?\n[ \t]*\r?\n)*"  # empty lattices
    rb"\S+[ \t]*\r?\n[0-9]+(?:[ \t]+[0-9]+[ \t]"
    rb"|[ \t]+[^\s,]*,[^\s,]*(?:,[0-9_]*)?[ \t]*\r?\n|[ \t]*\r?\n[ \t]*\r?(?:\n|$))"
)
"""An utterance, then an arc, or a final state, the only one if it is silent."""


def slf_files(folder: Path) -> list[Path]:
    """Return a folder's .slf, .lat and .htk files, packed or not, by name; none without a folder."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in paths if PurePath(unpacked_name(path)).suffix in _SLF_SUFFIXES)


def detect_lattice_format(source: Path | BufferedReader) -> LatticeFormat | None:
    """Detect the format by a file's first lines, or a folder's names; None for others.

    A stream is left at its beginning; if it is compressed, it is not detected.

    Raises:
        FormatError: the file is missing or damaged.
    """
    if isinstance(source, BufferedReader):
        head = source.peek().removeprefix(codecs.BOM_UTF8)
    elif source.is_dir():
        return "slf" if slf_files(source) else None
    else:
        head = next(read_blocks(source, str(source)), b"").removeprefix(codecs.BOM_UTF8)
    if _KALDI.match(head):
        return "kaldi"
    return "slf" if _SLF.match(head) else None


def read_lattices(
    source: Path | BinaryIO,
    form: LatticeFormat,
    *,
    name: str,
    symbols: SymbolTable | None,
    no_words: Collection[str],
) -> Iterator[Lattice | BadLine]:
    """Yield the lattices of a file, and a `BadLine` for each unreadable part.

    Args:
        source: a file or stream.
        form: slf has one lattice per file, named after the file, without its suffix, unless named in it.
        name: name of the source in messages.
        symbols: words by number, for kaldi.
        no_words: labels that are not words.

    Raises:
        FormatError: the file is missing or damaged, or has too long a line.
    """
    lines = _read_lines(source, name)
    if form == "slf":
        lattice = read_slf(lines, name, no_words=no_words)
        if isinstance(lattice, Lattice) and lattice.name is None:
            path = PurePath(unpacked_name(PurePath(name)))
            lattice = replace(lattice, name=path.stem if path.suffix in _SLF_SUFFIXES else path.name)
        yield lattice
    else:
        yield from read_kaldi(lines, name, symbols=symbols, no_words=no_words)


def read_symbol_file(path: Path) -> SymbolTable:
    """Read Kaldi's words.txt.

    Raises:
        FormatError: the file is missing, damaged, or not a symbol table.
    """
    return read_symbols(_read_lines(path, str(path)), str(path))


def write_lattices(
    lattices: Iterable[Lattice], target: Path | BinaryIO, form: LatticeFormat, *, symbols: SymbolTable | None
) -> None:
    """Write lattices one by one.

    Args:
        lattices: with distinct names, if they go to an slf folder.
        target: a stream; a folder for slf, or a file for kaldi, compressed as its suffix says.
        form: slf has one lattice per file; in a stream, the first lines of lattices separate them.
        symbols: numbers by word, for kaldi; None: words stay as they are.

    Raises:
        FormatError: the file system reports an error.
        InputError: a word has no number, or a lattice's name cannot be a file name.
    """
    if isinstance(target, Path) and form == "slf":
        write_folder(map(_slf_file, lattices), target)
        return
    with atomic_writer(target) if isinstance(target, Path) else nullcontext(target.write) as write:
        for lattice in lattices:
            text = format_slf(lattice) if form == "slf" else format_kaldi(lattice, symbols)
            write(text.encode())


def _slf_file(lattice: Lattice) -> tuple[str, list[str], str]:
    """Return the name, the content and the refusal of a lattice's file for `write_folder`."""
    name = "" if lattice.name is None else f"{lattice.name}.slf"
    refusal = f"lattice {lattice.name!r}: its name must be a file name that no other lattice has"
    return name, [format_slf(lattice)], refusal


def _read_lines(source: Path | BinaryIO, name: str) -> Iterator[bytes]:
    for number, line in enumerate(raw_lines(read_blocks(source, name), MAX_LATTICE_LINE_BYTES)):
        if line is None:
            raise FormatError(
                name, f"has a line of more than {MAX_LATTICE_LINE_BYTES:,} bytes", hint="is it a lattice?"
            )
        yield line if number else line.removeprefix(codecs.BOM_UTF8)
