"""Training, validation and test texts of a run, the default corpus, and overlap between texts.

The default corpus is CPython's documentation: the language reference's topics
(`pydoc_data.topics`) and the standard library's docstrings, some 300,000 words, read from
the interpreter without download. A document is a topic or module; a hash of its
name assigns it to train, valid or test, so the split is the same on every machine. Longer
sentences that also occur in an earlier part are removed from held-out documents.

Overlap is found in sentences of eight words or more, ignoring case and spacing; shorter ones repeat by chance.
"""

import ast
import hashlib
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from models.errors import FormatError, InputError
from models.tokenizers import Tokenizer
from training.corpus import Corpus, EncodedCorpus, paragraphs, read_corpus, read_sentences, split_sentences
from training.progress import Progress
from training.tokenizer import encode_corpus

T = TypeVar("T")
U = TypeVar("U")

MIN_WORDS = 8
"""Minimum words of a compared sentence."""

WARN_SHARE = 0.01
"""Share of sentences above which a text's figures are unreliable."""

_HELD_OUT_DIVISOR = 20
_MAX_HELD_OUT = 5_000
_EMPTY_CORPUS = Corpus([], "", [])
_SKIPPED = {"test", "tests", "site-packages", "dist-packages"}
_SKIPPED |= {"idlelib", "lib2to3", "ensurepip", "pydoc_data"}
_DECORATION = set("*=-~^+|.#_ ")
_SHARED_LENGTH = 40
_PARTS_OF_20 = {0: "valid", 1: "test"}


