"""Shared tables, bars and progress lines; output about models, the registry and settings."""

import math
import sys
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Self

from rich.console import Console, JustifyMethod
from rich.markdown import Markdown
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_console = Console()
_BAR_WIDTH = 30
_WORDS = frozenset({"", "family", "aliases", "created", "split", "remarks"})

_STYLES = {"unknown_word": "bold red underline", "real_word": "bold yellow underline"}
_MIN_SHOWN = 0.005
"""Minimum probability of suggestions after the first."""

_KINDS = {"unknown_word": "unknown word", "real_word": "wrong word"}

_MIN_PROBABILITY = 5e-4
"""Minimum unexplored mass to show; less is rounded to 0."""


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str | Text]], *, folded: bool = False
) -> None:
    """Print a table: names, folded if long, then columns of numbers or short words.

    Texts are no markup; a short row is filled up.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, name in enumerate(headings):
        justify: JustifyMethod = "left" if not number or name in _WORDS else "right"
        table.add_column(name, justify=justify, no_wrap=not (number or folded), overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    _console.print(table)


def probability_bar(probability: float) -> Text:
    """Draw a probability as a bar, 30 characters wide for 1."""
    return Text("█" * round(probability * _BAR_WIDTH), style="blue")


def format_number(value: float | None, digits: int = 2) -> str:
    """Format a number with thousands separators; None as `infinite`."""
    return "infinite" if value is None else f"{value:,.{digits}f}"


class ProgressLine:
    """Progress on standard error until the context ends.

    It is one updated line on a terminal, else a line every 10 s. Writing takes only microseconds, because
    it bypasses rich.
    """

    def __init__(self) -> None:
        self.on_terminal = sys.stderr.isatty()
        self._interval_s = 0.1 if self.on_terminal else 10.0
        self._written_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Clear the updated line."""
        if self.on_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    @property
    def is_due(self) -> bool:
        """True if a line is due."""
        return time.monotonic() - self._written_s >= self._interval_s

    def write(self, line: str) -> None:
        """Write a line; on a terminal, replace the previous one."""
        self._written_s = time.monotonic()
        sys.stderr.write(f"\r\x1b[K{line}" if self.on_terminal else f"{line}\n")
        sys.stderr.flush()


def show_next(reply: dict[str, Any]) -> None:
    """Print candidate tokens or words with bars."""
    result = reply["results"][0]
    of_words = "unexplored_mass" in result
    rows = [
        (_visible(one["text"]), f"{p:.4f}", probability_bar(p), f"{one['logprob']:.3f}")
        for one in result["candidates"]
        for p in [math.exp(one["logprob"])]
    ]
    print_table(("word" if of_words else "token", "probability", "", "logprob"), rows, folded=True)
    if of_words:
        _console.print(f"{reply['model']}: unexplored probability: {result['unexplored_mass']:.1%}")
    elif result["entropy_bits"] is not None:
        _console.print(f"{reply['model']}: entropy {result['entropy_bits']:.2f} bits")


def show_scores(texts: Sequence[str], reply: dict[str, Any]) -> None:
    """Print a row per text, with any tokens or words of the reply, and the totals."""
    rows = list[tuple[str | Text, ...]]()
    for text, result in [*zip(texts, reply["results"], strict=True), ("all", reply["corpus"])]:
        counts = (f"{result[key]:,}" for key in ("num_tokens", "num_oov"))
        rows.append((text, f"{result['logprob']:.4f}", *counts, format_number(result["perplexity"])))
        for part in result.get("tokens") or result.get("words") or ():
            rows.append((Text(f"  {_visible(part['text'])}", style="dim"), f"{part['logprob']:.4f}"))
    headings = ("text", "logprob", "tokens", "OOV", "perplexity")
    print_table(headings, rows if len(texts) > 1 else rows[:-1], folded=True)


def _visible(token: str) -> str:
    """Replace spaces and line ends of a token by visible characters."""
    return token.replace("\n", "⏎").replace(" ", "▁")


