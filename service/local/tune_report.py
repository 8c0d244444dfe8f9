"""HTML report of a tuning run: charts, weights by fold, and lists that the weights change.

The page is one file. Charts are SVG in the colours of the page, light or dark.
"""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from html import escape
from importlib import resources
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from rapidfuzz.distance import Levenshtein

from models.reranking.candidates import run_steps
from models.reranking.features import LM
from models.reranking.tuning.cross_fitting import candidate_totals
from models.reranking.tuning.mert import LOSS_TOLERANCE, line_loss
from models.reranking.tuning.problem import Floats, Ints, TuningProblem
from service.schemas.tune import TuneReply
from service.use_cases.tune import TuneResult

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
    """Placeholder colours in charts, each replaced by a colour variable of the page."""

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
        title: above the chart.
        caption: below it.
        draw: draws on matplotlib's axes, in colours of `Colour` only.
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
            figure.legend(loc="outside lower center", ncols=len(labels))  # where it hides no data
        written = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(written, format="svg", transparent=True, metadata=nothing)
    return Chart(_embed_svg(written.getvalue(), title), caption)


def _embed_svg(svg: str, title: str) -> str:
    """Reduce SVG to its root element: full width, labelled, with the page's fonts and colours."""
    svg = re.sub(
        r"<metadata>.*?</metadata>|<style\b.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL
    )
    svg = re.sub(r'^<svg [^>]*?viewBox="([^"]+)"[^>]*>', lambda found: _svg_root(title, found[1]), svg)
    svg = re.sub(
        r' id="(?!p|m)\w+"', "", svg
    )  # clips and markers are referenced; ids of other parts would clash
    svg = re.sub(r"font: ([^;\"]*px) [^;\"]*", r"font: \1 system-ui, sans-serif", svg)
    for colour in Colour:
        svg = svg.replace(colour.value, f"var(--{colour.name.lower()})")
    return svg


def _svg_root(title: str, box: str) -> str:
    return f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{box}" role="img" aria-label="{escape(title)}">'


_BINS = 6
_MIN_LISTS_PER_BIN = 10
_MAX_RANKS = 20
_WEIGHT_RANGE = 3.0
"""Range of the weight curve, as a multiple of the chosen weight."""


class Selection(NamedTuple):
    """A choice of candidates that charts compare.

    Attributes:
        label: its name.
        colour: of its marks.
        chosen: candidates [N].
    """

    label: str
    colour: Colour
    chosen: Ints


def tuning_charts(tuned: TuneResult) -> list[Chart]:
    """Draw all charts for which a run has enough data."""
    outcome = tuned.outcome
    levels = [
        Selection("first pass", Colour.FIRST, outcome.first),
        Selection("tuned, held out", Colour.TUNED, outcome.held_out),
        Selection("oracle", Colour.ORACLE, outcome.oracle),
    ]
    charts = [_by_length(tuned, levels), _along_weight(tuned), _by_depth(tuned), _by_rank(tuned, levels)]
    return [chart for chart in charts if chart is not None]


def _by_length(tuned: TuneResult, levels: list[Selection]) -> Chart | None:
    problem = tuned.data.problem
    name = problem.metric.name.upper()
    words = np.array([len(candidates.references[0].split()) for candidates in tuned.data.lists])
    edges = _edges(words)
    if len(edges) < 3:
        return None
    bins = np.searchsorted(edges, words, side="right") - 1

    def draw(axes: Any) -> None:
        slots = np.arange(len(edges) - 1)
        width = 0.8 / len(levels)
        for number, level in enumerate(levels):
            scores = [problem.score(level.chosen[bins == slot]) for slot in slots]
            shift = (number - (len(levels) - 1) / 2) * width
            axes.bar(slots + shift, scores, width=width * 0.9, color=level.colour.value, label=level.label)
        labels = [_range(low, high - 1) for low, high in pairwise(edges)]
        axes.set_xticks(slots, labels)
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("words of the reference")
        axes.set_ylabel(name)

    smallest = min(int((bins == slot).sum()) for slot in range(len(edges) - 1))
    return draw_chart(
        f"{name} by length",
        f"Every bar is a corpus score over at least {smallest:,} lists whose reference has so many words.",
        draw,
    )


