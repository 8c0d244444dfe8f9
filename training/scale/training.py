"""Out-of-core training of an n-gram model: run the plan stage by stage, then build the model."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from models.errors import InvalidInputError
from models.ngram.model import NGramModel
from models.tokenizers import Tokenizer, load_tokenizer
from training.corpus import EncodedCorpus
from training.ngram.counts import thresholds_by_order
from training.ngram.smoothing.interface import (
    FALLBACK_DISCOUNTS,
    SINGLE_FALLBACK_DISCOUNT,
    Discounts,
    modified_discounts,
    single_discount,
)
from training.progress import Progress
from training.publish import RunContext
from training.recipe import NGramSettings, Recipe
from training.scale.assembly import assemble, open_automaton
from training.scale.engines import QueryEngine, start_engine
from training.scale.options import ScaleOptions, release_memory
from training.scale.plan import PLAN_VERSION, Stage, counting_stages, counts_of_counts, estimation_stages
from training.scale.tables import (
    COUNTS_FILE,
    WindowSettings,
    Workspace,
    stage_key,
    stream_texts,
    write_vocabulary,
    write_windows,
)
from training.single_model import in_model_direction
from training.texts import EncodedTexts, Texts
from training.tokenizer import encode_corpus, learn_tokenizer
from training.trained import Trained, held_out_figures


class EstimatedTables(NamedTuple):
    """Results of the plan, by order from 1.

    Attributes:
        tables: folders of the sorted n-grams with their weights.
        key: hash of all inputs.
        discounts: subtracted from counts.
        fallback_orders: orders with constant discounts, as their counts allow no estimate.
    """

    tables: tuple[Path, ...]
    key: str
    discounts: tuple[Discounts, ...]
    fallback_orders: tuple[int, ...]


class PlanRunner:
    """Runs the incomplete stages of one estimation.

    Args:
        work: workspace of the stages.
        start: starts the engine; called when a stage has to run.
        engine_name: part of each stage's key, as results may differ in bits between engines.
        keys: of the stages `windows` and `vocabulary`.
        progress: reports every stage.
    """

    def __init__(
        self,
        work: Workspace,
        start: Callable[[], QueryEngine],
        *,
        engine_name: str,
        keys: dict[str, str],
        progress: Progress,
    ) -> None:
        self._work = work
        self._start = start
        self._engine_name = engine_name
        self._keys = keys
        self._progress = progress

    def estimate(self, settings: NGramSettings, vocab_size: int) -> EstimatedTables:
        """Count all n-grams and estimate their probabilities.

        Args:
            settings: supported by `options.check_relational`.
            vocab_size: V.

        Raises:
            InvalidInputError: the memory limit is too small.
            RegistryError: the file system refused, or the disk is full.
        """
        order = settings.order
        thresholds = thresholds_by_order(settings.prune, order=order)
        for stage in counting_stages(order, continuations=settings.smoothing != "absolute"):
            self._run(stage)
        for table in ("windows", "starts"):
            self._work.drop(table)
        found = [
            self._discounts(k, three=settings.smoothing == "modified-kneser-ney") for k in range(1, order + 1)
        ]
        fallback = (
            FALLBACK_DISCOUNTS if settings.smoothing == "modified-kneser-ney" else SINGLE_FALLBACK_DISCOUNT
        )
        discounts = tuple(estimated or fallback for estimated in found)
        for k in range(1, order + 1):
            for stage in estimation_stages(
                k, threshold=thresholds[k - 1], discounts=discounts[k - 1], vocab_size=vocab_size
            ):
                self._run(stage)
            for table in (f"counts_{k}", f"shares_{k}", f"probs_{k}"):
                self._work.drop(table)
        names = [f"sorted_{k}" for k in range(1, order + 1)]
        return EstimatedTables(
            tuple(self._work.path(name) for name in names),
            stage_key(*(self._keys[name] for name in names)),
            discounts,
            tuple(k for k, estimated in enumerate(found, start=1) if estimated is None),
        )

    def _run(self, stage: Stage) -> None:
        key = stage_key(
            PLAN_VERSION, self._engine_name, stage.sql, [self._keys[name] for name in stage.inputs]
        )
        self._keys[stage.name] = key

        def write(folder: Path) -> None:
            engine = self._start()
            for name in stage.inputs:
                engine.read(name, self._work.path(name))
            self._progress.start(stage.purpose, 100)
            engine.write(stage, folder, self._progress)
            self._progress.finish()

        self._work.stage(stage.name, key, write)

    def _discounts(self, k: int, *, three: bool) -> Discounts | None:
        """Estimate the discounts of k-grams from counts of counts; None where they allow no estimate."""
        table = f"counts_{k}"

        def count(_: Path) -> dict[str, Sequence[int]]:
            engine = self._start()
            engine.read(table, self._work.path(table))
            found = {int(a): int(n) for a, n in engine.rows(counts_of_counts(k))}
            return {"counts_of_counts": [0, *(found.get(a, 0) for a in range(1, 5))]}

        key = stage_key(counts_of_counts(k), self._keys[table])
        counts = self._work.stage(f"counts_of_counts_{k}", key, count)["counts_of_counts"]
        return modified_discounts(counts) if three else single_discount(counts)


class OutOfCoreResult(NamedTuple):
    """A model to publish, its run, and notes for the user."""

    trained: Trained
    run: RunContext
    notes: list[str]


class EstimationJob(NamedTuple):
    """One out-of-core estimation.

    Attributes:
        title: of the model.
        recipe: supported by `options.check_relational`.
        options: the engine and its limits.
        work: workspace of the stages.
        progress: reports every stage.
    """

    title: str
    recipe: Recipe
    options: ScaleOptions
    work: Workspace
    progress: Progress


def train_out_of_core(job: EstimationJob, files: Sequence[Sequence[Path]]) -> OutOfCoreResult:
    """Estimate by the relational plan, reusing complete stages with the same inputs.

    The model's arrays are mapped from the workspace.

    Args:
        job: the estimation.
        files: for training, validation and test.

    Raises:
        FormatError: a file cannot be read as text.
        InvalidInputError: there is too little text, or the memory limit is too small.
        RegistryError: the file system refused, or the disk is full.
    """
    texts = stream_texts(*files, unit=job.recipe.corpus.unit, progress=job.progress)
    if not len(texts.train.sentences):
        raise InvalidInputError("the corpus has no sentence; at least 1 is needed", parameter="corpus")
    source = stage_key(
        PLAN_VERSION, texts.train.sha256, len(texts.train.sentences), job.recipe.corpus.model_dump()
    )
    held_out_hashes = [None if text is None else text.sha256 for text in (texts.valid, texts.test)]
    job.work.claim(stage_key(source, held_out_hashes, job.options.engine, job.recipe.model_dump()))
    tokenizer = _tokenizer(job, texts, source)
    overlap, keys = _write_tables(job, texts, tokenizer, source, files)
    release_memory()
    began = time.monotonic()
    with _engine(job) as start:
        plan = PlanRunner(job.work, start, engine_name=job.options.engine, keys=keys, progress=job.progress)
        estimated = plan.estimate(job.recipe.ngram, len(tokenizer.vocabulary))
    release_memory()
    model = _assemble_model(job, estimated, tokenizer)
    seconds = time.monotonic() - began
    encoded = _held_out(texts, tokenizer, job.progress)
    figures = held_out_figures(model, in_model_direction(encoded, job.recipe), progress=job.progress)
    facts = {
        "ngrams": np.diff(model.automaton.order_starts).tolist(),
        "smoothing": job.recipe.ngram.smoothing,
        "discounts": [list(d) for d in estimated.discounts],
        "fallback_orders": list(estimated.fallback_orders),
        "discounts_from": "counts",
    }
    trained = Trained(job.title, job.recipe, model, (), facts, figures, seconds)
    counts = np.load(job.work.path("windows") / COUNTS_FILE, allow_pickle=False)
    run = RunContext(tokenizer, texts, encoded, overlap, counts)
    return OutOfCoreResult(trained, run, job.work.notes())


def _tokenizer(job: EstimationJob, texts: Texts, source: str) -> Tokenizer:
    settings = job.recipe.tokenizer

    def learn(folder: Path) -> None:
        learn_tokenizer(settings, texts.train.sentences, progress=job.progress).save(folder)

    job.work.stage("tokenizer", stage_key(source, settings.model_dump()), learn)
    return load_tokenizer(job.work.path("tokenizer"))


def _write_tables(
    job: EstimationJob, texts: Texts, tokenizer: Tokenizer, source: str, files: Sequence[Sequence[Path]]
) -> tuple[dict[str, object], dict[str, str]]:
    """Write text and vocabulary as tables; return the overlap with given held-out texts, and the tables' keys."""
    _, valid, test = files
    given = {"valid": texts.valid if valid else None, "test": texts.test if test else None}
    held_out = {name: text for name, text in given.items() if text is not None}
    reading = WindowSettings(
        job.recipe.ngram.order,
        job.recipe.reading_direction == "backward",
        {name: text.sentences for name, text in held_out.items()},
    )
    vocab_size = len(tokenizer.vocabulary)
    keys = {
        "vocabulary": stage_key(vocab_size),
        "windows": stage_key(
            source,
            tokenizer.fingerprint,
            reading.order,
            reading.backward,
            {name: text.sha256 for name, text in held_out.items()},
        ),
    }
    job.work.stage("vocabulary", keys["vocabulary"], lambda folder: write_vocabulary(folder, vocab_size))
    found = job.work.stage(
        "windows",
        keys["windows"],
        lambda folder: write_windows(folder, tokenizer, texts.train.sentences, reading, job.progress),
    )
    return found["overlap"], keys


