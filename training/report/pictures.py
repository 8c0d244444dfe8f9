"""The diagnostics report's pictures: learning curves, rates, norms, throughput, gradients by lag, gates."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from training.neural.history import HistoryRecord
from training.report.drawing import ACCENT, HEIGHT, INK, QUIET, SERIES, draw_svg, plain_log_ticks


class Picture(NamedTuple):
    """A picture and how to read it.

    Attributes:
        svg: an `<svg>` element.
        caption: plain text.
    """

    svg: str
    caption: str


def history_pictures(history: Sequence[HistoryRecord]) -> list[Picture]:
    """What the trainer's records show; fields that they lack are left out."""
    if not history:
        return []
    minutes = [record.seconds / 60 for record in history]
    millions = [record.tokens / 1e6 for record in history]
    pictures = [
        Picture(
            _learning_curve("Perplexity over time", history, minutes, "minutes of training"),
            "Training text is scored with dropout and by weights that change, validation text without: it may "
            "be lower. Validation that rises while training falls is overfitting.",
        ),
        Picture(
            _learning_curve("Perplexity over tokens", history, millions, "million tokens seen"),
            "The same by the amount of text: what a faster or slower machine has to do with it is taken out.",
        ),
        _curve(
            "Learning rate",
            "What the schedule set for each update: it rises to its peak and is annealed to zero.",
            {"": _field(history, "learning_rate")},
            minutes,
        ),
        _curve(
            "Norm of the gradient",
            "Over all parameters, at the last update before each point. Spikes that clipping cuts are harmless; "
            "a floor that rises is not.",
            {"before clipping": _field(history, "grad_norm"), "after": _field(history, "clipped_norm")},
            minutes,
            log=True,
        ),
        _curve(
            "Throughput",
            "Training tokens a second, validations included; other dips are a busy machine.",
            {"": _field(history, "tokens_per_second")},
            minutes,
            floor=0.0,
        ),
    ]
    return [picture for picture in pictures if picture is not None]


def gradient_picture(norms: Mapping[str, Sequence[float | None]]) -> Picture:
    """The norm of a late loss's gradient by lag, one curve a model.

    Args:
        norms: by the model's name: ‖∂L_T/∂s_{T−k}‖ for k = 0, 1, …; what is None or 0 is left out.
    """

    def draw(axes: Any) -> None:
        for (name, own), colour in zip(norms.items(), SERIES, strict=False):
            points = [(lag, norm) for lag, norm in enumerate(own) if norm]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.6, label=name)
        axes.set_yscale("log")
        axes.set_xlabel("lag k: tokens between state and loss")
        axes.set_ylabel("gradient norm (log scale)")

    return Picture(
        draw_svg("How far back the loss reaches", draw),
        "‖∂L(T) / ∂s(T-k)‖: the gradient of one late loss with respect to what was carried k tokens earlier, "
        "mean over stretches of the validation text. Falling by powers of ten is vanishing, rising exploding.",
    )


def gate_picture(gates: Sequence[Mapping[str, Any]]) -> Picture:
    """The shares of saturated values by layer and gate, from `GateSaturation` as dictionaries."""
    labels = [f"layer {gate['layer']}, {gate['gate']}" for gate in gates]

    def draw(axes: Any) -> None:
        places = range(len(gates))
        for shift, key, colour, name in (
            (-0.19, "low", QUIET, "below 0.1"),
            (0.19, "high", ACCENT, "above 0.9"),
        ):
            values = [100 * gate[key] for gate in gates]
            bars = axes.barh([p + shift for p in places], values, height=0.36, color=colour, label=name)
            axes.bar_label(bars, labels=[f"{v:.0f} %" for v in values], padding=2, color=INK, fontsize=8)
        axes.set_yticks(places, labels)
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlim(0, 115)
        axes.set_xticks([0, 25, 50, 75, 100])
        axes.set_xlabel("per cent of values")

    height = max(HEIGHT, 1.5 + 0.42 * len(gates))
    if all(gate["gate"] == "|h|" for gate in gates):
        return Picture(
            draw_svg("Saturated outputs", draw, height=height, along="x"),
            "Absolute outputs of layers with tanh: above 0.9 it is flat and lets hardly any gradient through.",
        )
    return Picture(
        draw_svg("Saturated gates", draw, height=height, along="x"),
        "Values near 0 or 1 let hardly any gradient through. A forget gate often above 0.9 remembers; one "
        "mostly below 0.1 reads single tokens.",
    )


def _learning_curve(title: str, history: Sequence[HistoryRecord], along: Sequence[float], label: str) -> str:
    def draw(axes: Any) -> None:
        axes.plot(
            along,
            [_exp(r.train_loss) for r in history],
            color=QUIET,
            linewidth=1.2,
            label="training (smoothed)",
        )
        held_out = [
            (x, r.valid_perplexity) for x, r in zip(along, history, strict=True) if r.valid_perplexity
        ]
        if held_out:
            axes.plot(
                *zip(*held_out, strict=True), color=ACCENT, marker="o", markersize=3.5, label="validation"
            )
            best = min(held_out, key=lambda point: point[1])
            axes.annotate(
                f"{best[1]:,.1f}", best, textcoords="offset points", xytext=(2, 7), ha="right", color=ACCENT
            )
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis)
        axes.set_xlabel(label)
        axes.set_ylabel("per token (log scale)")

    return draw_svg(title, draw)


def _curve(
    title: str,
    caption: str,
    series: Mapping[str, Sequence[float] | None],
    along: Sequence[float],
    *,
    log: bool = False,
    floor: float | None = None,
) -> Picture | None:
    """Curves over time; those without values are left out, and the picture without curves."""
    colours = (ACCENT,) if len(series) == 1 else (QUIET, ACCENT)  # the last one drawn lies on top
    known = {name: values for name, values in series.items() if values is not None}
    if not known:
        return None

    def draw(axes: Any) -> None:
        for (name, values), colour in zip(known.items(), colours, strict=False):
            axes.plot(along, values, color=colour, linewidth=1.4, label=name if len(series) > 1 else None)
        if log:
            axes.set_yscale("log")
            plain_log_ticks(axes.yaxis)
        if floor is not None:
            axes.set_ylim(bottom=floor)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlabel("minutes of training")

    return Picture(draw_svg(title, draw), caption)


def _field(history: Sequence[HistoryRecord], name: str) -> list[float] | None:
    """A field of every record, not a number where one has none; None where none has any."""
    values = [getattr(record, name, None) for record in history]
    known = [math.nan if value is None or not math.isfinite(value) else float(value) for value in values]
    return None if all(map(math.isnan, known)) else known


def _exp(loss: float) -> float:
    return math.exp(min(loss, 30.0))
