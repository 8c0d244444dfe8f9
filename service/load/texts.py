"""Sentences to ask about: of the user's own files, else of Python's documentation."""

import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from models.errors import FormatError

_WORD_COUNTS = range(8, 41)
"""Length in words of the paragraphs of the documentation that are taken for sentences."""
_MAX_TEXTS = 10_000


def load_texts(path: Path) -> list[str]:
    """The lines of a text file that are not empty, at most 10,000.

    Raises:
        FormatError: it cannot be read, is not UTF-8, or has none.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            texts = [text for line, _ in zip(file, range(_MAX_TEXTS), strict=False) if (text := line.strip())]
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(path, str(error), hint="give a text file with a sentence a line") from error
    if not texts:
        raise FormatError(path, "has no text in it", hint="give a text file with a sentence a line")
    return texts


def default_texts() -> list[str]:
    """Some thousand sentences of the documentation inside this Python, which the default models are trained on."""
    from pydoc_data.topics import topics  # half a megabyte

    paragraphs = (part.split() for topic in topics.values() for part in topic.split("\n\n"))
    return [" ".join(words) for words in paragraphs if len(words) in _WORD_COUNTS]


def shuffled(texts: Sequence[str], seed: int) -> list[str]:
    """The texts in an order that the seed decides."""
    return random.Random(seed).sample(texts, len(texts))


def typed_prefixes(texts: Iterable[str]) -> Iterator[str]:
    """What is in the field while somebody types each text: a word more each time."""
    for text in texts:
        words = text.split()
        for end in range(1, max(len(words), 2)):
            yield " ".join(words[:end]) + " "


def candidate_variants(text: str, words: Sequence[str], count: int, generator: random.Random) -> list[str]:
    """A text with two words replaced by others, so often: alike, as the candidates of a decoder are."""
    made = []
    for _ in range(count):
        variant = text.split()
        for _ in range(2):
            variant[generator.randrange(len(variant))] = generator.choice(words)
        made.append(" ".join(variant))
    return made
