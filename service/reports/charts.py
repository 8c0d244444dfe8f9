"""Charts as SVG in the colours of the page around them, light or dark."""

import io
import re
from collections.abc import Callable
from enum import StrEnum
from html import escape
from typing import Any, NamedTuple

_SIZE_INCHES = (4.4, 3.0)
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 9.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.handlelength": 1.4,
    "text.parse_math": False,  # names of features may have dollars in them
}


class Colour(StrEnum):
    """Colours that no chart has by chance; each stands for one of the page's."""

    INK = "#0a0b0c"
    QUIET = "#6a6b6c"
    GRID = "#dadbdc"
    FIRST = "#7a5b3c"
    TUNED = "#1a5b9c"
    ORACLE = "#2a8b5c"


class Chart(NamedTuple):
    """A chart and how to read it.

    Attributes:
        svg: an `<svg>` element.
        caption: plain text.
    """

    svg: str
    caption: str


def draw_chart(title: str, caption: str, draw: Callable[[Any], None]) -> Chart:
    """Draw a chart.

    Args:
        title: stands above it.
        caption: stands below.
        draw: puts marks on matplotlib's axes, in colours of `Colour` only.
    """
    import matplotlib as mpl  # slow to import, and needed for reports only
    from matplotlib.figure import Figure

    colours = {
        "text.color": Colour.INK.value,
        "axes.edgecolor": Colour.QUIET.value,
        "axes.labelcolor": Colour.QUIET.value,
        "xtick.color": Colour.QUIET.value,
        "ytick.color": Colour.QUIET.value,
        "grid.color": Colour.GRID.value,
    }
    with mpl.rc_context(_STYLE | colours | {"svg.hashsalt": title}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.set_title(title)
        if labels := axes.get_legend_handles_labels()[1]:
            figure.legend(loc="outside lower center", ncols=len(labels))  # where no mark can lie below it
        written = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(written, format="svg", transparent=True, metadata=nothing)
    return Chart(_embed_svg(written.getvalue(), title), caption)


def _embed_svg(svg: str, title: str) -> str:
    """The element alone: as wide as its place, named, with the page's fonts and colours."""
    svg = re.sub(
        r"<metadata>.*?</metadata>|<style\b.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL
    )
    svg = re.sub(r'^<svg [^>]*?viewBox="([^"]+)"[^>]*>', lambda found: _svg_root(title, found[1]), svg)
    svg = re.sub(
        r' id="(?!p|m)\w+"', "", svg
    )  # clips and markers are referred to; names of other parts would clash
    svg = re.sub(r"font: ([^;\"]*px) [^;\"]*", r"font: \1 system-ui, sans-serif", svg)
    for colour in Colour:
        svg = svg.replace(colour.value, f"var(--{colour.name.lower()})")
    return svg


def _svg_root(title: str, box: str) -> str:
    return f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{box}" role="img" aria-label="{escape(title)}">'
