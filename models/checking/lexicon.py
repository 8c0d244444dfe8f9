"""Word lists with search by edit distance, Hunspell dictionaries, and the user dictionary.

Hunspell reads dictionaries and decides which words are right, with affixes and in compounds. Files
that it would read in part or wrongly are refused before. It tries the ways to compose a word for up
to 50 ms each, so a thread of the dictionary looks words up during other computations; requests wait
a limited time.
"""

import codecs
import ctypes
import importlib
import logging
import os
import re
import tempfile
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from rapidfuzz.distance import OSA
from rapidfuzz.process import cdist

from models.arrays import Int64s, UInt8s, letter_sets
from models.calls import Work
from models.checking.sentences import SpellingModel, common_typo_corrections, one_edit_strings
from models.errors import FormatError, require_package
from models.word_list import WordList
from models.words import (
    dictionary_key,
    is_alphabetic,
    match_case,
    plain_form,
    split_affixes,
    surrounding_words,
    word_forms,
)

T = TypeVar("T")
_log = logging.getLogger(__name__)
_MAX_CACHED_QUERIES = 1 << 14
_MAX_CACHED_MATCHES = 1 << 20
"""Maximum cached matches, of nine bytes each; short words can have thousands."""

_MAX_BYTES = 64 * 2**20
"""Maximum size of a file; the largest of LibreOffice's dictionaries has 10 MB."""
_MAX_ENTRY_BYTES = 255
"""Maximum bytes of an entry's word; at more Hunspell forgets all entries."""
_MAX_LETTERS = 40
MAX_SEARCHED_LENGTH = 32
"""Maximum characters of a searched word; longer ones are rarely words, with thousands of neighbours."""
_MAX_STRINGS = 128
"""Maximum strings looked up near a word, the likeliest: with compounds, most take up to 0.1 ms."""
_STRINGS_PER_STEP = 8
"""Words looked up before those of another request."""
_WAIT_S, _QUEUE_WAIT_S = 0.001, 0.0001
"""Time to wait for a look-up, or the one before it, until giving way."""
_MAX_WAITS = 2000
"""Maximum waits of a request; then its words count as right, without suggestions."""
_MAX_NEARBY = 32
_MAX_SUGGESTED = 100_000
"""Words of a word list that are suggested: those with the largest weights."""
_MAX_CACHED_WORDS = 1 << 14
_SET = re.compile(rb"^(?:\xef\xbb\xbf)?[ \t]*SET[ \t]+(\S+)", re.MULTILINE)
_OPTION = re.compile(r"^\ufeff?(FLAG|NOSUGGEST)[ \t]+(\S+)", re.MULTILINE)
_ALIAS = re.compile(r"^AF[ \t]+(\S+)", re.MULTILINE)
_FLAG_FORMS = {"long": "..", "num": r"\d+"}
_FLAGGED = re.compile(r"((?:[^\s/\\]|\\.)+)/(\S+)")
_ENCODINGS = {"tis6202533": "tis-620", "microsoftcp1251": "cp1251", "koi8r": "koi8-r", "koi8u": "koi8-u"}
_ENCODINGS |= {f"iso8859{part}": f"iso8859-{part}" for part in range(1, 17)}
"""Encodings by Hunspell's names, which ignore case, hyphens and underscores."""
_END_OF_WORD = re.compile(r"(?<=[^\\])/|\t|[ \t]+..:|\r?$")
"""What follows an entry's word: the flags of its affixes, or its morphology."""


class FuzzyMatches(NamedTuple):
    """Words near another one.

    Attributes:
        indices: their indices in the word list [N].
        edits: edit distance of each, at least 1 [N].
    """

    indices: Int64s
    edits: UInt8s


NO_FUZZY_MATCHES = FuzzyMatches(np.zeros(0, np.int64), np.zeros(0, np.uint8))


