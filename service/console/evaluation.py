"""Tables and progress of `gramophone evaluate`, `train`, `tune`, and ARPA import and export."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from models.reranking.metrics.metric import format_score
from service.console.tables import ProgressLine, format_number, result_table

if TYPE_CHECKING:
    from service.use_cases.tune import TuneReply


_console = Console()
_GROUPS = {
    "by_frequency": "occurrences in the {frequency_in}",
    "by_position_in_sentence": "position in the sentence",
    "by_position_since_start": "position since the start",
}


def show_evaluation(result: Mapping[str, Any]) -> None:
    """Print an evaluation of one model, or of two side by side, with all optional parts of the result."""
    _console.print(_figures(result))
    if hits := result.get("hit_rates"):
        _console.print("", _by_order(hits))
    if detail := result.get("detail"):
        for key, head in _GROUPS.items():
            if key in detail:
                _console.print("", _groups(head.format_map(detail), detail[key]))
        if "entropy" in detail:
            _console.print(f"\nentropy of the predictions: {_sampled(detail['entropy'])}")
    if against := result.get("against"):
        _console.print(f"\n{_difference(result['model'], against)}")
        _console.print(f"KL({result['model']} ‖ {against['model']}): {_sampled(against['divergence'])}")
    if overlap := result.get("overlap"):
        found, files = overlap["sentences"], ", ".join(overlap["training_text"])
        share = f"{found['share'] or 0.0:.2%} of {found['total']:,} sentences of 8 words or more"
        _console.print(Text(f"\n{files} contains {share}"))
    _print_notes(result.get("notes", ()))
    _console.print(
        Text(f"\n{result['context']} context; {result['oov_policy'].replace('_', ' ')}", style="dim")
    )


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        _console.print(Text(f"note: {note}"))


def show_figures(result: dict[str, Any]) -> None:
    """Print an evaluation with a row per figure, and an n-gram model's hit rates by order."""
    table = result_table("figure", "value", folded=True)
    for name, value in result.items():
        if name != "hit_rates":
            cell = "infinite" if value is None else _plain(value)
            table.add_row(Text(name.replace("_", " ")), cell)
    _console.print(table)
    if hits := result.get("hit_rates"):
        _console.print(_by_order(hits))


def _figures(result: Mapping[str, Any]) -> Table:
    models = [result, *([result["against"]] if "against" in result else [])]
    table = result_table("", *(model["model"] for model in models))
    row = table.add_row
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
    table = result_table(head, "tokens", "share", "perplexity")
    for group in groups:
        cell = format_number(group["perplexity"]) if group["tokens"] else ""
        table.add_row(_thousands(group["name"]), f"{group['tokens']:,}", f"{group['share']:.1%}", cell)
    return table


def _difference(model: str, against: Mapping[str, Any]) -> str:
    difference = against["difference"]
    nats, error = difference["nats_per_token"], difference["standard_error"]
    if nats is None:
        return f"{model} and {against['model']}: no difference, because one model gives a token probability 0"
    better = "better" if nats >= 0 else "worse"
    by = f"{model} is {better} than {against['model']} by {abs(nats):.4f} nats per token"
    if error is None:
        return f"{by} (only one sentence, so no standard error)"
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


def _thousands(name: str) -> str:
    """Format `1000-9999` as `1,000-9,999`; return other names unchanged."""
    numbers = name.split("-")
    return "-".join(f"{int(n):,}" for n in numbers) if all(n.isdigit() for n in numbers) else name


