"""Texts that are too large for memory: files that are read anew for every pass."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from models.errors import FormatError
from training.corpora.reading import Corpus, StreamedCorpus, read_corpus, read_sentences
from training.data import Texts, num_held_out, read_texts
from training.progress import Progress


class FileSentences:
    """Some of the sentences of files; no more than a block of them is ever in memory.

    Args:
        files: read in order, anew for each pass.
        unit: what a sentence is in them, `line` or `paragraph`.
        begin: the number of the first sentence.
        end: one more than that of the last.
    """

    def __init__(self, files: Sequence[Path], *, unit: str, begin: int, end: int) -> None:
        self._files = files
        self._unit = unit
        self._begin = begin
        self._end = end
        self._stamps = [_file_stamp(file) for file in files]

    def __len__(self) -> int:
        return self._end - self._begin

    def __iter__(self) -> Iterator[str]:
        """All of them, in order.

        Raises:
            FormatError: a file has changed since the first pass.
        """
        every = (s for file in self._files for s in read_sentences(file, unit=self._unit))
        yield from islice(every, self._begin, self._end)
        for file, stamp in zip(self._files, self._stamps, strict=True):
            if _file_stamp(file) != stamp:
                raise FormatError(file, "was changed while it was read", hint="start again")


def stream_texts(
    train: Sequence[Path], valid: Sequence[Path], test: Sequence[Path], *, unit: str, progress: Progress
) -> Texts:
    """What `read_texts` gives, but that of the training files no more than a block is in memory.

    Validation and test texts are read whole, and so is the default corpus.

    Raises:
        FormatError: a file cannot be read as text, or not several times.
        InvalidInputError: see `read_texts`.
    """
    if not train:
        return read_texts(train, valid, test, unit=unit, progress=progress)
    for file in train:
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise FormatError(file, "cannot be read several times", hint="save it as a file first")
    corpus = _count_sentences(train, unit=unit, progress=progress)
    if valid:
        held_out = read_corpus(valid, unit=unit, progress=progress)
    else:
        size = len(corpus.sentences)
        cut = size - num_held_out(size)
        end = list(FileSentences(train, unit=unit, begin=cut, end=size))
        held_out = Corpus(end, corpus.sha256, [f"the end of {', '.join(corpus.sources)}"])
        corpus = corpus._replace(sentences=FileSentences(train, unit=unit, begin=0, end=cut))
    return Texts(corpus, held_out, read_corpus(test, unit=unit, progress=progress) if test else None)


def _count_sentences(files: Sequence[Path], *, unit: str, progress: Progress) -> StreamedCorpus:
    """Count the sentences, hash the bytes."""
    digest = hashlib.sha256()
    progress.start("reading text", sum(file.stat().st_size for file in files if file.is_file()))
    size = sum(1 for file in files for _ in read_sentences(file, unit=unit, digest=digest, progress=progress))
    progress.finish()
    sentences = FileSentences(files, unit=unit, begin=0, end=size)
    return StreamedCorpus(sentences, digest.hexdigest(), [file.name for file in files])


def _file_stamp(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_ino, found.st_size
