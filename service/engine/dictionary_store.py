"""Hunspell dictionaries of the service, by name."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock

import structlog

from models.checking.hunspell_dictionary import HunspellDictionary
from models.errors import FormatError, InvalidInputError, require_package

_log = structlog.get_logger(__name__)


class DictionaryStore:
    """Dictionaries by name; each file is read once, a damaged one too.

    Args:
        files: `.dic` file of each.

    Raises:
        InvalidInputError: the extra `dictionary` is not installed.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        if files:
            require_package("hunspell", "GRAMOPHONE_DICTIONARIES")
        self._files = files
        self._read: dict[str, HunspellDictionary | FormatError] = {}
        self._lock = Lock()

    def read_all(self) -> None:
        """Read all dictionaries, and log those that are damaged."""
        for name in self._files:
            if isinstance(read := self._find(name), FormatError):
                _log.warning("dictionary not read", name=name, reason=str(read))

    def get(self, names: Iterable[str]) -> tuple[HunspellDictionary, ...]:
        """Return dictionaries; one that is not read yet takes up to seconds.

        Raises:
            InvalidInputError: there is none with a name.
            FormatError: its file is damaged.
        """
        found = []
        for index, name in enumerate(names):
            if name not in self._files:
                known = ", ".join(self._files) or "none: GRAMOPHONE_DICTIONARIES names them"
                parameter = f"dictionaries[{index}]"
                raise InvalidInputError(
                    f"{parameter} is {name!r}; this service has {known}", parameter=parameter
                )
            read = self._find(name)
            if isinstance(read, FormatError):
                raise read.with_traceback(None)
            found.append(read)
        return tuple(found)

    def of_languages(self, codes: Iterable[str]) -> tuple[HunspellDictionary, ...]:
        """Return the dictionaries of languages, such as `en_US` for `en-US`; those that are damaged are left out."""
        wanted = {code.lower().replace("_", "-") for code in codes}
        found = (self._find(name) for name in self._files if name.lower().replace("_", "-") in wanted)
        return tuple(one for one in found if not isinstance(one, FormatError))

    def _find(self, name: str) -> HunspellDictionary | FormatError:
        with self._lock:
            if name not in self._read:
                try:
                    self._read[name] = HunspellDictionary(self._files[name])
                except FormatError as error:
                    self._read[name] = error
            return self._read[name]