def show_check(text: str, reply: Mapping[str, Any]) -> None:
    """Print each line with issues, these, their suggestions, and the totals."""
    console = Console(highlight=False)
    lines = text.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)][:-1]
    by_line: dict[int, list[Mapping[str, Any]]] = {}
    for issue in reply["issues"]:
        by_line.setdefault(bisect_right(starts, issue["start"]) - 1, []).append(issue)
    for number, issues in by_line.items():
        line, start = Text(lines[number]), starts[number]
        for issue in issues:
            line.stylize(_STYLES[issue["type"]], issue["start"] - start, issue["end"] - start)
        console.print(line, soft_wrap=True)
        for issue in issues:
            console.print(_issue_line(number, start, issue), soft_wrap=True)
        console.print()
    summary = f"{_counted(len(reply['issues']), 'issue')} in {_counted(len(reply['words']), 'word')}"
    if reply["bits_per_word"] is not None:
        summary += f"; {reply['bits_per_word']:.2f} bits per word"
    if reply["precision"] is not None:
        summary += f"; measured precision at threshold {reply['threshold']:g}: {reply['precision']:.0%}"
    console.print(Text(f"{reply['model']}: {summary}", style="dim"), soft_wrap=True)


def _issue_line(number: int, start: int, issue: Mapping[str, Any]) -> Text:
    position = f"{number + 1}:{issue['start'] - start + 1}"
    line = Text().append(f"  {position:>7}  ", style="dim")
    line.append(issue["text"], style=_STYLES[issue["type"]])
    line.append(f"  {_KINDS[issue['type']]}, {issue['probability']:.0%}")
    for rank, suggestion in enumerate(issue["suggestions"]):
        if rank and suggestion["probability"] < _MIN_SHOWN:
            break
        line.append(", " if rank else "  → ")
        line.append(suggestion["text"] or "(nothing)", style="" if rank else "green")
        line.append(f" {suggestion['probability']:.0%}", style="dim")
    return line


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def show_completions(text: str, reply: dict[str, Any]) -> None:
    """Print completions with bars; the typed prefix is dimmed."""
    remarks = [_remarks(completion) for completion in reply["completions"]]
    rows = []
    for completion, remark in zip(reply["completions"], remarks, strict=True):
        word, suffix, p = (completion[name] for name in ("text", "suffix", "probability"))
        num_typed = 0 if suffix is None else len(word) - len(suffix.lstrip())
        shown = Text.assemble((word[:num_typed], "dim"), word[num_typed:])
        rows.append((shown, f"{p:.4f}", probability_bar(p), remark))
    _console.print(Text(text[-_console.width :] or "(the start of a sentence)", style="bold"))
    if rows:
        headings = ("completion", "probability", "", "remarks" if any(remarks) else "")
        print_table(headings, rows, folded=True)
    else:
        _console.print("no completion")
    if reply["unexplored_mass"] >= _MIN_PROBABILITY:
        note = f"unexplored probability: {reply['unexplored_mass']:.1%}"
        _console.print(Text(note, style="dim"))


def _remarks(completion: dict[str, Any]) -> str:
    remarks = {
        "prefix of a word": not completion["is_complete_word"],
        _counted(completion["edits"], "correction"): completion["edits"],
        "dictionary": completion["source"] == "user",
    }
    return ", ".join(remark for remark, applies in remarks.items() if applies)


def show_models(rows: Sequence[dict[str, Any]]) -> None:
    """Print a row per version."""
    cells = list[tuple[str | Text, ...]]()
    for row in rows:
        names = row["model"], " ".join(row["aliases"])
        if "problem" in row:
            cells.append((*names, Text(f"cannot be used: {row['problem']}", style="red")))
            continue
        per_token = f"{format_number(row['perplexity'])} ({row['split']})" if row["split"] else ""
        per_word = format_number(row["word_perplexity"]) if row["split"] else ""
        parameters = f"{row['parameters']:,}"
        cells.append((*names, row["family"], parameters, per_token, per_word, row["created"][:10]))
    headings = ("model", "aliases", "family", "parameters", "perplexity per token", "per word", "created")
    print_table(headings, cells, folded=True)
    restoring = [
        f"{row['model']} ({'capitals ' * told['capitals']}{told['marks']})"
        for row in rows
        if (told := row.get("restores"))
    ]
    if restoring:
        _console.print(Text(f"\nFor `gramophone restore`: {', '.join(restoring)}"))


def show_card(markdown: str) -> None:
    """Print a model card."""
    _console.print(Markdown(markdown))


def show_settings() -> None:
    """Print the variable, default and meaning of every setting."""
    from service.settings import described_settings  # only for this table

    console = Console()
    for variable, default, meaning in described_settings():
        console.print(Text.assemble((variable, "bold"), "" if default == "" else f"={default}"))
        console.print(Padding(Text(meaning), (0, 0, 1, 4)))
