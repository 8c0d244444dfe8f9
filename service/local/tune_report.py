"""HTML report of a tuning run: charts, weights by fold, and lists whose best candidate changes."""

from collections import defaultdict
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from markupsafe import Markup
from rapidfuzz.distance import Levenshtein

from models.arrays import Float64s, Int64s
from models.calls import run_to_completion
from models.files import count_words, split_words
from models.report import Bars, Picture, Section, Table, plot_bars, plot_lines, render_page
from models.reranking.features import LM
from models.reranking.metrics.metric import format_score
from models.reranking.proposals import replacements_of
from models.reranking.tuning.cross_fitting import TuningOutcome, candidate_totals
from models.reranking.tuning.mert import LOSS_TOLERANCE, line_loss, spread_by_list
from service.operations.tune import TuneReply

_LEVELS = _FIRST, _TUNED, _ORACLE = (
    ("first pass", "second"),
    ("tuned, held out", "accent"),
    ("oracle", "third"),
)
"""Names and colours of the charts."""

_DASHES = (0, (4, 3))
_BINS = 6
_MIN_LISTS_PER_BIN = 10
_MAX_RANKS = 20
_WEIGHT_RANGE = 3.0
"""Range of the weight curve, as a multiple of the chosen weight."""

_EXAMPLES = 12
_MAX_CORRECTIONS = 40

Selection: TypeAlias = tuple[str, str, Int64s]
"""Choice of a candidate per list, for charts: name, colour and candidates [N]."""


