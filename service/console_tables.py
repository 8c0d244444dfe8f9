"""What several of the command line's tables for people have in common."""

from rich.table import Table
from rich.text import Text

_BAR_WIDTH = 30


def table_of_figures(first: str, *others: str) -> Table:
    """An empty table: names on the left, which are never wrapped, then columns of numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table


def bar(probability: float) -> Text:
    """A probability as a bar; 1 is 30 characters."""
    return Text("█" * round(probability * _BAR_WIDTH), style="blue")
