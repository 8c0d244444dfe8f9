"""What `gramophone train`, and importing and exporting models, print for people."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from service.console.evaluation import show_figures
from service.console.tables import format_number, name_table

_console = Console()


def show_training(result: dict[str, Any]) -> None:
    """A fresh model's address and figures, a mixture's parts beside it."""
    table = name_table("model", "weight", "split", "perplexity per token", "per word", "bits per byte")
    for name, weight, figures in [*_part_rows(result), (result["model"], "", result)]:
        for split in ("valid", "test"):
            if split in figures:
                f = figures[split]
                table.add_row(
                    Text(name),
                    weight,
                    split,
                    format_number(f["perplexity"]),
                    format_number(f["word_perplexity"]),
                    format_number(f["bits_per_byte"], 3),
                )
    _console.print(table)
    _show_card_notes(result)
    _console.print(
        f"published [bold]{result['model']}[/] in {escape(result['path'])}; training took {result['seconds']:.0f} s"
    )


def _part_rows(result: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, weight and figures of all parts, each after its own parts."""
    for part in result.get("parts", ()):
        yield from _part_rows(part)
        yield part["name"], f"{part['weight']:.3f}", part


def show_import(result: dict[str, Any]) -> None:
    """An imported model: what is in it, its figures if there are any, and what to know of its file."""
    table = name_table("", *(f"order {order}" for order in range(1, len(result["ngrams"]) + 1)))
    table.add_row("n-grams", *(f"{count:,}" for count in result["ngrams"]))
    _console.print(table)
    if "test" in result:
        show_figures(result["test"])
    _show_card_notes(result)
    _console.print(
        f"published [bold]{result['model']}[/] in {escape(result['path'])}; it took {result['seconds']:.0f} s"
    )


def show_export(result: dict[str, Any]) -> None:
    """A file that was written, and what its readers must know."""
    count = sum(result["ngrams"])
    _console.print(
        f"wrote {result['model']} to {escape(result['path'])}: {count:,} n-grams, {result['bytes']:,} bytes, "
        f"in {result['seconds']:.0f} s"
    )
    if result["escaped_words"]:
        _console.print(
            f"note: {result['escaped_words']:,} words have white space in them or are spelled like control tokens; "
            "all words are written with % escapes, as a comment in the file says"
        )
    if result["log_zero"] is not None:
        _console.print(
            f"note: a back-off weight of {result['log_zero']:g} stands for minus infinity, as a comment says"
        )
    if not result["splits_at_spaces"]:
        _console.print(
            "note: the file has no place for the model's tokenizer, which does more than split at spaces"
        )


def _show_card_notes(result: dict[str, Any]) -> None:
    for note in result["notes"]:
        _console.print(Text(f"note: {note}"))
