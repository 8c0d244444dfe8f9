"""Token trie: tokens that start with given bytes, are a prefix of them, or end a word.

The trie is implicit: tokens are sorted by their bytes, so a prefix is a range.
`TokenTransitions` groups the tokens by their effect on the current word.

Invalid UTF-8 is decoded as U+FFFD, not a word character; an incomplete character
does not end the word. Words are those of `models.words`.
"""

import codecs
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from models.arrays import Bools, TokenIds
from models.language_model import CONTROL_TOKENS, EOS
from models.tokenizers import Tokenizer, WordTokenizer
from models.words import FIRST_STAND_IN, JOINERS, UNSPACED, is_word_character

# the last plane has two private-use characters less than the first has characters
_LAST_REPLACED = 0xFFFD

JOINER_BYTES = frozenset(joiner.encode() for joiner in JOINERS)

_SPACE = b" "
NO_TOKENS: TokenIds = np.zeros(0, np.int64)


def as_one_word(text: str) -> str:
    """Replace characters that end words, such as spaces, by private-use ones.

    Members of classes are completed as one word, whatever their text is.
    """
    return "".join(
        c if is_word_character(c) or ord(c) > _LAST_REPLACED else chr(ord(FIRST_STAND_IN) + ord(c))
        for c in text
    )


def restore_words(text: str) -> str:
    """Undo `as_one_word`."""
    if text.isascii():
        return text
    return "".join(c if c < FIRST_STAND_IN else chr(ord(c) - ord(FIRST_STAND_IN)) for c in text)


class WordState(NamedTuple):
    """State of a scan for words in a text.

    Attributes:
        begun: True if the current word has a character.
        pending: bytes after its last definite character: joiner, incomplete
            character, or both.
    """

    begun: bool = False
    pending: bytes = b""


_BEFORE_WORD, _IN_WORD = WordState(), WordState(begun=True)


@lru_cache(maxsize=1 << 16)
def scan_words(word_state: WordState, spelled: bytes) -> tuple[tuple[int, ...], WordState | None]:
    """Scan more bytes of a text.

    Returns:
        Ends of words, as byte offsets in the pending bytes, while single spaces
        separate words; and the state after the bytes, or None if no word continues
        or starts there.
    """
    raw = word_state.pending + spelled
    text, _ = codecs.utf_8_decode(raw, "replace", False)  # noqa: FBT003 - takes no names
    begun, joined = word_state.begun, False
    # bytes up to the word's last definite character, and up to this character
    sure = at = 0
    ends: list[int] = []
    for one in text:
        at += len(one.encode())
        if is_word_character(one):
            begun, joined, sure = True, False, at
        elif begun and not joined and one in JOINERS:
            joined = True
        else:
            if not begun:
                return tuple(ends), None
            ends.append(sure)
            if joined or one != " ":
                return tuple(ends), None
            begun, sure = False, at
    return tuple(ends), WordState(begun, raw[sure:])


class TokenTransitions(NamedTuple):
    """Transitions of tokens from a word state; tokens in no set lead to no word.

    Attributes:
        ending: tokens that end the word before them, including `</s>`.
        inside: tokens that belong to the word entirely, which continues.
        crossing: tokens that end the word inside them, or must be read byte by
            byte.
        onward: ending tokens that start the next word, after a space.
        leaping: ending tokens that also end further words.
    """

    ending: TokenIds = NO_TOKENS
    inside: TokenIds = NO_TOKENS
    crossing: TokenIds = NO_TOKENS
    onward: TokenIds = NO_TOKENS
    leaping: TokenIds = NO_TOKENS


def prefix_interval(texts: Any, prefix: bytes) -> tuple[int, int]:
    """Return the place of the first of sorted texts that starts with these bytes, and that after the last."""
    first, stem = bisect_left(texts, prefix), prefix.rstrip(b"\xff")
    if not stem:
        return first, len(texts)
    return first, bisect_left(texts, stem[:-1] + bytes([stem[-1] + 1]), first)


