"""Files and streams as lines of text: plain, .gz, .xz or .zst, UTF-8.

A line that is not UTF-8 or too long is a `BadLine`; the others are served. A file that is missing or
damaged is an error. At no time is more in memory than one line and one block.
"""

from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

from models.errors import FormatError
from models.packed_files import DECOMPRESSION_ERRORS, decompressed
from models.reranking.formats.fields import ASCII_WHITESPACE
from models.reranking.formats.interface import BadLine, TextLine

_BLOCK_BYTES = 1 << 20


def read_blocks(source: Path | BinaryIO, name: str) -> Iterator[bytes]:
    """What a file or stream holds, unpacked.

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


def split_lines(
    blocks: Iterable[bytes], source: str, *, max_line_bytes: int, keep_bad_text: bool = False
) -> Iterator[TextLine | BadLine]:
    r"""Lines without their ends (`\n` or `\r\n`); blank ones are counted, but left out.

    Args:
        blocks: of the file.
        source: its name.
        max_line_bytes: longer lines are bad ones.
        keep_bad_text: let a line that is not UTF-8, complained of, still follow, with surrogates for bad bytes.
    """
    for number, raw in enumerate(_raw_lines(blocks, max_line_bytes), start=1):
        if raw is None:
            yield BadLine(source, number, f"the line is longer than {max_line_bytes:,} bytes")
            continue
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            problem = f"the text is not UTF-8: byte {error.start + 1} of the line is 0x{raw[error.start]:02x}"
            yield BadLine(source, number, problem)
            if not keep_bad_text:
                continue
            text = raw.decode("utf-8", errors="surrogateescape")
        if number == 1:
            text = text.removeprefix("\ufeff")  # a byte-order mark is no part of the text
        text = text.removesuffix("\r")
        if text.strip(ASCII_WHITESPACE):
            yield TextLine(number, text)


def _raw_lines(blocks: Iterable[bytes], max_bytes: int) -> Iterator[bytes | None]:
    """Lines as bytes; None in place of one that is too long, of which nothing is kept."""
    parts, size = list[bytes](), 0
    for block in blocks:
        first, *others = block.split(b"\n")
        size += len(first)
        parts.append(first)
        if size > max_bytes:
            parts.clear()
        for piece in others:
            yield None if size > max_bytes else b"".join(parts)
            parts, size = [piece], len(piece)
            if size > max_bytes:
                parts.clear()
    if size:
        yield None if size > max_bytes else b"".join(parts)
