"""HTML reports: single-file pages with tiles, tables and pictures.

Pictures are SVG with the page's colours, so they suit light and dark themes. The template
is `report.html.jinja` and the style `report.css`, in this module's folder.
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple

from models.errors import require_package

INK, QUIET, ACCENT, SECOND, THIRD, GRID = "#101010", "#707070", "#2060a0", "#c05010", "#208050", "#d0d0d0"
_VARIABLES = {
    INK: "ink",
    QUIET: "quiet",
    ACCENT: "accent",
    SECOND: "second",
    THIRD: "third",
    GRID: "grid",
}
WIDTH, HEIGHT = 4.0, 2.6
"""Inches: the width of a phone screen, to keep text readable there."""

_STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 9.0,
    "axes.axisbelow": True,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "text.color": INK,
    "xtick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.color": QUIET,
    "ytick.labelcolor": INK,
}


class Picture(NamedTuple):
    """Picture with a caption.

    Attributes:
        svg: an `<svg>` element.
        caption: plain text.
    """

    svg: str
    caption: str


class Table(NamedTuple):
    """Table of plain text with names in the first column.

    Attributes:
        heads: titles of the columns; empty for a table without a header row.
        rows: texts of all columns.
        caption: title of the table; may be empty.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


class Section(NamedTuple):
    """Part of a page; omitted if it has no content.

    Attributes:
        title: plain text; a section without one has no heading.
        kind: layout of the content, a macro of the template.
        content: pairs of label and value as `tiles`, lists of `Table` or `Picture`, or the definition lists of
            `examples`: pairs of a name and its pairs of label and text, which may be `Markup`.
        note: a sentence before the content.
        mark: colour of the bar beside examples: `good` or `bad`.
    """

    title: str
    kind: Literal["tiles", "tables", "pictures", "examples"]
    content: Sequence[Any]
    note: str = ""
    mark: str = ""


def render_page(
    heading: str,
    title: str,
    introduction: str,
    sections: Iterable[Section],
    *,
    verdict: str = "",
    adopted: bool = False,
    signature: str = "",
) -> bytes:
    """Return a self-contained page, HTML in UTF-8; all texts are plain.

    Args:
        heading: text at the top.
        title: title of the window.
        introduction: a sentence.
        sections: parts of the page.
        verdict: highlighted result; may be empty.
        adopted: whether the verdict is in favour of a change.
        signature: settings in one line, shown as code; may be empty.
    """
    page: str = _template().render(
        heading=heading,
        title=title,
        introduction=introduction,
        sections=[section for section in sections if section.content],
        verdict=verdict,
        adopted=adopted,
        signature=signature,
        style=Path(__file__).with_name("report.css").read_text(encoding="utf-8"),
    )
    return page.encode()


@cache
def _template() -> Any:
    import jinja2  # slow import that only reports need

    environment = jinja2.Environment(
        autoescape=True,
        keep_trailing_newline=True,
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html.jinja")


def draw_svg(
    title: str,
    draw: Callable[[Any], None],
    *,
    height: float = HEIGHT,
    grid: Literal["x", "y", "both"] = "y",
) -> str:
    """Draw an `<svg>` element.

    Args:
        title: text above the picture, also for screen readers.
        draw: draws on matplotlib's axes, in this module's colours.
        height: in inches.
        grid: axes with grid lines, usually the value axis.
    """
    with _figure(WIDTH, height, **{"svg.hashsalt": title}) as figure:
        axes = figure.subplots()
        draw(axes)
        axes.set_title(title, parse_math=False)  # names may contain dollar signs
        axes.grid(visible=True, axis=grid)
        if labels := axes.get_legend_handles_labels()[1]:
            figure.legend(loc="outside lower center", ncols=min(len(labels), 3))  # to hide no data
        buffer = io.StringIO()
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    return _themed(buffer.getvalue(), title)


def draw_png(
    draw: Callable[[Any], None], *, width: float = 7.2, height: float = 3.6, columns: int = 1
) -> bytes:
    """Draw a picture for a page that does not support SVG.

    Args:
        draw: draws on matplotlib's axes, an array if `columns` is above 1, in this module's colours.
        width: in inches.
        height: in inches.
        columns: pictures side by side.
    """
    with _figure(width, height) as figure:
        draw(figure.subplots(ncols=columns))
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


@contextmanager
def _figure(width: float, height: float, **style: str) -> Iterator[Any]:
    require_package("matplotlib", "a picture")
    import matplotlib as mpl  # slow to import
    from matplotlib.figure import Figure  # pyplot would keep global state

    with mpl.rc_context(_STYLE | style):
        yield Figure(figsize=(width, height), layout="constrained")


def plain_log_ticks(axis: Any) -> None:
    """Set the ticks of a logarithmic axis at 1, 2, 5, 10, … in plain digits."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _themed(svg: str, title: str) -> str:
    """Reduce SVG to a full-width root element with a label and the page's fonts and colours."""
    svg = svg[svg.index("<svg") :]
    # a style in a picture would apply to the whole page
    svg = re.sub(r"<(metadata|style)\b.*?</\1>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="(figure|axes|patch|line2d|text|legend|matplotlib|xtick|ytick|PolyColl)\w*"', "", svg)
    opening, rest = svg.split(">", 1)
    opening = re.sub(r' (width|height)="[^"]*"', "", opening)
    svg = f'{opening} role="img" aria-label="{escape(title)}">{rest}'
    for colour, name in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{name})")
    return re.sub(r"(font: [^;\"]*?px) [^;\"]+", r"\1 system-ui, sans-serif", svg)