class FuzzyLexicon:
    """Finds words by edit distance: insertions, deletions, substitutions, transpositions (OSA).

    An edit changes a word's length by at most one and its letter set by at most two, so words that differ by
    more are not compared. Sets have 64 hashed letters, so one vectorised step compares all. Results are
    cached; the least recently used are evicted.

    Args:
        words: distinct words.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._given = words
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        self._order = np.argsort(lengths, kind="stable")
        self._words = [words[i] for i in self._order.tolist()]
        self._lengths = lengths[self._order]
        self._longest = int(lengths.max(initial=0))
        self._letters = letter_sets(self._words)
        self._cached: OrderedDict[tuple[str, int], FuzzyMatches] = OrderedDict()
        self._num_cached_matches = 0

    def fuzzy_matches(self, word: str, max_edits: int) -> FuzzyMatches:
        """Find the words at 1 to `max_edits` edits from a word, listed or not."""
        if len(word) > self._longest + max_edits:
            return NO_FUZZY_MATCHES  # not cached: clients can send words of any length
        key = (word, max_edits)
        found = self._cached.get(key)
        if found is None:
            found = self._cached[key] = self._search(word, max_edits)
            self._num_cached_matches += len(found.indices)
            while len(self._cached) > _MAX_CACHED_QUERIES or self._num_cached_matches > _MAX_CACHED_MATCHES:
                _, forgotten = self._cached.popitem(last=False)
                self._num_cached_matches -= len(forgotten.indices)
        else:
            self._cached.move_to_end(key)
        return found

    def nearby(self, word: str, max_edits: int) -> list[tuple[str, int]]:
        """Return these words with their edits, in list order."""
        found = self.fuzzy_matches(word, max_edits)
        pairs = sorted(zip(found.indices.tolist(), found.edits.tolist(), strict=True))
        return [(self._given[index], edits) for index, edits in pairs]

    def _search(self, word: str, max_edits: int) -> FuzzyMatches:
        first, last = np.searchsorted(self._lengths, [len(word) - max_edits, len(word) + max_edits + 1])
        differing = np.bitwise_count(self._letters[first:last] ^ letter_sets([word]))
        close = np.flatnonzero(differing <= 2 * max_edits) + first
        if not close.size:
            return NO_FUZZY_MATCHES
        compared = [self._words[i] for i in close.tolist()]
        edits = cdist([word], compared, scorer=OSA.distance, score_cutoff=max_edits, dtype=np.uint8)[0]
        within = np.flatnonzero((edits > 0) & (edits <= max_edits))
        return FuzzyMatches(self._order[close[within]], edits[within])


class HunspellDictionary:
    """Dictionary of a `.dic` file and the `.aff` file beside it; immutable and thread-safe.

    Entries too long for Hunspell are left out, with a warning in the log.

    Raises:
        FormatError: a file is missing, too large, empty, in another encoding, or begins without a number of words.
        InputError: the extra `dictionary` is not installed.
    """

    def __init__(self, path: Path) -> None:
        require_package("hunspell", f"the dictionary {path.name}")
        entries, rules, self._encoding = _read_entries(path)
        words = [_END_OF_WORD.split(entry, maxsplit=1)[0] for entry in entries]
        sizes = (len(word.replace("\\/", "/").encode(self._encoding)) for word in words)
        long = [index for index, size in enumerate(sizes) if size > _MAX_ENTRY_BYTES]
        for index in long:
            entries[index] = words[index] = ""
        self._spellings = {dictionary_key(word): word for word in words if is_alphabetic(word)}
        self._unsuggested = _unsuggested(entries, rules)
        # the package's look-ups keep the interpreter's lock, the library's do not
        self._library = ctypes.CDLL(importlib.import_module("hunspell.hunspell").__file__)
        self._library.Hunspell_create.restype = ctypes.c_void_p
        with tempfile.NamedTemporaryFile() if long else path.open("rb") as shorter:
            if long:
                text = "%s: entries of more than %d bytes are left out: %d, the first in line %d"
                _log.warning(text, path, _MAX_ENTRY_BYTES, len(long), long[0] + 2)
                shorter.write("\n".join([str(len(entries)), *entries]).encode(self._encoding))
                shorter.flush()
            files = path.with_suffix(".aff"), shorter.name
            self._handle = ctypes.c_void_p(self._library.Hunspell_create(*map(os.fsencode, files)))
        weakref.finalize(self, self._library.Hunspell_destroy, self._handle)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dictionary")
        self._lexicon = FuzzyLexicon(list(self._spellings))
        counts = Counter("".join(self._spellings)).most_common(_MAX_LETTERS)
        self._letters = "".join(letter for letter, _ in counts if letter.isalpha())
        self._spelling = SpellingModel(list(self._spellings))
        self._cached: dict[tuple[str, int], list[tuple[str, int]]] = {}

    def __len__(self) -> int:
        return len(self._spellings)

    def __contains__(self, word: str) -> bool:
        return any(map(self._spell, word_forms(word, cases=False)))

    def _spell(self, word: str) -> bool:
        try:
            encoded = word.encode(self._encoding)
        except UnicodeEncodeError:  # a character that the dictionary's encoding lacks
            return False
        return b"\0" not in encoded and bool(self._library.Hunspell_spell(self._handle, encoded))

    def _suggests(self, word: str) -> bool:
        if not self._unsuggested or word not in self:
            return word in self
        stems = ctypes.POINTER(ctypes.c_char_p)()
        given = self._handle, ctypes.byref(stems)
        plain = plain_form(word).encode(self._encoding, "replace")
        count = self._library.Hunspell_stem(*given, plain)
        found = [(stem or b"").decode(self._encoding, "replace") for stem in stems[:count]]
        self._library.Hunspell_free_list(*given, count)
        return self._unsuggested.isdisjoint((word, *found))

    def look_up(
        self, words: Sequence[str], lookups: "UserDictionary", *, suggested: bool = False
    ) -> Work[Any, set[str]]:
        """Return the words that are right, or may be suggested, as time allows."""
        found: set[str] = set()
        is_right = self._suggests if suggested else self.__contains__
        for first in range(0, len(words), _STRINGS_PER_STEP):
            chunk = filter(is_right, words[first : first + _STRINGS_PER_STEP])
            found.update((yield from self._on_thread(lookups, list[str], chunk)) or ())
        return found

    def _on_thread(
        self, lookups: "UserDictionary", compute: Callable[..., T], *given: Any
    ) -> Work[Any, T | None]:
        """Compute on the dictionary's thread; None if the request has no time left."""
        answer, wait_s = self._thread.submit(compute, *given), _WAIT_S
        try:
            while lookups.waits_left > 0:
                try:
                    return answer.result(wait_s)
                except TimeoutError:
                    is_running = answer.running()
                    lookups.waits_left -= is_running
                    wait_s = _WAIT_S if is_running else _QUEUE_WAIT_S
                    yield None
        finally:
            answer.cancel()
        return None

    def nearby(
        self, word: str, max_edits: int, lookups: "UserDictionary"
    ) -> Work[Any, Sequence[tuple[str, int]]]:
        """Return right words one edit from a word, in its case, with edits.

        If there are none, entries at two.
        """
        key = dictionary_key(word)
        if len(key) > MAX_SEARCHED_LENGTH:
            return ()
        cached = self._cached.get((word, max_edits))
        if cached is not None:
            return cached
        edited = one_edit_strings(key, self._letters)
        best = np.argsort(self._spelling.log_probs(edited), kind="stable")[-_MAX_STRINGS:]
        likely = [edited[index] for index in best.tolist()]
        strings = list(dict.fromkeys([key, *common_typo_corrections(key), *likely]))
        right = yield from self.look_up(strings, lookups)
        cased = [
            one if one in right else self._spellings.get(one, one[:1].upper() + one[1:]) for one in strings
        ]
        suggested = yield from self.look_up(cased, lookups, suggested=True)
        found = {match_case(word, one): 1 for one in cased if one in suggested}
        if max_edits > 1 and not found:
            pairs = (yield from self._on_thread(lookups, self._lexicon.nearby, key, max_edits)) or []
            near = [(self._spellings[one], edits) for one, edits in pairs]
            suggested = yield from self.look_up([one for one, _ in near], lookups, suggested=True)
            found = {match_case(word, one): edits for one, edits in near if one in suggested}
        near = [one for one in found.items() if one[0] != word][:_MAX_NEARBY]
        if lookups.waits_left > 0:
            self._cached[word, max_edits] = near
            if len(self._cached) > _MAX_CACHED_WORDS:
                del self._cached[next(iter(self._cached))]
        return near


