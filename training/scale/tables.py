"""Work folder of an estimation, its stages, and the text as tables.

A killed estimation continues from its completed stages:

<folder>/estimation        hash of text, recipe and program of the stages
<folder>/stage-<name>/     output of a stage, moved into place by one rename when it is complete
<folder>/stage-<name>/stage.json   hash of all its inputs, and its results
<folder>/.tmp-…            an incomplete stage
<folder>/spill/            data of an engine beyond its memory limit

Texts beyond memory are read again for every pass. The text's table has a
row of N words for every position where an n-gram of the highest order starts.
Lower orders are sums over these rows; only beginnings of sentences are added.
"""

import contextlib
import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from models.arrays import Int32s
from models.checkpoint.folders import fsync_tree, report_write_errors
from models.errors import InputError
from models.files import TEMPORARY_PREFIX
from models.tokenizers import Tokenizer
from models.vocabulary import BOS, EOS
from training.corpus import EncodedCorpus, Sentences
from training.evaluation.breakdown import COUNTS_FILE, token_counts
from training.progress import Progress
from training.scale.plan import ABSENT
from training.single_model import locked_folder
from training.texts import OverlapCounter
from training.tokenizer import batches, encode_block

_MARKER_FILE = "estimation"
_FACTS_FILE = "stage.json"
_STAGE = "stage-"


def stage_key(*parts: object) -> str:
    """Hash the inputs of a stage."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


class Workspace:
    """The stages of one estimation; created by `workspace`.

    Attributes:
        folder: folder of the stages.
        spill: folder for data beyond an engine's memory limit.
        keys: keys of all completed stages, by name.
        reused: number of stages already complete.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spill = folder / "spill"
        self.keys: dict[str, str] = {}
        self.reused = 0
        self._removed = False

    def path(self, name: str) -> Path:
        """Return the folder of a stage."""
        return self.folder / f"{_STAGE}{name}"

    def claim(self, key: str) -> None:
        """Record the hash of text, recipe and program.

        Stages of another, whose inputs may be missing, are removed.

        Raises:
            RegistryError: a file operation failed.
        """
        mark = self.folder / _MARKER_FILE
        with report_write_errors(self.folder):
            if mark.read_text(encoding="utf-8") == key:
                return
            # if killed here, the next claim removes them
            mark.write_text("", encoding="utf-8")
            for path in list(self.folder.glob(f"{_STAGE}*")):
                self._removed = True
                _discard(path)
            mark.write_text(key, encoding="utf-8")

    def stage(self, name: str, key: str, write: Callable[[Path], Mapping[str, Any] | None]) -> dict[str, Any]:
        """Return a stage's results; run it unless complete for the same key.

        Args:
            name: name of the stage.
            key: hash of all its inputs.
            write: fills an empty folder, and returns more results as JSON values.

        Raises:
            RegistryError: a file operation failed.
        """
        self.keys[name] = key
        target = self.path(name)
        with contextlib.suppress(OSError, ValueError, RecursionError):  # missing or malformed
            found = json.loads((target / _FACTS_FILE).read_bytes())
            if isinstance(found, dict) and found.keys() >= {"key", "facts"} and found["key"] == key:
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
        """Remove a stage's table, which no later one reads; it stays recorded as complete."""
        with report_write_errors(self.folder):
            for path in self.path(name).glob("*.parquet"):
                path.unlink()

    def notes(self) -> list[str]:
        """Return notes for the user on reused and removed stages."""
        removed = f"an unfinished estimation of another text or recipe in {self.folder} was removed"
        reused = f"{self.reused} stages of the estimation were already complete"
        return [removed] * self._removed + [reused] * (self.reused > 0)

    def remove(self) -> None:
        """Remove all stages, after the model is published."""
        for path in list(self.folder.glob(f"{_STAGE}*")):
            with contextlib.suppress(OSError):
                _discard(path)
        shutil.rmtree(self.spill, ignore_errors=True)
        (self.folder / _MARKER_FILE).unlink(missing_ok=True)


@contextlib.contextmanager
def workspace(folder: Path) -> Iterator[Workspace]:
    """Open or create a folder of stages, locked against other processes.

    Raises:
        InputError: another process uses the folder, or it has other contents.
        RegistryError: a file operation failed.
    """
    problem = f"another process is estimating in {folder}; wait until it ends, or give another --work-dir"
    with locked_folder(folder, busy=InputError(problem, param="work-dir")):
        with report_write_errors(folder):
            if not (folder / _MARKER_FILE).exists():
                if any(folder.iterdir()):
                    what = "is not empty and contains no stages of an estimation; give an empty folder"
                    raise InputError(f"{folder} {what}", param="work-dir")
                (folder / _MARKER_FILE).touch()
            for left in folder.glob(f"{TEMPORARY_PREFIX}*"):  # left by a killed process
                shutil.rmtree(left)
            work = Workspace(folder)
            shutil.rmtree(work.spill, ignore_errors=True)
            work.spill.mkdir()
        yield work


def _discard(stage: Path) -> None:
    """Remove a stage by one rename: a partial table would be read as complete."""
    discarded = stage.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    stage.rename(discarded)
    shutil.rmtree(discarded)


def write_windows(
    folder: Path,
    tokenizer: Tokenizer,
    sentences: Sentences,
    *,
    order: int,
    backward: bool,
    held_out: Mapping[str, Sentences],
    progress: Progress,
) -> dict[str, Any]:
    """Encode a text and write its windows, in one pass and bounded memory.

    `token_counts.npy` beside it has each token's count [V], int64.

    Args:
        folder: an empty folder.
        tokenizer: tokenizer with V tokens.
        sentences: the text.
        order: N.
        backward: reverse each sentence.
        held_out: held-out texts, by name, to count their overlap.
        progress: counts sentences.

    Returns:
        Number of `tokens`, including one `</s>` per sentence, and `overlap` with held-out texts, by name.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    vocab_size = len(tokenizer.vocabulary)
    counts = np.zeros(vocab_size, np.int64)
    counters = {name: OverlapCounter(text) for name, text in held_out.items()}
    schema = pa.schema([(f"w{i}", pa.int32()) for i in range(1, order + 1)])
    writer = pq.ParquetWriter(folder / "part.parquet", schema, compression="zstd", compression_level=1)
    with progress.stage("tokenising", len(sentences)), writer as file:
        for block in batches(sentences):
            for counter in counters.values():
                counter.add(block)
            encoded = encode_block(tokenizer, block)
            counts += token_counts(encoded, vocab_size)
            windows = text_windows(encoded.reversed() if backward else encoded, order)
            file.write_table(pa.table(list(windows), schema=schema))
            progress.advance(len(block))
    np.save(folder / COUNTS_FILE, counts)
    return {"tokens": int(counts.sum()), "overlap": {name: c.facts() for name, c in counters.items()}}


def write_vocabulary(folder: Path, vocab_size: int) -> None:
    """Write the ids of all words as a table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"w1": np.arange(vocab_size, dtype=np.int32)}), folder / "part.parquet")


def text_windows(encoded: EncodedCorpus, order: int) -> Int32s:
    """Return the N words from every position [N, rows], an array row per table column.

    Positions with fewer words left in the sentence are included only at its start.
    """
    text = np.append(encoded.with_boundaries(), np.full(order, ABSENT, np.int32))
    columns = np.lib.stride_tricks.sliding_window_view(text, len(text) - order)[:order].copy()
    columns[1:][np.logical_or.accumulate(columns[:-1] == EOS)] = ABSENT  # after the sentence's end
    return columns[:, (columns[-1] != ABSENT) | (columns[0] == BOS)]
