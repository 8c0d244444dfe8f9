"""HTML reports of a training run and of `gramophone evaluate --task autocomplete`."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from models.arrays import Float64s
from models.report import Line, Picture, Section, Table, format_number, plot_bars, plot_lines, render_page
from training.progress import HistoryRecord

REPORT_FILE = "report.html"

_FIGURES = {
    "tokens": ("tokens", 0),
    "oov": ("unknown tokens", 0),
    "perplexity": ("perplexity per token", 2),
    "perplexity_without_oov": ("perplexity without unknown", 2),
    "word_perplexity": ("perplexity per word", 2),
    "byte_perplexity": ("perplexity per byte", 3),
    "bits_per_token": ("bits per token", 3),
    "bits_per_byte": ("bits per byte", 3),
}
_STOP_REASONS = {
    "max_minutes": "time limit",
    "max_steps": "update limit",
    "epochs": "epoch limit",
    "patience": "early stopping",
    "interrupted": "the user",
}
_MAX_NATS = 30.0  # of a training loss, lest its perplexity overflow

_LISTS = {"top_1": "first of the list", "top_3": "first three"}
_POSITIONS = {"next_word": "before a word", "any_letter": "before any letter"}
_PHRASES = "phrase_match_"
_NAMES = {
    "keystroke_savings_top_1": "keystroke savings, one completion shown",
    "keystroke_savings_top_3": "keystroke savings, three shown",
    "keystroke_savings_top_1_no_repeats": "keystroke savings, one shown, each once",
    "keystroke_savings_top_3_no_repeats": "keystroke savings, three shown, each once",
    "word_savings_top_1": "word savings, one shown",
    "word_savings_top_3": "word savings, three shown",
    "next_word_recall_top_1": "next word is the first completion",
    "next_word_recall_top_3": "next word is among the first three",
    "next_word_mrr": "MRR, next word",
    "mrr": "MRR, all keystrokes",
    "mean_recoverable_length_top_1": "mean recoverable length, one shown",
    "mean_recoverable_length_top_3": "mean recoverable length, three shown",
}


def perplexity_picture(
    title: str, caption: str, history: Sequence[HistoryRecord], *, over_tokens: bool = False
) -> Picture:
    """Draw training and validation perplexity over time or text."""
    along, along_what = _values(history, "seconds") / 60, "minutes of training"
    if over_tokens:
        along, along_what = _values(history, "tokens") / 1e6, "million tokens seen"
    training = np.exp(np.minimum(_values(history, "train_loss"), _MAX_NATS))
    lines: list[Line] = [("training (smoothed)", "quiet", along, training, {})]
    validation = _values(history, "valid_perplexity")
    known = np.isfinite(validation)
    if known.any():  # the lowest is that of the published weights
        label = f"validation, lowest {np.nanmin(validation):,.1f}"
        lines.append((label, "accent", along[known], validation[known], {"marker": "o", "markersize": 3.5}))
    labels = {"xlabel": along_what, "ylabel": "per token (log scale)"}
    return plot_lines(title, caption, lines, plain_log=True, **labels)


def history_pictures(history: Sequence[HistoryRecord]) -> list[Picture]:
    """Draw the trainer's records, with gaps; without fields that all lack."""
    if not history:
        return []
    minutes, pictures = _values(history, "seconds") / 60, list[Picture]()
    pictures += [
        perplexity_picture(
            "Perplexity over time",
            "Training perplexity is measured with dropout, while the weights change; validation perplexity without, "
            "so it may be lower. A validation curve that rises while the training curve falls shows overfitting.",
            history,
        ),
        perplexity_picture(
            "Perplexity over tokens",
            "The same perplexities by amount of text, independent of the speed of the machine.",
            history,
            over_tokens=True,
        ),
    ]

    def add(title: str, caption: str, *fields: tuple[str, str, str], **settings: Any) -> None:
        lines: list[Line] = [
            (label, colour, minutes, _values(history, field), {}) for label, colour, field in fields
        ]
        if known := [line for line in lines if np.isfinite(line[3]).any()]:
            pictures.append(plot_lines(title, caption, known, xlabel="minutes of training", **settings))

    add(
        "Learning rate",
        "Learning rate of each update, as set by the schedule.",
        ("", "accent", "learning_rate"),
    )
    add(
        "Norm of the gradient",
        "Norm over all parameters, at the last update before each point. Spikes above the clipping norm are "
        "harmless; a rising floor is not.",
        ("before clipping", "quiet", "grad_norm"),
        ("after", "accent", "clipped_norm"),
        plain_log=True,
    )
    add(
        "Throughput",
        "Training tokens per second, including validation time; other dips mean a busy machine.",
        ("", "accent", "tokens_per_second"),
        ylim=(0, None),
    )
    return pictures


def _values(history: Sequence[HistoryRecord], field: str) -> Float64s:
    """Return a field of every record, NaN where missing."""
    return np.array([getattr(record, field, None) for record in history], np.float64)


