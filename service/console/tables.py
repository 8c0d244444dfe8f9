"""Shared tables and bars, and the output of commands that query models, the registry or settings."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_BAR_WIDTH = 30
_WORDS = frozenset({"", "family", "aliases", "created", "split"})


def figure_table(first: str, *others: str) -> Table:
    """An empty table: names on the left, which are never wrapped, then columns of numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table


def name_table(first: str, *others: str) -> Table:
    """An empty table: names or texts of any length on the left, then columns of numbers or short words."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="left" if name in _WORDS else "right")
    return table


def probability_bar(probability: float) -> Text:
    """A probability as a bar; 1 is 30 characters."""
    return Text("█" * round(probability * _BAR_WIDTH), style="blue")


def format_number(value: float | None, digits: int = 2) -> str:
    """A figure with its thousands set off; None is infinite."""
    return "infinite" if value is None else f"{value:,.{digits}f}"


_console = Console()


def show_next(reply: dict[str, Any]) -> None:
    """Candidates with bars."""
    result = reply["results"][0]
    of_words = "unexplored_mass" in result
    table = name_table("word" if of_words else "token", "probability", "", "logprob")
    for candidate in result["candidates"]:
        p = math.exp(candidate["logprob"])
        told = f"{p:.4f}", probability_bar(p), f"{candidate['logprob']:.3f}"
        table.add_row(Text(_visible(candidate["text"])), *told)
    _console.print(table)
    if of_words:
        _console.print(
            f"{reply['model']}: not followed to the end of a word: {result['unexplored_mass']:.1%}"
        )
    elif result["entropy_bits"] is not None:
        _console.print(f"{reply['model']}: entropy {result['entropy_bits']:.2f} bits")


def show_scores(texts: Sequence[str], reply: dict[str, Any]) -> None:
    """A line a text, its tokens or words below it if they were asked for, and the totals."""
    table = name_table("text", "logprob", "tokens", "OOV", "perplexity")
    for text, result in zip(texts, reply["results"], strict=True):
        table.add_row(Text(text), *_score_cells(result))
        for part in result["tokens"] or result["words"]:
            table.add_row(
                Text(f"  {_visible(part['text'])}", style="dim"), f"{part['logprob']:.4f}", "", "", ""
            )
    if len(texts) > 1:
        table.add_section()
        table.add_row("all", *_score_cells(reply["corpus"]))
    _console.print(table)


def _score_cells(result: dict[str, Any]) -> list[str]:
    return [
        f"{result['logprob']:.4f}",
        f"{result['num_tokens']:,}",
        f"{result['num_oov']:,}",
        format_number(result["perplexity"]),
    ]


def _visible(token: str) -> str:
    """A token with its spaces to be seen."""
    return token.replace("\n", "⏎").replace(" ", "▁")


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


_MIN_PROBABILITY = 5e-4
"""Less unexplored mass would be told as nothing."""


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


def show_models(rows: Sequence[dict[str, Any]]) -> None:
    """A line a version."""
    table = name_table(
        "model", "aliases", "family", "parameters", "perplexity per token", "per word", "created"
    )
    for row in rows:
        if "problem" in row:
            table.add_row(
                row["model"], " ".join(row["aliases"]), Text(f"cannot be used: {row['problem']}", style="red")
            )
            continue
        table.add_row(
            row["model"],
            " ".join(row["aliases"]),
            row["family"],
            f"{row['parameters']:,}",
            f"{format_number(row['perplexity'])} ({row['split']})" if row["split"] else "",
            format_number(row["word_perplexity"]) if row["split"] else "",
            row["created"][:10],
        )
    _console.print(table)


def show_card(markdown: str) -> None:
    """A model card."""
    _console.print(Markdown(markdown))


def show_settings() -> None:
    """Every setting's variable and default, and below them what it means."""
    from service.settings import PREFIX, Settings  # tables of other commands need none

    console = Console()
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None or field.default == () else f"={field.default}"
        console.print(Text.assemble((f"{PREFIX}{name.upper()}", "bold"), default))
        console.print(Padding(Text(field.description or ""), (0, 0, 1, 4)))
