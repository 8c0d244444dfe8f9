"""Words: their characters, boundaries, parts, cases and normal forms, and what is no word.

A word is a run of word characters: letters, digits, combining marks, the underscore, and between
two of these an apostrophe, a hyphen or characters without a width.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from models.normaliser import Normaliser

IGNORED = "\u00ad\u061c\u180e\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\u2064\ufeff"
"""Characters without a width, such as the soft hyphen, which change no word."""

JOINERS = f"'\u2019{IGNORED}-"
"""Characters that join word characters, as in "don't" and "well-known"."""

UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff]"
)
"""A character of Thai, Lao, Burmese, Khmer, Chinese or Japanese, which separate no words."""

FIRST_STAND_IN = "\U00100000"
"""The first of the private-use characters that stand for others within words."""

MAX_WORD_RUN = 64
"""Maximum characters of a run that count as the beginning of a word."""

MAX_WORD_LENGTH = 256
"""Maximum characters of a word; longer runs, of any length, are not analysed."""

_JOINTS = "\u200c\u200d"
"""Zero-width characters that change how letters are written: the non-joiner and the joiner."""

NO_AFFIXES = ("", "")
"""No punctuation on either side."""

_LAST_COMBINING_MARK = 0x1E94A
"""The highest combining mark, except variation selectors, which join no words."""

_PUNCTUATION = ".,;:!?…\"'“”„‘’«»¿¡()[]"  # noqa: RUF001 - typographic quotation marks

PLAIN = Normaliser("nfkc", lowercase=False)
_COMPOSED = Normaliser("nfc", lowercase=False)
_WITHOUT_HIDDEN = str.maketrans(dict.fromkeys(IGNORED.translate(dict.fromkeys(map(ord, _JOINTS)))))
_WITHOUT_IGNORED = str.maketrans({"\u2019": "'"} | dict.fromkeys(IGNORED))

_MANY_SIGNS = 2048
"""ASCII characters without a space that only encoded data has."""

_RUN = r"[\w./\\+~%-]"
"""Character of a path, a domain or a qualified name."""

_ADDRESS = r"[\w!\#$%&'()*+,./:;=?@\[\]~-]"

_UNITS = (
    r"[kKMGTPmcdhnpµμ]?(?:[mgsAKNJWCVFΩSTHlLBbt]|mol|Hz|Pa|Wh|eV|lx|lm|bps|bit)(?:i?B)?"
    "|°[CF]|dB|[rp]pm|p[xt]|r?em|[fkm]p[sh]|min|hr?s?|in|ft|lbs?|oz|yd|mi|psi|hp|k?cal|m?bar|mmHg|ha|[KMGT]i[Bb]"
)

_NO_WORD = re.compile(
    rf"""
    (?<! [!-~] ) [!-~]{{{_MANY_SIGNS},}}+ |
    (?= [\w./\\+~%@$&-] ) (?:  # rejects most characters at once
      (?= [A-Za-z] ) (?<! [A-Za-z0-9+.-] )
        (?: [A-Za-z][A-Za-z0-9+.-]*+:// | www\. | (?:mailto|tel|urn|doi|data):(?=\w) ) {_ADDRESS}*+
    | (?<!\w) (?:
        (?<![.+-]) [\w.+-]*+ @ \w [\w.-]*+
      | (?: (?<![./\\)\]}}\u2019\u201d]) (?: [A-Za-z]: | ~ | \.\.? )? [/\\] [/\\]? (?=[\w.~])
          | (?<!{_RUN}) (?= {_RUN}*? (?: \w [.\\] \w | \w / [\w.-]++ / ) ) ) {_RUN}++ (?: [?:&=\#]++ {_RUN}++ )*+
      | (?=\w) (?: (?= [^\W_]*+ _ ) \w++ | \w++ (?: \(\) | (?: (?: :: | -> ) \w++ )++ ) )
      | (?= [$&-] ) (?: (?<!-) -- \w [\w-]*+ (?: = \S*+ )? | [$&] \w++ )
      )
    | \d \s? (?= [^\W\d_] | ° ) (?: {_UNITS} ) \b (?: / \w\w?\w? \b )?
    )
    """,
    re.VERBOSE,
)
_INNER_CAPITAL = re.compile("[a-z][A-Z]")


def is_word_character(character: str) -> bool:
    """True if a character can be anywhere in a word; joiners cannot."""
    return character.isalnum() or character == "_" or is_mark(character) or character >= FIRST_STAND_IN


def continues_word(text: str, at: int) -> bool:
    """True if a character belongs to the word before it; at its end, only marks and joints do."""
    after = text[at : at + 2]
    if not after or is_mark(after[0]) or after[0] in _JOINTS:
        return bool(after)
    return after[0] in IGNORED and is_word_character(after[1:] or " ")


def is_mark(character: str) -> bool:
    """True for combining marks."""
    return unicodedata.category(character).startswith("M")


def last_word_start(text: str) -> int:
    """Return the start of the word that ends a text, or else the text's length.

    A joiner after a word character belongs to the word, which may continue. Of runs longer than
    `MAX_WORD_RUN` characters, as in scripts without spaces, only so many at the end count.
    """
    at = len(text)
    least = max(at - MAX_WORD_RUN, 0)
    while at > least and (
        is_word_character(text[at - 1])
        or (at > 1 and text[at - 1] in JOINERS and is_word_character(text[at - 2]))
    ):
        at -= 1
    # a joiner only if truncated
    return at + 1 if at < len(text) and text[at] in JOINERS else at


@cache
def word_pattern() -> re.Pattern[str]:
    """Pattern of a word: runs of word characters."""
    marks = [chr(c) for c in range(0x300, _LAST_COMBINING_MARK + 1) if is_mark(chr(c))]
    # a class of characters up to U+FFFF is a table, one of others is searched
    near, far = "".join(filter("\U00010000".__gt__, marks)), "".join(filter("\U00010000".__le__, marks))
    one = rf"(?:[\w{near}]++|(?=[{far[0]}-{far[-1]}])[{far}])++"
    # an atomic group: Python 3.11.2 ends a possessive repetition in the middle of its last group
    return re.compile(rf"{one}(?>(?:[{IGNORED}]*+(?:[{JOINERS}][{IGNORED}]*+)?{one})*)")


class WordParts(NamedTuple):
    """Word of letters within a token.

    Attributes:
        affixes: the punctuation before and after the word.
        core: the word.
    """

    affixes: tuple[str, str]
    core: str


def split_affixes(token: str) -> WordParts | None:
    """Return the word that a token spells; None if none, several, or beyond `MAX_WORD_LENGTH`."""
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
    """True if a word has letters and else only apostrophes, hyphens and combining marks.

    A word longer than `MAX_WORD_LENGTH` is never alphabetic.
    """
    if len(word) > MAX_WORD_LENGTH:
        return False
    return word.isalpha() or (
        word_pattern().fullmatch(word) is not None
        and any(map(str.isalpha, word))
        and not any(c.isdecimal() or c == "_" for c in word)
    )


def is_in_capitals(text: str) -> bool:
    """True if a text has several letters, all capitals."""
    return text.isupper() and sum(map(str.isalpha, text)) > 1


def match_case(typed: str, word: str) -> str:
    """Apply the case of a typed word to another: all capitals, a first capital, or its own case.

    Apostrophes become typographic if those of the typed word are.
    """
    if "\u2019" in typed and "'" not in typed:
        word = word.replace("'", "\u2019")
    if is_in_capitals(typed):
        return word.upper()
    return _capitalised(word) if _has_capital(typed) else word


def _has_capital(text: str) -> bool:
    """True if the first letter or digit of a text is a capital."""
    return next(filter(str.isalnum, text), "").isupper()


def _capitalised(text: str) -> str:
    first = next((at for at, character in enumerate(text) if character.isalnum()), 0)
    return text[:first] + text[first : first + 1].upper() + text[first + 1 :]


def match_beginning(typed: str, word: str, *, corrected: bool = False) -> str:
    """Adapt the case of a word to its typed beginning.

    A word with capitals of its own keeps them. Others adopt the typed capitals, and become all
    capitals if several letters were typed, all in capitals.

    Args:
        typed: the typed beginning.
        word: the word in the case of the model or the user's words.
        corrected: true if the beginning has errors; then only a first or all capitals are adopted.
    """
    if word.startswith(typed) or word != word.lower():
        return word
    if corrected or (is_in_capitals(typed) and len(word) == len(word.upper())):
        return match_case(typed, word)
    recased = typed + word[len(typed) :]  # "ß" and similar change length in capitals
    return recased if recased.casefold() == word.casefold() else word


def plain_form(word: str) -> str:
    """Return the form for looking up words: NFKC, plain apostrophes, no `IGNORED` characters."""
    return word if word.isascii() else PLAIN(word.translate(_WITHOUT_IGNORED))


def visible_form(word: str) -> str:
    """Return a word without the `IGNORED` characters that do not change how it is written."""
    return word.translate(_WITHOUT_HIDDEN)


def dictionary_key(word: str) -> str:
    """Return a word's key in the user dictionary, whatever its case and form."""
    return PLAIN(plain_form(word).lower())