def read_default_corpus(progress: Progress) -> tuple[Corpus, Corpus, Corpus]:
    """Read CPython's documentation for training, validation and test, each document in one part.

    Raises:
        FormatError: the interpreter has no library sources.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = sorted(p for p in library.rglob("*.py") if not _SKIPPED & set(p.relative_to(library).parts))
    with progress.stage("reading Python's documentation", len(sources)):
        parts: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
        with suppress(ImportError):  # a separate package in some distributions
            from pydoc_data.topics import topics

            for name, text in sorted(topics.items()):
                parts[_part_of(name)] += _sentences(text)
        for path in sources:
            with suppress(SyntaxError, ValueError, OSError):  # a template, or code for another version
                with warnings.catch_warnings(action="ignore"):  # the library has invalid escapes
                    tree = ast.parse(path.read_bytes())
                part = parts[_part_of(path.relative_to(library).as_posix())]
                for node in ast.walk(tree):
                    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                        part += _sentences(ast.get_docstring(node) or "")
            progress.advance()
    seen = set(parts["train"])
    for held_out in ("valid", "test"):
        parts[held_out] = [s for s in parts[held_out] if len(s) < _SHARED_LENGTH or s not in seen]
        seen.update(parts[held_out])
    if not all(parts.values()):
        hint = "give a training text with --corpus"
        raise FormatError(library, "contains too little documentation", hint=hint)
    train, valid, test = (
        Corpus(s, hashlib.sha256("\n".join(s).encode()).hexdigest(), [f"python-documentation/{part}"])
        for part, s in parts.items()
    )
    return train, valid, test


def _part_of(document: str) -> str:
    return _PARTS_OF_20.get(hashlib.sha256(document.encode()).digest()[0] * 20 // 256, "train")


def _sentences(text: str) -> list[str]:
    lines = ("" if set(line) <= _DECORATION else line for line in text.splitlines())
    return [s for block in paragraphs(lines) for s in split_sentences(block)]


class Splits(NamedTuple, Generic[T]):
    """Texts by split, which should be disjoint; `train` is empty if nothing is trained."""

    train: T
    valid: T
    test: T | None

    def map(self, change: Callable[[T], U]) -> "Splits[U]":
        """Change each text; a missing test text stays None."""
        return Splits(
            change(self.train), change(self.valid), None if self.test is None else change(self.test)
        )


Texts: TypeAlias = Splits[Corpus]
EncodedTexts: TypeAlias = Splits[EncodedCorpus]


def read_texts(
    train: Sequence[Path],
    valid: Sequence[Path],
    test: Sequence[Path],
    *,
    unit: str,
    stream: bool = False,
    progress: Progress,
) -> Texts:
    """Read the files of a run; without files, read the default corpus.

    Without validation files, the last twentieth of training sentences is held
    out, at most 5,000. They are consecutive, so adjacent sentences do not leak.

    Raises:
        FormatError: a file cannot be read as text.
        InputError: validation or test without training files, or too little text.
    """
    if not train:
        if valid or test:
            raise InputError("--valid and --test need --corpus", param="corpus")
        return Texts(*read_default_corpus(progress))
    corpus = read_corpus(train, unit=unit, stream=stream, progress=progress)
    if valid:
        held_out = read_corpus(valid, unit=unit, progress=progress)
    else:
        size = len(corpus.sentences)
        if size < 2:
            needed = "at least 2 are needed to hold one out, or give --valid"
            raise InputError(f"the corpus has {size} sentence; {needed}", param="corpus")
        cut = size - min(max(size // _HELD_OUT_DIVISOR, 1), _MAX_HELD_OUT)
        sources = [f"the end of {', '.join(corpus.sources)}"]
        held_out = corpus._replace(sentences=list(corpus.sentences[cut:]), sources=sources)
        corpus = corpus._replace(sentences=corpus.sentences[:cut])
    return Texts(corpus, held_out, read_corpus(test, unit=unit, progress=progress) if test else None)


def read_fitting_text(
    corpus: Sequence[Path], valid: Sequence[Path], test: Sequence[Path], *, unit: str, progress: Progress
) -> Texts:
    """Read the files of a run that only fits weights, on one text.

    Without files, the text is the validation part of the default corpus.

    Raises:
        FormatError: a file cannot be read as text.
        InputError: both texts for fitting are given, or only a test text.
    """
    if corpus and valid:
        problem = (
            "no model is trained, and weights are fitted on one text; give --corpus or --valid, not both"
        )
        raise InputError(problem, param="valid")
    if not corpus and not valid:
        if test:
            raise InputError("--test needs --corpus or --valid", param="corpus")
        return Texts(_EMPTY_CORPUS, *read_default_corpus(progress)[1:])
    fitted_on = read_corpus(corpus or valid, unit=unit, progress=progress)
    return Texts(_EMPTY_CORPUS, fitted_on, read_corpus(test, unit=unit, progress=progress) if test else None)


def encode_texts(tokenizer: Tokenizer, texts: Texts, *, progress: Progress) -> EncodedTexts:
    """Encode the texts of every split."""
    return texts.map(lambda corpus: encode_corpus(tokenizer, corpus.sentences, progress=progress))


class OverlapCounter:
    """Counter of held-out sentences that recur in a training text, added in parts.

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
        """Return `total`, `seen` and `share` of the `sentences` so far; `share` is None without any."""
        total, seen = self.counts.total(), sum(self.counts[sentence] for sentence in self._seen)
        return {"sentences": {"total": total, "seen": seen, "share": seen / total if total else None}}


def _normalised(sentence: str) -> str:
    return " ".join(sentence.lower().split())


def overlaps(held_out: Mapping[str, Corpus | None], training: Corpus) -> dict[str, dict[str, Any]]:
    """Return texts' overlap facts by name, without missing texts; none if nothing is trained."""
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
    """Return overlap facts of a held-out text and training files; see `read_sentences`.

    Raises:
        FormatError: a file is missing, empty, binary, damaged or not UTF-8.
    """
    counter = OverlapCounter(held_out)
    with progress.stage("searching the training text for held-out sentences", len(files)):
        for file in files:
            counter.add(read_sentences(file, unit=unit))
            progress.advance()
    return counter.facts()


def overlap_phrase(facts: Mapping[str, Any]) -> str:
    """Format an overlap's facts as a phrase."""
    share = facts["sentences"]["share"]
    shown = "none" if share is None else f"{share:.2%}"
    return f"{shown} of its sentences of {MIN_WORDS} words or more are in the training text"


def is_suspicious(facts: Mapping[str, Any]) -> bool:
    """Return True if overlap makes figures on the text unreliable."""
    return (facts["sentences"]["share"] or 0.0) > WARN_SHARE
