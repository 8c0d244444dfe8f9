"""HTML report of a tuning run: charts, weights by fold, and lists that the weights change."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from markupsafe import Markup
from rapidfuzz.distance import Levenshtein

from models.report import ACCENT, INK, SECOND, THIRD, Picture, Section, Table, draw_svg, render_page
from models.reranking.candidates import run_steps
from models.reranking.features import LM
from models.reranking.tuning.cross_fitting import TuningOutcome, candidate_totals
from models.reranking.tuning.mert import LOSS_TOLERANCE, line_loss
from models.reranking.tuning.problem import Floats, Ints, TuningProblem
from service.use_cases.tune import TuneReply

_CHART_HEIGHT = 2.9
_FIRST, _TUNED, _ORACLE = SECOND, ACCENT, THIRD
_BINS = 6
_MIN_LISTS_PER_BIN = 10
_MAX_RANKS = 20
_WEIGHT_RANGE = 3.0
"""Range of the weight curve, as a multiple of the chosen weight."""


Selection: TypeAlias = tuple[str, str, Ints]
"""A choice of candidates that charts compare: its name, its colour, and the candidates [N]."""


def _by_length(tuned: TuningOutcome, levels: list[Selection]) -> Picture | None:
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
        for number, (label, colour, chosen) in enumerate(levels):
            scores = [problem.score(chosen[bins == slot]) for slot in slots]
            shift = (number - (len(levels) - 1) / 2) * width
            axes.bar(slots + shift, scores, width=width * 0.9, color=colour, label=label)
        labels = [f"{low} to {high - 1}" if low < high - 1 else f"{low}" for low, high in pairwise(edges)]
        axes.set_xticks(slots, labels)
        axes.set_xlabel("words of the reference")
        axes.set_ylabel(name)

    smallest = min(int((bins == slot).sum()) for slot in range(len(edges) - 1))
    return Picture(
        draw_svg(f"{name} by length", draw, height=_CHART_HEIGHT),
        f"Every bar is a corpus score over at least {smallest:,} lists whose reference has so many words.",
    )


def _edges(words: Ints) -> list[int]:
    """Compute edges of bins with similar numbers of lists; fewer bins for fewer lists."""
    count = max(1, min(_BINS, len(words) // _MIN_LISTS_PER_BIN))
    inner = np.quantile(words, np.arange(1, count) / count, method="higher").tolist()
    edges = sorted({int(words.min()), *map(int, inner)})
    return [*edges, int(words.max()) + 1]


def _along_weight(tuned: TuningOutcome) -> Picture | None:
    data, fitted = tuned.data, tuned.fitted
    problem = data.shapes[fitted.shape]
    names = [name for name in problem.names if name.partition(":")[0] == LM] or list(problem.names)
    weight_of = dict.fromkeys(problem.names, 0.0)
    if fitted.weights is not None:
        weight_of = dict(zip(problem.names, fitted.weights.tolist(), strict=True))
    name = max(names, key=lambda feature: abs(weight_of[feature]))
    slopes = np.ascontiguousarray(problem.features[:, problem.names.index(name)])
    weight = weight_of[name]
    values = candidate_totals(data, fitted) - weight * slopes
    reach = abs(weight) * _WEIGHT_RANGE or 2 * _deviation(problem, values) / (
        _deviation(problem, slopes) or np.inf
    )
    if not reach:
        return None
    curve = run_steps(line_loss(problem, values, slopes))
    grid = np.linspace(min(0.0, np.sign(weight) * reach), max(0.0, np.sign(weight) * reach) or reach, 801)
    losses = curve.at(np.arctan(grid))
    scores = -losses if problem.metric.higher_is_better else losses
    metric = problem.metric.name.upper()

    def draw(axes: Any) -> None:
        axes.step(grid, scores, where="mid", color=_TUNED, linewidth=1.4, label="all lists")
        axes.axhline(tuned.figures.baseline, color=_FIRST, linewidth=1.2, label="first pass")
        axes.axvline(
            weight,
            color=INK,
            linewidth=1.0,
            linestyle=(0, (4, 3)),
            label=f"chosen: {weight:.3g}",
        )
        axes.set_xlabel(f"weight of {name}, the others as chosen", parse_math=False)
        axes.set_ylabel(metric)

    return Picture(
        draw_svg(f"{metric} along the weight of {name}", draw, height=_CHART_HEIGHT),
        "Exact, on the lists that the weights were found with, so a little better than on new ones. A broad valley "
        "is safe; what lies within a narrow one is chance.",
    )


def _deviation(problem: TuningProblem, values: Floats) -> float:
    """Compute the deviation within lists, root mean square."""
    lengths = np.diff(problem.offsets)
    means = np.add.reduceat(values, problem.offsets[:-1]) / lengths
    return float(np.sqrt(np.mean((values - np.repeat(means, lengths)) ** 2)))


def _by_depth(tuned: TuningOutcome) -> Picture:
    problem = tuned.data.problem
    metric = problem.metric.name.upper()
    deepest = min(int(np.diff(problem.offsets).max()), _MAX_RANKS)
    depths = list(range(1, deepest + 1))
    cut = [problem.of(np.arange(problem.num_lists), depth) for depth in depths]
    scores = [one.score(one.oracle()) for one in cut]

    def draw(axes: Any) -> None:
        axes.plot(depths, scores, color=_ORACLE, marker="o", markersize=4, linewidth=1.4, label="oracle")
        for level, label, colour in (
            (tuned.figures.baseline, "first pass", _FIRST),
            (tuned.figures.tried, "tuned, held out", _TUNED),
        ):
            axes.axhline(level, color=colour, linewidth=1.2, label=label)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("candidates of each list that may be chosen")
        axes.set_ylabel(metric)

    return Picture(
        draw_svg("Room in the lists", draw, height=_CHART_HEIGHT),
        "What a seer could make of the first candidates of each list: no re-ranking comes below the curve. Where it "
        "is flat, longer lists would not help.",
    )


def _by_rank(tuned: TuningOutcome, levels: list[Selection]) -> Picture:
    problem = tuned.data.problem
    count = min(int(np.diff(problem.offsets).max()), _MAX_RANKS)

    def draw(axes: Any) -> None:
        width = 0.4
        for number, (label, colour, chosen) in enumerate(levels[1:]):
            ranks = np.minimum(chosen - problem.first_pass(), count - 1)
            shares = 100 * np.bincount(ranks, minlength=count) / problem.num_lists
            axes.bar(
                np.arange(1, count + 1) + (number - 0.5) * width,
                shares,
                width=width * 0.9,
                color=colour,
                label=label,
            )
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("place in the first pass" + (f" ({count}: or after)" if count == _MAX_RANKS else ""))
        axes.set_ylabel("per cent of lists")

    return Picture(
        draw_svg("Where the chosen candidates stood", draw, height=_CHART_HEIGHT),
        "Of equally good candidates the oracle takes the first. Copies of a text are not counted.",
    )


def mark_errors(text: str, reference: str) -> Markup:
    """Format a text as HTML: inserted and substituted words in `<mark>`, deleted words in `<s>`.

    The reference's word of a substitution is not shown.
    """
    words, right = text.split(), reference.split()
    marked: list[str] = []
    for change in Levenshtein.opcodes(words, right):
        here = words[change.src_start : change.src_end]
        if change.tag == "equal":
            marked += here
        elif change.tag == "insert":
            marked += map(Markup("<s>{}</s>").format, right[change.dest_start : change.dest_end])
        else:
            marked += map(Markup("<mark>{}</mark>").format, here)
    return Markup(" ").join(marked)


_EXAMPLES = 12


Change: TypeAlias = tuple[float, str, str, str, str]
"""A list with a chosen candidate other than the first: the change of the corpus score in percentage points, negative
if worse, the list's name, its reference, the first candidate and the chosen one."""