class SortedTokens:
    """Tokens sorted by their spelling.

    Attributes:
        ids: ids of the tokens, sorted [N].
        longest: bytes of the longest token.
    """

    def __init__(self, spellings: Sequence[bytes]) -> None:
        ids = [i for i in range(len(CONTROL_TOKENS), len(spellings)) if spellings[i]]
        ids.sort(key=spellings.__getitem__)
        self.ids: TokenIds = np.array(ids, np.int64)
        self._spellings = [spellings[i] for i in ids]
        self._exactly: dict[bytes, list[int]] = {}
        for token, spelling in zip(ids, self._spellings, strict=True):
            self._exactly.setdefault(spelling, []).append(token)
        self.longest = max(map(len, self._spellings), default=0)

    def equal_to(self, spelled: bytes) -> Sequence[int]:
        """Return the tokens with exactly this spelling."""
        return self._exactly.get(spelled, ())

    def interval(self, spelled: bytes) -> tuple[int, int]:
        """Return the first token that starts with these bytes, and the one after the last, by position."""
        return prefix_interval(self._spellings, spelled)

    def with_prefix(self, spelled: bytes) -> TokenIds:
        """Return the tokens that start with these bytes, in order [n]."""
        first, past = self.interval(spelled)
        return self.ids[first:past]

    def proper_prefixes_of(self, spelled: bytes) -> TokenIds:
        """Return the tokens that are proper prefixes of these bytes."""
        lengths = range(1, min(len(spelled), self.longest + 1))
        return np.array([i for n in lengths for i in self._exactly.get(spelled[:n], ())], np.int64)


class Lexicon:
    """Sorted words, which may also be written with a capital or in capitals; and all `UNSPACED` runs."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = sorted(words)

    def __contains__(self, word: str) -> bool:
        return _is_unspaced(word) or any(self._first_from(v) == v for v in _less_capital(word))

    def forms(self) -> Iterator[str]:
        """Yield the words, and those with a capital or in capitals."""
        for word in self._words:
            yield word
            capital, capitals = word[:1].upper() + word[1:], word.upper()
            if capital[:1].lower() + capital[1:] == word:
                yield capital
            if word in {capitals.lower(), capitals.capitalize()}:
                yield capitals

    def has_beginning(self, beginning: str) -> bool:
        """True if a word starts with this beginning."""
        variants = _less_capital(beginning)
        return _is_unspaced(beginning) or any(self._first_from(v).startswith(v) for v in variants)

    def has_longer(self, word: str) -> bool:
        """True if a longer word starts with this one."""
        variants = _less_capital(word)
        return _is_unspaced(word) or any(self._first_from(f"{v}\0").startswith(v) for v in variants)

    def _first_from(self, word: str) -> str:
        index = bisect_left(self._words, word)
        return self._words[index] if index < len(self._words) else ""


def _is_unspaced(word: str) -> bool:
    return UNSPACED.search(word) is not None


def _less_capital(word: str) -> Iterator[str]:
    """Yield a word, without a first capital and, if all capitals, with one or none."""
    yield word
    yield word[:1].lower() + word[1:]
    if word.isupper():
        yield word.capitalize()
        yield word.lower()


class TokenTrie:
    """Tokens of a tokenizer by their spelling. Control tokens have no spelling and are in no set.

    Attributes:
        token_bytes: spelling of each token [V]; members of classes as one word.
        has_members: True if members of classes are tokens.
        whole_words: True if every token is a word, as for word tokenizers.
        lexicon: words of the training text; None if unknown or if tokens are words.
        derived: what other modules compute of the tokens, kept with them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.token_bytes = tokenizer.token_bytes
        self.derived: dict[str, Any] = {}
        members = []
        self.has_members = tokenizer.members is not None
        if tokenizer.members is not None:
            num_plain = len(tokenizer.members.plain.vocabulary)
            members = [as_one_word(spelled.decode()[1:]) for spelled in self.token_bytes[num_plain:]]
            self.token_bytes = (*self.token_bytes[:num_plain], *(f" {word}".encode() for word in members))
        self.whole_words = isinstance(tokenizer, WordTokenizer)
        self.exact = SortedTokens(self.token_bytes)
        self.lexicon = Lexicon((*tokenizer.lexicon, *members)) if tokenizer.lexicon else None
        if not self.whole_words:
            size = len(self.token_bytes)
            self._flags = defaultdict[str, Bools](lambda: np.zeros(size, np.bool_))  # masks [V]
            for token in self.exact.ids.tolist():
                for name in _token_flags(self.token_bytes[token]):
                    self._flags[name][token] = True
            self._transitions = _transitions(self._flags)

    @cached_property
    def folded_bytes(self) -> tuple[bytes, ...]:
        """Case-folded spelling (Unicode) of each token [V]; bytes that are not UTF-8 stay."""
        return tuple(map(fold_case, self.token_bytes))

    @cached_property
    def folded(self) -> SortedTokens:
        """Tokens sorted by case-folded spelling."""
        return SortedTokens(self.folded_bytes)

    def transitions(self, word_state: WordState) -> TokenTransitions:
        """Return the transitions of all tokens from a word state."""
        pending = word_state.pending
        return self._transitions[word_state.begun, bool(pending), pending in JOINER_BYTES]

    def undecided(self, tokens: TokenIds) -> TokenIds:
        """Select tokens that may turn out to follow a word: joiners, first bytes of characters."""
        return tokens[self._flags["undecided"][tokens]]

    def transitions_along(
        self, word_state: WordState, spelled: bytes, tokens: SortedTokens
    ) -> TokenTransitions:
        """Return the transitions of tokens whose spellings begin with `spelled` or are its prefixes.

        Args:
            word_state: word state before the tokens.
            spelled: at least one byte; if the first is a space, the word starts
                after it.
            tokens: exact or case-folded order, for the comparison.
        """
        reaching, within = tokens.with_prefix(spelled), tokens.proper_prefixes_of(spelled)
        if word_state.pending and word_state.pending not in JOINER_BYTES:
            return TokenTransitions(inside=within, crossing=reaching)
        spaced = "spaced " if spelled.startswith(_SPACE) else ""
        inside, crossing = (reaching[self._flags[spaced + kind][reaching]] for kind in ("inside", "crossing"))
        return TokenTransitions(inside=np.concatenate([within, inside]), crossing=crossing)