def gradient_picture(name: str, norms: Sequence[float | None]) -> Picture:
    """Draw a late loss's gradient norm ‖∂L_T/∂s_{T−k}‖ by lag k; None and 0 are omitted."""
    points = {lag: norm for lag, norm in enumerate(norms) if norm}
    return plot_lines(
        "Gradient norm by lag",
        "‖∂L(T) / ∂s(T-k)‖: gradient of one late loss with respect to the state k tokens earlier, averaged over "
        "segments of the validation text. It vanishes if it falls by powers of ten, and explodes if it rises.",
        [(name, "accent", [*points], [*points.values()], {})] if points else [],
        yscale="log",
        xlabel="lag k: tokens between state and loss",
        ylabel="gradient norm (log scale)",
    )


def gate_picture(gates: Sequence[Mapping[str, Any]]) -> Picture:
    """Draw the shares of saturated values by layer and gate, from `gate_saturation`."""
    title = "Saturated gates"
    caption = (
        "Values near 0 or 1 pass hardly any gradient. A forget gate that is often above 0.9 keeps the state; "
        "one that is mostly below 0.1 drops it at every token."
    )
    if all(gate["gate"] == "|h|" for gate in gates):
        title = "Saturated outputs"
        caption = (
            "Absolute outputs of layers with tanh. Above 0.9, tanh is flat and passes hardly any gradient."
        )

    low, high = ([100 * gate[key] for gate in gates] for key in ("low", "high"))
    return plot_bars(
        title,
        caption,
        [f"layer {gate['layer']}, {gate['gate']}" for gate in gates],
        [
            ("below 0.1", "quiet", low, [f"{share:.0f} %" for share in low]),
            ("above 0.9", "accent", high, [f"{share:.0f} %" for share in high]),
        ],
        horizontal=True,
        xlim=(0, 115),
        xticks=[0, 25, 50, 75, 100],
        xlabel="per cent of values",
    )


def report_page(
    name: str,
    introduction: str,
    metrics: Mapping[str, Any],
    provenance: Mapping[str, Any],
    history: Sequence[HistoryRecord],
) -> bytes:
    """Render the training report as HTML bytes.

    Args:
        name: name of the model.
        introduction: description of the model, a sentence.
        metrics: contents of metrics.json; missing values are omitted.
        provenance: contents of provenance.json; missing values are omitted.
        history: records of the trainer.
    """
    diagnostics = metrics.get("diagnostics", {})
    norms, gates = diagnostics.get("gradient_by_lag", ()), diagnostics.get("gate_saturation")
    inside = [gradient_picture(name, norms)] if any(norms) else []
    inside += [gate_picture(gates)] if gates else []
    splits = {split: metrics[split] for split in ("valid", "test") if metrics.get(split)}
    figures = [
        (label, *(format_number(own.get(key), digits) for own in splits.values()))
        for key, (label, digits) in _FIGURES.items()
        if any(key in own for own in splits.values())
    ]
    recipe = provenance.get("recipe") or {}
    tables = {"recipe": {key: value for key, value in recipe.items() if not isinstance(value, Mapping)}}
    tables |= {key: recipe.get(key) or {} for key in ("corpus", "tokenizer", "neural", "train")}
    settings = [
        Table([], [(key, _plain(value)) for key, value in own.items()], title)
        for title, own in tables.items()
        if own
    ]
    sections = [
        Section("", "tiles", list(_training_summary(metrics, provenance.get("seconds"), history))),
        Section("Held-out figures", "tables", [Table(["", *splits], figures)] if splits else []),
        Section("Training", "pictures", history_pictures(history)),
        Section("Inside the network", "pictures", inside),
        Section("Recipe", "tables", settings),
    ]
    return render_page(name, f"{name}: training report", introduction, sections)


def _training_summary(
    metrics: Mapping[str, Any], seconds: float | None, history: Sequence[HistoryRecord]
) -> Iterator[tuple[str, str]]:
    for split, label in (("valid", "validation"), ("test", "test")):
        if figures := metrics.get(split):
            yield f"perplexity per word, {label} text", format_number(figures["word_perplexity"], 2)
    if seconds is not None:
        yield "training time", f"{seconds / 60:,.1f} min" if seconds >= 60 else f"{seconds:,.1f} s"
    if history:
        last = history[-1]
        yield "training tokens seen", f"{last.tokens / 1e6:,.2f} M"
        yield "updates", f"{last.step:,}"
        yield "epochs started", f"{last.epoch + 1:,}"
    if stopped := metrics.get("stopped"):
        yield "ended by", _STOP_REASONS.get(stopped, str(stopped))


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def autocomplete_page(result: Mapping[str, Any]) -> bytes:
    """Render the autocomplete report, of `training.commands.run_evaluate_autocomplete`, as HTML bytes."""
    introduction = (
        f"A simulated typist with the completions of {result['model']}: {result['words']:,} words on "
        f"{result['lines']:,} held-out lines. Keystroke savings count each character, line end and completion as "
        "a key; word savings, the model's own words only. The intervals are 95 % confidence intervals."
    )
    shown = ("keystroke_savings_top_3", "keystroke_savings_top_1", "next_word_recall_top_3")
    tiles = [(_NAMES[name], _with_interval(name, result["figures"][name])[0]) for name in shown]
    tiles.append(("one keystroke, median", f"{result['keystroke_ms']['p50']:.2f} ms"))
    sections = [
        Section("", "tiles", tiles),
        Section("Figures", "tables", [_autocomplete_figures(result)]),
        Section("Pictures", "pictures", _pictures(result)),
        Section("Acceptance", "tables", [_acceptance(result["acceptance"])]),
    ]
    heading = f"{result['model']}: autocomplete"
    return render_page(heading, heading, introduction, sections)


