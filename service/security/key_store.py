"""The keys of the settings and of a file that may change while the service runs."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from models.errors import FormatError, InvalidInputError
from service.security.keys import ApiKey, find_key, parse_key

_log = structlog.get_logger(__name__)
_CHECK_INTERVAL_S = 1.0
_FileStamp = tuple[int, int, int]
_NEVER_SEEN: _FileStamp = (-1, -1, -1)


class KeyStore:
    """All keys that are good now.

    The file is looked at again when it has changed, at most once a second, so keys are given and taken
    away without a restart. One that is damaged or holds no key leaves the keys as they were: a slip
    of an editor opens nothing, and shuts nobody out.

    Args:
        entries: lines of keys, as `keys.parse_key` reads them.
        file: holds one such line a key; empty lines and those that start with `#` do not count.
        clock: seconds.

    Raises:
        InvalidInputError: an entry is no key, or two keys have one name.
        FormatError: the file is not there, is damaged, or holds no key.
    """

    def __init__(
        self,
        *,
        entries: Sequence[str] = (),
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fixed = tuple(_parse(entry, f"entry {i}") for i, entry in enumerate(entries, 1))
        _check_names(self._fixed)
        self._file = file
        self._clock = clock
        self._keys = self._fixed
        self._stamp: _FileStamp | None = None
        self._next_check_s = clock() + _CHECK_INTERVAL_S
        if file is not None:
            self._stamp = _file_stamp(file)
            self._keys = (*self._fixed, *self._read(file))

    def __bool__(self) -> bool:
        """Whether there is any key; without one the service is open."""
        return bool(self._keys)

    def find(self, presented: bytes) -> ApiKey | None:
        """The key that was presented, if it is good."""
        now_s = self._clock()
        if self._file is not None and now_s >= self._next_check_s:
            self._next_check_s = now_s + _CHECK_INTERVAL_S
            self._refresh(self._file)
        return find_key(self._keys, presented)

    def force_reload(self) -> None:
        """Look at the file with the next request, whatever it looks like; a signal handler may call this."""
        self._next_check_s = self._clock()
        self._stamp = _NEVER_SEEN

    def _refresh(self, file: Path) -> None:
        stamp = _file_stamp(file)
        if stamp == self._stamp:
            return
        self._stamp = stamp  # a damaged file is complained of once
        try:
            keys = (*self._fixed, *self._read(file))
        except (FormatError, InvalidInputError) as error:
            _log.error("API keys left as they were", reason=str(error))
        else:
            self._keys = keys
            _log.info("API keys read", keys=[key.name for key in keys])

    def _read(self, file: Path) -> tuple[ApiKey, ...]:
        try:
            lines = file.read_text(encoding="utf-8-sig").splitlines()
        except OSError as error:
            raise FormatError(file, f"cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise FormatError(file, "is not text in UTF-8", hint="one key a line") from None
        kept = [(i, line.strip()) for i, line in enumerate(lines, 1)]
        try:
            keys = tuple(_parse(line, f"line {i}") for i, line in kept if line and not line.startswith("#"))
            _check_names((*self._fixed, *keys))
        except InvalidInputError as error:
            raise FormatError(file, str(error), hint="`gramophone keys create` writes lines") from None
        if not keys:
            raise FormatError(file, "holds no key", hint="`gramophone keys create` makes one")
        return keys


def _parse(line: str, place: str) -> ApiKey:
    try:
        return parse_key(line)
    except InvalidInputError as error:
        raise InvalidInputError(f"{place}: {error}", parameter="GRAMOPHONE_API_KEYS") from None


def _check_names(keys: Sequence[ApiKey]) -> None:
    names = [key.name for key in keys]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInputError(
            f"two keys are named {twice[0]}: each has a name of its own", parameter="GRAMOPHONE_API_KEYS"
        )


def _file_stamp(file: Path) -> _FileStamp | None:
    """What changes when the file does; a mounted secret changes by a link that points elsewhere."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
