"""Work folder of an estimation, its stages, and the text as tables.

An estimation that was killed continues from its completed stages:

<folder>/estimation        the hash of text, recipe and program that the stages belong to
<folder>/stage-<name>/     the output of a stage; it appears by one rename, when it is complete
<folder>/stage-<name>/stage.json   the hash of all its inputs, and its results
<folder>/.tmp-…            a stage that is being written
<folder>/spill/            what an engine could not keep in memory

Texts larger than memory are read anew for every pass. The text as a table has a row of N words for
every position at which an n-gram of the highest order starts; lower orders are sums over those rows,
so beside them only the sentence beginnings are kept.
"""

import contextlib
import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.checkpoint.folders import TEMPORARY_PREFIX, fsync_tree, report_write_errors
from models.errors import FormatError, InvalidInputError
from models.tokenizers import Tokenizer
from models.vocabulary import BOS, EOS
from training.corpus import Corpus, EncodedCorpus, Sentences, StreamedCorpus, read_corpus, read_sentences
from training.evaluation.breakdown import token_counts
from training.overlap import OverlapCounter
from training.progress import SILENT, Progress
from training.scale.plan import ABSENT
from training.single_model import locked_folder
from training.texts import Texts, num_held_out, read_texts
from training.tokenizer import batches, encoded_blocks

_MARKER_FILE = "estimation"
_FACTS_FILE = "stage.json"
_STAGE, _SPILL = "stage-", "spill"


def stage_key(*parts: object) -> str:
    """A hash of what goes into a stage."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


class Workspace:
    """The stages of one estimation; made by `workspace`.

    Attributes:
        folder: where they lie.
        reused: how many were there already.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reused = 0
        self._removed = False

    @property
    def spill(self) -> Path:
        """A folder for what does not fit into memory."""
        return self.folder / _SPILL

    def path(self, name: str) -> Path:
        """Where a stage's files are."""
        return self.folder / f"{_STAGE}{name}"

    def claim(self, key: str) -> None:
        """Say what is estimated; the stages of something else are removed, as they lack tables that are no more.

        Args:
            key: a hash of text, recipe and program.

        Raises:
            RegistryError: the file system refused.
        """
        mark = self.folder / _MARKER_FILE
        with report_write_errors(self.folder):
            if mark.read_text(encoding="utf-8") == key:
                return
            mark.write_text(
                "", encoding="utf-8"
            )  # if this is the last that is done, the rest is no estimation's
            for path in list(self.folder.glob(f"{_STAGE}*")):
                self._removed = True
                _discard(path)
            mark.write_text(key, encoding="utf-8")

    def stage(self, name: str, key: str, write: Callable[[Path], Mapping[str, Any] | None]) -> dict[str, Any]:
        """What a stage found; it is run if it was not, from exactly the same.

        Args:
            name: of the stage.
            key: a hash of everything that goes in.
            write: fills an empty folder, and says what else it found, as JSON can carry it.

        Raises:
            RegistryError: the file system refused.
        """
        target = self.path(name)
        found = _read_facts(target)
        if found is not None and found["key"] == key:
            self.reused += 1
            return dict(found["facts"])
        temporary = self.folder / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        with report_write_errors(self.folder):
            if target.exists():
                _discard(target)
            temporary.mkdir()
            facts = dict(write(temporary) or {})
            (temporary / _FACTS_FILE).write_text(json.dumps({"key": key, "facts": facts}), encoding="utf-8")
            fsync_tree(temporary)
            temporary.rename(target)
        return facts

    def drop(self, name: str) -> None:
        """Remove a stage's table, which no other one reads any more; that it was there stays known."""
        with report_write_errors(self.folder):
            for path in self.path(name).glob("*.parquet"):
                path.unlink()

    def notes(self) -> list[str]:
        """What the user should know of stages that were there, in sentences."""
        notes = []
        if self._removed:
            notes.append(f"an unfinished estimation of another text or recipe in {self.folder} was removed")
        if self.reused:
            notes.append(f"{self.reused} stages of the estimation were done already")
        return notes

    def remove(self) -> None:
        """Remove all stages: the model is published."""
        for path in list(self.folder.glob(f"{_STAGE}*")):
            with contextlib.suppress(OSError):
                _discard(path)
        shutil.rmtree(self.spill, ignore_errors=True)
        (self.folder / _MARKER_FILE).unlink(missing_ok=True)