def _by_length(tuned: TuningOutcome, levels: list[Selection]) -> Picture | None:
    problem = tuned.data.problem
    name = problem.metric.name.upper()
    words = np.array([count_words(candidates.references[0]) for candidates in tuned.data.lists])
    # bins with similar numbers of lists; few lists get few bins
    count = max(1, min(_BINS, len(words) // _MIN_LISTS_PER_BIN))
    inner = np.quantile(words, np.arange(1, count) / count, method="higher").tolist()
    edges = [*sorted({int(words.min()), *map(int, inner)}), int(words.max()) + 1]
    if len(edges) < 3:
        return None
    bins = np.searchsorted(edges, words, side="right") - 1
    sizes = np.bincount(bins)
    scores: list[Bars] = [
        (label, colour, [problem.score(chosen[bins == slot]) for slot in range(len(sizes))], ())
        for label, colour, chosen in levels
    ]
    return plot_bars(
        f"{name} by length",
        f"Each bar is the corpus score of at least {sizes.min():,} lists with references of this length.",
        [f"{low} to {high - 1}" if low < high - 1 else f"{low}" for low, high in pairwise(edges)],
        scores,
        xlabel="words of the reference",
        ylabel=name,
    )


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
    spread = spread_by_list(slopes, problem.offsets) or np.inf
    reach = abs(weight) * _WEIGHT_RANGE or 2 * spread_by_list(values, problem.offsets) / spread
    if not reach:
        return None
    curve = run_to_completion(line_loss(problem, values, slopes))
    grid = np.linspace(min(0.0, np.sign(weight) * reach), max(0.0, np.sign(weight) * reach) or reach, 801)
    losses = curve.at(np.arctan(grid))
    scores = -losses if problem.metric.higher_is_better else losses
    metric, first = problem.metric.name.upper(), tuned.figures.baseline
    heights = [min(first, *scores), max(first, *scores)]
    return plot_lines(
        f"{metric} along the weight of {name}",
        "Exact score on the tuning lists, so slightly better than on new lists. A broad optimum is robust; a narrow "
        "one is probably chance.",
        [
            ("all lists", "accent", grid, scores, {"drawstyle": "steps-mid"}),
            (*_FIRST, grid[[0, -1]], [first, first], {}),
            (f"chosen: {weight:.3g}", "ink", [weight, weight], heights, {"linestyle": _DASHES}),
        ],
        xlabel=f"weight of {name}, other weights as chosen",
        ylabel=metric,
    )


def _by_depth(tuned: TuningOutcome) -> Picture:
    problem, figures = tuned.data.problem, tuned.figures
    deepest = min(int(np.diff(problem.offsets).max()), _MAX_RANKS)
    depths = range(1, deepest + 1)
    cut = [problem.of(np.arange(problem.num_lists), depth) for depth in depths]
    scores = [one.score(one.oracle()) for one in cut]
    return plot_lines(
        "Oracle by list length",
        "Best possible score with the first candidates of each list; no re-ranking can be better. If the curve is "
        "flat, longer lists do not help.",
        [
            (*_ORACLE, depths, scores, {"marker": "o", "markersize": 4}),
            (*_FIRST, depths, [figures.baseline] * deepest, {}),
            (*_TUNED, depths, [figures.tried] * deepest, {}),
        ],
        xticks=depths[:: 1 + deepest // 10],
        xlabel="candidates per list",
        ylabel=problem.metric.name.upper(),
    )


def _by_rank(tuned: TuningOutcome, levels: list[Selection]) -> Picture:
    problem = tuned.data.problem
    count = min(int(np.diff(problem.offsets).max()), _MAX_RANKS)
    shares = list[Bars]()
    for label, colour, chosen in levels[1:]:
        ranks = np.minimum(chosen - problem.first_pass(), count - 1)
        shares.append((label, colour, 100 * np.bincount(ranks, minlength=count) / problem.num_lists, ()))
    return plot_bars(
        "First-pass ranks of the chosen candidates",
        "The oracle chooses the first of equally good candidates. Duplicate texts are not counted.",
        [f"{rank}" if (rank - 1) % (1 + count // 12) == 0 else "" for rank in range(1, count + 1)],
        shares,
        xlabel="rank in the first pass" + (f" ({count}: or later)" if count == _MAX_RANKS else ""),
        ylabel="per cent of lists",
    )


def mark_errors(text: str, reference: str) -> Markup:
    """Format a text as HTML: inserted and substituted words in `<mark>`, deleted ones in `<s>`.

    The reference word of a substitution is not shown.
    """
    words, right = split_words(text), split_words(reference)
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


def tuning_page(title: str, tuned: TuningOutcome, reply: TuneReply) -> bytes:
    """Render the report as a self-contained HTML page in UTF-8."""
    problem = tuned.data.problem
    costs = problem.costs(problem.statistics[tuned.held_out].sum(axis=0))
    # of the corpus score, in percentage points
    gains = costs[tuned.first] - costs[tuned.held_out]
    num_changed = int(np.count_nonzero(tuned.first != tuned.held_out))
    better, worse = np.argsort(-gains, kind="stable"), np.argsort(gains, kind="stable")
    better, worse = better[gains[better] > LOSS_TOLERANCE], worse[gains[worse] < -LOSS_TOLERANCE]
    same = num_changed - len(better) - len(worse)
    verb = "changed" if reply.decision == "tuned" else "would have changed"
    chosen = (tuned.first, tuned.held_out, tuned.oracle)
    levels = [(*style, candidates) for style, candidates in zip(_LEVELS, chosen, strict=True)]
    charts = [_by_length(tuned, levels), _along_weight(tuned), _by_depth(tuned), _by_rank(tuned, levels)]
    sections = [
        Section("", "tiles", _summary(reply, num_changed)),
        Section("Charts", "pictures", [chart for chart in charts if chart is not None]),
        Section("Weights", "tables", [_weights(reply)]),
        Section("Folds", "tables", [_folds(reply)]),
        _corrections(tuned, gains),
        _examples("Improved lists", tuned, better, mark="good"),
        _examples("Worsened lists", tuned, worse, mark="bad"),
    ]
    changed = f"{num_changed:,} lists {verb}: {len(better):,} better, {len(worse):,} worse, {same:,} equal."
    models = [reply.model, *(f"{name}: {address}" for name, address in reply.models.items())]
    used = ", ".join(filter(None, models))
    return render_page(
        title,
        f"{title}: tuning report",
        f"{changed} Models: {used}." if used else f"{changed} No model was used.",
        sections,
        verdict=reply.reason,
        adopted=reply.decision == "tuned",
        signature=reply.signature,
    )


def _summary(reply: TuneReply, num_changed: int) -> list[tuple[str, str]]:
    test, possible = reply.significance, reply.oracle - reply.baseline
    closed = f"{round(100 * test.difference / possible)} %" if possible else "none"
    return [
        (f"{reply.metric.upper()} of the first pass", format_score(reply.metric, reply.baseline)),
        ("tuned weights, held-out lists", format_score(reply.metric, reply.tried)),
        ("oracle: the best candidates", format_score(reply.metric, reply.oracle)),
        (f"difference; 95 % from {test.low:+.2f} to {test.high:+.2f}", f"{test.difference:+.2f}"),
        ("p-value, paired bootstrap", f"{test.p_value:.3f}"),
        ("share of the oracle's gain", closed),
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
    score = partial(format_score, reply.metric)
    rows = []
    for number, fold in enumerate(reply.folds, 1):
        scores = map(score, (fold.baseline, fold.tuned, fold.oracle, fold.in_sample))
        rows.append([f"fold {number}", f"{fold.num_lists:,}", *scores])
    return Table(["", "lists", "first pass", "tuned", "oracle", "tuned, in sample"], rows)


def _corrections(tuned: TuningOutcome, gains: Float64s) -> Section:
    """Return a section of corrections chosen in held-out lists; `gains` of each list [N]."""
    data, gains_of = tuned.data, defaultdict[str, list[float]](list)
    indices = data.candidate_indices[tuned.held_out].tolist()
    for one, index, gain in zip(data.lists, indices, gains.tolist(), strict=True):
        for change in dict.fromkeys(
            f"{c.heard} → {c.written or '(nothing)'}" for c in replacements_of(one.candidates[index])
        ):
            gains_of[change].append(gain)
    rows = []
    for change, own in sorted(gains_of.items(), key=lambda item: -sum(item[1])):
        better, worse = (sum(sign * gain > LOSS_TOLERANCE for gain in own) for sign in (1, -1))
        rows.append([change, f"{len(own):,}", f"{better:,}", f"{worse:,}"])
    note = (
        f"The {min(len(rows), _MAX_CORRECTIONS)} of {len(rows):,} corrections with the largest effect on the score of "
        "held-out lists, each learnt from the other folds. A list may have several corrections."
    )
    table = Table(["heard → written", "lists", "better", "worse"], rows[:_MAX_CORRECTIONS])
    return Section("Corrections", "tables", [table] if rows else [], note)


def _examples(title: str, tuned: TuningOutcome, numbers: Int64s, *, mark: str) -> Section:
    """Return a section of example lists; `numbers` are by effect on the score, largest first."""
    data = tuned.data
    before, after = data.texts(tuned.first), data.texts(tuned.held_out)
    shown = []
    for number in numbers[:_EXAMPLES].tolist():
        reference = data.lists[number].references[0]
        texts = (
            ("reference", reference),
            ("first pass", mark_errors(before[number], reference)),
            ("tuned", mark_errors(after[number], reference)),
        )
        shown.append((data.lists[number].name or f"list {number + 1}", texts))
    note = (
        f"The {len(shown)} of {len(numbers):,} with the largest effect on the score. Marked: words that differ from "
        "the reference; struck through: missing words."
    )
    return Section(title, "examples", shown, note, mark)
