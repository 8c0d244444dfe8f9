"""What `gramophone check` prints for people; programs use `--json`."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from rich.console import Console
from rich.text import Text

_STYLES = {"unknown_word": "bold red underline", "real_word": "bold yellow underline"}
_MIN_SHOWN = 0.005
"""A less probable suggestion is told only if it is the first."""

_KINDS = {"unknown_word": "unknown word", "real_word": "wrong word"}


def show_check(text: str, reply: Mapping[str, Any]) -> None:
    """The lines with issues, what is wrong in them and what may have been meant; then the totals."""
    console = Console(highlight=False)
    lines = text.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)][:-1]
    by_line: dict[int, list[Mapping[str, Any]]] = {}
    for issue in reply["issues"]:
        by_line.setdefault(bisect_right(starts, issue["start"]) - 1, []).append(issue)
    for number, issues in by_line.items():
        console.print(_marked(lines[number], starts[number], issues), soft_wrap=True)
        for issue in issues:
            console.print(_issue_line(number, starts[number], issue), soft_wrap=True)
        console.print()
    console.print(_totals(reply), soft_wrap=True)


def _marked(line: str, start: int, issues: Sequence[Mapping[str, Any]]) -> Text:
    marked = Text(line)
    for issue in issues:
        marked.stylize(_STYLES[issue["type"]], issue["start"] - start, issue["end"] - start)
    return marked


def _issue_line(number: int, start: int, issue: Mapping[str, Any]) -> Text:
    place = f"{number + 1}:{issue['start'] - start + 1}"
    told = Text().append(f"  {place:>7}  ", style="dim")
    told.append(issue["text"], style=_STYLES[issue["type"]])
    told.append(f"  {_KINDS[issue['type']]}, {issue['probability']:.0%}")
    for rank, one in enumerate(issue["suggestions"]):
        if rank and one["probability"] < _MIN_SHOWN:
            break
        told.append(", " if rank else "  → ")
        told.append(one["text"] or "(nothing)", style="" if rank else "green")
        told.append(f" {one['probability']:.0%}", style="dim")
    return told


def _totals(reply: Mapping[str, Any]) -> Text:
    told = f"{_counted(len(reply['issues']), 'issue')} in {_counted(len(reply['words']), 'word')}"
    if reply["bits_per_word"] is not None:
        told += f"; {reply['bits_per_word']:.2f} bits per word"
    if reply["precision"] is not None:
        told += (
            f"; issues as probable as {reply['threshold']:g} were errors in {reply['precision']:.0%} of cases"
        )
    return Text(f"{reply['model']}: {told}", style="dim")


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"