def _read_entries(path: Path) -> tuple[list[str], str, str]:
    """Return the entries of a `.dic` file, its `.aff` file, and their encoding."""
    affixes = path.with_suffix(".aff")
    raw, rules = _read_bytes(path), _read_bytes(affixes)
    named = _SET.search(rules)
    encoding = named[1].decode("ascii", "replace") if named else "ISO8859-1"  # Hunspell's default
    codec = _ENCODINGS.get(re.sub(r"[\W_]", "", encoding.lower()), encoding)
    try:
        is_utf8, text = codecs.lookup(codec).name == "utf-8", raw.decode(codec)
    except UnicodeDecodeError as error:
        line, byte = 1 + raw.count(b"\n", 0, error.start), raw[error.start]
        problem = f"line {line}: byte 0x{byte:02x} is not {encoding}, the encoding of {affixes.name}"
        raise FormatError(path, problem, hint="convert it, for example with iconv") from None
    except (LookupError, ValueError):
        raise FormatError(affixes, f"SET {encoding[:40]} is an unknown encoding") from None
    if not is_utf8 and not raw.isascii() and raw.decode(errors="ignore").encode() == raw:
        raise FormatError(
            path, f"is UTF-8, not {encoding}, the encoding of {affixes.name}", hint="correct SET"
        )
    first, *lines = text.removeprefix("\ufeff").split("\n")
    count = re.match(r"\s*(\d{1,18})\b", first)
    # Hunspell reserves memory for so many
    if count is None or not 0 < int(count[1]) <= len(raw):
        raise FormatError(path, f"line 1: {first.strip()[:40]!r} is not the number of words")
    return lines, rules.decode(codec, "replace"), codec


