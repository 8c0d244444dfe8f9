"""What is being typed: the context, and the beginning of the word in which the text ends."""

import re
import unicodedata
from typing import NamedTuple

from models.completion.words import last_word_start
from models.tokenizers import SentencePieceTokenizer, Tokenizer, WordTokenizer
from models.vocabulary import UNK

_NO_SPACE_AFTER = frozenset(("Ps", "Pi", "Pc", "Sc"))
"""Unicode categories of characters that a word follows directly: opening brackets and quotes, currency signs."""

_NO_SPACE_AFTER_CHARACTERS = frozenset("/\\-@#")
_DASHES = frozenset("\u2013\u2014")
_QUOTES = frozenset("\"'")


class PrefixSplit(NamedTuple):
    """A text in two parts.

    Attributes:
        context: what is tokenised as it stands.
        prefix: the beginning of the current word, as typed; empty if the next word is to come.
        start: where the current word begins, in code points of the text.
        spelled: what the tokens after those of the context begin with.
        space: whether a completion brings a space, as the text does not end in one.
    """

    context: str
    prefix: str
    start: int
    spelled: bytes
    space: bool


def split_prefix(tokenizer: Tokenizer, text: str) -> PrefixSplit:
    """Find the word in which a text ends.

    For word tokenizers that is the last word, if a letter more would belong to it; for others the last run of
    word characters (see `last_word`). White space before it is read as the one space that pieces carry; a text
    of nothing else is read as empty.
    """
    start = (
        _last_word_offset(tokenizer, text) if isinstance(tokenizer, WordTokenizer) else last_word_start(text)
    )
    context, prefix = text[:start], text[start:]
    space = not prefix and _needs_space(tokenizer, text)
    spelled = _normalise(tokenizer, prefix)
    if tokenizer.leading_space:
        before = context.rstrip()
        if space or not before or len(before) < len(context) or isinstance(tokenizer, WordTokenizer):
            context, spelled = before, " " + spelled
    elif space:
        spelled = " "
    return PrefixSplit(context, prefix, start, spelled.encode("utf-8", "surrogatepass"), space)


def _last_word_offset(tokenizer: WordTokenizer, text: str) -> int:
    """Where the last word of a word tokenizer begins; the text's length if the text does not end in one."""
    if tokenizer.pattern is None:
        at_end = text and not text[-1].isspace()
        return len(text) - len(text.rsplit(maxsplit=1)[-1]) if at_end else len(text)
    read = text.lower() if tokenizer.lowercase else text
    pattern = re.compile(tokenizer.pattern)
    last = None
    for match in pattern.finditer(read):
        if match.group():
            last = match
    if last is None or last.end() < len(read) or not _may_continue(pattern, last.group()):
        return len(text)
    start = last.start()
    return start if len(read) == len(text) else _original_offset(text, len(read) - start)


def _may_continue(pattern: re.Pattern[str], word: str) -> bool:
    """Whether a letter after a word would belong to it, by the pattern of the tokenizer."""
    found = pattern.match(word + "a")
    return found is not None and found.end() > len(word)


def _original_offset(text: str, num_lowered: int) -> int:
    """Where the last characters of a text begin whose lower-cased forms have so many code points."""
    at = len(text)
    while at and num_lowered > 0:
        at -= 1
        num_lowered -= len(text[at].lower())
    return at


def _normalise(tokenizer: Tokenizer, prefix: str) -> str:
    """A prefix as the tokenizer reads it."""
    if isinstance(tokenizer, WordTokenizer) and tokenizer.lowercase:
        return prefix.lower()
    if isinstance(tokenizer, SentencePieceTokenizer):
        ids = tokenizer.encode(prefix)
        return prefix if UNK in ids else tokenizer.decode(ids)
    return prefix


def _needs_space(tokenizer: Tokenizer, text: str) -> bool:
    """Whether a space comes between a text and the word that follows it."""
    if not text or text[-1].isspace():
        return False
    if isinstance(tokenizer, WordTokenizer):
        return True
    last, before = text[-1], text[-2:-1]
    opens = not before or before.isspace() or unicodedata.category(before) in _NO_SPACE_AFTER
    if last in _QUOTES:
        return not opens
    if last in _DASHES:
        return opens  # one between spaces, not between words
    if unicodedata.category(last).startswith("P") and unicodedata.east_asian_width(last) in "WF":
        return False  # scripts that are written without spaces
    return last not in _NO_SPACE_AFTER_CHARACTERS and unicodedata.category(last) not in _NO_SPACE_AFTER
