"""Minimum error rate training: Powell's search for weights on exact error counts.

A point on the line w + tan(θ)·d is given by its angle θ, from −90° to 90°: only the weights' direction
matters, and 90° is d alone. The loss is constant between the angles at which a list's best
candidate changes. Its minimum is often in a narrow interval, by chance; so the search
minimises the loss averaged over a window of angles, which prefers broad minima (Cer, Jurafsky &
Manning 2008, Regularization and Search for Minimum Error Rate Training, §3).

As the loss is known everywhere on a line, each step goes directly to its minimum: first along every
feature, then along the entire round's direction (Powell 1964; Och 2003).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from models.arrays import Bools, Float64s, Int64s, index_ranges
from models.calls import Steps
from models.reranking.metrics.metric import Metric

_ORACLE_ROUNDS = 20

_MAX_ANGLE = np.pi / 2
_LISTS_PER_STEP = 1024
_LOWEST = -1e300
"""Total of impossible candidates: the largest only at the ends of a line."""
LOSS_TOLERANCE = 1e-9
"""Losses within this tolerance count as equal."""

_MAX_ROUNDS = 12


@dataclass(frozen=True, slots=True, eq=False)
class TuningProblem:
    """Lists of candidates, concatenated.

    Attributes:
        names: names of the features [D].
        features: candidates' features, as multiplied by the weights [C, D]; all finite, see `with_floor`.
        statistics: counts of each candidate against its list's references [C, S].
        offsets: start of each list, and the end [N+1]; no list is empty.
        metric: metric that scores sums of counts.
        length_exponent: exponent of the language models in these features.
        impossible: true where a feature is −∞ [C, D]: if weighted, the candidate is chosen only if all are
            impossible; None without such features.
    """

    names: tuple[str, ...]
    features: Float64s
    statistics: Int64s
    offsets: Int64s
    metric: Metric
    length_exponent: float = 0.0
    impossible: Bools | None = None

    @property
    def num_lists(self) -> int:
        """Number of lists N."""
        return len(self.offsets) - 1

    def of(self, lists: Int64s, depth: int | None = None) -> "TuningProblem":
        """Return the problem of some lists, by index, with the first `depth` candidates."""
        begins, lengths = self.offsets[lists], np.diff(self.offsets)[lists]
        lengths = lengths if depth is None else np.minimum(lengths, depth)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        rows = index_ranges(begins, begins + lengths)
        impossible = None if self.impossible is None else self.impossible[rows]
        features, statistics = self.features[rows], self.statistics[rows]
        return replace(self, features=features, statistics=statistics, offsets=offsets, impossible=impossible)

    def with_floor(self) -> "TuningProblem":
        """Replace features of −∞ by finite ones, and mark them as `impossible`."""
        impossible = np.isneginf(self.features)
        if not impossible.any():
            return self
        return replace(self, features=floor_by_list(self.features, self.offsets), impossible=impossible)

    def of_features(self, indices: Int64s) -> "TuningProblem":
        """Return the problem of some features, by index."""
        return replace(
            self,
            names=tuple(self.names[index] for index in indices),
            features=np.ascontiguousarray(self.features[:, indices]),
            impossible=None if self.impossible is None else self.impossible[:, indices],
        )

    def line(self, weights: Float64s, direction: Float64s) -> tuple[Float64s, Float64s]:
        """Return candidates' totals with weights [D], −∞ if impossible, and slopes [C]."""
        totals, slopes = self.features @ weights, self.features @ direction
        if self.impossible is not None:
            lost = self.impossible @ ((weights != 0) | (direction != 0))
            totals[lost], slopes[lost] = -np.inf, 0.0
        return totals, slopes

    def totals(self, weights: Float64s) -> Float64s:
        """Return each candidate's total with weights [D], −∞ if impossible [C]."""
        return self.line(weights, np.zeros(len(weights)))[0]

    def chosen(self, weights: Float64s) -> Int64s:
        """Choose each list's candidate of largest total, the first of equal ones [N]."""
        return argmax_by_list(self.totals(weights), self.offsets)

    def first_pass(self) -> Int64s:
        """Choose the first candidate of each list [N]."""
        return self.offsets[:-1]

    def losses(self, totals: Int64s) -> Float64s:
        """Compute the loss of counts [..., S]: the score, negated if higher is better."""
        scores = self.metric.score(totals)
        return -scores if self.metric.higher_is_better else scores

    def score(self, chosen: Int64s) -> float:
        """Score a choice of candidates [N] with the metric, in percent."""
        return float(self.metric.score(self.statistics[chosen].sum(axis=0)))

    def costs(self, totals: Int64s) -> Float64s:
        """Linearise the loss around sums [S]; return each candidate's contribution [C].

        A corpus score is no sum over lists, so counts are weighted by the loss's slope at the sums.
        """
        steps = np.eye(len(totals), dtype=np.int64)
        return self.statistics @ (self.losses(totals + steps) - self.losses(totals))

    def oracle(self, *, worst: bool = False) -> Int64s:
        """Choose the candidates with the best possible score, or the worst [N].

        Repeatedly chooses by cost at the previous choice's sums, while the loss improves. The result is exact
        for word and character errors with one reference each; for BLEU and chrF there may be a better one.
        """
        best, sign = self.first_pass(), -1.0 if worst else 1.0
        totals = self.statistics[best].sum(axis=0)
        for _ in range(_ORACLE_ROUNDS):
            choice = argmax_by_list(-sign * self.costs(totals), self.offsets)
            new_totals = self.statistics[choice].sum(axis=0)
            if not sign * self.losses(new_totals) < sign * self.losses(totals):
                break
            best, totals = choice, new_totals
        return best


