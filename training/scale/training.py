"""Out-of-core training of an n-gram model: run the plan stage by stage, then build the model."""

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from models.checkpoint.load import load_tokenizer
from models.ngram.model import NGramModel
from training.corpus import EncodedCorpus
from training.evaluation.breakdown import COUNTS_FILE
from training.ngram.counts import thresholds_by_order
from training.ngram.estimate import release_memory
from training.ngram.smoothing.kneser_ney import Discounts, discounts_from_counts
from training.progress import Progress
from training.publish import RunContext, facts_by_split
from training.recipe import NGramSettings, Recipe
from training.scale.assembly import assemble, open_automaton
from training.scale.options import ScaleOptions
from training.scale.plan import PLAN_VERSION, Stage, counting_stages, counts_of_counts, estimation_stages
from training.scale.tables import Workspace, stage_key, write_vocabulary, write_windows
from training.single_model import Trained, held_out_figures, in_model_direction
from training.texts import EncodedTexts, read_texts
from training.tokenizer import encode_corpus, learn_tokenizer


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
