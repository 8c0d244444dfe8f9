"""The tasks of `gramophone evaluate`: which options go with each, and how its figures are shown."""

from collections.abc import Mapping
from typing import Any

from models.errors import InvalidInputError

_TASK_OPTIONS = {
    "perplexity": {"unit", "context", "window", "detail", "against", "overlap", "dynamic"},
    "autocomplete": {"unit", "context", "against", "report"},
    "check": {"kinds", "save-calibration"},
}


def check_task_options(task: str, given: set[str]) -> None:
    """Refuse options that a task would pass over in silence.

    Raises:
        InvalidInputError: one goes with another task; the message names it.
    """
    for name in sorted(given - _TASK_OPTIONS[task]):
        fitting = [other for other, options in _TASK_OPTIONS.items() if name in options]
        raise InvalidInputError(
            f"--{name} goes with --task {' or '.join(fitting)}, the task is {task}",
            parameter=name.replace("-", "_"),
        )


def print_task_result(task: str, result: Mapping[str, Any]) -> None:
    """Print a task's figures for people."""
    if task == "autocomplete":
        from service.console.typist import show_autocomplete_evaluation

        show_autocomplete_evaluation(result)
    elif task == "check":
        from service.console.detections import show_check_evaluation

        show_check_evaluation(result)
    else:
        from service.console import evaluation

        evaluation.show_evaluation(result)