def tuning_page(title: str, tuned: TuningOutcome, reply: TuneReply) -> bytes:
    """Make the page, HTML in UTF-8, without references to other files."""
    changes = _changed_lists(tuned)
    better = sorted((item for item in changes if item[0] > LOSS_TOLERANCE), key=lambda item: -item[0])
    worse = sorted((item for item in changes if item[0] < -LOSS_TOLERANCE), key=lambda item: item[0])
    same = len(changes) - len(better) - len(worse)
    verb = "changed" if reply.decision == "tuned" else "would have changed"
    levels = [
        ("first pass", _FIRST, tuned.first),
        ("tuned, held out", _TUNED, tuned.held_out),
        ("oracle", _ORACLE, tuned.oracle),
    ]
    charts = [_by_length(tuned, levels), _along_weight(tuned), _by_depth(tuned), _by_rank(tuned, levels)]
    sections = [
        Section("", "tiles", _summary(reply, len(changes))),
        Section("Charts", "pictures", [chart for chart in charts if chart is not None]),
        Section("Weights", "tables", [_weights(reply)]),
        Section("Folds", "tables", [_folds(reply)]),
        _examples("Changed for better", better, mark="good"),
        _examples("Changed for worse", worse, mark="bad"),
    ]
    changed = f"{len(changes):,} lists {verb}: {len(better):,} for better, {len(worse):,} for worse, {same:,} as good."
    return render_page(
        title,
        f"{title}: tuning report",
        f"{changed} {_models(reply)}",
        sections,
        verdict=reply.reason,
        adopted=reply.decision == "tuned",
        signature=reply.signature,
    )


