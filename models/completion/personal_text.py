"""Texts as personal models learn from them: words by sentences, whatever a model's tokens are."""

import re
from collections.abc import Iterator

from models.completion.personal import SENTENCE_START, WordSequence
from models.completion.words import JOINERS, MAX_WORD_RUN, is_word_character, last_word_start

_SENTENCE_BREAK = re.compile(r"(?<=[.!?…])\s+|[\r\n]+")
"""Between sentences; a full stop inside a number or an address ends none."""

_SENTENCE_END = re.compile(r"([.!?…][\"'\u2019”»)\]]*|[\r\n])\s*\Z")
_LOOKBACK_CHARACTERS = 256
"""Characters before a word in which the previous word is looked for."""


def split_word_sequences(text: str, context: str | None = None) -> list[WordSequence]:
    """The sentences of a text that have words.

    Args:
        text: any.
        context: what stands before it; empty if it begins a sentence, None if nobody knows.
    """
    several = sentence_words(text)
    before = None if context is None else previous_word(context)
    return [WordSequence(SENTENCE_START if place else before, words) for place, words in enumerate(several)]


def sentence_words(text: str) -> list[list[str]]:
    """The words of each sentence of a text; sentences without any are left out."""
    return [
        words
        for piece in _SENTENCE_BREAK.split(text)
        if (words := [w for part in piece.split() for w in _chunk_words(part)])
    ]


def previous_word(text: str) -> str:
    """The word after which the next one comes; `START` where that begins a sentence."""
    tail = text[-_LOOKBACK_CHARACTERS:]
    if _SENTENCE_END.search(tail) is not None:
        return SENTENCE_START
    end = len(tail)
    while end and not is_word_character(tail[end - 1]):
        end -= 1
    return tail[last_word_start(tail[:end]) : end]


def _chunk_words(part: str) -> Iterator[str]:
    """The words of a text without white space."""
    found: list[str] = []
    end = len(part)
    while end:
        tail = max(end - MAX_WORD_RUN - 1, 0)  # which is all that `last_word` looks at
        begin = tail + last_word_start(part[tail:end])
        word = part[begin:end].rstrip(JOINERS)
        if word:
            found.append(word)
        end = begin if begin < end else end - 1
    return reversed(found)
