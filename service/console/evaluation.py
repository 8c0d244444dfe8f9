"""Tables and progress of `gramophone evaluate`, `train`, `tune`, and ARPA import and export."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from models.reranking.metrics.metric import format_score
from service.console.tables import ProgressLine, format_number, print_table

if TYPE_CHECKING:
    from service.operations.tune import TuneReply


_print = Console().print
_FIGURES = {
    "logprob": ("log-probability (nats)", 1),
    "nats_per_token": ("cross-entropy (nats per token)", 4),
    "bits_per_token": ("cross-entropy (bits per token)", 4),
    "perplexity": ("perplexity per token", 2),
    "perplexity_without_oov": ("  without OOV", 2),
    "word_perplexity": ("perplexity per word", 2),
    "byte_perplexity": ("perplexity per byte", 4),
    "bits_per_byte": ("bits per byte", 4),
}
_GROUPS = {
    "by_frequency": "occurrences in the {frequency_in}",
    "by_position_in_sentence": "position in the sentence",
    "by_position_since_start": "position since the start",
}

_POSITIONS = {"next_word": "before a word's first letter", "any_letter": "before any letter"}


def show_evaluation(result: Mapping[str, Any]) -> None:
    """Print an evaluation of one model, or of two side by side, and the optional parts."""
    models = [result, *([result["against"]] if "against" in result else [])]
    rows = [
        ["tokens", *(f"{model['tokens']:,}" for model in models)],
        ["unknown (OOV)", *(f"{model['oov']:,} ({model['oov_rate']:.2%})" for model in models)],
    ]
    for key, (label, digits) in _FIGURES.items():
        rows.append([label, *(format_number(model[key], digits) for model in models)])
    print_table(["", *(model["model"] for model in models)], rows)
    if hits := result.get("hit_rates"):
        _print()
        _print_hits(hits)
    if detail := result.get("detail"):
        for key, head in _GROUPS.items():
            if key in detail:
                _print()
                _print_groups(head.format_map(detail), detail[key])
        if "entropy" in detail:
            _print(f"\nentropy of the predictions: {_sampled(detail['entropy'])}")
    if against := result.get("against"):
        _print(f"\n{_difference(result['model'], against)}")
        _print(f"KL({result['model']} ‖ {against['model']}): {_sampled(against['divergence'])}")
    if overlap := result.get("overlap"):
        found, files = overlap["sentences"], ", ".join(overlap["training_text"])
        share = f"{found['share'] or 0.0:.2%} of {found['total']:,} sentences of 8 words or more"
        _print(Text(f"\n{files} contains {share}"))
    _print_notes(result.get("notes", ()))
    _print(Text(f"\n{result['context']} context; {result['oov_policy'].replace('_', ' ')}", style="dim"))


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        _print(Text(f"note: {note}"))


def show_figures(result: dict[str, Any]) -> None:
    """Print an evaluation's figures, and an n-gram model's hit rates by order."""
    rows = [(name.replace("_", " "), _plain(value)) for name, value in result.items() if name != "hit_rates"]
    print_table(("figure", "value"), rows, folded=True)
    if hits := result.get("hit_rates"):
        _print_hits(hits)


def _print_hits(hits: Sequence[Mapping[str, Any]]) -> None:
    _print_groups("longest n-gram found", [{"name": f"order {hit['order']}", **hit} for hit in hits])


def _print_groups(head: str, groups: Sequence[Mapping[str, Any]]) -> None:
    rows = []
    for group in groups:
        numbers = group["name"].split("-")  # `1000-9999` becomes `1,000-9,999`
        name = "-".join(f"{int(n):,}" for n in numbers) if all(map(str.isdigit, numbers)) else group["name"]
        cell = format_number(group["perplexity"]) if group["tokens"] else ""
        rows.append((name, f"{group['tokens']:,}", f"{group['share']:.1%}", cell))
    print_table((head, "tokens", "share", "perplexity"), rows)


def _difference(model: str, against: Mapping[str, Any]) -> str:
    gap = against["difference"]
    nats, error = gap["nats_per_token"], gap["standard_error"]
    if nats is None:
        return f"{model} and {against['model']}: no difference, because one model gives a token probability 0"
    better = "better" if nats >= 0 else "worse"
    by = f"{model} is {better} than {against['model']} by {abs(nats):.4f} nats per token"
    if error is None:
        return f"{by} (only one sentence, so no standard error)"
    return (
        f"{by} (± {error:.4f} standard error over {gap['sentences']:,} sentences; "
        f"95 %: {gap['low']:+.4f} to {gap['high']:+.4f})"
    )


def _sampled(mean: Mapping[str, Any]) -> str:
    where = f"mean of {mean['positions']:,} predictions"
    if mean["nats"] is None:
        return f"infinite ({where})"
    error = mean["standard_error_bits"]
    spread = "" if error is None else f" ± {error:.4f}"
    return f"{mean['bits']:.4f}{spread} bits, {mean['nats']:.4f} nats ({where})"


def _plain(value: str | float | None) -> str:
    if value is None or isinstance(value, str):
        return value or "infinite"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"


def show_selection(result: Mapping[str, Any]) -> None:
    """Print the compared shares of a large text, and the selected one."""
    rows = [
        (f"{one['share']:.2%}", f"{one['lines']:,}", f"{one['tokens']:,}", format_number(one["perplexity"]))
        for one in result["trials"]
    ]
    print_table(("share", "lines", "tokens", "held-out perplexity"), rows)
    _print(Text(f"wrote {result['share']:.2%} of the lines to {result['output']}"))


def show_check_evaluation(result: Mapping[str, Any]) -> None:
    """Print accuracies of detecting and correcting inserted errors, by kind and threshold."""
    _print(
        f"{result['model']}: {result['words']:,} words on {result['lines']:,} lines for each kind; errors in one of "
        f"{1 / result['error_rate']:.0f} eligible words"
    )
    kinds = list[Sequence[str]]()
    for kind, figures in result["kinds"].items():
        if not figures["errors"]:
            kinds.append([kind.replace("_", " "), "none"])
            continue
        tuned, plain = figures["tuned"], figures["surprisal"]
        gain = "" if figures["gain"] is None else f"{figures['gain']:+.0%}"
        own = f"{figures['errors']:,}", f"{tuned['threshold']:.3f}", *_cells(tuned), gain
        kinds.append([kind.replace("_", " "), *own])
        kinds.append(["  by surprisal", "", f"{plain['threshold']:.1f} bits", *_cells(plain)])
    heads = ("threshold", "precision", "recall", "F0.5", "corrected", "gain")
    print_table(("kind of error", "errors", *heads), kinds)
    if any(figures["errors"] for figures in result["kinds"].values()):
        _print()
        rows = [(f"{point['threshold']:g}", *_cells(point)) for point in result["thresholds"]]
        print_table(("all kinds, probability at least", "precision", "recall", "F0.5", "corrected"), rows)
    if result["calibration_saved"]:
        _print("\nsaved: /v1/check now accepts `precision`")
    notes = (
        "\nthreshold: best F0.5 on one half of the lines; figures on the other half"
        "\nby surprisal: baseline, a word's surprisal given the words before it; gain: relative F0.5 over it"
    )
    _print(Text(notes, style="dim"))


def _cells(figures: Mapping[str, Any]) -> list[str]:
    corrected = figures["correction_accuracy"]
    shares = [f"{figures['precision']:.1%}", f"{figures['recall']:.1%}", f"{figures['f0_5']:.3f}"]
    return [*shares, "" if corrected is None else f"{corrected:.1%}"]


def show_autocomplete_evaluation(result: Mapping[str, Any]) -> None:
    """Print keystroke savings, accuracy and latency of completions, of one model or two."""
    models = [result, *([result["against"]] if "against" in result else [])]
    _print(
        f"{result['words']:,} words on {result['lines']:,} lines, {result['unknown_words']:,} of them not in the "
        f"vocabulary; {result['keys']:,} keys without completions; {result['context']} context"
    )
    _print_typing_figures(result)
    for model in models:
        _print()
        recalls = [
            (f"{row['letters']}", f"{row['words']:,}", f"{row['top_1']:.1%}", f"{row['top_3']:.1%}")
            for row in model["recall_by_letters"]
        ]
        first = f"letters typed ({model['model']})"
        print_table((first, "longer words", "first is right", "in top three"), recalls)
    for key, where in _POSITIONS.items():
        _print()
        cells = []
        for row in result["acceptance"][key]:
            shares = (f"{row[name]:.1%}" for name in ("mean_probability", "precision"))
            cells.append((f"{row['coverage']:.0%}", f"{row['threshold']:.3f}", *shares))
        print_table((f"shown {where}", "least probable", "mean probability", "right"), cells)
    _print()
    for model in models:
        took = model["keystroke_ms"]
        _print(
            f"one keystroke with {model['model']}, {model['precision']}: {took['p50']:.2f} ms median, "
            f"{took['p99']:.2f} ms p99 (of {took['keystrokes']:,})"
        )
    rule = "\nkeys: every character, line end and completion; word savings: only the model's own words"
    _print(Text(f"{rule}\n95 % confidence intervals: bootstrap over lines", style="dim"))


def _print_typing_figures(result: Mapping[str, Any]) -> None:
    against, rows = result.get("against"), []
    for name, own in result["figures"].items():
        row = [name.removeprefix("mean_").replace("_", " "), _with_interval(name, own)]
        if against:
            row.append(_share(name, against["figures"][name]["value"]))
            row.append(_with_interval(name, against["difference"][name], "+"))
        rows.append(row)
    print_table(["", result["model"], *([against["model"], "difference"] if against else ())], rows)


def _with_interval(name: str, figure: Mapping[str, Any], sign: str = "") -> str:
    if figure["value"] is None:
        return "none"
    value, low, high = (_share(name, figure[key], sign) for key in ("value", "low", "high"))
    return f"{value} ({low.rstrip('%')} to {high.rstrip('%')})"


def _share(name: str, value: float | None, sign: str = "") -> str:
    """Format a share in per cent, others (reciprocal ranks, lengths) with three decimals."""
    places = ".3f" if "mrr" in name or "length" in name else ".1%"
    return "none" if value is None else f"{value:{sign}{places}}"


def show_training(result: dict[str, Any]) -> None:
    """Print a new model's address and figures, and those of a mixture's parts."""
    rows = []
    for name, weight, figures in [*_part_rows(result), (result["model"], "", result)]:
        for split in ("valid", "test"):
            if own := figures.get(split):
                cells = (format_number(own[key]) for key in ("perplexity", "word_perplexity"))
                rows.append((name, weight, split, *cells, format_number(own["bits_per_byte"], 3)))
    headings = ("model", "weight", "split", "perplexity per token", "per word", "bits per byte")
    print_table(headings, rows, folded=True)
    if typing := result.get("typing"):
        _show_typing_costs(typing)
    _print_notes(result["notes"])
    _print(
        f"published [bold]{result['model']}[/] in {escape(result['path'])}; training took {result['seconds']:.0f} s"
    )


def _show_typing_costs(typing: Mapping[str, Any]) -> None:
    """Print what a keystroke costs and saves with each model."""
    rows = [
        (
            f"{one['name']} ✓" if one["name"] == typing["chosen"] else one["name"],
            f"{one['core_ms_per_key']:.2f}",
            f"{one['typists_per_core']:,.0f}",
            f"{one['keystroke_savings_top_3']:.1%}",
        )
        for one in typing["candidates"]
    ]
    _print()
    print_table(("typing with", "ms per key", "typists per core", "keys saved, top 3"), rows, folded=True)
    _print(Text(f"assumed: {typing['assumed']}", style="dim"))


def _part_rows(result: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the name, weight and figures of all parts, nested parts first."""
    for part in result.get("parts", ()):
        yield from _part_rows(part)
        yield part["name"], f"{part['weight']:.3f}", part


