"""Pictures as SVG that takes its colours from the page around it, so that one picture serves light and dark."""

import io
import re
from collections.abc import Callable
from html import escape
from typing import Any, Literal

WIDTH, HEIGHT = 4.0, 2.6
"""Inches: as wide as a phone, so that letters stay readable there."""

INK, QUIET, ACCENT, SECOND, THIRD, GRID = "#101010", "#707070", "#2060a0", "#c05010", "#208050", "#d0d0d0"
SERIES = (ACCENT, SECOND, THIRD, QUIET)
_VARIABLES = {
    INK: "ink",
    QUIET: "quiet",
    ACCENT: "accent",
    SECOND: "second",
    THIRD: "third",
    GRID: "grid",
}
_SETTINGS: Any = {"svg.fonttype": "none", "font.size": 9.0, "axes.titlesize": 9.5}


def draw_svg(
    title: str, draw: Callable[[Any], None], *, height: float = HEIGHT, along: Literal["x", "y"] = "y"
) -> str:
    """An `<svg>` element.

    Args:
        title: said above the picture, and to those who cannot see it.
        draw: puts marks on matplotlib's axes, in this module's colours.
        height: in inches.
        along: the axis that values are read off, which has grid lines.
    """
    import matplotlib as mpl  # slow to import
    from matplotlib.figure import Figure  # no global state: not pyplot

    with mpl.rc_context(_SETTINGS | {"svg.hashsalt": title}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.set_title(title, loc="left", color=INK, fontweight="bold")
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(QUIET)
        axes.tick_params(which="both", color=QUIET, labelcolor=INK)
        axes.xaxis.label.set_color(QUIET)
        axes.yaxis.label.set_color(QUIET)
        axes.grid(visible=True, axis=along, color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, labelcolor=INK, fontsize=8)
        buffer = io.StringIO()
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    return _themed(buffer.getvalue(), title)


def plain_log_ticks(axis: Any) -> None:
    """Ticks of a logarithmic axis at 1, 2, 5, 10, … in plain digits."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _themed(svg: str, title: str) -> str:
    svg = svg[svg.index("<svg") :]
    # a style in a picture would hold for the whole page
    svg = re.sub(r"<(metadata|style)\b.*?</\1>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="(figure|axes|patch|line2d|text|legend|matplotlib|xtick|ytick|PolyColl)\w*"', "", svg)
    opening, rest = svg.split(">", 1)
    opening = re.sub(r' (width|height)="[^"]*"', "", opening)
    svg = f'{opening} role="img" aria-label="{escape(title)}">{rest}'
    for colour, name in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{name})")
    return re.sub(r"(font: [^;\"]*?px) [^;\"]+", r"\1 system-ui, sans-serif", svg)
