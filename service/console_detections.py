"""What `gramophone evaluate --task check` prints for people; programs use `--json`."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def show_detections(result: Mapping[str, Any]) -> None:
    """How well errors put into a text are found and corrected, by kind, and what each threshold is worth."""
    console = Console()
    console.print(
        f"{result['model']}: {result['words']:,} words on {result['lines']:,} lines for each kind, one in "
        f"{1 / result['error_rate']:.0f} of those that can be made wrong"
    )
    console.print(_by_kind(result["kinds"]))
    console.print()
    console.print(_by_threshold(result["thresholds"]))
    if result["calibration_saved"]:
        console.print("\nsaved: /v1/check takes a precision now")
    console.print(
        Text(
            "\ntuned: the threshold that is best by F0.5 on one half of the lines, on the other", style="dim"
        )
    )


def _by_kind(kinds: Mapping[str, Mapping[str, Any]]) -> Table:
    heads = ("threshold", "precision", "recall", "F0.5", "corrected", "F0.5 gained")
    table = _table("kind of error", "errors", *heads)
    for kind, told in kinds.items():
        tuned, plain = told["tuned"], told["surprisal"]
        gain = "" if told["gain"] is None else f"{told['gain']:+.0%}"
        threshold = f"{tuned['threshold']:.3f}"
        table.add_row(kind.replace("_", " "), f"{told['errors']:,}", threshold, *_cells(tuned), gain)
        table.add_row("  by surprisal alone", "", f"{plain['threshold']:.1f} bits", *_cells(plain))
    return table


def _by_threshold(points: list[Mapping[str, Any]]) -> Table:
    table = _table("all kinds, probability at least", "precision", "recall", "F0.5", "corrected")
    for point in points:
        table.add_row(f"{point['threshold']:g}", *_cells(point))
    return table


def _cells(figures: Mapping[str, Any]) -> list[str]:
    corrected = figures["correction_accuracy"]
    shares = [f"{figures['precision']:.1%}", f"{figures['recall']:.1%}", f"{figures['f0_5']:.3f}"]
    return [*shares, "" if corrected is None else f"{corrected:.1%}"]


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table
