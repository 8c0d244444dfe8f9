"""Documents for people: HTML pages with tiles, tables and pictures, other templates, and pictures as SVG or PNG.

Pictures of a page are SVG with the page's colours, so they suit light and dark themes. The page's
template is `report.html.jinja` and its style `report.css`, in this module's folder.
"""

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from models.errors import require_package

_COLOURS = {"ink": "#101010", "quiet": "#707070", "accent": "#2060a0"}
_COLOURS |= {"second": "#c05010", "third": "#208050", "grid": "#d0d0d0"}
_INK, _QUIET = _COLOURS["ink"], _COLOURS["quiet"]
_WIDTH, _HEIGHT = 4.0, 2.7
"""Inches: the width of a phone screen, to keep text readable there."""

_MAX_PLAIN = 1e9
_PNG_WIDTH, _PNG_DPI = 6.0, 120  # cards are read on larger screens

Line: TypeAlias = tuple[str, str, npt.ArrayLike, npt.ArrayLike, Mapping[str, Any]]
"""Label in the legend, may be empty; name of a colour; positions [n]; values [n], NaN for gaps; other properties."""

Bars: TypeAlias = tuple[str, str | Sequence[str], npt.ArrayLike, Sequence[str]]
"""Label in the legend, may be empty; name of a colour, or of one a bar; lengths [n]; texts at the ends [n], or none."""

_STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 9.0,
    "axes.axisbelow": True,
    "axes.edgecolor": _QUIET,
    "axes.labelcolor": _QUIET,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "grid.color": _COLOURS["grid"],
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "text.color": _INK,
    "xtick.color": _QUIET,
    "xtick.labelcolor": _INK,
    "ytick.color": _QUIET,
    "ytick.labelcolor": _INK,
}


class Picture(NamedTuple):
    """Picture with a title and a caption, drawn where it is used.

    Attributes:
        title: plain text above the picture, also for screen readers.
        caption: plain text.
        draw: draws on matplotlib's axes, in this module's colours.
        height: in inches.
        grid: axis with grid lines, the one of values.
    """

    title: str
    caption: str
    draw: Callable[[Any], None]
    height: float = _HEIGHT
    grid: Literal["x", "y"] = "y"

    @property
    def svg(self) -> str:
        """An `<svg>` element of full width, with a label, in the page's fonts and colours."""
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        svg = _draw([self], _WIDTH, format="svg", transparent=True, metadata=metadata).decode()
        svg = svg[svg.index("<svg") :]
        # a style in a picture would apply to the whole page
        svg = re.sub(r"<(metadata|style)\b.*?</\1>\s*", "", svg, flags=re.DOTALL)
        svg = re.sub(
            r' id="(figure|axes|patch|line2d|text|legend|matplotlib|xtick|ytick|PolyColl)\w*"', "", svg
        )
        opening, rest = svg.split(">", 1)
        opening = re.sub(r' (width|height)="[^"]*"', "", opening)
        svg = f'{opening} role="img" aria-label="{escape(self.title)}">{rest}'
        for name, colour in _COLOURS.items():
            svg = svg.replace(colour, f"var(--{name})")
        return re.sub(r"(font: [^;\"]*?px) [^;\"]+", r"\1 system-ui, sans-serif", svg)


def format_number(value: float | None, digits: int = 1) -> str:
    """Format a number with `digits` decimals, or in exponent notation from 10⁹."""
    if value is None:
        return "infinite"
    return f"{value:,.{digits}f}" if abs(value) < _MAX_PLAIN else f"{value:.3g}"


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
    sections: Sequence[Section],
    *,
    verdict: str = "",
    adopted: bool = False,
    signature: str = "",
) -> bytes:
    """Return a self-contained page, HTML in UTF-8; all texts are plain.

    `title` is the window's, `verdict` a highlighted result, `adopted` whether it is in favour of a change,
    `signature` settings in one line, shown as code.
    """
    template = Path(__file__).with_name("report.html.jinja")
    facts = {"heading": heading, "title": title, "introduction": introduction, "sections": sections}
    return render(template, **facts, verdict=verdict, adopted=adopted, signature=signature)


