"""HTML reports of a training run and of `gramophone evaluate --task autocomplete`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from models.arrays import Float64s
from models.report import (
    ACCENT,
    HEIGHT,
    INK,
    QUIET,
    SECOND,
    THIRD,
    Picture,
    Section,
    Table,
    draw_svg,
    plain_log_ticks,
    render_page,
)
from training.progress import HistoryRecord


def history_pictures(history: Sequence[HistoryRecord]) -> list[Picture]:
    """Draw the records of the trainer; missing fields are omitted."""
    if not history:
        return []
    pictures = [
        _perplexity_curve(
            "Perplexity over time",
            "Training perplexity is measured with dropout, while the weights change; validation perplexity without, "
            "so it may be lower. A validation curve that rises while the training curve falls shows overfitting.",
            history,
            [record.seconds / 60 for record in history],
            "minutes of training",
        ),
        _perplexity_curve(
            "Perplexity over tokens",
            "The same perplexities by amount of text, independent of the speed of the machine.",
            history,
            [record.tokens / 1e6 for record in history],
            "million tokens seen",
        ),
        _curve(
            "Learning rate",
            "Learning rate of each update, as set by the schedule.",
            history,
            {"": "learning_rate"},
        ),
        _curve(
            "Norm of the gradient",
            "Norm over all parameters, at the last update before each point. Spikes above the clipping norm are "
            "harmless; a rising floor is not.",
            history,
            {"before clipping": "grad_norm", "after": "clipped_norm"},
            log=True,
        ),
        _curve(
            "Throughput",
            "Training tokens per second, including validation time; other dips mean a busy machine.",
            history,
            {"": "tokens_per_second"},
            floor=0.0,
        ),
    ]
    return [picture for picture in pictures if picture is not None]


def gradient_picture(name: str, norms: Sequence[float | None]) -> Picture:
    """Draw the gradient norm of a late loss by lag.

    Args:
        name: name of the model.
        norms: ‖∂L_T/∂s_{T−k}‖ for k = 0, 1, …; None and 0 are omitted.
    """
    points = [(lag, norm) for lag, norm in enumerate(norms) if norm]

    def draw(axes: Any) -> None:
        if points:
            axes.plot(*zip(*points, strict=True), color=ACCENT, linewidth=1.6, label=name)
        axes.set(
            yscale="log", xlabel="lag k: tokens between state and loss", ylabel="gradient norm (log scale)"
        )

    return Picture(
        draw_svg("Gradient norm by lag", draw),
        "‖∂L(T) / ∂s(T-k)‖: gradient of one late loss with respect to the state k tokens earlier, averaged over "
        "segments of the validation text. It vanishes if it falls by powers of ten, and explodes if it rises.",
    )


def gate_picture(gates: Sequence[Mapping[str, Any]]) -> Picture:
    """Draw the shares of saturated values by layer and gate, from `gate_saturation`."""
    labels = [f"layer {gate['layer']}, {gate['gate']}" for gate in gates]

    def draw(axes: Any) -> None:
        rows = range(len(gates))
        for shift, key, colour, name in (
            (-0.19, "low", QUIET, "below 0.1"),
            (0.19, "high", ACCENT, "above 0.9"),
        ):
            values = [100 * gate[key] for gate in gates]
            bars = axes.barh([p + shift for p in rows], values, height=0.36, color=colour, label=name)
            axes.bar_label(bars, labels=[f"{v:.0f} %" for v in values], padding=2, color=INK, fontsize=8)
        axes.set_yticks(rows, labels)
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set(xlim=(0, 115), xticks=[0, 25, 50, 75, 100], xlabel="per cent of values")

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
    height = max(HEIGHT, 1.5 + 0.42 * len(gates))
    return Picture(draw_svg(title, draw, height=height, grid="x"), caption)


def plot_perplexity(
    axes: Any, history: Sequence[HistoryRecord], along: Sequence[float], **labels: str
) -> None:
    """Draw training and validation perplexity; `along` has each record's time or amount of text."""
    training = [math.exp(min(r.train_loss, 30.0)) for r in history]
    axes.plot(along, training, color=QUIET, linewidth=1.2, label="training (smoothed)")
    held_out = [(x, r.valid_perplexity) for x, r in zip(along, history, strict=True) if r.valid_perplexity]
    if held_out:
        axes.plot(*zip(*held_out, strict=True), color=ACCENT, marker="o", markersize=3.5, label="validation")
        best = min(held_out, key=lambda point: point[1])  # the point of the published weights
        axes.annotate(
            f"{best[1]:,.1f}", best, textcoords="offset points", xytext=(2, 7), ha="right", color=ACCENT
        )
    axes.set(yscale="log", **labels)
    plain_log_ticks(axes.yaxis)


def _perplexity_curve(
    title: str, caption: str, history: Sequence[HistoryRecord], along: Sequence[float], label: str
) -> Picture:
    labels = {"xlabel": label, "ylabel": "per token (log scale)"}
    return Picture(draw_svg(title, lambda axes: plot_perplexity(axes, history, along, **labels)), caption)