def show_import(result: dict[str, Any]) -> None:
    """Print an imported model's n-grams, its figures if any, and notes about its file."""
    if ngrams := result.get("ngrams"):
        headings = ["", *(f"order {order}" for order in range(1, len(ngrams) + 1))]
        print_table(headings, [["n-grams", *(f"{count:,}" for count in ngrams)]], folded=True)
    if "test" in result:
        show_figures(result["test"])
    _print_notes(result["notes"])
    _print(f"published [bold]{result['model']}[/] in {escape(result['path'])} in {result['seconds']:.0f} s")


def show_export(result: dict[str, Any]) -> None:
    """Print a summary of an exported file, with notes for its readers."""
    count = sum(result["ngrams"])
    _print(
        f"wrote {result['model']} to {escape(result['path'])}: {count:,} n-grams, {result['bytes']:,} bytes, "
        f"in {result['seconds']:.0f} s"
    )
    if result["escaped_words"]:
        _print(
            f"note: {result['escaped_words']:,} words contain white space or are spelled like control tokens; "
            "all words are written with % escapes, as a comment in the file explains"
        )
    if result["log_zero"] is not None:
        _print(
            f"note: a back-off weight of {result['log_zero']:g} stands for minus infinity, as a comment explains"
        )
    if not result["splits_at_spaces"]:
        _print("note: the file does not contain the model's tokenizer, which does more than split at spaces")


