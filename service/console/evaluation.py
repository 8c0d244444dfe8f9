"""What `gramophone evaluate` prints for people; programs use `--json`."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.console.tables import figure_table, format_number, name_table

_GROUPS = {
    "by_frequency": "occurrences in the {frequency_in}",
    "by_position_in_sentence": "position in the sentence",
    "by_position_since_start": "position since the start",
}


def show_evaluation(result: Mapping[str, Any]) -> None:
    """An evaluation, two models side by side if there are two, and whatever else was asked for."""
    console = Console()
    console.print(_figures(result))
    if hits := result.get("hit_rates"):
        console.print()
        console.print(_by_order(hits))
    if detail := result.get("detail"):
        for key, head in _GROUPS.items():
            if key in detail:
                console.print()
                console.print(_groups(head.format_map(detail), detail[key]))
        console.print(f"\nentropy of the predictions: {_sampled(detail['entropy'])}")
    if against := result.get("against"):
        console.print(f"\n{_difference(result['model'], against)}")
        console.print(f"KL({result['model']} ‖ {against['model']}): {_sampled(against['divergence'])}")
    if overlap := result.get("overlap"):
        console.print(Text(f"\n{_overlap(overlap)}"))
    for note in result.get("notes", ()):
        console.print(Text(f"note: {note}"))
    console.print(
        Text(f"\n{result['context']} context; {result['oov_policy'].replace('_', ' ')}", style="dim")
    )


def show_figures(result: dict[str, Any]) -> None:
    """An evaluation, a figure a line; below it, of an n-gram model, the orders that answered."""
    console = Console()
    figures = {name: value for name, value in result.items() if name != "hit_rates"}
    table = name_table("figure", "value")
    for name, value in figures.items():
        shown = "infinite" if value is None else _plain(value)
        table.add_row(Text(name.replace("_", " ")), shown)
    console.print(table)
    if hits := result.get("hit_rates"):
        console.print(_by_order(hits))


def _figures(result: Mapping[str, Any]) -> Table:
    models = [result, *([result["against"]] if "against" in result else [])]
    table = figure_table("", *(model["model"] for model in models))

    def row(label: str, *cells: str) -> None:
        table.add_row(label, *cells)

    row("tokens", *(f"{m['tokens']:,}" for m in models))
    row("unknown (OOV)", *(f"{m['oov']:,} ({m['oov_rate']:.2%})" for m in models))
    row("log-probability (nats)", *(format_number(m["logprob"], 1) for m in models))
    row("cross-entropy (nats per token)", *(format_number(m["nats_per_token"], 4) for m in models))
    row("cross-entropy (bits per token)", *(format_number(m["bits_per_token"], 4) for m in models))
    row("perplexity per token", *(format_number(m["perplexity"]) for m in models))
    row("  without OOV", *(format_number(m["perplexity_without_oov"]) for m in models))
    row("perplexity per word", *(format_number(m["word_perplexity"]) for m in models))
    row("perplexity per byte", *(format_number(m["byte_perplexity"], 4) for m in models))
    row("bits per byte", *(format_number(m["bits_per_byte"], 4) for m in models))
    return table


def _by_order(hits: Sequence[Mapping[str, Any]]) -> Table:
    return _groups("longest n-gram found", [{"name": f"order {hit['order']}", **hit} for hit in hits])


def _groups(head: str, groups: Sequence[Mapping[str, Any]]) -> Table:
    table = figure_table(head, "tokens", "share", "perplexity of those")
    for group in groups:
        shown = format_number(group["perplexity"]) if group["tokens"] else ""
        table.add_row(_thousands(group["name"]), f"{group['tokens']:,}", f"{group['share']:.1%}", shown)
    return table


def _difference(model: str, against: Mapping[str, Any]) -> str:
    difference = against["difference"]
    nats, error = difference["nats_per_token"], difference["standard_error"]
    if nats is None:
        return f"{model} and {against['model']}: a token is impossible for one of them, no difference can be told"
    better = "better" if nats >= 0 else "worse"
    by = f"{model} is {better} than {against['model']} by {abs(nats):.4f} nats per token"
    if error is None:
        return f"{by} (of one sentence alone: no standard error)"
    return (
        f"{by} (± {error:.4f} standard error over {difference['sentences']:,} sentences; "
        f"95 %: {difference['low']:+.4f} to {difference['high']:+.4f})"
    )


def _sampled(mean: Mapping[str, Any]) -> str:
    where = f"mean of {mean['positions']:,} predictions"
    if mean["nats"] is None:
        return f"infinite ({where})"
    error = mean["standard_error_bits"]
    spread = "" if error is None else f" ± {error:.4f}"
    return f"{mean['bits']:.4f}{spread} bits, {mean['nats']:.4f} nats ({where})"


def _overlap(overlap: Mapping[str, Any]) -> str:
    parts = {"sentences of 8 words or more": overlap["sentences"]}
    parts |= {f"runs of {n} words": seen for n, seen in overlap["ngrams"].items()}
    told = ", ".join(
        f"{seen['share'] or 0.0:.2%} of {seen['total']:,} {what}" for what, seen in parts.items()
    )
    return f"in {', '.join(overlap['training_text'])} there are {told}"


def _thousands(name: str) -> str:
    """`1000-9999` as `1,000-9,999`; other names as they are."""
    numbers = name.split("-")
    return "-".join(f"{int(n):,}" for n in numbers) if all(n.isdigit() for n in numbers) else name


def _plain(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"
