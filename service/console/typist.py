"""What `gramophone evaluate --task autocomplete` prints for people; programs use `--json`."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.console.tables import figure_table

_POSITIONS = {"next_word": "before a word's first letter", "any_letter": "before any letter"}


def show_autocomplete_evaluation(result: Mapping[str, Any]) -> None:
    """What completions spare, how often they are right, and what a keystroke costs; two models if there are two."""
    console = Console()
    models = [result, *([result["against"]] if "against" in result else [])]
    console.print(
        f"{result['words']:,} words on {result['lines']:,} lines, {result['unknown_words']:,} of them not in the "
        f"vocabulary; {result['keys']:,} keys without completions; {result['context']} context"
    )
    console.print(_typing_figures(result))
    for model in models:
        console.print()
        console.print(_by_letters(model))
    for key, where in _POSITIONS.items():
        console.print()
        console.print(_acceptance(result["acceptance"][key], where))
    console.print()
    for model in models:
        took = model["keystroke_ms"]
        console.print(
            f"one keystroke with {model['model']}, {model['precision']}: {took['p50']:.2f} ms median, "
            f"{took['p99']:.2f} ms p99 (of {took['keystrokes']:,})"
        )
    console.print(Text("\nintervals hold a figure with 95 % probability: bootstrap over lines", style="dim"))


def _typing_figures(result: Mapping[str, Any]) -> Table:
    against = result.get("against")
    others = ["", result["model"]] + ([against["model"], "difference"] if against else [])
    table = figure_table(*others)
    for name, own in result["figures"].items():
        cells = [_with_interval(name, own)]
        if against:
            cells += [_share(name, against["figures"][name]["value"])]
            cells += [_with_interval(name, against["difference"][name], "+")]
        table.add_row(name.removeprefix("mean_").replace("_", " "), *cells)
    return table


def _by_letters(model: Mapping[str, Any]) -> Table:
    table = figure_table(f"letters typed ({model['model']})", "longer words", "first is right", "among three")
    for row in model["recall_by_letters"]:
        cells = (f"{row['words']:,}", f"{row['top_1']:.1%}", f"{row['top_3']:.1%}")
        table.add_row(str(row["letters"]), *cells)
    return table


def _acceptance(rows: list[Mapping[str, float]], where: str) -> Table:
    table = figure_table(f"shown {where}", "least probable", "mean probability", "right")
    for row in rows:
        cells = (f"{row['threshold']:.3f}", f"{row['mean_probability']:.1%}", f"{row['precision']:.1%}")
        table.add_row(f"{row['coverage']:.0%}", *cells)
    return table


def _with_interval(name: str, figure: Mapping[str, Any], sign: str = "") -> str:
    """A figure and its interval."""
    if figure["value"] is None:
        return "none"
    value, low, high = (_share(name, figure[key], sign) for key in ("value", "low", "high"))
    return f"{value} ({low.rstrip('%')} to {high.rstrip('%')})"


def _share(name: str, value: float | None, sign: str = "") -> str:
    """A share in per cent; a reciprocal rank or a length with three digits."""
    if value is None:
        return "none"
    return f"{value:{sign}.3f}" if "mrr" in name or "length" in name else f"{value:{sign}.1%}"
