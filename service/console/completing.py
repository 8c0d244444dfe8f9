"""Completions as the command line prints them for people."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.console.tables import probability_bar

_MIN_PROBABILITY = 5e-4
"""Less unexplored mass would be told as nothing."""

_console = Console()


def show_completions(text: str, reply: dict[str, Any]) -> None:
    """Completions with bars, what was typed dimmed before what is added."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    remarks = [_remarks(one) for one in reply["completions"]]
    for name in ("completion", "probability", "", "remarks" if any(remarks) else ""):
        table.add_column(name, justify="right" if name == "probability" else "left")
    for one, remark in zip(reply["completions"], remarks, strict=True):
        probability = one["probability"]
        table.add_row(
            _completion_text(reply["prefix"], one), f"{probability:.4f}", probability_bar(probability), remark
        )
    _console.print(Text(text[-_console.width :] or "(the start of a sentence)", style="bold"))
    _console.print(table if remarks else "no completion")
    if reply["unexplored_mass"] >= _MIN_PROBABILITY:
        told = f"not followed to the end of a word: {reply['unexplored_mass']:.1%}"
        _console.print(Text(told, style="dim"))


def _completion_text(prefix: str, one: dict[str, Any]) -> Text:
    if one["suffix"] is None:
        return Text(one["text"])
    return Text.assemble((prefix, "dim"), one["text"][len(prefix) :])


def _remarks(one: dict[str, Any]) -> str:
    remarks = []
    if not one["is_complete_word"]:
        remarks.append("begins so")
    if one["edits"]:
        remarks.append("1 correction" if one["edits"] == 1 else f"{one['edits']} corrections")
    if one["source"] == "user":
        remarks.append("dictionary")
    return ", ".join(remarks)
