"""What `gramophone evaluate --task check` prints for people; programs use `--json`."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.console.tables import figure_table


def show_check_evaluation(result: Mapping[str, Any]) -> None:
    """How well errors put into a text are found and corrected, by kind, and what each threshold is worth."""
    console = Console()
    console.print(
        f"{result['model']}: {result['words']:,} words on {result['lines']:,} lines for each kind, one in "
        f"{1 / result['error_rate']:.0f} of those that can be made wrong"
    )
    console.print(_by_kind(result["kinds"]))
    if any(told["errors"] for told in result["kinds"].values()):
        console.print()
        console.print(_by_threshold(result["thresholds"]))
    if result["calibration_saved"]:
        console.print("\nsaved: /v1/check takes a precision now")
    notes = (
        "\nthreshold: the best by F0.5 on one half of the lines; its figures are of the other half"
        "\nby surprisal: of each word, given what stands before it; gain: of F0.5 over that"
    )
    console.print(Text(notes, style="dim"))


def _by_kind(kinds: Mapping[str, Mapping[str, Any]]) -> Table:
    heads = ("threshold", "precision", "recall", "F0.5", "corrected", "gain")
    table = figure_table("kind of error", "errors", *heads)
    for kind, told in kinds.items():
        if not told["errors"]:
            table.add_row(kind.replace("_", " "), "none")
            continue
        tuned, plain = told["tuned"], told["surprisal"]
        gain = "" if told["gain"] is None else f"{told['gain']:+.0%}"
        threshold = f"{tuned['threshold']:.3f}"
        table.add_row(kind.replace("_", " "), f"{told['errors']:,}", threshold, *_cells(tuned), gain)
        table.add_row("  by surprisal", "", f"{plain['threshold']:.1f} bits", *_cells(plain))
    return table


def _by_threshold(points: list[Mapping[str, Any]]) -> Table:
    table = figure_table("all kinds, probability at least", "precision", "recall", "F0.5", "corrected")
    for point in points:
        table.add_row(f"{point['threshold']:g}", *_cells(point))
    return table


def _cells(figures: Mapping[str, Any]) -> list[str]:
    corrected = figures["correction_accuracy"]
    shares = [f"{figures['precision']:.1%}", f"{figures['recall']:.1%}", f"{figures['f0_5']:.3f}"]
    return [*shares, "" if corrected is None else f"{corrected:.1%}"]
