"""Hunspell dictionaries: which words are right, with their affixes and compounds, and right words near a wrong one.

The library Hunspell reads the files and decides. Files that it would read in part or wrongly are refused before.
"""

import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from models.checking.lexicon import FuzzyLexicon, dictionary_key
from models.checking.sentences import is_alphabetic, match_case, one_edit_strings, split_affixes
from models.errors import FormatError, require_package

_MAX_BYTES = 64 * 2**20
"""Maximum size of a file; the largest of LibreOffice's dictionaries has 10 MB."""
_MAX_LETTERS = 40
_MAX_SEARCHED_LENGTH = 32
"""Maximum characters of a word that is searched; longer ones have thousands of neighbours."""
_MAX_NEARBY = 32
_MAX_CACHED = 1 << 14
_SET = re.compile(rb"^[ \t]*SET[ \t]+(\S+)", re.MULTILINE)
_END_OF_WORD = re.compile(r"(?<!\\)/|\t|\s\w\w:|\s*$")
"""What follows the word of an entry: the flags of its affixes, or its morphology."""


class HunspellDictionary:
    """A dictionary of a `.dic` file and the `.aff` file beside it; immutable, and safe for threads.

    Raises:
        FormatError: a file is missing, too large, empty, in another encoding, or begins without a number of words.
        InvalidInputError: the extra `dictionary` is not installed.
    """

    def __init__(self, path: Path) -> None:
        require_package("hunspell", f"the dictionary {path.name}", parameter="dictionary")
        from hunspell import Hunspell

        spellings = {dictionary_key(word): word for word in _read_entries(path) if is_alphabetic(word)}
        self._hunspell = Hunspell(path.stem, hunspell_data_dir=str(path.parent), system_encoding="UTF-8")
        self._lexicon, self._entries = FuzzyLexicon(list(spellings)), list(spellings.values())
        counts = Counter("".join(spellings)).most_common(_MAX_LETTERS)
        self._letters = "".join(letter for letter, _ in counts if letter.isalpha())
        self.nearby = lru_cache(_MAX_CACHED)(self._nearby)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, word: str) -> bool:
        try:
            return bool(self._hunspell.spell(unicodedata.normalize("NFC", word)))
        except UnicodeEncodeError:  # a character that the dictionary's encoding lacks
            return False

    def _nearby(self, word: str, max_edits: int) -> Sequence[tuple[str, int]]:
        """Return right words one edit from a word, in its case, and their edits; without any, entries at two edits."""
        key = dictionary_key(word)
        if len(key) > _MAX_SEARCHED_LENGTH:
            return ()
        strings = (key, *one_edit_strings(key, self._letters))
        cased = (one if one in self else one[:1].upper() + one[1:] for one in strings)
        found = {match_case(word, one): 1 for one in cased if one in self}
        if max_edits > 1 and not found:
            entries = (self._entries[i] for i in self._lexicon.fuzzy_matches(key, max_edits).indices.tolist())
            found = {match_case(word, entry): max_edits for entry in entries if entry in self}
        return [one for one in found.items() if one[0] != word][:_MAX_NEARBY]


def is_listed(word: str, dictionaries: Iterable[HunspellDictionary]) -> bool:
    """True if a word, with or without its punctuation, is in one of the dictionaries."""
    found = split_affixes(word)
    return any(word in one or (found is not None and found.core in one) for one in dictionaries)


def _read_entries(path: Path) -> list[str]:
    """Return the words of a `.dic` file without their affixes."""
    affixes = path.with_suffix(".aff")
    raw, rules = _read_bytes(path), _read_bytes(affixes)
    named = _SET.search(rules)
    encoding = named[1].decode("ascii", "replace") if named else "ISO8859-1"  # Hunspell's default
    try:
        is_utf8, text = codecs.lookup(encoding).name == "utf-8", raw.decode(encoding)
    except LookupError:
        raise FormatError(affixes, f"SET {encoding} is an unknown encoding") from None
    except UnicodeDecodeError as error:
        line, byte = 1 + raw.count(b"\n", 0, error.start), raw[error.start]
        problem = f"line {line}: byte 0x{byte:02x} is not {encoding}, the encoding of {affixes.name}"
        raise FormatError(path, problem, hint="convert it, for example with iconv") from None
    if not is_utf8 and not raw.isascii() and raw.decode(errors="ignore").encode() == raw:
        raise FormatError(
            path, f"is UTF-8, not {encoding}, the encoding of {affixes.name}", hint="correct SET"
        )
    first, *lines = text.removeprefix("\ufeff").split("\n")
    count = re.match(r"\s*(\d{1,18})\b", first)
    if count is None or not 0 < int(count[1]) <= len(raw):  # Hunspell reserves memory for so many
        raise FormatError(path, f"line 1: {first.strip()[:40]!r} is not the number of words")
    return [_END_OF_WORD.split(line, maxsplit=1)[0] for line in lines]


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise FormatError(path, f"cannot be read: {error.strerror or error}") from None
    if len(raw) > _MAX_BYTES:
        raise FormatError(path, f"has more than {_MAX_BYTES:,} bytes")
    if not raw.strip():
        raise FormatError(path, "is empty")
    return raw
