"""Hunspell dictionaries of the service, by name."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from models.checking.hunspell_dictionary import HunspellDictionary
from models.errors import FormatError, InvalidInputError, require_package

_log = structlog.get_logger(__name__)
WordLists = tuple[HunspellDictionary, ...]
Dictionaries = Mapping[str, HunspellDictionary | FormatError]
"""Dictionaries by name; of a damaged one the error."""


def read_dictionaries(settings: Sequence[str]) -> Dictionaries:
    """Read the dictionaries `NAME=FILE.dic`; damaged ones are logged."""
    read: dict[str, HunspellDictionary | FormatError] = {}
    for name, _, file in (setting.partition("=") for setting in settings):
        require_package("hunspell", "GRAMOPHONE_DICTIONARIES")
        try:
            read[name] = HunspellDictionary(Path(file))
        except FormatError as error:
            _log.warning("dictionary not read", name=name, reason=str(error))
            read[name] = error
    return read


def find_dictionaries(dictionaries: Dictionaries, names: Sequence[str]) -> WordLists:
    """Return the dictionaries that a request names.

    Raises:
        InvalidInputError: the service has none of that name.
        FormatError: the dictionary is damaged.
    """
    found = []
    for index, name in enumerate(names):
        if name not in dictionaries:
            known = ", ".join(dictionaries) or "none: GRAMOPHONE_DICTIONARIES names them"
            parameter = f"dictionaries[{index}]"
            raise InvalidInputError(f"{parameter} is {name!r}; this service has {known}", parameter=parameter)
        if isinstance(one := dictionaries[name], FormatError):
            raise one.with_traceback(None)  # it would grow
        found.append(one)
    return tuple(found)


def dictionaries_of_languages(dictionaries: Dictionaries, codes: Sequence[str]) -> WordLists:
    """Return the readable dictionaries of languages, such as `en_US` for `en-US`."""
    wanted = [code.lower().replace("_", "-") for code in codes]
    named = [one for name, one in dictionaries.items() if name.lower().replace("_", "-") in wanted]
    return tuple(one for one in named if isinstance(one, HunspellDictionary))