def render(template: Path, **facts: Any) -> bytes:
    """Fill in a Jinja template, with escapes if it is `.html.jinja`; return UTF-8."""
    import jinja2  # slow import that only reports need

    environment = jinja2.Environment(
        autoescape=template.name.endswith(".html.jinja"),
        keep_trailing_newline=True,
        loader=jinja2.FileSystemLoader(template.parent),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"spec": format, "number": format_number}
    return environment.get_template(template.name).render(facts).encode()


def plot_lines(
    title: str, caption: str, lines: Iterable[Line], *, plain_log: bool = False, **settings: Any
) -> Picture:
    """Return a picture of lines, later ones on top.

    `plain_log` sets a logarithmic scale with ticks at 1, 2, 5, 10, … in plain digits, `settings` properties of the
    axes.
    """

    def draw(axes: Any) -> None:
        for label, colour, x, y, style in lines:
            axes.plot(x, y, color=_COLOURS[colour], label=label, **{"linewidth": 1.4, **style})
        axes.set(**settings)
        if plain_log:
            from matplotlib.ticker import LogLocator, NullFormatter  # slow to import

            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_minor_formatter(NullFormatter())
        if axes.get_yscale() == "linear" or plain_log:
            axes.yaxis.set_major_formatter("{x:,g}")

    return Picture(title, caption, draw)


def plot_bars(
    title: str,
    caption: str,
    slots: Sequence[str],
    kinds: Sequence[Bars],
    *,
    horizontal: bool = False,
    **settings: Any,
) -> Picture:
    """Return a picture of bars in named slots: columns, or rows for long names.

    `settings` are properties of the axes.
    """

    def draw(axes: Any) -> None:
        plot, names, values = axes.bar, axes.xaxis, axes.yaxis
        if horizontal:
            plot, names, values = axes.barh, axes.yaxis, axes.xaxis
            axes.invert_yaxis()
            axes.spines["left"].set_visible(False)
        thickness = 0.8 / len(kinds)
        for number, (label, colour, lengths, texts) in enumerate(kinds):
            centres = np.arange(len(slots)) + (number - (len(kinds) - 1) / 2) * thickness
            colours = [_COLOURS[one] for one in ([colour] if isinstance(colour, str) else colour)]
            bars = plot(centres, lengths, 0.9 * thickness, color=colours, label=label)
            axes.bar_label(bars, labels=texts or [""] * len(slots), padding=3, color=_INK, fontsize=8)
        names.set_ticks(range(len(slots)), slots)
        names.set_tick_params(length=0)
        values.set_major_formatter("{x:,g}")
        axes.set(**settings)

    if horizontal:
        return Picture(title, caption, draw, height=1.4 + 0.45 * len(slots), grid="x")
    return Picture(title, caption, draw)


def draw_png(*pictures: Picture) -> bytes:
    """Draw pictures side by side, for documents without SVG."""
    return _draw(pictures, _PNG_WIDTH, format="png", dpi=_PNG_DPI, metadata={"Software": None})


def _draw(pictures: Sequence[Picture], width: float, **options: Any) -> bytes:
    require_package("matplotlib", "a picture")
    import matplotlib as mpl  # slow to import
    from matplotlib.figure import Figure  # pyplot would keep global state

    buffer, height = io.BytesIO(), max(picture.height for picture in pictures)
    with mpl.rc_context(_STYLE | {"svg.hashsalt": pictures[0].title}):
        figure = Figure(figsize=(width * len(pictures), height), layout="constrained")
        columns = figure.subplots(ncols=len(pictures), squeeze=False)[0]
        for picture, axes in zip(pictures, columns, strict=True):
            picture.draw(axes)
            axes.set_title(picture.title, parse_math=False)  # names may have dollar signs
            axes.xaxis.label.set_parse_math(False)
            axes.grid(visible=True, axis=picture.grid)
            if labels := axes.get_legend_handles_labels()[1]:
                figure.legend(loc="outside lower center", ncols=min(len(labels), 3))  # to hide no data
        figure.savefig(buffer, **options)
    return buffer.getvalue()
