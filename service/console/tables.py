"""What several of the command line's tables for people have in common."""

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
