"""Completions as the command line prints them for people."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_BAR_WIDTH = 30
_console = Console()


def show_completions(text: str, reply: dict[str, Any]) -> None:
    """Completions with bars, what was typed dimmed before what is added."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("completion", "probability", "", "remarks"):
        table.add_column(name, justify="right" if name == "probability" else "left")
    for one in reply["completions"]:
        bar = Text("█" * round(one["probability"] * _BAR_WIDTH), style="blue")
        table.add_row(_shown(reply["prefix"], one), f"{one['probability']:.4f}", bar, _remarks(one))
    _console.print(Text(text[-_console.width :] or "(the start of a sentence)", style="bold"))
    _console.print(table)
    if reply["unexplored_mass"] >= 5e-5:
        _console.print(f"not followed to the end of a word: {reply['unexplored_mass']:.4f}", style="dim")


def _shown(prefix: str, one: dict[str, Any]) -> Text:
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