def argmax_by_list(values: Float64s, offsets: Int64s) -> Int64s:
    """Find the index of each list's largest value, the first of equal ones; [C] → [N]."""
    greatest = np.maximum.reduceat(values, offsets[:-1])
    is_greatest = values == np.repeat(greatest, np.diff(offsets))
    indices = np.where(is_greatest, np.arange(len(values)), len(values))
    return np.minimum.reduceat(indices, offsets[:-1])


def centre_by_list(values: Float64s, offsets: Int64s) -> Float64s:
    """Subtract each list's mean from its candidates' values [C, …]."""
    lengths = np.diff(offsets)
    means = np.add.reduceat(values, offsets[:-1], axis=0).T / lengths
    return values - np.repeat(means.T, lengths, axis=0)


def floor_by_list(values: Float64s, offsets: Int64s) -> Float64s:
    """Replace −∞ by one less than its list's least other value, or by 0 if none [C, …]."""
    impossible = np.isneginf(values)
    least = np.minimum.reduceat(np.where(impossible, np.inf, values), offsets[:-1]) - 1.0
    least[np.isposinf(least)] = 0.0
    return np.where(impossible, np.repeat(least, np.diff(offsets), axis=0), values)


def spread_by_list(values: Float64s, offsets: Int64s) -> float:
    """Return the root-mean-square deviation of finite values [C] from their list's mean."""
    return float(np.sqrt(np.mean(centre_by_list(floor_by_list(values, offsets), offsets) ** 2)))


def standardise_features(problem: TuningProblem) -> tuple[TuningProblem, Float64s]:
    """Standardise features to mean 0 within each list and deviation 1 overall.

    Values shared by a list's candidates change no choice, so they are removed.

    Returns:
        The problem, and each feature's root-mean-square deviation within its list; 0 if it does not
        distinguish candidates [D].
    """
    centred = centre_by_list(problem.features, problem.offsets)
    scales = np.sqrt(np.mean(centred**2, axis=0))
    scales[scales <= 1e-9 * np.abs(problem.features).max(axis=0, initial=0.0)] = 0.0  # rounding error
    scaled = np.divide(centred, scales, out=np.zeros_like(centred), where=scales > 0)
    return replace(problem, features=np.ascontiguousarray(scaled)), scales


class LossCurve(NamedTuple):
    """Loss along a line.

    Attributes:
        angles: angles where it may change, ascending [M].
        losses: losses before, between and after the angles [M+1].
    """

    angles: Float64s
    losses: Float64s

    def at(self, angles: Float64s) -> Float64s:
        """Return the loss at angles; where it changes, the value after the change."""
        return self.losses[np.searchsorted(self.angles, angles, side="right")]

    def smoothed(self, angles: Float64s, window: float) -> Float64s:
        """Average the loss over `window` radians on both sides of angles, within the line."""
        edges = np.concatenate(([-_MAX_ANGLE], self.angles, [_MAX_ANGLE]))
        area = np.concatenate(([0.0], np.cumsum(np.diff(edges) * self.losses)))
        low, high = np.maximum(angles - window, -_MAX_ANGLE), np.minimum(angles + window, _MAX_ANGLE)
        means: Float64s = (np.interp(high, edges, area) - np.interp(low, edges, area)) / (high - low)
        return means

    def best(self, window: float) -> tuple[float, float]:
        """Return the angle of least smoothed loss, its interval's middle, and the loss."""
        edges = np.concatenate((self.angles - window, self.angles + window, [-_MAX_ANGLE, _MAX_ANGLE, 0.0]))
        # the slope of the mean may change here
        knots = np.unique(np.clip(edges, -_MAX_ANGLE, _MAX_ANGLE))
        losses = self.smoothed(knots, window)
        low = losses <= losses.min() + LOSS_TOLERANCE
        begin = int(np.argmax(low))
        end = begin + int(np.argmin(np.append(low[begin:], False))) - 1
        middle = (knots[begin] + knots[end]) / 2
        return float(middle), float(losses[begin])