def fold_case(spelled: bytes) -> bytes:
    """Case-fold a text given as bytes; bytes that are not UTF-8 are unchanged."""
    return _decode(spelled).casefold().encode() or spelled


def _decode(spelled: bytes) -> str:
    """Decode bytes; empty if they are not UTF-8."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return ""


def _transitions(flags: Mapping[str, Bools]) -> dict[tuple[bool, bool, bool], TokenTransitions]:
    """Return transitions by word state: whether the word has begun, bytes are pending, are a joiner."""
    ordinary = flags["inside"] | flags["crossing"] | flags["ending"]
    middle, starting = flags["middle of character"], flags["starting"]
    in_word = TokenTransitions(**{name: np.flatnonzero(flags[name]) for name in TokenTransitions._fields})
    before = TokenTransitions(
        inside=np.flatnonzero(flags["inside"] & starting),
        crossing=np.flatnonzero(flags["crossing"] & starting),
    )
    inside = TokenTransitions(crossing=np.flatnonzero(middle))
    return {
        (False, False, False): before,
        (True, False, False): in_word._replace(ending=_with_eos(flags["ending"])),
        # the joiner may turn out to follow the word
        (True, True, True): before._replace(ending=_with_eos(ordinary & ~starting)),
        (False, True, False): inside,
        (True, True, False): inside._replace(ending=_with_eos(ordinary & ~middle)),
    }


def _token_flags(spelled: bytes) -> Iterator[str]:
    """Yield a token's flags: the sets of `TokenTransitions` with it after a word character, and others.

    A `starting` token may start a word, an `undecided` one may turn out to follow
    it, a `spaced` one's word starts after a space, and one in the `middle of
    character` with bytes after a character's first.
    """
    spaced = spelled.startswith(_SPACE)
    if _decode(spelled[spaced:]).isalnum():  # most frequent: a word or a part of one
        yield from ("ending", "onward", "spaced inside") if spaced else ("inside", "starting")
        return
    if 0x80 <= spelled[0] < 0xC0:
        yield "middle of character"
    if scan_words(_BEFORE_WORD, spelled) != ((), None):
        yield "starting"
    if spaced and (after_space := scan_words(_BEFORE_WORD, spelled[1:])) != ((), None):
        yield "spaced crossing" if after_space[0] else "spaced inside"
    ends, state = scan_words(_IN_WORD, spelled)
    if not ends:
        yield "inside"
        if state is not None and state.pending == spelled:
            yield "undecided"
    elif ends[0] > 0:
        yield "crossing"
    else:
        yield "ending"
        if len(ends) > 1:
            yield "leaping"
        elif state is not None:
            yield "onward"


def _with_eos(flags: Bools) -> TokenIds:
    """Return the flagged tokens, and `</s>`."""
    return np.concatenate([np.array([EOS]), np.flatnonzero(flags)])
