"""The plan carried out, stage by stage: from windows to the sorted tables of all orders."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from training.ngram.count_pruning import thresholds_by_order
from training.ngram.smoothing.discounts import (
    FALLBACK_DISCOUNTS,
    SINGLE_FALLBACK_DISCOUNT,
    Discounts,
    modified_discounts,
    single_discount,
)
from training.progress import Progress
from training.recipe import NGramSettings
from training.scale.engines import QueryEngine
from training.scale.plan import PLAN_VERSION, Stage, counting_stages, counts_of_counts, estimation_stages
from training.scale.workspace import Workspace, stage_key


class EstimatedTables(NamedTuple):
    """What the plan found, by order from 1.

    Attributes:
        tables: folders of the sorted n-grams with their weights.
        key: a hash of all that went in.
        discounts: what was taken from counts.
        fallback_orders: the orders whose discounts are constants, as their counts allow no estimate.
    """

    tables: tuple[Path, ...]
    key: str
    discounts: tuple[Discounts, ...]
    fallback_orders: tuple[int, ...]


class PlanRunner:
    """The stages of one estimation, run where they have not been.

    Args:
        work: where stages are kept.
        start: starts the engine; called when a stage has to be run.
        engine_name: part of what a stage's result depends on, to the bit.
        keys: those of the stages `windows` and `vocabulary`.
        progress: told of every stage.
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
        """Count and weigh all n-grams.

        Args:
            settings: how; see `options.check_relational` for what is possible.
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
        """What counts of counts say; None where they allow no estimate."""
        table = f"counts_{k}"

        def count(_: Path) -> dict[str, Sequence[int]]:
            engine = self._start()
            engine.read(table, self._work.path(table))
            found = {int(a): int(n) for a, n in engine.rows(counts_of_counts(k))}
            return {"counts_of_counts": [0, *(found.get(a, 0) for a in range(1, 5))]}

        key = stage_key(counts_of_counts(k), self._keys[table])
        counts = self._work.stage(f"counts_of_counts_{k}", key, count)["counts_of_counts"]
        return modified_discounts(counts) if three else single_discount(counts)
