"""The corpus that every machine has: the documentation inside CPython itself.

The language reference's topics (`pydoc_data.topics`) and the docstrings of the standard
library, some 300,000 words, read from the running interpreter, so that nothing need be
downloaded. One document is one topic or one module; documents are dealt to train, valid
and test by a hash of their names, so the split is the same on every run and machine. The
documentation quotes itself: a sentence of some length that a held-out document shares with
an earlier part is left out there, so that no figure profits from having seen it.
"""

import ast
import hashlib
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from models.errors import FormatError
from training.corpora.reading import Corpus
from training.corpora.sentences import paragraphs, split_sentences
from training.progress import Progress

_SKIPPED = {
    "test",
    "tests",
    "site-packages",
    "dist-packages",
    "idlelib",
    "lib2to3",
    "ensurepip",
    "pydoc_data",
}
_DECORATION = set("*=-~^+|.#_ ")
_SHARED_LENGTH = 40
_PARTS_OF_20 = {"valid": (0,), "test": (1,)}


class DefaultCorpus(NamedTuple):
    """The three parts; no document is in two."""

    train: Corpus
    valid: Corpus
    test: Corpus


def read_default_corpus(progress: Progress) -> DefaultCorpus:
    """Read CPython's documentation.

    Raises:
        FormatError: this interpreter was installed without its library's sources.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = sorted(p for p in library.rglob("*.py") if not _SKIPPED & set(p.relative_to(library).parts))
    progress.start("reading Python's documentation", len(sources))
    parts: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for name, text in _topics():
        parts[_part_of(name)] += _sentences(text)
    for path in sources:
        for docstring in _docstrings(path):
            parts[_part_of(path.relative_to(library).as_posix())] += _sentences(docstring)
        progress.advance()
    progress.finish()
    seen = set(parts["train"])
    for held_out in ("valid", "test"):
        parts[held_out] = [s for s in parts[held_out] if len(s) < _SHARED_LENGTH or s not in seen]
        seen.update(parts[held_out])
    if not all(parts.values()):
        raise FormatError(
            library, "holds too little documentation", hint="train on a corpus of your own: --corpus"
        )
    return DefaultCorpus(
        *(
            Corpus(s, hashlib.sha256("\n".join(s).encode()).hexdigest(), [f"python-documentation/{part}"])
            for part, s in parts.items()
        )
    )


def _topics() -> Iterator[tuple[str, str]]:
    try:
        from pydoc_data.topics import topics  # some distributions package it apart
    except ImportError:
        return
    yield from sorted(topics.items())


def _docstrings(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings(action="ignore"):  # of the library's own invalid escapes
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):  # a template, or a file for another version
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def _part_of(document: str) -> str:
    bucket = hashlib.sha256(document.encode()).digest()[0] * 20 // 256
    return next((part for part, buckets in _PARTS_OF_20.items() if bucket in buckets), "train")


def _sentences(text: str) -> list[str]:
    lines = ("" if set(line) <= _DECORATION else line for line in text.splitlines())
    return [s for block in paragraphs(lines) for s in split_sentences(block)]