def _plain(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"


def show_selection(result: Mapping[str, Any]) -> None:
    """Print the compared shares of a large text, and the selected one."""
    table = result_table("share", "lines", "tokens", "held-out perplexity")
    for trial in result["trials"]:
        perplexity = format_number(trial["perplexity"])
        table.add_row(f"{trial['share']:.2%}", f"{trial['lines']:,}", f"{trial['tokens']:,}", perplexity)
    _console.print(table)
    _console.print(Text(f"wrote {result['share']:.2%} of the lines to {result['output']}"))


def show_check_evaluation(result: Mapping[str, Any]) -> None:
    """Print accuracies of detection and correction of inserted errors, by kind and threshold."""
    _console.print(
        f"{result['model']}: {result['words']:,} words on {result['lines']:,} lines for each kind; errors in one of "
        f"{1 / result['error_rate']:.0f} eligible words"
    )
    _console.print(_by_kind(result["kinds"]))
    if any(figures["errors"] for figures in result["kinds"].values()):
        table = result_table("all kinds, probability at least", "precision", "recall", "F0.5", "corrected")
        for point in result["thresholds"]:
            table.add_row(f"{point['threshold']:g}", *_cells(point))
        _console.print("", table)
    if result["calibration_saved"]:
        _console.print("\nsaved: /v1/check now accepts `precision`")
    notes = (
        "\nthreshold: best F0.5 on one half of the lines; figures on the other half"
        "\nby surprisal: baseline, a word's surprisal given the words before it; gain: relative F0.5 over it"
    )
    _console.print(Text(notes, style="dim"))


def _by_kind(kinds: Mapping[str, Mapping[str, Any]]) -> Table:
    heads = ("threshold", "precision", "recall", "F0.5", "corrected", "gain")
    table = result_table("kind of error", "errors", *heads)
    for kind, figures in kinds.items():
        if not figures["errors"]:
            table.add_row(kind.replace("_", " "), "none")
            continue
        tuned, plain = figures["tuned"], figures["surprisal"]
        gain = "" if figures["gain"] is None else f"{figures['gain']:+.0%}"
        threshold = f"{tuned['threshold']:.3f}"
        table.add_row(kind.replace("_", " "), f"{figures['errors']:,}", threshold, *_cells(tuned), gain)
        table.add_row("  by surprisal", "", f"{plain['threshold']:.1f} bits", *_cells(plain))
    return table


def _cells(figures: Mapping[str, Any]) -> list[str]:
    corrected = figures["correction_accuracy"]
    shares = [f"{figures['precision']:.1%}", f"{figures['recall']:.1%}", f"{figures['f0_5']:.3f}"]
    return [*shares, "" if corrected is None else f"{corrected:.1%}"]


_POSITIONS = {"next_word": "before a word's first letter", "any_letter": "before any letter"}


def show_autocomplete_evaluation(result: Mapping[str, Any]) -> None:
    """Print keystroke savings, accuracy and latency of completions, of one model or two side by side."""
    models = [result, *([result["against"]] if "against" in result else [])]
    _console.print(
        f"{result['words']:,} words on {result['lines']:,} lines, {result['unknown_words']:,} of them not in the "
        f"vocabulary; {result['keys']:,} keys without completions; {result['context']} context"
    )
    _console.print(_typing_figures(result))
    for model in models:
        _console.print("", _by_letters(model))
    for key, where in _POSITIONS.items():
        _console.print("", _acceptance(result["acceptance"][key], where))
    _console.print()
    for model in models:
        took = model["keystroke_ms"]
        _console.print(
            f"one keystroke with {model['model']}, {model['precision']}: {took['p50']:.2f} ms median, "
            f"{took['p99']:.2f} ms p99 (of {took['keystrokes']:,})"
        )
    rule = "\nkeys: every character, line end and completion; word savings: only the model's own words"
    _console.print(Text(f"{rule}\n95 % confidence intervals: bootstrap over lines", style="dim"))


def _typing_figures(result: Mapping[str, Any]) -> Table:
    against = result.get("against")
    headings = ["", result["model"]] + ([against["model"], "difference"] if against else [])
    table = result_table(*headings)
    for name, own in result["figures"].items():
        cells = [_with_interval(name, own)]
        if against:
            cells += [_share(name, against["figures"][name]["value"])]
            cells += [_with_interval(name, against["difference"][name], "+")]
        table.add_row(name.removeprefix("mean_").replace("_", " "), *cells)
    return table


def _by_letters(model: Mapping[str, Any]) -> Table:
    table = result_table(
        f"letters typed ({model['model']})", "longer words", "first is right", "in top three"
    )
    for row in model["recall_by_letters"]:
        cells = (f"{row['words']:,}", f"{row['top_1']:.1%}", f"{row['top_3']:.1%}")
        table.add_row(str(row["letters"]), *cells)
    return table


def _acceptance(rows: list[Mapping[str, float]], where: str) -> Table:
    table = result_table(f"shown {where}", "least probable", "mean probability", "right")
    for row in rows:
        cells = (f"{row['threshold']:.3f}", f"{row['mean_probability']:.1%}", f"{row['precision']:.1%}")
        table.add_row(f"{row['coverage']:.0%}", *cells)
    return table


def _with_interval(name: str, figure: Mapping[str, Any], sign: str = "") -> str:
    if figure["value"] is None:
        return "none"
    value, low, high = (_share(name, figure[key], sign) for key in ("value", "low", "high"))
    return f"{value} ({low.rstrip('%')} to {high.rstrip('%')})"


def _share(name: str, value: float | None, sign: str = "") -> str:
    """Format a share in per cent, a reciprocal rank or a length with three decimals."""
    if value is None:
        return "none"
    return f"{value:{sign}.3f}" if "mrr" in name or "length" in name else f"{value:{sign}.1%}"


def show_training(result: dict[str, Any]) -> None:
    """Print a new model's address and figures, and the figures of a mixture's parts."""
    headings = ("model", "weight", "split", "perplexity per token", "per word", "bits per byte")
    table = result_table(*headings, folded=True)
    for name, weight, figures in [*_part_rows(result), (result["model"], "", result)]:
        for split in ("valid", "test"):
            if split in figures:
                f = figures[split]
                cells = (format_number(f[key]) for key in ("perplexity", "word_perplexity"))
                table.add_row(Text(name), weight, split, *cells, format_number(f["bits_per_byte"], 3))
    _console.print(table)
    _print_notes(result["notes"])
    _console.print(
        f"published [bold]{result['model']}[/] in {escape(result['path'])}; training took {result['seconds']:.0f} s"
    )


def _part_rows(result: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the name, weight and figures of all parts, nested parts first."""
    for part in result.get("parts", ()):
        yield from _part_rows(part)
        yield part["name"], f"{part['weight']:.3f}", part


def show_import(result: dict[str, Any]) -> None:
    """Print an imported model: its n-grams and its figures, if any, and notes about its file."""
    if ngrams := result.get("ngrams"):
        orders = range(1, len(ngrams) + 1)
        table = result_table("", *(f"order {order}" for order in orders), folded=True)
        table.add_row("n-grams", *(f"{count:,}" for count in ngrams))
        _console.print(table)
    if "test" in result:
        show_figures(result["test"])
    _print_notes(result["notes"])
    _console.print(
        f"published [bold]{result['model']}[/] in {escape(result['path'])} in {result['seconds']:.0f} s"
    )


def show_export(result: dict[str, Any]) -> None:
    """Print a summary of an exported file, with notes for its readers."""
    count = sum(result["ngrams"])
    _console.print(
        f"wrote {result['model']} to {escape(result['path'])}: {count:,} n-grams, {result['bytes']:,} bytes, "
        f"in {result['seconds']:.0f} s"
    )
    if result["escaped_words"]:
        _console.print(
            f"note: {result['escaped_words']:,} words contain white space or are spelled like control tokens; "
            "all words are written with % escapes, as a comment in the file explains"
        )
    if result["log_zero"] is not None:
        _console.print(
            f"note: a back-off weight of {result['log_zero']:g} stands for minus infinity, as a comment explains"
        )
    if not result["splits_at_spaces"]:
        _console.print(
            "note: the file does not contain the model's tokenizer, which does more than split at spaces"
        )


class TuningProgress(ProgressLine):
    """Progress of tuning, with the time left for the current kind of work, as speeds differ."""

    def __init__(self) -> None:
        super().__init__()
        self._description = ""
        self._began_s = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show the kind of work, its completed amount and its total."""
        now_s = time.monotonic()
        if what != self._description:
            self._description, self._began_s = what, now_s
        if done and self.is_due:
            left_s = (now_s - self._began_s) * (total - done) / done
            self.write(f"{what}: {done / total:.0%}, {left_s:,.0f} s left")


def show_tuning(reply: "TuneReply", saved: str | None, report: Path | None, command: str = "rerank") -> None:
    """Print scores, weights by fold, the decision, and the command for a saved profile."""
    scores = result_table(reply.metric.upper(), "first pass", "tuned, held out", "oracle", "lists")
    rows = [(f"fold {i + 1}", f.baseline, f.tuned, f.oracle, f.num_lists) for i, f in enumerate(reply.folds)]
    rows.append(("all", reply.baseline, reply.tried, reply.oracle, reply.counts.lists))
    for name, *values, count in rows:
        scores.add_row(str(name), *(format_score(reply.metric, value) for value in values), f"{count:,}")
    _console.print(scores)
    _console.print(_weights(reply))
    test = reply.significance
    _console.print(
        f"difference {test.difference:+.2f}, 95 % interval {test.low:+.2f} … {test.high:+.2f}, p = {test.p_value:.3f}"
    )
    _console.print(Text(reply.signature, style="dim"))
    if reply.ignored_features:
        _console.print(Text(f"missing for some candidates, so ignored: {', '.join(reply.ignored_features)}"))
    if corrections := reply.profile.get("corrections"):
        _console.print(Text(f"corrections: {len(corrections):,}"))
    _console.print(Text(reply.reason, style="bold"))
    if saved is not None:
        _console.print(f"saved as profile [bold]{saved}[/]: gramophone {command} … --profile {saved}")
    if report is not None:
        _console.print(Text(f"report: {report / 'report.html'}"))


def _weights(reply: "TuneReply") -> Table:
    folds = [f"fold {i + 1}" for i in range(len(reply.folds))]
    table = result_table("feature", "weight", *folds, folded=True)
    columns = [(reply.weights, reply.length_exponent)]
    columns += [(fold.weights, fold.length_exponent) for fold in reply.folds]
    for name in reply.features:
        if any(weights.get(name) for weights, _ in columns):
            table.add_row(Text(name), *(f"{weights.get(name, 0):.4g}" for weights, _ in columns))
    table.add_row("[dim]length exponent[/]", *(f"[dim]{exponent:g}[/]" for _, exponent in columns))
    table.add_row("[dim]posterior scale[/]", f"[dim]{reply.posterior_scale:.4g}[/]")
    return table