def _unsuggested(entries: Sequence[str], rules: str) -> set[str]:
    """Return the words with the flag NOSUGGEST: vulgar or rare, but right."""
    options = dict(_OPTION.findall(rules))
    if "NOSUGGEST" not in options:
        return set()
    aliases: dict[str, str] = {str(n): flags for n, flags in enumerate(_ALIAS.findall(rules))}  # 0: how many
    flag = options["NOSUGGEST"]
    one = re.compile(_FLAG_FORMS.get(options.get("FLAG", ""), "."))
    flagged = filter(None, map(_FLAGGED.match, entries))
    return {found[1] for found in flagged if flag in one.findall(aliases.get(found[2], found[2]))}


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


class UserDictionary:
    """A request's user dictionary, in any case and Unicode form, and Hunspell's.

    Args:
        words: spelling of each word, by its `dictionary_key`.
        lists: word lists of further ones.
        hunspell: dictionaries of words that are right if unknown to the model.

    Attributes:
        waits_left: waits for look-ups that are left.
    """

    def __init__(
        self,
        words: Mapping[str, str] = MappingProxyType({}),
        hunspell: Sequence[HunspellDictionary] = (),
        lists: Sequence[WordList] = (),
    ) -> None:
        self._words, self._hunspell, self._lists = words, hunspell, lists
        self.waits_left = _MAX_WAITS
        self._looked_up, self._right = set[str](), set[str]()

    @cached_property
    def _lexicon(self) -> FuzzyLexicon:
        return FuzzyLexicon(list(self._words))

    def look_up(self, words: Iterable[str]) -> Work[Any, None]:
        """Look up words in the Hunspell dictionaries, before `has`.

        Without time left, they count as right.
        """
        if not self._hunspell:
            return
        forms = list({form for word in words for form in _forms(word)} - self._looked_up)
        self._looked_up.update(forms)
        for one in self._hunspell:
            missing = [form for form in forms if form not in self._right]
            self._right |= yield from one.look_up(missing, self)
        if self.waits_left <= 0:
            self._right.update(forms)

    def has(self, word: str, *, known: bool) -> bool:
        """True if a word, with or without punctuation, is right even if the model lacks it."""
        return any(
            dictionary_key(form) in self._words
            or any(form in one for one in self._lists)
            or (not known and form in self._right)
            for form in _forms(word)
        )

    def has_at(self, text: str, start: int, end: int, *, known: bool) -> bool:
        """Return `has` of a part of a text, or of the longer words around it."""
        if not self._words and not self._lists and (known or not self._right):
            return False
        return any(self.has(word, known=known) for word in surrounding_words(text, start, end))

    def has_near(self, word: str) -> bool:
        """True if one of the user's own words is at most two edits away."""
        own = [self._lexicon] if self._words else []
        own += [suggested_words(one).lexicon for one in self._lists]
        return any(one.nearby(dictionary_key(word), 2) for one in own)

    def fuzzy_matches(self, word: str, max_edits: int) -> Work[Any, list[tuple[str, int, float]]]:
        """Return words near an unknown one, as spelled, with edits and a dictionary's share."""
        near: dict[str, tuple[int, float]] = {}
        own: list[tuple[FuzzyLexicon, Mapping[str, str], float]] = []
        own += [(self._lexicon, self._words, 1 / len(self._words))] if self._words else []
        own += [suggested_words(one) for one in self._lists]
        for lexicon, spellings, share in own:
            for key, edits in lexicon.nearby(dictionary_key(word), max_edits):
                text = spellings[key]
                near.setdefault(match_case(word, text) if text == text.lower() else text, (edits, share))
        if (parts := split_affixes(word)) is not None:
            for one in self._hunspell:
                for text, edits in (yield from one.nearby(parts.core, max_edits, self)):
                    near.setdefault(text.join(parts.affixes), (edits, 1 / max(len(one), 1)))
        return [(text, edits, share) for text, (edits, share) in near.items()]


class SuggestedWords(NamedTuple):
    """Words of a list that are suggested, their spelling by key, and the share of each."""

    lexicon: FuzzyLexicon
    spellings: Mapping[str, str]
    share: float


def suggested_words(words: WordList) -> SuggestedWords:
    """Return the words of a list that are suggested, the heaviest; the first call takes up to a second."""
    found: SuggestedWords | None = words.derived.get("suggestions")
    if found is None:
        spellings = {dictionary_key(text): text for text, _ in words.heaviest(_MAX_SUGGESTED)}
        share = 1 / max(words.info.entries, 1)
        found = words.derived["suggestions"] = SuggestedWords(FuzzyLexicon(list(spellings)), spellings, share)
    return found


def _forms(word: str) -> set[str]:
    """Return a word with and without its punctuation."""
    found = split_affixes(word)
    return {word} if found is None else {word, found.core}
