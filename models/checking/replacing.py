"""Other words in the place of some: which tokens change.

A text is tokenised anew only as far as white space on both sides of what is replaced, if its tokens are those of the
whole text there; else as a whole.
"""

from typing import NamedTuple

from models.checking.sentences import Sentence, SentenceSplitter
from models.vocabulary import UNK


class Replacement(NamedTuple):
    """A sentence's tokens from `first` on and before `last` are replaced.

    Attributes:
        first: place of the first token that changes, or before which some are put in.
        last: that after the last.
        tokens: what stands there instead.
    """

    first: int
    last: int
    tokens: tuple[int, ...]


class Replacer:
    """Puts texts in the place of some characters of a sentence.

    Args:
        cutter: of the sentence's tokenizer.
        sentence: any.
        start: where the characters begin in it.
        end: where they end.
    """

    def __init__(self, cutter: SentenceSplitter, sentence: Sentence, start: int, end: int) -> None:
        text = sentence.text
        left, right = _whitespace_bounds(text, start, end)
        tokens = cutter.tokens_in(sentence, left, right)
        ids = sentence.ids[tokens].tolist()
        if cutter.tokenizer.encode(text[left:right]) != ids:
            left, right, tokens = 0, len(text), slice(0, len(sentence.ids))
            ids = sentence.ids.tolist()
        self._splitter = cutter
        self._before, self._behind = text[left:start], text[end:right]
        self._begin, self._ids = tokens.start, ids

    def put(self, text: str) -> Replacement | None:
        """The change of tokens if a text stands there; None if the tokenizer does not tell the two apart.

        An unknown word for another is a change, though the tokens are the same.
        """
        before = self._ids
        after = self._splitter.tokenizer.encode(self._before + text + self._behind)
        if before == after:
            if UNK not in before:
                return None
            return Replacement(self._begin, self._begin + len(before), tuple(after))
        same = _common_prefix_length(before, after)
        rest = min(len(before), len(after)) - same
        same_end = _common_prefix_length(before[len(before) - rest :][::-1], after[len(after) - rest :][::-1])
        return Replacement(
            self._begin + same,
            self._begin + len(before) - same_end,
            tuple(after[same : len(after) - same_end]),
        )


def _whitespace_bounds(text: str, start: int, end: int) -> tuple[int, int]:
    """The nearest white space, or the text's ends, on both sides of some characters."""
    while start and not text[start - 1].isspace():
        start -= 1
    while end < len(text) and not text[end].isspace():
        end += 1
    return start, end


def _common_prefix_length(one: list[int], other: list[int]) -> int:
    """How many values two lists have in common at their beginnings."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))
