"""How much of a held-out text occurs in the training text: what was seen is no test.

Counted are the held-out text's sentences of eight words or more, and its runs of 8 and 13 words
inside a sentence (13: Brown et al. 2020, appendix C). Case and punctuation do not matter. Only
the held-out text's hashes are kept, some 16 to 32 bytes each; the training text goes by in blocks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from training.corpora.reading import Corpus, Sentences, StreamedCorpus, read_sentences
from training.ngram.hashing import Hashes, HashSet, hashed_lines, hashed_ngrams, hashed_words
from training.progress import Progress

MIN_WORDS = 8
"""A shorter sentence may well be seen twice by chance."""

NGRAMS = (8, 13)
WARN_SENTENCES = 0.01
WARN_NGRAMS = 0.05
"""Shares of sentences, and of runs of 13 words, beyond which figures are not to be trusted."""

_BLOCK_LINES = 8192


class OverlapCount(NamedTuple):
    """What the training text has of some parts of a held-out text.

    Attributes:
        total: parts.
        seen: those that occur in the training text.
        share: seen / total; None where there is none.
    """

    total: int
    seen: int
    share: float | None


class Overlap(NamedTuple):
    """What of a held-out text occurs in the training text.

    Attributes:
        sentences: of `MIN_WORDS` words or more.
        ngrams: runs of words by their length.
    """

    sentences: OverlapCount
    ngrams: Mapping[int, OverlapCount]

    def as_facts(self) -> dict[str, Any]:
        """The figures as JSON can carry them."""
        return {
            "sentences": self.sentences._asdict(),
            "ngrams": {str(n): seen._asdict() for n, seen in self.ngrams.items()},
        }


class OverlapCounter:
    """Looks for one held-out text in a training text that comes in pieces.

    Args:
        held_out: its sentences.
    """

    def __init__(self, held_out: Sequence[str]) -> None:
        parts: list[list[Hashes]] = [list(_block_hashes(block)) for block in _blocks(held_out)]
        self._parts = [_concatenate([block[k] for block in parts]) for k in range(1 + len(NGRAMS))]
        self._sets = [HashSet(hashes) for hashes in self._parts]

    def add(self, sentences: Iterable[str], *, progress: Progress) -> None:
        """Look at some of the training text.

        Args:
            sentences: of it.
            progress: told of sentences.
        """
        for block in _blocks(sentences):
            for known, hashes in zip(self._sets, _block_hashes(block), strict=True):
                known.mark_seen(hashes)
            progress.advance(block.count("\n") + 1)

    def result(self) -> Overlap:
        """What was found so far."""
        sentences, *ngrams = map(_overlap_count, self._sets, self._parts)
        return Overlap(sentences, dict(zip(NGRAMS, ngrams, strict=True)))


def overlap(held_out: Sequence[str], training: Sentences, *, progress: Progress) -> Overlap:
    """Look for a held-out text's sentences and runs of words in a training text.

    Args:
        held_out: sentences.
        training: sentences.
        progress: told of training sentences.
    """
    counter = OverlapCounter(held_out)
    progress.start("looking for held-out text in the training text", len(training))
    counter.add(training, progress=progress)
    found = counter.result()
    progress.advance(0, overlap_phrase(found.as_facts()))
    progress.finish()
    return found


def overlaps(
    held_out: Mapping[str, Corpus | None], training: Corpus | StreamedCorpus, *, progress: Progress
) -> dict[str, dict[str, Any]]:
    """`overlap` of several texts by name, as facts; nothing of a text that is None, or where nothing is trained."""
    return {
        name: overlap(text.sentences, training.sentences, progress=progress).as_facts()
        for name, text in held_out.items()
        if text is not None and len(training.sentences)
    }


def overlap_with_files(
    held_out: Sequence[str], files: Sequence[Path], *, unit: str, progress: Progress
) -> Overlap:
    """The same for files, of which no more than a block is in memory.

    Args:
        held_out: sentences.
        files: the training text.
        unit: what a sentence is in them, `line` or `paragraph`.
        progress: told of training sentences.

    Raises:
        FormatError: a file is missing, empty, binary, damaged or not UTF-8.
    """
    counter = OverlapCounter(held_out)
    progress.start("looking for held-out text in the training text", None)
    for file in files:
        counter.add(read_sentences(file, unit=unit), progress=progress)
    progress.finish()
    return counter.result()


def overlap_phrase(facts: Mapping[str, Any]) -> str:
    """An overlap's figures, from `Overlap.as_facts`, in a phrase."""
    longest = str(max(NGRAMS))
    return (
        f"{_share(facts['sentences'])} of its sentences of {MIN_WORDS} words or more and "
        f"{_share(facts['ngrams'][longest])} of its runs of {longest} words are in the training text"
    )


def is_suspicious(facts: Mapping[str, Any]) -> bool:
    """Whether so much of a held-out text, from `Overlap.as_facts`, was seen that its figures are not to be trusted."""
    sentences, ngrams = facts["sentences"]["share"], facts["ngrams"][str(max(NGRAMS))]["share"]
    return (sentences or 0.0) > WARN_SENTENCES or (ngrams or 0.0) > WARN_NGRAMS


def _blocks(sentences: Iterable[str]) -> Iterator[str]:
    """Many sentences a block, folded to lower case, a line each."""
    rest = iter(sentences)
    while block := list(islice(rest, _BLOCK_LINES)):
        yield "\n".join(block).lower()


def _block_hashes(block: str) -> Iterator[Hashes]:
    """The hashes of a block's sentences, and of its runs of words by length."""
    words, offsets = hashed_words(block)
    yield hashed_lines(words, offsets, MIN_WORDS)
    for n in NGRAMS:
        yield hashed_ngrams(words, offsets, n)


def _concatenate(parts: Sequence[Hashes]) -> Hashes:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint64)


def _overlap_count(known: HashSet, hashes: Hashes) -> OverlapCount:
    total, seen = len(hashes), known.num_seen(hashes)
    return OverlapCount(total, seen, seen / total if total else None)


def _share(facts: Mapping[str, Any]) -> str:
    return "none" if facts["share"] is None else f"{facts['share']:.2%}"
