"""ARPA files as blocks of complete lines, decompressed and hashed, and errors that name a line.

A thread reads the next block while one is parsed.
"""

import hashlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader, FileIO
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np
from typing_extensions import override

from models.arrays import UInt8s
from models.errors import FormatError
from models.files import DAMAGED_HINT, check_text, decompressed, report_read_errors

BLOCK_BYTES = 1 << 22
MAX_LINE_BYTES = 1 << 20
_MAGIC_BYTES = 512

_FIELD = re.compile(rb"[^ \t\r\n]*")
_KNOWN_FORMATS = {
    rb"mmap lm http://kheafield\.com/code": "it is a binary file of KenLM; give the ARPA file that it was built from",
    rb"SRILM_BINARY_NGRAM": "it is a binary file of SRILM; ngram -lm FILE -write-lm ARPA makes an ARPA file of it",
    rb"Q?blmt": "it is a binary file of IRSTLM; compile-lm --text=yes FILE ARPA makes an ARPA file of it",
    rb"iARPA": "it is IRSTLM's own iARPA; compile-lm --text=yes FILE ARPA makes an ARPA file of it",
    rb"<": "it looks like a web page; was the download refused?",
    rb"\xd6\xfd\xb2\x7e|\0B<ConstArpaLm>": "it is a graph of Kaldi, such as G.fst; give the ARPA file that it was "
    "made from, such as lm.arpa.gz",
    rb"(?:\x11\0\0\0|\0\0\0\x11)Darpa Trigram LM|Trie Language Model": "it is a binary file of CMU Sphinx; "
    "sphinx_lm_convert -i FILE -o ARPA -ofmt arpa makes an ARPA file of it",
    b"": "an ARPA file begins with the line \\data\\, optionally after comments",
}
"""Hints by the beginnings of other formats; the last is for unknown ones."""


class ArpaSource:
    """Block-by-block reader of a file, to be closed.

    Args:
        path: the file; its first bytes tell its compression, not its name.
        on_read: called with the bytes read from disk since the last call.

    Attributes:
        block: complete lines with their line ends.
        offset: number of consumed bytes of the block.
        line: line number at that offset, from 1.
        cut: True if the file ends within the line after the block.

    Raises:
        FormatError: the file cannot be read or decompressed; from every method.
    """

    def __init__(self, path: Path, *, on_read: Callable[[int], None]) -> None:
        self.path = path
        self.block: UInt8s = np.zeros(0, np.uint8)
        self.offset = 0
        self.line = 1
        self.cut = False
        self._whole = b""  # the block
        self._tail = b""  # beginning of the next line
        self._first_bytes = b""
        self._on_read = on_read
        self._reported = 0
        self._stream: BinaryIO | None = None
        with report_read_errors(path):
            self._file = _HashedFile(path)
        self._thread = ThreadPoolExecutor(1)
        self._next = self._thread.submit(self._next_chunk)

    def close(self) -> None:
        """End the thread and close the file."""
        self._thread.shutdown()
        self._file.close()

    @property
    def sha256(self) -> str:
        """Hash, in hex, of the file on disk; valid once it is read to the end."""
        return self._file.digest.hexdigest()

    def refill(self) -> bool:
        """Replace the consumed block by the next; return False at the file's end."""
        pieces = [self._tail]
        while chunk := self._read():
            end = chunk.rfind(b"\n") + 1
            if end > 0:
                self._use(b"".join([*pieces, chunk[:end]]), tail=chunk[end:])
                return True
            pieces.append(chunk)
            if sum(map(len, pieces)) > MAX_LINE_BYTES:
                if self.line == 1:
                    self.refuse()
                self.fail(f"the line is longer than {MAX_LINE_BYTES} bytes")
        rest = b"".join(pieces)
        self.cut = rest.strip() not in {b"", b"\\end\\"}
        self._use(b"" if self.cut or not rest else rest + b"\n", tail=b"")
        return self.offset < len(self.block)

    def read_line(self) -> bytes | None:
        """Consume a line and return it without surrounding white space; None at the file's end."""
        if self.offset == len(self.block) and not self.refill():
            return None
        end = self._whole.index(b"\n", self.offset)
        text = self._whole[self.offset : end].strip()
        self.offset = end + 1
        self.line += 1
        return text

    def field_at(self, offset: int) -> bytes:
        """Return the field that begins at an offset; empty at the end of a line."""
        return next(_FIELD.finditer(self._whole, offset))[0]

    def drain(self) -> None:
        """Read to the file's end, to complete its hash and detect damage."""
        while self._read():
            pass

    def fail(self, problem: str, *, line: int | None = None, hint: str = "") -> NoReturn:
        """Reject the file for an error in a line; default: the current."""
        raise FormatError(self.path, f"line {self.line if line is None else line}: {problem}", hint=hint)

    def fail_ended(self, expected: str) -> NoReturn:
        """Reject the file: it ends here, within or before a line."""
        where = "in the middle of this line" if self.cut else "here"
        self.fail(
            f"the file ends {where}, before {expected}", hint="it was cut off: copy or download it again"
        )

    def refuse(self) -> NoReturn:
        """Reject the file: of another format; the hint names the likely one."""
        if self._file.num_bytes == 0:
            raise FormatError(self.path, "is empty (0 bytes)", hint="give an ARPA file")
        if not self._first_bytes:
            raise FormatError(self.path, "is damaged: nothing can be decompressed", hint=DAMAGED_HINT)
        check_text(self._first_bytes, self.path)
        first = self._first_bytes.lstrip()
        hint = next(hint for beginning, hint in _KNOWN_FORMATS.items() if re.match(beginning, first))
        raise FormatError(self.path, "is no ARPA file", hint=hint)

    def _use(self, lines: bytes, *, tail: bytes) -> None:
        self._whole, self._tail = lines, tail
        self.block, self.offset = np.frombuffer(lines, np.uint8), 0

    def _read(self) -> bytes:
        with report_read_errors(self.path):
            chunk = self._next.result()
        if chunk:
            self._next = self._thread.submit(self._next_chunk)
        if len(self._first_bytes) < _MAGIC_BYTES:
            self._first_bytes += chunk[:_MAGIC_BYTES]
        position = self._file.num_bytes
        self._on_read(position - self._reported)
        self._reported = position
        return chunk

    def _next_chunk(self) -> bytes:
        """Read a chunk in the thread; errors surface where it is awaited."""
        if self._stream is None:
            self._stream = decompressed(self._file)
        return self._stream.read(BLOCK_BYTES)


class _HashedFile(BufferedReader):
    """File that counts and hashes the bytes read from it."""

    def __init__(self, path: Path) -> None:
        super().__init__(FileIO(path))
        self.digest = hashlib.sha256()
        self.num_bytes = 0

    @override
    def read(self, size: int | None = -1) -> bytes:
        chunk = super().read(size)
        self.digest.update(chunk)
        self.num_bytes += len(chunk)
        return chunk


def quote_bytes(text: bytes) -> str:
    """Quote the beginning of a file's bytes for a message."""
    return repr(text[:80].decode("utf-8", "backslashreplace"))
