"""The page of a training run."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from training.neural.history import HistoryRecord
from training.report.html import document, figure_grid, section, table, tiles
from training.report.pictures import Picture, gate_picture, gradient_picture, history_pictures

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
    "max_minutes": "its minutes",
    "max_steps": "its updates",
    "epochs": "its epochs",
    "patience": "patience",
    "interrupted": "the user",
}


class ReportData(NamedTuple):
    """What the page is written from.

    Attributes:
        name: the model's name.
        introduction: a sentence on what it is.
        metrics: as in metrics.json; what is missing is not shown.
        provenance: as in provenance.json; likewise.
        history: the trainer's records.
    """

    name: str
    introduction: str
    metrics: Mapping[str, Any]
    provenance: Mapping[str, Any]
    history: Sequence[HistoryRecord]


def report_page(data: ReportData) -> bytes:
    """The page's bytes."""
    diagnostics = data.metrics.get("diagnostics", {})
    inside: list[Picture] = []
    if any(diagnostics.get("gradient_by_lag", ())):
        inside.append(gradient_picture({data.name: diagnostics["gradient_by_lag"]}))
    if diagnostics.get("gate_saturation"):
        inside.append(gate_picture(diagnostics["gate_saturation"]))
    sections = [
        tiles(_training_summary(data)),
        section("Held-out figures", _training_figures(data.metrics)),
        section("Training", figure_grid(history_pictures(data.history))),
        section("Inside the network", figure_grid(inside)),
        section("Recipe", _recipe(data.provenance.get("recipe") or {})),
    ]
    return document(data.name, f"{data.name}: training report", data.introduction, sections)


def _training_summary(data: ReportData) -> Iterator[tuple[str, str]]:
    for split, label in (("valid", "validation"), ("test", "test")):
        if figures := data.metrics.get(split):
            yield f"perplexity per word, {label} text", _number(figures["word_perplexity"], 2)
    if (seconds := data.provenance.get("seconds")) is not None:
        yield "training time", f"{seconds / 60:,.1f} min" if seconds >= 60 else f"{seconds:,.1f} s"
    if data.history:
        last = data.history[-1]
        yield "training tokens seen", f"{last.tokens / 1e6:,.2f} M"
        yield "updates", f"{last.step:,}"
        yield "epochs begun", f"{last.epoch + 1:,}"
    if stopped := data.metrics.get("stopped"):
        yield "ended by", _STOP_REASONS.get(stopped, str(stopped))


def _training_figures(metrics: Mapping[str, Any]) -> str:
    splits = {split: metrics[split] for split in ("valid", "test") if metrics.get(split)}
    if not splits:
        return ""
    shown = {
        key: told for key, told in _FIGURES.items() if any(key in figures for figures in splits.values())
    }
    rows = (
        (label, *(_number(f.get(key), digits) for f in splits.values()))
        for key, (label, digits) in shown.items()
    )
    return table(["", *splits], rows)


def _recipe(recipe: Mapping[str, Any]) -> str:
    """The tables that act in a network's training."""
    plain = {key: value for key, value in recipe.items() if not isinstance(value, Mapping)}
    tables = {
        "": plain,
        **{key: recipe[key] for key in ("corpus", "tokenizer", "neural", "train") if recipe.get(key)},
    }
    blocks = "".join(
        f"<table>\n<caption>{escape(title) or 'recipe'}</caption>\n"
        + "".join(
            f"<tr><td>{escape(key)}</td><td>{escape(_plain(value))}</td></tr>\n" for key, value in own.items()
        )
        + "</table>\n"
        for title, own in tables.items()
        if own
    )
    return f'<div class="recipe">\n{blocks}</div>\n' if blocks else ""


def _number(value: float | None, digits: int) -> str:
    return "infinite" if value is None else f"{value:,.{digits}f}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