def _curve(
    title: str,
    caption: str,
    history: Sequence[HistoryRecord],
    fields: Mapping[str, str],
    *,
    log: bool = False,
    floor: float | None = None,
) -> Picture | None:
    """Draw fields of records over time, by label, with gaps where missing; None if all are."""
    colours = (ACCENT,) if len(fields) == 1 else (QUIET, ACCENT)  # later curves are drawn on top
    curves = [(label, _values(history, field)) for label, field in fields.items()]
    known = [(label, values) for label, values in curves if np.isfinite(values).any()]
    if not known:
        return None

    def draw(axes: Any) -> None:
        for (label, values), colour in zip(known, colours, strict=False):
            axes.plot(_values(history, "seconds") / 60, values, color=colour, linewidth=1.4, label=label)
        if log:
            axes.set_yscale("log")
            plain_log_ticks(axes.yaxis)
        if floor is not None:
            axes.set_ylim(bottom=floor)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlabel("minutes of training")

    return Picture(draw_svg(title, draw), caption)


def _values(history: Sequence[HistoryRecord], field: str) -> Float64s:
    """Return a field of every record, NaN where missing."""
    return np.array([getattr(record, field, None) for record in history], dtype=np.float64)


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
    inside: list[Picture] = []
    if any(diagnostics.get("gradient_by_lag", ())):
        inside.append(gradient_picture(name, diagnostics["gradient_by_lag"]))
    if diagnostics.get("gate_saturation"):
        inside.append(gate_picture(diagnostics["gate_saturation"]))
    sections = [
        Section("", "tiles", list(_training_summary(metrics, provenance.get("seconds"), history))),
        Section("Held-out figures", "tables", _training_figures(metrics)),
        Section("Training", "pictures", history_pictures(history)),
        Section("Inside the network", "pictures", inside),
        Section("Recipe", "tables", _recipe(provenance.get("recipe") or {})),
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


def _training_figures(metrics: Mapping[str, Any]) -> list[Table]:
    splits = {split: metrics[split] for split in ("valid", "test") if metrics.get(split)}
    rows = [
        (label, *(format_number(figures.get(key), digits) for figures in splits.values()))
        for key, (label, digits) in _FIGURES.items()
        if any(key in figures for figures in splits.values())
    ]
    return [Table(["", *splits], rows)] if splits else []


def _recipe(recipe: Mapping[str, Any]) -> list[Table]:
    """Return the recipe tables on a network's training."""
    plain = {key: value for key, value in recipe.items() if not isinstance(value, Mapping)}
    tables = {
        "": plain,
        **{key: recipe[key] for key in ("corpus", "tokenizer", "neural", "train") if recipe.get(key)},
    }
    return [
        Table([], [(key, _plain(value)) for key, value in own.items()], caption=title or "recipe")
        for title, own in tables.items()
        if own
    ]


_MAX_PLAIN = 1e9


def format_number(value: float | None, digits: int = 1) -> str:
    """Format a number with `digits` decimals, or in exponent notation from 10⁹."""
    if value is None:
        return "infinite"
    return f"{value:,.{digits}f}" if abs(value) < _MAX_PLAIN else f"{value:.3g}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


_LISTS = {"top_1": "first of the list", "top_3": "first three"}
_POSITIONS = {"next_word": "before a word", "any_letter": "before any letter"}
_PHRASES = "phrase_match_"
_NAMES = {
    "keystroke_savings_top_1": "keystroke savings, one completion shown",
    "keystroke_savings_top_3": "keystroke savings, three shown",
    "word_savings_top_1": "word savings, one shown",
    "word_savings_top_3": "word savings, three shown",
    "next_word_recall_top_1": "next word is the first completion",
    "next_word_recall_top_3": "next word is among the first three",
    "next_word_mrr": "MRR, next word",
    "mrr": "MRR, all keystrokes",
    "mean_recoverable_length_top_1": "mean recoverable length, one shown",
    "mean_recoverable_length_top_3": "mean recoverable length, three shown",
}


def autocomplete_page(result: Mapping[str, Any]) -> bytes:
    """Render the autocomplete report, of `training.commands.run_evaluate_autocomplete`, as HTML bytes."""
    introduction = (
        f"A simulated typist with the completions of {result['model']}: {result['words']:,} words on "
        f"{result['lines']:,} held-out lines. Keystroke savings count each character, line end and completion as "
        "a key; word savings, the model's own words only. The intervals are 95 % confidence intervals."
    )
    sections = [
        Section("", "tiles", list(_autocomplete_summary(result))),
        Section("Figures", "tables", [_autocomplete_figures(result)]),
        Section("Pictures", "pictures", _pictures(result)),
        Section("Acceptance", "tables", [_acceptance(result["acceptance"])]),
    ]
    heading = f"{result['model']}: autocomplete"
    return render_page(heading, heading, introduction, sections)


def _format_figure(name: str, value: float | None, *, signed: bool = False) -> str:
    """Format a figure: shares in per cent, other values with three decimals."""
    if value is None:
        return "none"
    sign = "+" if signed else ""
    plain = "mrr" in name or "length" in name
    return f"{value:{sign}.3f}" if plain else f"{100 * value:{sign}.1f} %"


def _autocomplete_summary(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    figures = result["figures"]
    for name in ("keystroke_savings_top_3", "keystroke_savings_top_1", "next_word_recall_top_3"):
        yield _NAMES[name], _format_figure(name, figures[name]["value"])
    yield "one keystroke, median", f"{result['keystroke_ms']['p50']:.2f} ms"


def _autocomplete_figures(result: Mapping[str, Any]) -> Table:
    against = result.get("against")
    heads = ["", result["model"], "95 %"]
    if against:
        heads += [against["model"], "difference", "95 %"]
    lengths = {name: name.removeprefix(_PHRASES) for name in result["figures"] if name.startswith(_PHRASES)}
    # phrases of one word are omitted: they equal next-word recall
    phrases = {name: f"the next {words} words are right" for name, words in lengths.items() if words != "1"}
    rows = []
    for name, label in {**_NAMES, **phrases}.items():
        figure = result["figures"][name]
        row = [label, _format_figure(name, figure["value"]), _span(name, figure)]
        if against:
            gap = against["difference"][name]
            value = _format_figure(name, against["figures"][name]["value"])
            row += [value, _format_figure(name, gap["value"], signed=True), _span(name, gap, signed=True)]
        rows.append(row)
    return Table(heads, rows)


def _span(name: str, figure: Mapping[str, Any], *, signed: bool = False) -> str:
    return " to ".join(_format_figure(name, figure[end], signed=signed) for end in ("low", "high"))


def _acceptance(rows_by_position: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    heads = ["share of positions with a completion"]
    heads += [f"{name}, {label}" for label in _POSITIONS.values() for name in ("threshold", "precision")]
    rows = []
    for same_coverage in zip(*(rows_by_position[key] for key in _POSITIONS), strict=True):
        row = [f"{100 * same_coverage[0]['coverage']:.0f} %"]
        for row_of_position in same_coverage:
            row += [f"{row_of_position['threshold']:.3f}", f"{100 * row_of_position['precision']:.1f} %"]
        rows.append(row)
    return Table(heads, rows)


_Curve: TypeAlias = tuple[int, str | None, str, Sequence[tuple[float, float]]]
"""Number of the model, label, colour and points."""


def _pictures(result: Mapping[str, Any]) -> list[Picture]:
    """Draw recall, precision and phrase matches; a second model's curves are dashed."""
    models = [result, *([result["against"]] if "against" in result else [])]
    dashed_note = f" Dashed: {models[1]['model']}." if len(models) > 1 else ""
    recall, precision, phrases = list[_Curve](), list[_Curve](), list[_Curve]()
    for number, model in enumerate(models):
        for (key, name), colour in zip(_LISTS.items(), (ACCENT, SECOND), strict=True):
            points = [(row["letters"], 100 * row[key]) for row in model["recall_by_letters"]]
            recall.append((number, None if number else name, colour, points))
        for (key, name), colour in zip(_POSITIONS.items(), (ACCENT, SECOND), strict=True):
            points = [(100 * row["coverage"], 100 * row["precision"]) for row in model["acceptance"][key]]
            precision.append((number, None if number else name, colour, points))
        values = [own["value"] for name, own in model["figures"].items() if name.startswith(_PHRASES)]
        points = [(n, 100 * value) for n, value in enumerate(values, start=1) if value is not None]
        phrases.append((number, None, (ACCENT, THIRD)[number], points))
    labels = {"xlabel": "letters typed", "ylabel": "per cent of words"}
    found = _draw_curves("Words found by letters typed", recall, ylim=(0, 103), **labels)
    labels = {"xlabel": "per cent of positions with a completion", "ylabel": "per cent correct"}
    shown = _draw_curves("Precision of shown completions", precision, xlim=(0, 100), ylim=(0, 103), **labels)
    labels |= {"xlabel": "words of the phrase"}
    matching = _draw_curves("Matching phrases", phrases, xticks=range(1, 6), ylim=(0, None), **labels)
    return [
        Picture(
            found,
            "Share of words in the list after the given number of letters, over the words that are longer."
            + dashed_note,
        ),
        Picture(
            shown,
            "A service that shows its first completion only above a probability (min_probability) shows fewer "
            "completions and is correct more often." + dashed_note,
        ),
        Picture(
            matching,
            "Share of phrases, built from the most probable word, the most probable word after it, and so on, that "
            "match the next words of the text." + dashed_note,
        ),
    ]


def _draw_curves(title: str, curves: Sequence[_Curve], **settings: Any) -> str:
    """Draw curves, and set properties of the axes."""

    def draw(axes: Any) -> None:
        for number, label, colour, points in curves:
            style = {"linewidth": 1.0, "linestyle": "--"} if number else {"linewidth": 1.6}
            curve = zip(*points, strict=True)
            axes.plot(*curve, color=colour, label=label, marker="o", markersize=3.0, **style)
        axes.set(**settings)

    return draw_svg(title, draw)