def _assemble_model(job: EstimationJob, estimated: EstimatedTables, tokenizer: Tokenizer) -> NGramModel:
    job.work.stage(
        "automaton",
        stage_key(PLAN_VERSION, estimated.key),
        lambda folder: assemble(estimated.tables, folder, job.progress),
    )
    automaton = open_automaton(job.work.path("automaton"))
    for order in range(1, automaton.order + 1):
        job.work.drop(f"sorted_{order}")
    return NGramModel(automaton, tokenizer.vocabulary)


def _held_out(texts: Texts, tokenizer: Tokenizer, progress: Progress) -> EncodedTexts:
    """Encode validation and test texts; the training text is left empty, as it may exceed memory."""
    valid = encode_corpus(tokenizer, texts.valid.sentences, progress=progress)
    test = None if texts.test is None else encode_corpus(tokenizer, texts.test.sentences, progress=progress)
    return EncodedTexts(EncodedCorpus.from_sentences([]), valid, test)


@contextlib.contextmanager
def _engine(job: EstimationJob) -> Iterator[Callable[[], QueryEngine]]:
    """Yield a function that returns the engine, started at the first call."""
    started: list[QueryEngine] = []

    def start() -> QueryEngine:
        if not started:
            started.append(start_engine(job.options, job.work.spill))
        return started[0]

    try:
        yield start
    finally:
        for engine in started:
            engine.close()
