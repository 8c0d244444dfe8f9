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

SUFFIX = ".dic"
"""Suffix of the file of words; the file of affixes beside it has the suffix `.aff`."""

_MAX_BYTES = 64 * 2**20
"""Maximum size of a file; the largest of LibreOffice's dictionaries has 10 MB."""
_MAX_LETTERS = 40
_MAX_SEARCHED_LENGTH = 32
"""Maximum characters of a word that is searched; longer ones have thousands of neighbours."""
_MAX_NEARBY = 32
"""Maximum words near another one; the language model does not know them, so it cannot rank them."""
_MAX_CACHED = 1 << 14
_SET = re.compile(rb"^[ \t]*SET[ \t]+(\S+)", re.MULTILINE)
_NOT_WORD = re.compile(r"(?<!\\)/|\t|\s\w\w:|\s*$")
"""What ends the word of an entry: the flags of its affixes, or its morphology."""


class HunspellDictionary:
    """A dictionary of a `.dic` and an `.aff` file; immutable, and safe for threads.

    Args:
        path: the `.dic` file.

    Raises:
        FormatError: a file is missing, too large, empty, in another encoding, or begins without a number of words.
        InvalidInputError: the extra `dictionary` is not installed.
    """

    def __init__(self, path: Path) -> None:
        require_package("hunspell", f"the dictionary {path.name}", parameter="dictionary")
        from hunspell import Hunspell

        entries = _read_entries(path)
        self._hunspell = Hunspell(path.stem, hunspell_data_dir=str(path.parent), system_encoding="UTF-8")
        spellings = {dictionary_key(word): word for word in entries if is_alphabetic(word)}
        self._lexicon, self._entries = FuzzyLexicon(list(spellings)), list(spellings.values())
        counts = Counter("".join(spellings)).most_common(_MAX_LETTERS)
        self._letters = "".join(letter for letter, count in counts if letter.isalpha())
        self.nearby = lru_cache(_MAX_CACHED)(self._nearby)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, word: str) -> bool:
        try:
            return bool(self._hunspell.spell(unicodedata.normalize("NFC", word)))
        except UnicodeEncodeError:  # a character that the dictionary's encoding lacks
            return False

    def _nearby(self, word: str, max_edits: int) -> Sequence[tuple[str, int]]:
        """Return right words within `max_edits` edits of a word, in its case, and their edits.

        Those of one edit have any affixes and compounds; if there is none, those of two are entries without affixes.
        """
        key = dictionary_key(word)
        if len(key) > _MAX_SEARCHED_LENGTH:
            return ()
        spelled = (
            spelling
            for string in (key, *one_edit_strings(key, self._letters))
            for spelling in (string, string[:1].upper() + string[1:])
            if spelling in self
        )
        found = dict.fromkeys((match_case(word, spelling) for spelling in spelled), 1)
        if max_edits > 1 and not found:
            entries = (self._entries[i] for i in self._lexicon.fuzzy_matches(key, max_edits).indices.tolist())
            found = {match_case(word, entry): max_edits for entry in entries if entry in self}
        found.pop(word, None)
        return list(found.items())[:_MAX_NEARBY]


def is_listed(word: str, dictionaries: Iterable[HunspellDictionary]) -> bool:
    """True if a word, with or without its punctuation, is in one of the dictionaries."""
    found = split_affixes(word)
    core = word if found is None else found.core
    return any(core in dictionary or word in dictionary for dictionary in dictionaries)


def _read_entries(path: Path) -> list[str]:
    """Return the words of a `.dic` file without their affixes."""
    if path.suffix != SUFFIX:
        raise FormatError(path, f"is no Hunspell dictionary, whose name ends in {SUFFIX}")
    affixes = path.with_suffix(".aff")
    raw, rules = _read_bytes(path), _read_bytes(affixes)
    named = _SET.search(rules)
    encoding = "ISO8859-1" if named is None else named[1].decode("ascii", "replace")
    given_by = (
        f"the encoding of a dictionary without SET in {affixes.name}"
        if named is None
        else f"SET of {affixes.name}"
    )
    try:
        is_utf8, text = codecs.lookup(encoding).name == "utf-8", raw.decode(encoding)
    except LookupError:
        line = 1 + rules.count(b"\n", 0, named.start(1) if named else 0)
        raise FormatError(affixes, f"line {line}: SET {encoding} is an unknown encoding") from None
    except UnicodeDecodeError as error:
        line = 1 + raw.count(b"\n", 0, error.start)
        wrong = f"byte 0x{raw[error.start]:02x} is not {encoding}, {given_by}"
        raise FormatError(path, f"line {line}: {wrong}", hint="convert it, for example with iconv") from None
    lines = text.removeprefix("\ufeff").split("\n")
    count = re.match(r"\s*(\d{1,18})\b", lines[0])
    if count is None or not 0 < int(count[1]) <= len(raw):  # Hunspell reserves memory for them
        shown = lines[0].strip()[:40]
        raise FormatError(path, f"line 1: {shown!r} is not the number of words", hint="Hunspell requires it")
    if not is_utf8 and _is_utf8(raw):
        raise FormatError(path, f"is UTF-8, not {encoding}, {given_by}", hint="correct SET")
    return [_NOT_WORD.split(line, maxsplit=1)[0] for line in lines[1:]]


def _is_utf8(raw: bytes) -> bool:
    """True if bytes are UTF-8 with characters outside ASCII, which text in another encoding hardly ever is."""
    try:
        return not raw.isascii() and bool(raw.decode())
    except UnicodeDecodeError:
        return False


def _read_bytes(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise FormatError(path, f"has {size:,} bytes; a file of a dictionary may have {_MAX_BYTES:,}")
        raw = path.read_bytes()
    except OSError as error:
        raise FormatError(path, f"cannot be read: {error.strerror or error}") from None
    if not raw.strip():
        raise FormatError(path, "is empty")
    return raw