@contextlib.contextmanager
def workspace(folder: Path) -> Iterator[Workspace]:
    """Open a folder of stages, or make one, and keep other processes from it for a while.

    Raises:
        InvalidInputError: another process is at work in it, or it holds something else.
        RegistryError: the file system refused.
    """
    busy = InvalidInputError(
        f"another process is estimating in {folder}; wait for it, or give another --work-dir",
        parameter="work-dir",
    )
    with locked_folder(folder, busy=busy):
        with report_write_errors(folder):
            _prepare_folder(folder)
        yield Workspace(folder)


def _prepare_folder(folder: Path) -> None:
    """Mark a folder as one of stages, and clear what a killed process left."""
    if not (folder / _MARKER_FILE).exists():
        if any(folder.iterdir()):
            raise InvalidInputError(
                f"{folder} is not empty and holds no stages of an estimation; give an empty folder",
                parameter="work-dir",
            )
        (folder / _MARKER_FILE).touch()
    for left in folder.glob(f"{TEMPORARY_PREFIX}*"):
        shutil.rmtree(left)
    shutil.rmtree(folder / _SPILL, ignore_errors=True)
    (folder / _SPILL).mkdir()


def _discard(stage: Path) -> None:
    """Remove a stage by one rename: of one that is half there, the rest would be taken for all of its table."""
    gone = stage.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    stage.rename(gone)
    shutil.rmtree(gone)


def _read_facts(folder: Path) -> dict[str, Any] | None:
    """What a stage's file says; None if there is no whole one."""
    try:
        found = json.loads((folder / _FACTS_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and {"key", "facts"} <= found.keys() else None


COUNTS_FILE = "token_counts.npy"


class WindowSettings(NamedTuple):
    """How the training text is read.

    Attributes:
        order: N.
        backward: whether each sentence is read from its last word to its first.
        held_out: other texts, by name, that are looked for in it.
    """

    order: int
    backward: bool
    held_out: Mapping[str, list[str]]


def write_windows(
    folder: Path, tokenizer: Tokenizer, sentences: Sentences, reading: WindowSettings, progress: Progress
) -> dict[str, Any]:
    """Encode a text and write its windows, in one pass and bounded memory.

    Beside the table lies `token_counts.npy`, how often each token occurs [V], int64.

    Args:
        folder: an empty folder.
        tokenizer: V words.
        sentences: the text.
        reading: how it is read.
        progress: told of sentences.

    Returns:
        `tokens`, with one `</s>` a sentence, and `overlap`, what of held-out texts was seen, by name.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    vocab_size = len(tokenizer.vocabulary)
    counts = np.zeros(vocab_size, np.int64)
    counters = {name: OverlapCounter(text) for name, text in reading.held_out.items()}
    schema = pa.schema([(f"w{i}", pa.int32()) for i in range(1, reading.order + 1)])
    progress.start("tokenising", len(sentences))
    with pq.ParquetWriter(folder / "part.parquet", schema, compression="zstd", compression_level=1) as file:
        for block in _count_overlaps(batches(sentences), counters, progress):
            (encoded,) = encoded_blocks(tokenizer, [block])
            counts += token_counts(encoded, vocab_size)
            windows = text_windows(encoded.reversed() if reading.backward else encoded, reading.order)
            file.write_table(pa.table(list(windows), schema=schema))
    progress.finish()
    np.save(folder / COUNTS_FILE, counts)
    seen = {name: counter.result().as_facts() for name, counter in counters.items()}
    return {"tokens": int(counts.sum()), "overlap": seen}


def write_vocabulary(folder: Path, vocab_size: int) -> None:
    """Write the ids of all words as a table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"w1": np.arange(vocab_size, dtype=np.int32)}), folder / "part.parquet")


def text_windows(encoded: EncodedCorpus, order: int) -> npt.NDArray[np.int32]:
    """The N words from every place on [N, rows], column by column.

    Places with fewer words before their sentence ends are there only if the sentence begins there.
    """
    text = np.append(encoded.with_boundaries(), np.full(order, ABSENT, np.int32))
    size = len(text) - order
    columns = np.empty((order, size), np.int32)
    ended = np.zeros(size, np.bool_)
    for column, begin in zip(columns, range(order), strict=True):
        column[:] = np.where(ended, np.int32(ABSENT), text[begin : begin + size])
        ended |= column == EOS
    wanted = (columns[-1] != ABSENT) | (columns[0] == BOS)
    return columns[:, wanted]


def _count_overlaps(
    blocks: Iterator[list[str]], counters: Mapping[str, OverlapCounter], progress: Progress
) -> Iterator[list[str]]:
    """The same blocks, in which held-out text was looked for."""
    for block in blocks:
        for counter in counters.values():
            counter.add(block, progress=SILENT)
        yield block
        progress.advance(len(block))


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
