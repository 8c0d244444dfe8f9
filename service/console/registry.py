"""What `gramophone models …` prints for people."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

from service.console.tables import format_number, name_table

_console = Console()


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
