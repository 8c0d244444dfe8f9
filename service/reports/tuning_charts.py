"""The pictures of a tuning run: scores by length, along a weight, and how good the lists are."""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from models.reranking.features import LM
from models.reranking.tuning.cross_fitting import candidate_totals
from models.reranking.tuning.lines import line_loss
from models.reranking.tuning.problem import Floats, Ints, TuningProblem
from models.reranking.tuning.steps import run_steps
from service.reports.charts import Chart, Colour, draw_chart
from service.use_cases.tune import TuneResult

_BINS = 6
_MIN_LISTS_PER_BIN = 10
_MAX_RANKS = 20
_WEIGHT_RANGE = 3.0
"""The weight curve goes so many times as far as the chosen weight."""


class Selection(NamedTuple):
    """A choice of candidates that charts compare.

    Attributes:
        label: what it is called.
        colour: of its marks.
        chosen: candidates [N].
    """

    label: str
    colour: Colour
    chosen: Ints


def tuning_charts(tuned: TuneResult) -> list[Chart]:
    """All that can be drawn of a run."""
    outcome = tuned.outcome
    levels = [
        Selection("first pass", Colour.FIRST, outcome.first),
        Selection("tuned, held out", Colour.TUNED, outcome.held_out),
        Selection("oracle", Colour.ORACLE, outcome.oracle),
    ]
    charts = [_by_length(tuned, levels), _along_weight(tuned), _by_depth(tuned), _by_rank(tuned, levels)]
    return [one for one in charts if one is not None]


def _by_length(tuned: TuneResult, levels: list[Selection]) -> Chart | None:
    problem = tuned.data.problem
    name = problem.metric.name.upper()
    words = np.array([len(one.references[0].split()) for one in tuned.data.lists])
    edges = _edges(words)
    if len(edges) < 3:
        return None
    bins = np.searchsorted(edges, words, side="right") - 1

    def draw(axes: Any) -> None:
        places = np.arange(len(edges) - 1)
        width = 0.8 / len(levels)
        for number, level in enumerate(levels):
            scores = [problem.score(level.chosen[bins == place]) for place in places]
            shift = (number - (len(levels) - 1) / 2) * width
            axes.bar(places + shift, scores, width=width * 0.9, color=level.colour.value, label=level.label)
        labels = [_range(low, high - 1) for low, high in pairwise(edges)]
        axes.set_xticks(places, labels)
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("words of the reference")
        axes.set_ylabel(name)

    smallest = min(int((bins == place).sum()) for place in range(len(edges) - 1))
    return draw_chart(
        f"{name} by length",
        f"Every bar is a corpus score over at least {smallest:,} lists whose reference has so many words.",
        draw,
    )


def _edges(words: Ints) -> list[int]:
    """Where bins of about as many lists begin, and where the last ends; fewer bins for fewer lists."""
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
    name = max(names, key=lambda one: abs(weight_of[one]))
    slopes = np.ascontiguousarray(problem.features[:, problem.names.index(name)])
    weight = weight_of[name]
    values = candidate_totals(data, fitted) - weight * slopes
    reach = abs(weight) * _WEIGHT_RANGE or _comparable_weight(problem, values, slopes)
    if not reach:
        return None
    curve = run_steps(line_loss(problem, values, slopes))
    places = np.linspace(min(0.0, np.sign(weight) * reach), max(0.0, np.sign(weight) * reach) or reach, 801)
    losses = curve.at(np.arctan(places))
    scores = -losses if problem.metric.higher_is_better else losses
    metric = problem.metric.name.upper()

    def draw(axes: Any) -> None:
        axes.step(places, scores, where="mid", color=Colour.TUNED.value, linewidth=1.4, label="all lists")
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
    """A weight with which a feature tells candidates apart twice as much as the other features' totals do."""
    own, others = _deviation(problem, slopes), _deviation(problem, values)
    return 2 * others / own if own else 0.0


def _deviation(problem: TuningProblem, values: Floats) -> float:
    """Within lists, root mean square."""
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
    """The best score that the first candidates of each list can have."""
    lengths = np.minimum(np.diff(problem.offsets), depth)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    rows = np.arange(offsets[-1]) + np.repeat(problem.offsets[:-1] - offsets[:-1], lengths)
    cut = TuningProblem(
        problem.names, problem.features[rows], problem.statistics[rows], offsets, problem.metric
    )
    return cut.score(cut.oracle())


def _by_rank(tuned: TuneResult, levels: list[Selection]) -> Chart:
    problem = tuned.data.problem
    most = min(int(np.diff(problem.offsets).max()), _MAX_RANKS)

    def draw(axes: Any) -> None:
        width = 0.4
        for number, level in enumerate(levels[1:]):
            places = np.minimum(level.chosen - problem.first_pass(), most - 1)
            shares = 100 * np.bincount(places, minlength=most) / problem.num_lists
            axes.bar(
                np.arange(1, most + 1) + (number - 0.5) * width,
                shares,
                width=width * 0.9,
                color=level.colour.value,
                label=level.label,
            )
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("place in the first pass" + (f" ({most}: or after)" if most == _MAX_RANKS else ""))
        axes.set_ylabel("per cent of lists")

    return draw_chart(
        "Where the chosen candidates stood",
        "Of equally good candidates the oracle takes the first. Copies of a text are not counted.",
        draw,
    )


def _range(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"
