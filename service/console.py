"""What the command line prints for people; programs use `--json`."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from service.console_tables import bar

_console = Console()


def show_training(result: dict[str, Any]) -> None:
    """A fresh model's address and figures, a mixture's parts beside it."""
    table = _table("model", "weight", "split", "perplexity per token", "per word", "bits per byte")
    for name, weight, figures in [*_part_rows(result), (result["model"], "", result)]:
        for split in ("valid", "test"):
            if split in figures:
                f = figures[split]
                table.add_row(
                    name,
                    weight,
                    split,
                    _number(f["perplexity"]),
                    _number(f["word_perplexity"]),
                    _number(f["bits_per_byte"], 3),
                )
    _console.print(table)
    _show_notes(result)
    _console.print(
        f"published [bold]{result['model']}[/] in {result['path']}; training took {result['seconds']:.0f} s"
    )


def _part_rows(result: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, weight and figures of all parts, each after its own parts."""
    for part in result.get("parts", ()):
        yield from _part_rows(part)
        yield part["name"], f"{part['weight']:.3f}", part


def show_figures(result: dict[str, Any]) -> None:
    """An evaluation, a figure a line; below it, of an n-gram model, the orders that answered."""
    figures = {name: value for name, value in result.items() if name != "hit_rates"}
    table = _table("figure", "value")
    for name, value in figures.items():
        shown = "infinite" if value is None else _plain(value)
        table.add_row(name.replace("_", " "), shown)
    _console.print(table)
    if hits := result.get("hit_rates"):
        table = _table("longest n-gram found", "tokens", "share", "perplexity of those")
        for hit in hits:
            shown = _number(hit["perplexity"]) if hit["tokens"] else ""
            table.add_row(f"order {hit['order']}", f"{hit['tokens']:,}", f"{hit['share']:.1%}", shown)
        _console.print(table)


def show_import(result: dict[str, Any]) -> None:
    """An imported model: what is in it, its figures if there are any, and what to know of its file."""
    table = _table("", *(f"order {order}" for order in range(1, len(result["ngrams"]) + 1)))
    table.add_row("n-grams", *(f"{count:,}" for count in result["ngrams"]))
    _console.print(table)
    if "test" in result:
        show_figures(result["test"])
    _show_notes(result)
    _console.print(
        f"published [bold]{result['model']}[/] in {result['path']}; it took {result['seconds']:.0f} s"
    )


def show_export(result: dict[str, Any]) -> None:
    """A file that was written, and what its readers must know."""
    count = sum(result["ngrams"])
    _console.print(
        f"wrote {result['model']} to {result['path']}: {count:,} n-grams, {result['bytes']:,} bytes, "
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


def show_next(reply: dict[str, Any]) -> None:
    """Candidates with bars."""
    result = reply["results"][0]
    of_words = "unexplored_mass" in result
    table = _table("word" if of_words else "token", "probability", "", "logprob")
    for candidate in result["candidates"]:
        p = math.exp(candidate["logprob"])
        told = f"{p:.4f}", bar(p), f"{candidate['logprob']:.3f}"
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
    table = _table("text", "logprob", "tokens", "OOV", "perplexity")
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


def show_models(rows: Sequence[dict[str, Any]]) -> None:
    """A line a version."""
    table = _table("model", "aliases", "family", "parameters", "perplexity per token", "per word", "created")
    for row in rows:
        if "problem" in row:
            table.add_row(
                row["model"], " ".join(row["aliases"]), Text(f"damaged: {row['problem']}", style="red")
            )
            continue
        table.add_row(
            row["model"],
            " ".join(row["aliases"]),
            row["family"],
            f"{row['parameters']:,}",
            f"{_number(row['perplexity'])} ({row['split']})" if row["split"] else "",
            _number(row["word_perplexity"]) if row["split"] else "",
            row["created"][:10],
        )
    _console.print(table)


def show_card(markdown: str) -> None:
    """A model card."""
    _console.print(Markdown(markdown))


def _show_notes(result: dict[str, Any]) -> None:
    for note in result["notes"]:
        _console.print(Text(f"note: {note}"))


def _score_cells(result: dict[str, Any]) -> list[str]:
    return [
        f"{result['logprob']:.4f}",
        f"{result['num_tokens']:,}",
        f"{result['num_oov']:,}",
        _number(result["perplexity"]),
    ]


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(
            name, justify="right" if name not in {"", "family", "aliases", "created", "split"} else "left"
        )
    return table


def _plain(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"


def _visible(token: str) -> str:
    """A token with its spaces to be seen."""
    return token.replace("\n", "⏎").replace(" ", "▁")


def _number(value: float | None, digits: int = 2) -> str:
    return "infinite" if value is None else f"{value:,.{digits}f}"
