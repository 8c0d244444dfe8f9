"""Out-of-core training of an n-gram model: run the plan stage by stage, then build the model.

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
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from models.arrays import Int32s
from models.checkpoint.folders import fsync_tree, report_write_errors
from models.checkpoint.load import load_tokenizer
from models.errors import InputError
from models.files import TEMPORARY_PREFIX
from models.language_model import BOS, EOS
from models.ngram.model import NGramModel
from models.tokenizers import Tokenizer
from training.corpus import EncodedCorpus, Sentences
from training.evaluation.breakdown import COUNTS_FILE, token_counts
from training.ngram.counts import thresholds_by_order
from training.ngram.estimate import release_memory
from training.ngram.smoothing.kneser_ney import Discounts, discounts_from_counts
from training.progress import Progress
from training.publish import RunContext, facts_by_split
from training.recipe import NGramSettings, Recipe
from training.scale.assembly import assemble, open_automaton
from training.scale.options import ScaleOptions
from training.scale.plan import (
    ABSENT,
    PLAN_VERSION,
    Stage,
    counting_stages,
    counts_of_counts,
    estimation_stages,
)
from training.single_model import Trained, held_out_figures, in_model_direction, locked_folder
from training.texts import EncodedTexts, OverlapCounter, read_texts
from training.tokenizer import batches, encode_block, encode_corpus, learn_tokenizer

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


class QueryEngine(Protocol):
    """Runs SQL over folders of Parquet files."""

    def read(self, name: str, folder: Path) -> None:
        """Register the table in a folder under a name.

        Raises:
            FormatError: the table is missing or damaged.
        """

    def write(self, stage: Stage, folder: Path, progress: Progress) -> None:
        """Write a stage's table into an empty folder; sorted tables in order of file names.

        Raises:
            InputError: the memory limit is too small.
            RegistryError: a file operation failed, or the disk is full.
        """

    def rows(self, sql: str) -> Sequence[Sequence[Any]]:
        """Return the rows of a small query."""

    def close(self) -> None:
        """Release memory and processes."""


def start_engine(options: ScaleOptions, spill: Path) -> QueryEngine:
    """Start the options' engine, which is installed; `spill` is for data beyond the limit.

    Raises:
        InputError: the memory limit is too small.
    """
    if options.engine == "duckdb":
        from training.scale.duckdb_engine import DuckDBEngine

        return DuckDBEngine(options.memory_limit_bytes, spill)
    from training.scale.spark_engine import SparkEngine

    return SparkEngine(options.memory_limit_bytes, spill)


class PlanRunner(NamedTuple):
    """Runner of the incomplete stages of one estimation.

    Attributes:
        work: workspace with the stages `windows` and `vocabulary`.
        start: starts the engine if a stage has to run.
        engine_name: part of stages' keys: engines may differ in the last bits.
        progress: reports every stage.
    """

    work: Workspace
    start: Callable[[], QueryEngine]
    engine_name: str
    progress: Progress

    def estimate(
        self, settings: NGramSettings, vocab_size: int
    ) -> tuple[list[Path], list[Discounts], list[int]]:
        """Count all n-grams and estimate their probabilities.

        Args:
            settings: settings accepted by `options.check_relational`.
            vocab_size: V.

        Returns:
            By order from 1, the folders of sorted n-grams with weights, and the
            discounts; and orders with constant discounts, as counts allow no estimate.

        Raises:
            InputError: the memory limit is too small.
            RegistryError: a file operation failed, or the disk is full.
        """
        order = settings.order
        thresholds = thresholds_by_order(settings.prune, order=order)
        for stage in counting_stages(order, continuations=settings.smoothing != "absolute"):
            self._run(stage)
        for table in ("windows", "starts"):
            self.work.drop(table)
        num_discounts: Literal[1, 3] = 3 if settings.smoothing == "modified-kneser-ney" else 1
        found = [
            discounts_from_counts(self._counts_of_counts(k), num_discounts=num_discounts)
            for k in range(1, order + 1)
        ]
        for k, (discounts, _) in enumerate(found, start=1):
            for stage in estimation_stages(
                k, threshold=thresholds[k - 1], discounts=discounts, vocab_size=vocab_size
            ):
                self._run(stage)
            for table in (f"counts_{k}", f"shares_{k}", f"probs_{k}"):
                self.work.drop(table)
        return (
            [self.work.path(f"sorted_{k}") for k in range(1, order + 1)],
            [discounts for discounts, _ in found],
            [k for k, (_, is_estimated) in enumerate(found, start=1) if not is_estimated],
        )

    def _run(self, stage: Stage) -> None:
        inputs = [self.work.keys[name] for name in stage.inputs]
        key = stage_key(PLAN_VERSION, self.engine_name, stage.sql, inputs)

        def write(folder: Path) -> None:
            engine = self.start()
            for name in stage.inputs:
                engine.read(name, self.work.path(name))
            with self.progress.stage(stage.purpose, 100):
                engine.write(stage, folder, self.progress)

        self.work.stage(stage.name, key, write)

    def _counts_of_counts(self, k: int) -> list[int]:
        """Count the k-grams with counts 0 to 4; the first is always 0."""
        table = f"counts_{k}"

        def count(_: Path) -> dict[str, Sequence[int]]:
            engine = self.start()
            engine.read(table, self.work.path(table))
            found = {int(a): int(n) for a, n in engine.rows(counts_of_counts(k))}
            return {"counts_of_counts": [0, *(found.get(a, 0) for a in range(1, 5))]}

        key = stage_key(counts_of_counts(k), self.work.keys[table])
        return list(self.work.stage(f"counts_of_counts_{k}", key, count)["counts_of_counts"])


def train_out_of_core(
    title: str,
    recipe: Recipe,
    files: Sequence[Sequence[Path]],
    options: ScaleOptions,
    work: Workspace,
    progress: Progress,
) -> tuple[Trained, RunContext, list[str]]:
    """Estimate by the relational plan; complete stages of these inputs are reused.

    The model's arrays are mapped from the workspace.

    Args:
        title: title of the model.
        recipe: recipe accepted by `options.check_relational`.
        files: files for training, validation and test.
        options: engine and limits.
        work: workspace of the stages.
        progress: reports every stage.

    Returns:
        A model to publish, its run, and notes for the user.

    Raises:
        FormatError: a file cannot be read as text.
        InputError: too little text, or the memory limit is too small.
        RegistryError: a file operation failed, or the disk is full.
    """
    texts = read_texts(*files, unit=recipe.corpus.unit, stream=True, progress=progress)
    source = stage_key(
        PLAN_VERSION, texts.train.sha256, len(texts.train.sentences), recipe.corpus.model_dump()
    )
    held_out_hashes = [None if text is None else text.sha256 for text in (texts.valid, texts.test)]
    work.claim(stage_key(source, held_out_hashes, options.engine, recipe.model_dump()))
    settings = recipe.tokenizer
    work.stage(
        "tokenizer",
        stage_key(source, settings.model_dump()),
        lambda folder: learn_tokenizer(settings, texts.train.sentences, progress=progress).save(folder),
    )
    tokenizer = load_tokenizer(work.path("tokenizer"))
    given = {"valid": texts.valid if files[1] else None, "test": texts.test if files[2] else None}
    held_out = {name: text for name, text in given.items() if text is not None}
    order, backward = recipe.ngram.order, recipe.reading_direction == "backward"
    vocab_size = len(tokenizer.vocabulary)
    work.stage("vocabulary", stage_key(vocab_size), lambda folder: write_vocabulary(folder, vocab_size))
    hashes = {name: text.sha256 for name, text in held_out.items()}
    compared = {name: text.sentences for name, text in held_out.items()}
    write = partial(write_windows, order=order, backward=backward, held_out=compared, progress=progress)
    written = work.stage(
        "windows",
        stage_key(source, tokenizer.fingerprint, order, backward, hashes),
        lambda folder: write(folder, tokenizer, texts.train.sentences),
    )
    release_memory()
    began = time.monotonic()
    with contextlib.ExitStack() as stack:

        @cache  # the engine starts only if a stage has to run
        def start() -> QueryEngine:
            return stack.enter_context(contextlib.closing(start_engine(options, work.spill)))

        plan = PlanRunner(work, start, engine_name=options.engine, progress=progress)
        tables, discounts, fallback_orders = plan.estimate(recipe.ngram, vocab_size)
    release_memory()
    key = stage_key(PLAN_VERSION, stage_key(*(work.keys[f"sorted_{k}"] for k in range(1, len(tables) + 1))))
    work.stage("automaton", key, lambda folder: assemble(tables, folder, progress))
    model = NGramModel(open_automaton(work.path("automaton")), tokenizer.vocabulary)
    for k in range(1, len(tables) + 1):
        work.drop(f"sorted_{k}")
    seconds = time.monotonic() - began
    valid = encode_corpus(tokenizer, texts.valid.sentences, progress=progress)
    test = None if texts.test is None else encode_corpus(tokenizer, texts.test.sentences, progress=progress)
    # no training text: it may exceed memory
    encoded = EncodedTexts(EncodedCorpus.from_sentences([]), valid, test)
    figures = held_out_figures(model, in_model_direction(encoded, recipe), progress=progress)
    facts = {
        "ngrams": np.diff(model.automaton.order_starts).tolist(),
        "smoothing": recipe.ngram.smoothing,
        "discounts": [list(d) for d in discounts],
        "fallback_orders": fallback_orders,
        "discounts_from": "counts",
    }
    trained = Trained(title, recipe, model, (), facts, figures, seconds)
    counts = np.load(work.path("windows") / COUNTS_FILE, allow_pickle=False)
    run = RunContext(tokenizer, facts_by_split(texts), encoded, written["overlap"], counts)
    return trained, run, work.notes()