def matching_form(word: str, *, ignore_case: bool) -> str:
    """Return a word with plain apostrophes, case-folded if case is ignored."""
    plain = word.replace("\u2019", "'")
    return plain.casefold() if ignore_case else plain


def word_forms(word: str, *, cases: bool = True) -> tuple[str, ...]:
    """Return the forms in which a word may be known: as typed, composed, plain.

    With `cases`, also those with fewer capitals.
    """
    forms = [word, _COMPOSED(word), plain := plain_form(word)]
    if len(word) != len(plain):  # decomposed, a ligature, or with ignored characters
        forms.reverse()
    if cases and len(word) <= MAX_WORD_LENGTH and _has_capital(word):
        forms.append(plain.lower())
        if is_in_capitals(word):
            forms.append(_capitalised(plain.lower()))
    return tuple(dict.fromkeys(forms))


def surrounding_words(text: str, start: int, end: int) -> set[str]:
    """Return a part of a text and the longer words around it: C++, aujourd'hui.

    These are the characters up to white space, with and without outer punctuation, and the word's.
    """
    before, after = text[max(start - MAX_WORD_LENGTH, 0) : start], text[end : end + MAX_WORD_LENGTH]
    left = "" if before[-1:].isspace() else "".join(before.split()[-1:])
    right = "" if after[:1].isspace() else "".join(after.split(maxsplit=1)[:1])
    whole = left + text[start:end] + right
    runs = (found.group() for found in word_pattern().finditer(whole) if found.end() > len(left))
    return {text[start:end], whole, whole.strip(_PUNCTUATION), next(runs, whole)}


def find_no_words(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans that are no words: addresses, paths, identifiers, numbers with units, data."""
    return (found.span() for found in _NO_WORD.finditer(text))


def fold_words(text: str) -> list[str]:
    """Return the words of a text in lower case without surrounding punctuation."""
    return [word.strip(_PUNCTUATION) for word in text.casefold().split()]


def is_identifier(word: str) -> bool:
    """True if a word has a capital after a small letter, as names in programs have."""
    return _INNER_CAPITAL.search(word) is not None
