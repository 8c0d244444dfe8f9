"""Configuration files of models, compressed text files, and words between white space.

Readers detect compression by the first bytes, writers by the suffix. Expansion is bounded; a
written file gets its name when complete. White space is ASCII's, as in KenLM, SRILM, Kaldi and
jiwer.
"""

import bz2
import contextlib
import errno
import gzip
import json
import lzma
import os
import re
import stat
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import zstandard

from models.errors import FormatError, ManifestError

ASCII_WHITESPACE = " \t\r\n\f\v"
WORD = re.compile(rf"[^{ASCII_WHITESPACE}]+")

_Config = TypeVar("_Config")

CONFIG_FILE = "config.json"
"""Name of the configuration file beside a model's weights."""

COMPRESSED_SUFFIXES = (".gz", ".xz", ".zst", ".bz2")
"""Suffixes of compressed files."""

MAX_EXPANSION = 250
"""Largest ratio of decompression: text compresses to a tenth, repeated lines to a hundredth."""

DAMAGED_HINT = "compress or download it again"

_MAX_FILE_BYTES = 1 << 20

_FROM_UTF = "convert it first: iconv -f utf-{} -t utf-8 {{}} > text"
_FOREIGN_FORMATS = (
    (rb"PK\x03\x04", "a zip archive", "unpack it first: unzip -p {} > text"),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first: 7z x -so {} > text"),
    (rb"(?s:.{257})ustar", "a tar archive", "unpack it first: tar -xOf {} > text"),
    (rb"\xff\xfe\0\0", "text in UTF-32", _FROM_UTF.format("32")),
    (rb"\xff\xfe|\xfe\xff", "text in UTF-16", _FROM_UTF.format("16")),
    (rb"(?:[\t\n\r -~]\0){4}", "text in UTF-16", _FROM_UTF.format("16le")),  # without a byte-order mark
    (rb"(?:\0[\t\n\r -~]){4}", "text in UTF-16", _FROM_UTF.format("16be")),
)
"""Beginnings of unread formats, names, and commands that convert them."""

_ZSTD_CHUNK_BYTES = 1 << 10  # small, because a chunk may unpack to 30,000 times its size
_BUFFER_BYTES = 1 << 18
_UNCHECKED_BYTES = 1 << 24  # the ratio is not checked below this size
_OPENERS: dict[bytes, Callable[..., Any]] = {
    rb"\x1f\x8b": gzip.open,
    rb"\xfd7zXZ": lzma.open,
    rb"BZh[1-9](?:1AY&|\x17rE8)": bz2.open,  # a text may begin with BZh
}
_GZIP_LEVEL, _XZ_PRESET, _ZSTD_LEVEL = 6, 1, 3

TEMPORARY_PREFIX = ".tmp-"
"""Prefix of names of unfinished files and folders, which readers ignore."""


def split_words(text: str) -> list[str]:
    """Split a text at ASCII white space."""
    if text.isascii() and text.isprintable():  # the space is its only white space
        return text.split()
    line = collapse_spaces(text)
    return line.split(" ") if line else []


def collapse_spaces(text: str) -> str:
    """Replace every run of ASCII white space by one space, and strip the text."""
    # bytes.split splits at ASCII white space only, faster than a pattern
    return b" ".join(text.encode(errors="surrogatepass").split()).decode(errors="surrogatepass")


def count_words(text: str) -> int:
    """Count words for perplexity per word: runs between ASCII white space, for any tokenizer."""
    return len(text.encode(errors="surrogatepass").split())


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    """Write the file with one value per line."""
    path.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def read_config(path: Path) -> dict[str, Any]:
    """Read the file; the caller checks its values.

    Raises:
        ManifestError: the file is missing, is not JSON, or is not a JSON object.
    """
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ManifestError(f"{path} cannot be read: {error!s:.300}") from None
    if not isinstance(config, dict):
        raise ManifestError(f"{path} holds a {type(config).__name__}, not a JSON object")
    return config


def check_config(kind: type[_Config], values: Mapping[str, Any], location: object) -> _Config:
    """Return a pydantic class's instance from a JSON file's values; messages name its location.

    Raises:
        ManifestError: a field is missing or unknown, or its value has a wrong type or is out of range.
    """
    # slow to import, and not needed for --help
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(json.dumps(values))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ManifestError(f"{location}: field {field!r:.200}: {first['msg']}") from None


class ExpansionError(Exception):
    """A compressed file expands more than any text: a decompression bomb."""


DECOMPRESSION_ERRORS = (
    lzma.LZMAError,
    gzip.BadGzipFile,
    zlib.error,
    zstandard.ZstdError,
    EOFError,
    ExpansionError,
)
"""Exceptions of reading a damaged compressed file."""


