"""Sentences of a held-out text that also occur in the training text.

Sentences of eight words or more are compared, ignoring case and spacing; shorter ones may repeat by chance.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from training.corpus import Corpus, read_sentences
from training.progress import Progress

MIN_WORDS = 8
"""Minimum length of a compared sentence, in words."""

WARN_SHARE = 0.01
"""Share of sentences above which figures on a text are unreliable."""


class OverlapCounter:
    """Counter of held-out sentences that occur in a training text, which is added in parts.

    Attributes:
        counts: count of each compared held-out sentence, normalised.
    """

    def __init__(self, held_out: Iterable[str]) -> None:
        self.counts = Counter(
            sentence for sentence in map(_normalised, held_out) if sentence.count(" ") >= MIN_WORDS - 1
        )
        self._seen: set[str] = set()

    def add(self, sentences: Iterable[str]) -> None:
        """Add sentences of the training text."""
        self._seen.update(filter(self.counts.__contains__, map(_normalised, sentences)))

    def facts(self) -> dict[str, Any]:
        """Return `total`, `seen` and `share` of the `sentences` so far; `share` is None without sentences."""
        total, seen = self.counts.total(), sum(self.counts[sentence] for sentence in self._seen)
        return {"sentences": {"total": total, "seen": seen, "share": seen / total if total else None}}


def _normalised(sentence: str) -> str:
    return " ".join(sentence.lower().split())


def overlaps(held_out: Mapping[str, Corpus | None], training: Corpus) -> dict[str, dict[str, Any]]:
    """Return the overlap facts of the texts by name; missing texts are omitted, all if nothing is trained."""
    if not len(training.sentences):
        return {}
    counters = {name: OverlapCounter(text.sentences) for name, text in held_out.items() if text is not None}
    compared: set[str] = set().union(*(counter.counts for counter in counters.values()))
    if compared:  # one pass over the training text for all held-out texts
        shared = compared.intersection(map(_normalised, training.sentences))
        for counter in counters.values():
            counter.add(shared)
    return {name: counter.facts() for name, counter in counters.items()}


def overlap_with_files(
    held_out: Sequence[str], files: Sequence[Path], *, unit: str, progress: Progress
) -> dict[str, Any]:
    """Return the overlap facts of a held-out text and training files; see `training.corpus.read_sentences`.

    Raises:
        FormatError: a file is missing, empty, binary, damaged or not UTF-8.
    """
    counter = OverlapCounter(held_out)
    progress.start("searching the training text for held-out sentences", len(files))
    for file in files:
        counter.add(read_sentences(file, unit=unit))
        progress.advance()
    progress.finish()
    return counter.facts()


def overlap_phrase(facts: Mapping[str, Any]) -> str:
    """Format an overlap's facts as a phrase."""
    share = facts["sentences"]["share"]
    shown = "none" if share is None else f"{share:.2%}"
    return f"{shown} of its sentences of {MIN_WORDS} words or more are in the training text"


def is_suspicious(facts: Mapping[str, Any]) -> bool:
    """Return True if the overlap makes figures on the text unreliable."""
    return (facts["sentences"]["share"] or 0.0) > WARN_SHARE