def _models(reply: TuneReply) -> str:
    extra = [f"{name}: {address}" for name, address in reply.models.items()]
    named = [*([reply.model] if reply.model else []), *extra]
    return f"Models: {', '.join(named)}." if named else "No model scored."


def _changed_lists(tuned: TuningOutcome) -> list[Change]:
    data = tuned.data
    problem = data.problem
    costs: Floats = problem.costs(problem.statistics[tuned.held_out].sum(axis=0))
    gains = costs[tuned.first] - costs[tuned.held_out]
    before, after = data.texts(tuned.first), data.texts(tuned.held_out)
    return [
        (
            float(gains[i]),
            data.lists[i].name or f"list {i + 1}",
            data.lists[i].references[0],
            before[i],
            after[i],
        )
        for i in np.flatnonzero(tuned.first != tuned.held_out).tolist()
    ]


def _summary(reply: TuneReply, num_changed: int) -> list[tuple[str, str]]:
    test, possible = reply.significance, reply.oracle - reply.baseline
    closed = f"{round(100 * test.difference / possible)} %" if possible else "none"
    return [
        (f"{reply.metric.upper()} of the first pass", f"{reply.baseline:.2f}"),
        ("tuned weights, on lists held out", f"{reply.tried:.2f}"),
        ("oracle: the best candidates", f"{reply.oracle:.2f}"),
        (f"difference; 95 % from {test.low:+.2f} to {test.high:+.2f}", f"{test.difference:+.2f}"),
        ("p-value, paired bootstrap", f"{test.p_value:.3f}"),
        ("of the way to the oracle", closed),
        ("lists changed", f"{num_changed:,} of {reply.counts.lists:,}"),
    ]


def _weights(reply: TuneReply) -> Table:
    columns = [reply.weights, *(fold.weights for fold in reply.folds)]
    exponents = [reply.length_exponent, *(fold.length_exponent for fold in reply.folds)]
    heads = ["all lists", *(f"without fold {i + 1}" for i in range(len(reply.folds)))]
    rows = [
        [name, *(f"{weights[name]:.4g}" if name in weights else "0" for weights in columns)]
        for name in reply.features
    ]
    rows.append(["length exponent", *(f"{exponent:g}" for exponent in exponents)])
    rows.append(["posterior scale", f"{reply.posterior_scale:.4g}", *("" for _ in reply.folds)])
    return Table(["feature", *heads], rows)


def _folds(reply: TuneReply) -> Table:
    rows = [
        [
            f"fold {i + 1}",
            f"{fold.num_lists:,}",
            *(f"{score:.2f}" for score in (fold.baseline, fold.tuned, fold.oracle, fold.in_sample)),
        ]
        for i, fold in enumerate(reply.folds)
    ]
    return Table(["", "lists", "first pass", "tuned", "oracle", "same weights where found"], rows)


def _examples(title: str, changes: Sequence[Change], *, mark: str) -> Section:
    """Return the section of the changes that count most."""
    shown = [
        (
            name,
            (
                ("reference", reference),
                ("first pass", mark_errors(before, reference)),
                ("tuned", mark_errors(after, reference)),
            ),
        )
        for _, name, reference, before, after in changes[:_EXAMPLES]
    ]
    note = (
        f"The {len(shown)} of {len(changes):,} that count most. Marked are words that the reference does not have "
        "there; struck through, words of it that are missing."
    )
    return Section(title, "examples", shown, note, mark)