def read_settings_file(path: Path) -> bytes:
    """Read an operator's regular file up to 1 MiB, such as a certificate; never wait.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {_MAX_FILE_BYTES} bytes")
    return data


@contextlib.contextmanager
def report_read_errors(name: str | Path) -> Iterator[None]:
    """Convert errors of reading a file, packed or not, to one that names it.

    Raises:
        FormatError: the file is missing, damaged, or cannot be read.
    """
    try:
        yield
    except FileNotFoundError:
        raise FormatError(name, "there is no such file") from None
    except (OSError, *DECOMPRESSION_ERRORS) as error:
        # gzip's and bzip2's have none
        if isinstance(error, OSError) and error.errno is not None:
            raise FormatError(name, f"cannot be read: {error.strerror or error}") from None
        raise FormatError(name, f"is damaged: {error}", hint=DAMAGED_HINT) from None


def check_text(head: bytes, name: str | Path) -> None:
    """Refuse known other formats, by some 300 first bytes, decompressed.

    Raises:
        FormatError: it has; the message names it, and the command that converts it.
    """
    for beginning, kind, command in _FOREIGN_FORMATS:
        if re.match(beginning, head):
            raise FormatError(name, f"is {kind}", hint=command.format(name))


def decompressed(raw: BufferedReader) -> BinaryIO:
    """Return a file's content, decompressed; reading may raise `DECOMPRESSION_ERRORS`."""
    magic, packed = raw.peek(8), _Counted(raw)
    open_packed = next((opener for start, opener in _OPENERS.items() if re.match(start, magic)), None)
    if open_packed is not None:
        chunks = iter(partial(open_packed(packed).read, _BUFFER_BYTES), b"")
    elif magic.startswith(b"\x28\xb5\x2f\xfd"):
        chunks = _zstandard_chunks(packed)
    else:
        return raw
    return BufferedReader(_BoundedReader(packed, chunks), _BUFFER_BYTES)


class _Counted:
    """File wrapper that counts the bytes read, since a pipe has no position."""

    def __init__(self, raw: BufferedReader) -> None:
        self._raw = raw
        self.num_bytes = 0

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes."""
        data = self._raw.read(size)
        self.num_bytes += len(data)
        return data


def _zstandard_chunks(raw: _Counted) -> Iterator[bytes]:
    """Yield a Zstandard file's content; unlike the library, detect truncation."""
    frame = None
    while compressed := (frame and frame.unused_data) or raw.read(_ZSTD_CHUNK_BYTES):
        if frame is None or frame.eof:
            frame = zstandard.ZstdDecompressor().decompressobj()
        yield frame.decompress(compressed)
    if frame is not None and not frame.eof:
        raise EOFError("it ends in the middle of a frame")


class _BoundedReader(RawIOBase):
    """Content of a compressed file, with bounded expansion."""

    def __init__(self, compressed: _Counted, chunks: Iterator[bytes]) -> None:
        self._packed, self._chunks = compressed, chunks
        self._num_bytes = 0
        self._unpacked = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, possibly in part; return the number of bytes, 0 at the end.

        Raises:
            ExpansionError: the content exceeds the bound for the bytes read.
        """
        while not self._unpacked and (chunk := next(self._chunks, None)) is not None:
            self._unpacked = memoryview(chunk)
        size = min(len(buffer), len(self._unpacked))
        buffer[:size], self._unpacked = self._unpacked[:size], self._unpacked[size:]
        self._num_bytes += size
        if self._num_bytes > max(_UNCHECKED_BYTES, MAX_EXPANSION * self._packed.num_bytes):
            raise ExpansionError(f"it unpacks to over {MAX_EXPANSION} times its size, the limit for text")
        return size


def replace_file(path: Path, *parts: bytes | memoryview, temporary: Path | None = None) -> None:
    """Write a file atomically, creating its folder if necessary.

    Args:
        path: the file.
        parts: its content, in parts.
        temporary: the unfinished file, in the same folder; None for a new name, as many processes may write.
    """
    temporary = temporary or path.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:  # also if interrupted
        with contextlib.suppress(OSError):
            temporary.unlink()


@contextlib.contextmanager
def atomic_writer(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that appends bytes to a new file, compressed by suffix.

    A thread compresses and writes. The file gets its name at the end; after an earlier error, the
    temporary file is removed and an older file of that name is unchanged.

    Raises:
        FormatError: the file cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            raise FormatError(path, "cannot be written: the path exists and is not a file")
        # short: `path` may have the longest name
        new = path.with_name(f".{uuid.uuid4().hex}.tmp")
        with new.open("xb") as file, contextlib.ExitStack() as cleanup:
            cleanup.callback(new.unlink, missing_ok=True)
            # the thread ends before the stream is closed
            with _compressor(path.suffix, file) as stream, ThreadPoolExecutor(1) as thread:
                pending: list[Future[int]] = []

                def write(data: bytes) -> None:
                    while pending:
                        pending.pop().result()  # re-raises errors of the thread
                    pending.append(thread.submit(stream.write, data))

                yield write
                write(b"")
                pending.pop().result()
            file.flush()
            os.fsync(file.fileno())
            new.replace(path)
    except OSError as error:
        raise FormatError(path, f"cannot be written: {error.strerror or error}") from None


def _compressor(suffix: str, file: BinaryIO) -> contextlib.AbstractContextManager[BinaryIO]:
    """Return a compressing stream; closing it leaves the file open."""
    if suffix == ".gz":  # without name and time, so equal contents give equal files
        compressed = gzip.GzipFile(filename="", mode="wb", compresslevel=_GZIP_LEVEL, fileobj=file, mtime=0)
        return cast("BinaryIO", compressed)
    if suffix == ".xz":
        return cast("BinaryIO", lzma.LZMAFile(file, "wb", preset=_XZ_PRESET))
    if suffix == ".bz2":
        return cast("BinaryIO", bz2.BZ2File(file, "wb"))
    if suffix == ".zst":
        compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
        return cast("BinaryIO", compressor.stream_writer(file, closefd=False))
    return contextlib.nullcontext(file)
