"""What of a token is a word, and what is punctuation that sticks to it."""

from typing import NamedTuple

from models.checking.sentences import word_pattern


class WordParts(NamedTuple):
    """A token that spells a word of letters.

    Attributes:
        affixes: the punctuation on both of its sides.
        core: the word.
    """

    affixes: tuple[str, str]
    core: str


NO_AFFIXES = ("", "")
"""No punctuation on either side."""

MAX_WORD_LENGTH = 256
"""Characters of a word; longer runs, which may be of any length, are not looked into."""


def split_affixes(token: str) -> WordParts | None:
    """The word that a token spells; None if it spells none, or several, or is longer than `LONGEST`."""
    if len(token) > MAX_WORD_LENGTH:
        return None
    if token.isalpha():
        return WordParts(NO_AFFIXES, token)
    found = word_pattern().search(token)
    if found is None or not is_alphabetic(found.group()):
        return None
    before, after = token[: found.start()], token[found.end() :]
    return None if word_pattern().search(after) else WordParts((before, after), found.group())


def is_alphabetic(word: str) -> bool:
    """Whether a run of word characters has letters, and apostrophes, hyphens and combining marks at most besides.

    One longer than `LONGEST` is not looked into.
    """
    if len(word) > MAX_WORD_LENGTH:
        return False
    return word.isalpha() or (
        word_pattern().fullmatch(word) is not None
        and any(map(str.isalpha, word))
        and not any(c.isdecimal() or c == "_" for c in word)
    )


def match_case(typed: str, word: str) -> str:
    """A word of a lower-cased vocabulary in the case of what was typed."""
    if len(typed) > 1 and typed.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if typed[:1].isupper() else word
