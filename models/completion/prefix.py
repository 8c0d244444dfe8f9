"""Typed prefix of a text: the word at its end."""

import re
import unicodedata
from typing import NamedTuple

from models.completion.token_trie import TokenTrie
from models.language_model import UNK
from models.tokenizers import Tokenizer, WordTokenizer
from models.words import JOINERS, last_word_start

_NO_SPACE_AFTER = frozenset(("Ps", "Pi", "Pc", "Sc"))
"""Unicode categories of characters directly before a word: opening brackets, quotes, currency signs."""

_NO_SPACE_AFTER_CHARS = frozenset("/\\-@#")
_DASHES = frozenset("\u2013\u2014")
_QUOTES = frozenset("\"'`")
_CLOSING = frozenset(("Pe", "Pf", "Po"))
"""Unicode categories of characters directly after a word, such as closing brackets and commas."""

_NOT_CLOSING = frozenset("&*@#\\\u00a1\u00bf")
_JOINED = re.compile(rf"\w[{JOINERS}]$")

MAX_TAKEN_BYTES = 48
"""Maximum bytes taken back from a prompt: tokenisations multiply with the length."""


class PrefixSplit(NamedTuple):
    """Text split into context and prefix.

    Attributes:
        context: text to tokenise.
        prefix: typed beginning of the current word, in the tokenizer's Unicode
            form, case as typed; empty if the next word has not started.
        start: start of the current word, in code points of the text.
        spelled: bytes that the tokens after the context must start with.
        space: True if completions start with a space, because the text ends without
            one.
    """

    context: str
    prefix: str
    start: int
    spelled: bytes
    space: bool


def split_prefix(tokenizer: Tokenizer, text: str) -> PrefixSplit:
    """Split a text at the start of the word at its end.

    For word tokenizers this is the last word, if another letter would belong to it;
    else the last run of word characters (see `last_word_start`). White space before
    it is read as the single space of the word's first piece; a text of white space
    is read as empty.
    """
    start = (
        _last_word_offset(tokenizer, text) if isinstance(tokenizer, WordTokenizer) else last_word_start(text)
    )
    context, prefix = text[:start], text[start:]
    space = not prefix and needs_space(text)
    spelled = tokenizer.normalise_word(prefix)
    if tokenizer.leading_space:
        before = context.rstrip()
        if space or not before or len(before) < len(context) or isinstance(tokenizer, WordTokenizer):
            context, spelled = before, " " + spelled
    elif space:
        spelled = " "
    elif tokenizer.joins_spaces and context.endswith(" "):  # byte-level tokens hold space and word
        context, spelled = context[:-1], " " + spelled
    typed = tokenizer.normaliser.compose(prefix)
    return PrefixSplit(context, typed, start, spelled.encode("utf-8", "surrogatepass"), space)


def take_back(tokenizer: Tokenizer, tokens: TokenTrie, text: str) -> tuple[list[int], bytes]:
    """Tokenise a text without its last tokens, which may be part of a longer one.

    The last word's tokens are taken back, at most `MAX_TAKEN_BYTES`: pieces do not
    cross a space. If the tokenizer drops white space at the end, only this space is
    taken back.

    Args:
        tokenizer: any tokenizer.
        tokens: its token trie.
        text: a nonempty text.

    Returns:
        The ids of the remaining tokens, and the bytes the next ones must start
        with; none if no token can.
    """
    ids, spelled = tokenizer.encode(text), tokenizer.token_bytes
    if isinstance(tokenizer, WordTokenizer):
        split = split_prefix(tokenizer, text)
        if split.space or not len(tokens.exact.with_prefix(split.spelled)):
            return ids, b""
        return tokenizer.encode(split.context), split.spelled
    if text[-1].isspace() and ids == tokenizer.encode(text[:-1]):
        return ids, b" "
    first, taken = len(ids), b""
    for token in reversed(ids):
        longer = spelled[token] + taken
        if token == UNK or not spelled[token] or taken.startswith(b" ") or len(longer) > MAX_TAKEN_BYTES:
            break
        first, taken = first - 1, longer
    return ids[:first], taken


def _last_word_offset(tokenizer: WordTokenizer, text: str) -> int:
    """Return the start of a word tokenizer's last word; the text's length if it ends in none."""
    if tokenizer.pattern is None:
        at_end = text and not text[-1].isspace()
        return len(text) - len(text.rsplit(maxsplit=1)[-1]) if at_end else len(text)
    read = tokenizer.normaliser(text)
    start, end = max(tokenizer.split.spans(read), default=(0, 0))
    if not end or end < len(read):
        return len(text)
    longer = tokenizer.split.spans(read[start:] + "a")
    # a further letter would not belong to the word
    if longer[:1] != [(0, end - start + 1)]:
        return len(text)
    return start if read == text else int(tokenizer.normaliser.offsets(text)[start])


def needs_space(text: str, following: str = "") -> bool:
    """True if a space separates a text from what follows; default: any word."""
    if not text or text[-1].isspace():
        return False
    last, before, first = text[-1], text.rstrip(text[-1])[-1:], following[:1]
    closes = unicodedata.category(first or "a") in _CLOSING and first not in _NOT_CLOSING
    if first in _QUOTES:
        closes = text.count(first) % 2 > 0
    if (
        closes
        or (first == last and not first.isalnum())
        or any(map(_JOINED.search, (text[-2:], last + first)))
    ):
        return False
    opens = not before or before.isspace() or unicodedata.category(before) in _NO_SPACE_AFTER
    if last in _QUOTES:
        return not opens
    if last in _DASHES:
        return opens  # a dash between spaces, not between words
    if unicodedata.category(last).startswith("P") and unicodedata.east_asian_width(last) in "WF":
        return False  # scripts without spaces
    return last not in _NO_SPACE_AFTER_CHARS and unicodedata.category(last) not in _NO_SPACE_AFTER


def join_words(phrase: str) -> str:
    """Return a phrase with spaces where they belong, none before a comma."""
    joined, *words = phrase.split(" ")
    for word in words:
        joined += " " * needs_space(joined, word) + word
    return joined