def _autocomplete_figures(result: Mapping[str, Any]) -> Table:
    against = result.get("against")
    heads = ["", result["model"], "95 %", *([against["model"], "difference", "95 %"] if against else ())]
    # phrases of one word are omitted: they equal next-word recall
    lengths = [int(name.removeprefix(_PHRASES)) for name in result["figures"] if name.startswith(_PHRASES)]
    phrases = {f"{_PHRASES}{words}": f"the next {words} words are right" for words in lengths if words > 1}
    rows = []
    for name, label in {**_NAMES, **phrases}.items():
        if name not in result["figures"]:
            continue
        row = [label, *_with_interval(name, result["figures"][name])]
        if against:
            row.append(_with_interval(name, against["figures"][name])[0])
            row += _with_interval(name, against["difference"][name], signed=True)
        rows.append(row)
    return Table(heads, rows)


def _with_interval(name: str, figure: Mapping[str, Any], *, signed: bool = False) -> tuple[str, str]:
    """Format a figure and its interval: shares in per cent, others with three decimals."""
    sign, is_share = "+" if signed else "", not ("mrr" in name or "length" in name)
    value, low, high = (
        "none" if v is None else f"{100 * v:{sign}.1f} %" if is_share else f"{v:{sign}.3f}"
        for v in map(figure.get, ("value", "low", "high"))
    )
    return value, f"{low} to {high}"


def _acceptance(rows_by_position: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    heads = ["share of positions with a completion"]
    heads += [f"{name}, {label}" for label in _POSITIONS.values() for name in ("threshold", "precision")]
    rows = []
    for both in zip(*map(rows_by_position.__getitem__, _POSITIONS), strict=True):
        pairs = [(f"{row['threshold']:.3f}", f"{100 * row['precision']:.1f} %") for row in both]
        rows.append([f"{100 * both[0]['coverage']:.0f} %", *chain.from_iterable(pairs)])
    return Table(heads, rows)


def _pictures(result: Mapping[str, Any]) -> list[Picture]:
    """Draw recall, precision and phrase matches; a second model's curves are dashed."""
    found, shown, matching = list[Line](), list[Line](), list[Line]()
    against = result.get("against")
    for model in filter(None, (result, against)):
        is_second, style = model is against, {"marker": "o", "markersize": 3.0}
        if is_second:
            style |= {"linewidth": 1.0, "linestyle": "--"}
        for (key, name), (position, where), colour in zip(
            _LISTS.items(), _POSITIONS.items(), ("accent", "second"), strict=True
        ):
            rows = model["recall_by_letters"]
            letters, shares = [row["letters"] for row in rows], [100 * row[key] for row in rows]
            found.append(("" if is_second else name, colour, letters, shares, style))
            rows = model["acceptance"][position]
            coverage, shares = ([100 * row[key] for row in rows] for key in ("coverage", "precision"))
            shown.append(("" if is_second else where, colour, coverage, shares, style))
        matched = [own["value"] for name, own in model["figures"].items() if name.startswith(_PHRASES)]
        # without phrases of the length, a gap
        percent = 100 * np.array(matched, np.float64)
        matching.append(("", "third" if is_second else "accent", range(1, len(percent) + 1), percent, style))
    dashed = f" Dashed: {against['model']}." if against else ""
    return [
        plot_lines(
            "Words found by letters typed",
            "Share of words in the list after the given number of letters, over the words that are longer."
            + dashed,
            found,
            ylim=(0, 103),
            xlabel="letters typed",
            ylabel="per cent of words",
        ),
        plot_lines(
            "Precision of shown completions",
            "A service that shows its first completion only above a probability (min_probability) shows fewer "
            "completions and is correct more often." + dashed,
            shown,
            xlim=(0, 100),
            ylim=(0, 103),
            xlabel="per cent of positions with a completion",
            ylabel="per cent correct",
        ),
        plot_lines(
            "Matching phrases",
            "Share of phrases, built from the most probable word, the most probable word after it, and so on, that "
            "match the next words of the text." + dashed,
            matching,
            xticks=range(1, 6),
            ylim=(0, None),
            xlabel="words of the phrase",
            ylabel="per cent correct",
        ),
    ]
