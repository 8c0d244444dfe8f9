"""Words as ARPA files can hold them: no white space, and never spelled like a control token.

Other words, which character and SentencePiece vocabularies have, are written with `%` and two
hexadecimal digits for a byte, as in web addresses; the file then says so in a comment, and
every `%` in it is escaped, so that reading gives the same words again. The empty word is a
lone `%`.
"""

import re
from collections.abc import Sequence

from models.vocabulary import BOS, CONTROL_TOKENS, EOS, UNK

CONTROL_IDS = {"<unk>": UNK, "<UNK>": UNK, "<s>": BOS, "</s>": EOS}
"""What the control tokens are called in ARPA files."""

ESCAPED_OPTION = ("escapes", "percent")
"""The option in the comment of a file whose words are escaped."""

_SPECIAL = re.compile(r"[\x00-\x20\x7f%]")
_ESCAPED = re.compile(r"%([0-9A-F]{2})")
_NEEDS_ESCAPE = re.compile(r"[\x00-\x20\x7f]")


def escape_tokens(tokens: Sequence[str]) -> tuple[Sequence[str], int]:
    """The tokens of a vocabulary as they are written, and how many cannot be written as they are.

    If none is such, all are written as they are.
    """
    special = sum(not _writable(token) for token in tokens[len(CONTROL_TOKENS) :])
    if special == 0:
        return tokens, 0
    return (*CONTROL_TOKENS, *map(_escape, tokens[len(CONTROL_TOKENS) :])), special


def unescape_word(word: str) -> str | None:
    """The word that was written so; None if none is."""
    if word == "%":
        return ""
    plain = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), word)
    return plain if _escape(plain) == word else None


def _writable(word: str) -> bool:
    return word != "" and word not in CONTROL_IDS and _NEEDS_ESCAPE.search(word) is None


def _escape(word: str) -> str:
    if word == "":
        return "%"
    if word in CONTROL_IDS:
        return f"%{ord('<'):02X}{word[1:]}"
    return _SPECIAL.sub(lambda match: f"%{ord(match[0]):02X}", word)
