"""A file being written, plain, .gz, .xz or .zst, that has its name only once it is whole."""

import contextlib
import gzip
import lzma
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from models.errors import FormatError

_GZIP_LEVEL, _XZ_PRESET, _ZSTD_LEVEL = 6, 1, 3


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Callable[[bytes], None]]:
    """A function that adds bytes to a new file; it is packed as its name's ending says.

    A thread of its own packs and writes. The file gets its name at the end; should anything
    go wrong before, nothing is left behind, and a file of that name stays as it was.

    Raises:
        FormatError: the file system refuses.
    """
    if path.exists() and not path.is_file():
        raise FormatError(path, "cannot be written: there is something that is no file")
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            with ThreadPoolExecutor(1) as thread, _packing(path.suffix, file) as stream:
                pending: list[Future[int]] = []

                def write(data: bytes) -> None:
                    while pending:
                        pending.pop().result()  # raises what writing raised
                    pending.append(thread.submit(stream.write, data))

                yield write
                write(b"")
                pending.pop().result()
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise FormatError(path, f"cannot be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _packing(suffix: str, file: BinaryIO) -> contextlib.AbstractContextManager[BinaryIO]:
    """A stream into a file that leaves the file open when it is closed itself."""
    if suffix == ".gz":  # no name and time in it: equal models give equal files
        packed = gzip.GzipFile(filename="", mode="wb", compresslevel=_GZIP_LEVEL, fileobj=file, mtime=0)
        return cast("BinaryIO", packed)
    if suffix == ".xz":
        return cast("BinaryIO", lzma.LZMAFile(file, "wb", preset=_XZ_PRESET))
    if suffix == ".zst":
        compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
        return cast("BinaryIO", compressor.stream_writer(file, closefd=False))
    return contextlib.nullcontext(file)
