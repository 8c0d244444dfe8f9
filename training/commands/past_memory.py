"""`gramophone train --engine duckdb|spark`: an n-gram model of a text past memory, published as a new version."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.checkpoint.registry import Registry
from training.commands.result import training_result
from training.neural.interruption import exit_on_sigterm
from training.progress import Progress
from training.publishing import publish
from training.recipe import Recipe
from training.scale.engines import require_engine
from training.scale.memory import engine_memory_bytes
from training.scale.options import ScaleOptions, check_relational
from training.scale.training import EstimationJob, train_out_of_core
from training.scale.workspace import workspace

_RUNS_FOLDER = Path(".runs")
_ESTIMATION_FOLDER = "estimation"


def train_out_of_core_command(
    recipe: Recipe,
    files: Sequence[Sequence[Path]],
    target: tuple[Registry, str],
    options: ScaleOptions,
    *,
    recipe_name: str,
    progress: Progress,
) -> dict[str, Any]:
    """Estimate by the relational plan and publish; the stages are removed then, and kept where that fails.

    Args:
        recipe: what to do.
        files: to learn from, to decide by, to report on.
        target: the registry, and the name to publish under.
        options: the engine and its limits.
        recipe_name: the recipe's name or path.
        progress: told of every stage.

    Returns:
        What `run_train` does.

    Raises:
        LanguageModelError: bad input, or the registry refused; nothing is half published.
    """
    check_relational(recipe, options.engine, name=recipe_name)
    require_engine(options.engine)
    if options.engine == "duckdb":
        engine_memory_bytes(options.memory_limit_bytes)  # too small a limit is told before any text is read
    store, name = target
    folder = options.work_dir or store.work_folder / _RUNS_FOLDER / name / _ESTIMATION_FOLDER
    with exit_on_sigterm(), workspace(folder) as work:
        job = EstimationJob(Path(recipe_name).stem, recipe, options, work, progress)
        outcome = train_out_of_core(job, files)
        version = publish(store, name, outcome.trained, outcome.run)
        result = training_result(store, version, outcome.trained, outcome.run, said=outcome.notes)
        work.remove()
    if options.work_dir is None:
        with contextlib.suppress(OSError):  # there may be an unfinished network of that name
            folder.rmdir()
            folder.parent.rmdir()
    return result
