"""Lines as they are typed: where their words are, and how many keys they take."""

import re
from collections.abc import Sequence

import numpy as np

from models.checking.sentences import word_pattern
from models.tokenizers import Tokenizer, WordTokenizer
from training.evaluating.completing.looks import TypingLine, WordSpan

UNKNOWN_MARK = "<unk>"
"""What stands for rare words in some corpora: nobody types it, and it is no completion."""

_MARK = re.compile(rf"(?<!\S){UNKNOWN_MARK}(?!\S)")
_NOT_SPACE = re.compile(r"\S+")
_SEED = 1


def typing_line(tokenizer: Tokenizer, text: str) -> TypingLine:
    """A line as a model's typist types it.

    A word is what the tokenizer calls one, or a run of word characters if it has no words. For a tokenizer
    that lower-cases, the line is lower-cased: case does not count. Marks of unknown words are not typed.
    """
    if isinstance(tokenizer, WordTokenizer):
        text = text.lower() if tokenizer.lowercase else text
        pattern = _NOT_SPACE if tokenizer.pattern is None else re.compile(tokenizer.pattern)
        spans = [match.span() for match in pattern.finditer(text) if match.group()]
    else:
        spans = [match.span() for match in word_pattern().finditer(text)]
    marks = [match.span() for match in _MARK.finditer(text)]
    words: list[WordSpan] = []
    for begin, end in spans:
        if any(first <= begin < last for first, last in marks):
            continue
        joined = bool(words) and begin == words[-1].end + 1 and text[begin - 1] == " "
        words.append(WordSpan(begin, end, spaced=text[end : end + 1] in {"", " "}, joined=joined))
    num_keys = len(text) + 1 - sum(last - first + 1 for first, last in marks)
    return TypingLine(text, num_keys, tuple(words))


def sample_lines(texts: Sequence[str], words: int, *, consecutive: bool = False) -> list[str]:
    """Lines until they have so many words between white space, marks of unknown ones aside.

    Args:
        texts: all lines.
        words: how many words are enough.
        consecutive: take the first lines; else lines at random, always the same, in the text's order.
    """
    order = (
        range(len(texts)) if consecutive else np.random.default_rng(_SEED).permutation(len(texts)).tolist()
    )
    chosen: list[int] = []
    count = 0
    for number in order:
        if count >= words:
            break
        chosen.append(number)
        count += sum(word != UNKNOWN_MARK for word in texts[number].split())
    return [texts[number] for number in sorted(chosen)]