def _edges(words: Ints) -> list[int]:
    """Compute edges of bins with similar numbers of lists; fewer bins for fewer lists."""
    count = max(1, min(_BINS, len(words) // _MIN_LISTS_PER_BIN))
    inner = np.quantile(words, np.arange(1, count) / count, method="higher").tolist()
    edges = sorted({int(words.min()), *map(int, inner)})
    return [*edges, int(words.max()) + 1]


def _along_weight(tuned: TuneResult) -> Chart | None:
    data, fitted = tuned.data, tuned.outcome.fitted
    problem = data.shapes[fitted.shape].problem
    names = [name for name in problem.names if name.partition(":")[0] == LM] or list(problem.names)
    weight_of = dict.fromkeys(problem.names, 0.0)
    if fitted.weights is not None:
        weight_of = dict(zip(problem.names, fitted.weights.tolist(), strict=True))
    name = max(names, key=lambda feature: abs(weight_of[feature]))
    slopes = np.ascontiguousarray(problem.features[:, problem.names.index(name)])
    weight = weight_of[name]
    values = candidate_totals(data, fitted) - weight * slopes
    reach = abs(weight) * _WEIGHT_RANGE or _comparable_weight(problem, values, slopes)
    if not reach:
        return None
    curve = run_steps(line_loss(problem, values, slopes))
    grid = np.linspace(min(0.0, np.sign(weight) * reach), max(0.0, np.sign(weight) * reach) or reach, 801)
    losses = curve.at(np.arctan(grid))
    scores = -losses if problem.metric.higher_is_better else losses
    metric = problem.metric.name.upper()

    def draw(axes: Any) -> None:
        axes.step(grid, scores, where="mid", color=Colour.TUNED.value, linewidth=1.4, label="all lists")
        axes.axhline(tuned.outcome.baseline, color=Colour.FIRST.value, linewidth=1.2, label="first pass")
        axes.axvline(
            weight,
            color=Colour.INK.value,
            linewidth=1.0,
            linestyle=(0, (4, 3)),
            label=f"chosen: {weight:.3g}",
        )
        axes.set_xlabel(f"weight of {name}, the others as chosen")
        axes.set_ylabel(metric)

    return draw_chart(
        f"{metric} along the weight of {name}",
        "Exact, on the lists that the weights were found with, so a little better than on new ones. A broad valley "
        "is safe; what lies within a narrow one is chance.",
        draw,
    )


def _comparable_weight(problem: TuningProblem, values: Floats, slopes: Floats) -> float:
    """Return the weight that gives a feature twice the deviation of the other features' totals."""
    own, rest = _deviation(problem, slopes), _deviation(problem, values)
    return 2 * rest / own if own else 0.0


def _deviation(problem: TuningProblem, values: Floats) -> float:
    """Compute the deviation within lists, root mean square."""
    lengths = np.diff(problem.offsets)
    means = np.add.reduceat(values, problem.offsets[:-1]) / lengths
    return float(np.sqrt(np.mean((values - np.repeat(means, lengths)) ** 2)))


def _by_depth(tuned: TuneResult) -> Chart:
    problem = tuned.data.problem
    metric = problem.metric.name.upper()
    deepest = min(int(np.diff(problem.offsets).max()), _MAX_RANKS)
    depths = list(range(1, deepest + 1))
    scores = [_oracle_score(problem, depth) for depth in depths]

    def draw(axes: Any) -> None:
        axes.plot(
            depths, scores, color=Colour.ORACLE.value, marker="o", markersize=4, linewidth=1.4, label="oracle"
        )
        for level, label, colour in (
            (tuned.outcome.baseline, "first pass", Colour.FIRST),
            (tuned.outcome.tried, "tuned, held out", Colour.TUNED),
        ):
            axes.axhline(level, color=colour.value, linewidth=1.2, label=label)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("candidates of each list that may be chosen")
        axes.set_ylabel(metric)

    return draw_chart(
        "Room in the lists",
        "What a seer could make of the first candidates of each list: no re-ranking comes below the curve. Where it "
        "is flat, longer lists would not help.",
        draw,
    )


def _oracle_score(problem: TuningProblem, depth: int) -> float:
    """Compute the oracle score of the first `depth` candidates of each list."""
    lengths = np.minimum(np.diff(problem.offsets), depth)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    rows = np.arange(offsets[-1]) + np.repeat(problem.offsets[:-1] - offsets[:-1], lengths)
    cut = TuningProblem(
        problem.names, problem.features[rows], problem.statistics[rows], offsets, problem.metric
    )
    return cut.score(cut.oracle())


def _by_rank(tuned: TuneResult, levels: list[Selection]) -> Chart:
    problem = tuned.data.problem
    count = min(int(np.diff(problem.offsets).max()), _MAX_RANKS)

    def draw(axes: Any) -> None:
        width = 0.4
        for number, level in enumerate(levels[1:]):
            ranks = np.minimum(level.chosen - problem.first_pass(), count - 1)
            shares = 100 * np.bincount(ranks, minlength=count) / problem.num_lists
            axes.bar(
                np.arange(1, count + 1) + (number - 0.5) * width,
                shares,
                width=width * 0.9,
                color=level.colour.value,
                label=level.label,
            )
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("place in the first pass" + (f" ({count}: or after)" if count == _MAX_RANKS else ""))
        axes.set_ylabel("per cent of lists")

    return draw_chart(
        "Where the chosen candidates stood",
        "Of equally good candidates the oracle takes the first. Copies of a text are not counted.",
        draw,
    )


def _range(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


def mark_errors(text: str, reference: str) -> str:
    """Format a text as HTML: inserted and substituted words in `<mark>`, deleted words in `<s>`.

    The reference's word of a substitution is not shown.
    """
    return " ".join(_mark_words(text.split(), reference.split()))


def _mark_words(words: list[str], reference: list[str]) -> Iterator[str]:
    for change in Levenshtein.opcodes(words, reference):
        here = [escape(word) for word in words[change.src_start : change.src_end]]
        if change.tag == "equal":
            yield from here
        elif change.tag == "insert":
            yield from (f"<s>{escape(word)}</s>" for word in reference[change.dest_start : change.dest_end])
        else:
            yield from (f"<mark>{word}</mark>" for word in here)


_EXAMPLES = 12


class ChangedList(NamedTuple):
    """A list with a chosen candidate other than the first.

    Attributes:
        name: of the list.
        reference: the correct text.
        before: the first candidate.
        after: the chosen candidate.
        gain: change of the corpus score, in percentage points; negative if worse.
    """

    name: str
    reference: str
    before: str
    after: str
    gain: float


def tuning_page(title: str, tuned: TuneResult, reply: TuneReply) -> bytes:
    """Make the page, HTML in UTF-8, without references to other files."""
    changes = _changed_lists(tuned)
    better = sorted((item for item in changes if item.gain > LOSS_TOLERANCE), key=lambda item: -item.gain)
    worse = sorted((item for item in changes if item.gain < -LOSS_TOLERANCE), key=lambda item: item.gain)
    same = len(changes) - len(better) - len(worse)
    verb = "changed" if reply.decision == "tuned" else "would have changed"
    style = (resources.files("service.local") / "tune_report.css").read_text(encoding="utf-8")
    sections = [
        _tiles(reply, len(changes)),
        _section("Charts", _figures(tuning_charts(tuned))),
        _section("Weights", _weights(reply)),
        _section("Folds", _folds(reply)),
        _section("Changed for better", _examples(better, "better")),
        _section("Changed for worse", _examples(worse, "worse")),
    ]
    changed = f"{len(changes):,} lists {verb}: {len(better):,} for better, {len(worse):,} for worse, {same:,} as good."
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}: tuning report</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<header class="{reply.decision}">\n<h1>{escape(title)}</h1>\n<p class="verdict">{escape(reply.reason)}</p>\n'
        f"<p>{escape(changed)} {escape(_models(reply))} <code>{escape(reply.signature)}</code></p>\n</header>\n"
        f"<main>\n{''.join(sections)}</main>\n</body>\n</html>\n"
    ).encode()


def _models(reply: TuneReply) -> str:
    extra = [f"{name}: {address}" for name, address in reply.models.items()]
    named = [*([reply.model] if reply.model else []), *extra]
    return f"Models: {', '.join(named)}." if named else "No model scored."


def _changed_lists(tuned: TuneResult) -> list[ChangedList]:
    data, outcome = tuned.data, tuned.outcome
    problem = data.problem
    costs: Floats = problem.costs(problem.statistics[outcome.held_out].sum(axis=0))
    gains = costs[outcome.first] - costs[outcome.held_out]
    before, after = data.texts(outcome.first), data.texts(outcome.held_out)
    return [
        ChangedList(
            data.lists[i].name or f"list {i + 1}",
            data.lists[i].references[0],
            before[i],
            after[i],
            float(gains[i]),
        )
        for i in np.flatnonzero(outcome.first != outcome.held_out).tolist()
    ]


def _tiles(reply: TuneReply, num_changed: int) -> str:
    test, possible = reply.significance, reply.oracle - reply.baseline
    closed = f"{round(100 * test.difference / possible)} %" if possible else "none"
    values = [
        (f"{reply.baseline:.2f}", f"{reply.metric.upper()} of the first pass"),
        (f"{reply.tried:.2f}", "tuned weights, on lists held out"),
        (f"{reply.oracle:.2f}", "oracle: the best candidates"),
        (f"{test.difference:+.2f}", f"difference; 95 % from {test.low:+.2f} to {test.high:+.2f}"),
        (f"{test.p_value:.3f}", "p-value, paired bootstrap"),
        (closed, "of the way to the oracle"),
        (f"{num_changed:,} of {reply.counts.lists:,}", "lists changed"),
    ]
    tiles = "".join(
        f'<div class="tile"><b>{value}</b><span>{label}</span></div>\n' for value, label in values
    )
    return f'<div class="tiles">\n{tiles}</div>\n'


def _figures(charts: Sequence[Chart]) -> str:
    figures = "".join(
        f"<figure>\n{chart.svg}\n<figcaption>{escape(chart.caption)}</figcaption>\n</figure>\n"
        for chart in charts
    )
    return f'<div class="figures">\n{figures}</div>\n'


def _weights(reply: TuneReply) -> str:
    columns = [reply.weights, *(fold.weights for fold in reply.folds)]
    exponents = [reply.length_exponent, *(fold.length_exponent for fold in reply.folds)]
    heads = ["all lists", *(f"without fold {i + 1}" for i in range(len(reply.folds)))]
    rows = [
        [escape(name), *(f"{weights[name]:.4g}" if name in weights else "0" for weights in columns)]
        for name in reply.features
    ]
    rows.append(["length exponent", *(f"{exponent:g}" for exponent in exponents)])
    rows.append(["posterior scale", f"{reply.posterior_scale:.4g}", *("" for _ in reply.folds)])
    return _table(["feature", *heads], rows)


def _folds(reply: TuneReply) -> str:
    rows = [
        [
            f"fold {i + 1}",
            f"{fold.num_lists:,}",
            *(f"{score:.2f}" for score in (fold.baseline, fold.tuned, fold.oracle, fold.in_sample)),
        ]
        for i, fold in enumerate(reply.folds)
    ]
    return _table(["", "lists", "first pass", "tuned", "oracle", "same weights where found"], rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{text}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows)
    return f'<div class="scroll"><table>\n<tr>{head}</tr>\n{body}</table></div>\n'


def _examples(changes: Sequence[ChangedList], kind: str) -> str:
    if not changes:
        return ""
    shown = changes[:_EXAMPLES]
    note = (
        f"<p>The {len(shown)} of {len(changes):,} that count most. Marked are words that the reference does not have "
        "there; struck through, words of it that are missing.</p>\n"
    )
    return note + f'<div class="examples {kind}">\n{"".join(map(_example, shown))}</div>\n'


def _example(change: ChangedList) -> str:
    rows: Iterator[tuple[str, str]] = iter(
        (
            ("reference", escape(change.reference)),
            ("first pass", mark_errors(change.before, change.reference)),
            ("tuned", mark_errors(change.after, change.reference)),
        )
    )
    items = "".join(f"<dt>{label}</dt><dd>{text}</dd>\n" for label, text in rows)
    return f'<dl>\n<dt class="name">list</dt><dd class="name">{escape(change.name)}</dd>\n{items}</dl>\n'


def _section(title: str, content: str) -> str:
    return f"<section>\n<h2>{title}</h2>\n{content}</section>\n" if content else ""
