"""The pictures of a model card, each as the bytes of a PNG."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from training.neural.history import HistoryRecord
from training.notes import all_parts

_MAX_PLOTTED = 1e9
_INK, _ACCENT, _QUIET = "#1f2933", "#2563a8", "#9aa5b1"


def learning_curve(title: str, history: Sequence[HistoryRecord]) -> bytes:
    """Training and validation perplexity over training time."""
    figure, axes = _figure()
    minutes = [r.seconds / 60 for r in history]
    axes.plot(minutes, [_exp(r.train_loss) for r in history], color=_QUIET, label="training (smoothed)")
    held_out = [(r.seconds / 60, r.valid_perplexity) for r in history if r.valid_perplexity is not None]
    if held_out:
        axes.plot(*zip(*held_out, strict=True), color=_ACCENT, marker="o", markersize=4, label="validation")
        best = min(held_out, key=lambda point: point[1])  # the model has the weights it had there
        axes.annotate(f"{best[1]:,.1f}", best, textcoords="offset points", xytext=(4, 6), color=_ACCENT)
    axes.set_yscale("log")
    _plain_log_ticks(axes)
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("perplexity per token (log scale)")
    axes.set_title(f"Learning curve of {title}", loc="left")
    axes.legend(frameon=False)
    return _png(figure)


def perplexity_bars(name: str, metrics: Mapping[str, Any]) -> bytes:
    """Perplexity per word of a mixture and its parts, on the test text or else the one that decided."""
    split = "test" if metrics.get("test") else "valid"
    rows = [(p["name"], p[split]["word_perplexity"]) for p in all_parts(metrics)]
    rows.append((name, metrics[split]["word_perplexity"]))
    rows = [(label, value) for label, value in rows if value is not None]
    figure, axes = _figure(height=1.2 + 0.5 * len(rows))
    bars = axes.barh(
        range(len(rows)),  # two parts may have one name
        [value for _, value in rows],
        color=[_QUIET] * (len(rows) - 1) + [_ACCENT],
    )
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.bar_label(bars, labels=[format_figure(value) for _, value in rows], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(lambda value, _: format_figure(value, 0))
    axes.set_xlabel("perplexity per word (lower is better)")
    axes.set_title(f"Perplexity, {split} text", loc="left")
    return _png(figure)


def ngram_bars(counts: Sequence[int], hits: Sequence[Mapping[str, Any]] = (), *, text: str = "") -> bytes:
    """Distinct n-grams by order and, beside them, how many tokens of a text each order answers for.

    Args:
        counts: n-grams by order.
        hits: `evaluation.HitRate` by order, as in metrics.json; none: the left half alone.
        text: which text.
    """
    figure, axes = _figure(height=1.3 + 0.42 * len(counts), columns=2 if hits else 1)
    left, *right = axes if hits else [axes]
    _bars(left, counts, [f"{count:,}" for count in counts], room=0.35)
    left.set_yticks(range(len(counts)), [f"order {n}" for n in range(1, len(counts) + 1)])
    left.set_title("Distinct n-grams", loc="left")
    for half in right:
        _bars(half, [hit["share"] for hit in hits], [_hit_label(hit) for hit in hits], room=0.75)
        half.set_yticks([])
        half.set_title(f"Longest n-gram found in the {text} text", loc="left")
    return _png(figure)


def format_figure(value: float, digits: int = 1) -> str:
    """A figure with so many digits after the point; one with hundreds before it, as perplexities may be, in powers."""
    return f"{value:,.{digits}f}" if abs(value) < _MAX_PLOTTED else f"{value:.3g}"


def _hit_label(hit: Mapping[str, Any]) -> str:
    share = f"{hit['share']:.1%}"
    return share if hit["perplexity"] is None else f"{share}  (perplexity {format_figure(hit['perplexity'])})"


def _bars(axes: Any, values: Sequence[float], labels: Sequence[str], *, room: float) -> None:
    """Horizontal bars, labels beside them in so much room, as a share of the longest bar, and no scale."""
    bars = axes.barh(range(len(values)), values, color=_ACCENT)
    axes.bar_label(bars, labels=labels, padding=3, color=_INK)
    axes.invert_yaxis()
    axes.margins(x=room)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _exp(loss: float) -> float:
    return math.exp(min(loss, 30.0))


def _figure(height: float = 3.6, *, columns: int = 1) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # slow to import; no global state: not pyplot

    figure = Figure(figsize=(7.2 if columns == 1 else 9.0, height), layout="constrained")
    axes = figure.subplots(ncols=columns)
    for one in axes if columns > 1 else [axes]:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(colors=_INK)
    return figure, axes


def _plain_log_ticks(axes: Any) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()