class TuningProgress(ProgressLine):
    """Progress of tuning, with the time left for this kind of work, as speeds differ."""

    _description, _began_s = "", 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show the kind of work, its completed amount and its total."""
        now_s = time.monotonic()
        if what != self._description:
            self._description, self._began_s = what, now_s
        if done and self.is_due:
            left_s = (now_s - self._began_s) * (total - done) / done
            self.write(f"{what}: {done / total:.0%}, {left_s:,.0f} s left")


def show_tuning(reply: "TuneReply", saved: str | None, report: Path | None, command: str = "rerank") -> None:
    """Print scores, weights by fold, the decision, and a saved profile's command."""
    scores = [((f.baseline, f.tuned, f.oracle), f.num_lists) for f in reply.folds]
    scores.append(((reply.baseline, reply.tried, reply.oracle), reply.counts.lists))
    folds = [f"fold {number}" for number in range(1, len(scores))]
    rows = [
        [name, *(format_score(reply.metric, value) for value in values), f"{count:,}"]
        for name, (values, count) in zip([*folds, "all"], scores, strict=True)
    ]
    print_table((reply.metric.upper(), "first pass", "tuned, held out", "oracle", "lists"), rows)
    columns = [reply.weights, *(fold.weights for fold in reply.folds)]
    exponents = [reply.length_exponent, *(fold.length_exponent for fold in reply.folds)]
    weights = [
        [name, *(f"{of_fold.get(name, 0):.4g}" for of_fold in columns)]
        for name in reply.features
        if any(of_fold.get(name) for of_fold in columns)
    ]
    others = (
        ["length exponent", *(f"{e:g}" for e in exponents)],
        ["posterior scale", f"{reply.posterior_scale:.4g}"],
    )
    dimmed = ([Text(cell, style="dim") for cell in row] for row in others)
    print_table(("feature", "weight", *folds), [*weights, *dimmed], folded=True)
    test = reply.significance
    _print(
        f"difference {test.difference:+.2f}, 95 % interval {test.low:+.2f} … {test.high:+.2f}, p = {test.p_value:.3f}"
    )
    _print(Text(reply.signature, style="dim"))
    if reply.ignored_features:
        _print(Text(f"missing for some candidates, so ignored: {', '.join(reply.ignored_features)}"))
    if corrections := reply.profile.get("corrections"):
        _print(Text(f"corrections: {len(corrections):,}"))
    _print(Text(reply.reason, style="bold"))
    if saved is not None:
        _print(f"saved as profile [bold]{saved}[/]: gramophone {command} … --profile {saved}")
    if report is not None:
        _print(Text(f"report: {report / 'report.html'}"))
