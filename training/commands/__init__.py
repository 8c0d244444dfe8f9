"""What the command line's commands about training do; the command line itself is the service's."""

from training.commands.arpa import run_export_arpa, run_import_arpa
from training.commands.evaluating import (
    run_dynamic_evaluation,
    run_evaluate,
    run_evaluate_autocomplete,
    run_evaluate_check,
)
from training.commands.training import QUICKSTART_NAME, run_train
from training.scale.options import scale_options

__all__ = [
    "QUICKSTART_NAME",
    "run_dynamic_evaluation",
    "run_evaluate",
    "run_evaluate_autocomplete",
    "run_evaluate_check",
    "run_export_arpa",
    "run_import_arpa",
    "run_train",
    "scale_options",
]
