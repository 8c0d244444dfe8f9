"""What `gramophone next` and `gramophone score` print for people."""

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from service.console.tables import format_number, name_table, probability_bar

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
