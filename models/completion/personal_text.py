"""Texts as personal models learn from them: words by sentences, whatever a model's tokens are."""

import re
from collections.abc import Iterator

from models.completion.personal import START, Sentence
from models.completion.words import JOINERS, LONGEST, is_word_character, last_word

_BETWEEN = re.compile(r"(?<=[.!?…])\s+|[\r\n]+")
"""Between sentences; a full stop inside a number or an address ends none."""

_ENDED = re.compile(r"([.!?…][\"'\u2019”»)\]]*|[\r\n])\s*\Z")
_LOOKED_AT = 256
"""Characters before a word in which the previous word is looked for."""


def sentences(text: str, context: str | None = None) -> list[Sentence]:
    """The sentences of a text that have words.

    Args:
        text: any.
        context: what stands before it; empty if it begins a sentence, None if nobody knows.
    """
    several = words_of_sentences(text)
    before = None if context is None else previous_word(context)
    return [Sentence(START if place else before, words) for place, words in enumerate(several)]


def words_of_sentences(text: str) -> list[list[str]]:
    """The words of each sentence of a text; sentences without any are left out."""
    return [
        words
        for piece in _BETWEEN.split(text)
        if (words := [w for part in piece.split() for w in _words(part)])
    ]


def previous_word(text: str) -> str:
    """The word after which the next one comes; `START` where that begins a sentence."""
    tail = text[-_LOOKED_AT:]
    if _ENDED.search(tail) is not None:
        return START
    end = len(tail)
    while end and not is_word_character(tail[end - 1]):
        end -= 1
    return tail[last_word(tail[:end]) : end]


def _words(part: str) -> Iterator[str]:
    """The words of a text without white space."""
    found: list[str] = []
    end = len(part)
    while end:
        tail = max(end - LONGEST - 1, 0)  # which is all that `last_word` looks at
        begin = tail + last_word(part[tail:end])
        word = part[begin:end].rstrip(JOINERS)
        if word:
            found.append(word)
        end = begin if begin < end else end - 1
    return reversed(found)