def line_loss(problem: TuningProblem, values: Float64s, slopes: Float64s) -> Steps[LossCurve]:
    """Compute the exact loss along a line.

    Args:
        problem: the lists.
        values: total of each candidate at angle 0, −∞ if impossible [C].
        slopes: slope of each candidate's total [C].
    """
    from models.reranking.tuning.envelope import upper_envelopes

    values = np.maximum(values, _LOWEST)
    first = np.empty(problem.num_lists, np.int64)
    breaks = np.empty(len(values))
    previous, entering = np.empty((2, len(values)), np.int64)
    count = 0
    for begin in range(0, problem.num_lists, _LISTS_PER_STEP):
        end = begin + _LISTS_PER_STEP
        outputs = first[begin:end], breaks[count:], previous[count:], entering[count:]
        count += upper_envelopes(values, slopes, problem.offsets[begin : end + 1], *outputs)
        yield
    order = np.argsort(breaks[:count], kind="stable")
    yield
    changes = problem.statistics[entering[order]] - problem.statistics[previous[order]]
    start: Int64s = problem.statistics[first].sum(axis=0, keepdims=True)
    totals = np.cumsum(np.concatenate((start, changes)), axis=0)
    yield
    return LossCurve(np.arctan(breaks[:count][order]), problem.losses(totals))


class LocalMinimum(NamedTuple):
    """End point of a search.

    Attributes:
        weights: unit vector [D].
        loss: smoothed loss at this point.
    """

    weights: Float64s
    loss: float


def start_points(num_features: int, *, restarts: int, seed: int) -> Iterator[Float64s]:
    """Yield the starting points of searches: each feature alone, then random ones."""
    yield from np.eye(num_features)
    yield from np.random.default_rng(seed).standard_normal((restarts, num_features))


def powell_search(
    problem: TuningProblem, begin: Iterator[Float64s] | Sequence[Float64s], *, window: float
) -> Steps[list[LocalMinimum]]:
    """Search from each start; return the end points, the best first, ties in the order of starts.

    Args:
        problem: with standardised features, at least one, each distinguishing some candidates.
        begin: starting points [D].
        window: radians to either side to average the loss over.
    """
    ends = []
    for start in begin:
        found = LocalMinimum(_unit_vector(start), np.inf)
        for _ in range(_MAX_ROUNDS):
            before = found
            for feature, direction in enumerate(np.eye(len(problem.names))):
                weight = found.weights[feature]
                # prefer a zero weight if as good, unless all would be zero
                none = () if abs(weight) >= 1 - LOSS_TOLERANCE else (float(np.arctan(-weight)),)
                found = yield from _search_line(problem, found.weights, direction, window, (*none, 0.0))
            # of the round: often along a valley (Powell 1964)
            way = found.weights - before.weights
            if np.linalg.norm(way) > LOSS_TOLERANCE:
                found = yield from _search_line(problem, found.weights, _unit_vector(way), window, (0.0,))
            if found.loss >= before.loss - LOSS_TOLERANCE:
                break
        ends.append(found)
    return sorted(ends, key=lambda one: one.loss)


def _search_line(
    problem: TuningProblem, weights: Float64s, direction: Float64s, window: float, preferred: Sequence[float]
) -> Steps[LocalMinimum]:
    """Move to the best point of a line through `weights`, or to the first preferred angle as good.

    Weights and direction are unit vectors [D].
    """
    curve = yield from line_loss(problem, *problem.line(weights, direction))
    best, least = curve.best(window)
    losses = curve.smoothed(np.array(preferred), window)
    good = np.flatnonzero(losses <= least + LOSS_TOLERANCE)
    angle, loss = (preferred[good[0]], losses[good[0]]) if good.size else (best, least)
    return LocalMinimum(_unit_vector(np.cos(angle) * weights + np.sin(angle) * direction), float(loss))


def _unit_vector(vector: Float64s) -> Float64s:
    return vector / np.linalg.norm(vector)
