"""Tuning problem: candidates as rows of features, with counts that a metric sums.

`standardise_features` centres features within each list and scales them to deviation 1 overall.
"""

from dataclasses import dataclass, replace

import numpy as np

from models.arrays import Bools, Float64s, Int64s, index_ranges
from models.reranking.metrics.metric import Metric

Floats = Float64s
Ints = Int64s

_ORACLE_ROUNDS = 20


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
    features: Floats
    statistics: Ints
    offsets: Ints
    metric: Metric
    length_exponent: float = 0.0
    impossible: Bools | None = None

    @property
    def num_lists(self) -> int:
        """Number of lists N."""
        return len(self.offsets) - 1

    def of(self, lists: Ints, depth: int | None = None) -> "TuningProblem":
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

    def of_features(self, indices: Ints) -> "TuningProblem":
        """Return the problem of some features, by index."""
        return replace(
            self,
            names=tuple(self.names[index] for index in indices),
            features=np.ascontiguousarray(self.features[:, indices]),
            impossible=None if self.impossible is None else self.impossible[:, indices],
        )

    def line(self, weights: Floats, direction: Floats) -> tuple[Floats, Floats]:
        """Return candidates' totals with weights [D], −∞ if impossible, and slopes [C]."""
        totals, slopes = self.features @ weights, self.features @ direction
        if self.impossible is not None:
            lost = self.impossible @ ((weights != 0) | (direction != 0))
            totals[lost], slopes[lost] = -np.inf, 0.0
        return totals, slopes

    def totals(self, weights: Floats) -> Floats:
        """Return each candidate's total with weights [D], −∞ if impossible [C]."""
        return self.line(weights, np.zeros(len(weights)))[0]

    def chosen(self, weights: Floats) -> Ints:
        """Choose each list's candidate of largest total, the first of equal ones [N]."""
        return argmax_by_list(self.totals(weights), self.offsets)

    def first_pass(self) -> Ints:
        """Choose the first candidate of each list [N]."""
        return self.offsets[:-1]

    def losses(self, totals: Ints) -> Floats:
        """Compute the loss of counts [..., S]: the score, negated if higher is better."""
        scores = self.metric.score(totals)
        return -scores if self.metric.higher_is_better else scores

    def score(self, chosen: Ints) -> float:
        """Score a choice of candidates [N] with the metric, in percent."""
        return float(self.metric.score(self.statistics[chosen].sum(axis=0)))

    def costs(self, totals: Ints) -> Floats:
        """Linearise the loss around sums [S]; return each candidate's contribution [C].

        A corpus score is no sum over lists, so counts are weighted by the loss's slope at the sums.
        """
        steps = np.eye(len(totals), dtype=np.int64)
        return self.statistics @ (self.losses(totals + steps) - self.losses(totals))

    def oracle(self, *, worst: bool = False) -> Ints:
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


def argmax_by_list(values: Floats, offsets: Ints) -> Ints:
    """Find the index of each list's largest value, the first of equal ones; [C] → [N]."""
    greatest = np.maximum.reduceat(values, offsets[:-1])
    is_greatest = values == np.repeat(greatest, np.diff(offsets))
    indices = np.where(is_greatest, np.arange(len(values)), len(values))
    return np.minimum.reduceat(indices, offsets[:-1])


def centre_by_list(values: Floats, offsets: Ints) -> Floats:
    """Subtract each list's mean from its candidates' values [C, …]."""
    lengths = np.diff(offsets)
    means = np.add.reduceat(values, offsets[:-1], axis=0).T / lengths
    return values - np.repeat(means.T, lengths, axis=0)


def floor_by_list(values: Floats, offsets: Ints) -> Floats:
    """Replace −∞ by one less than its list's least other value, or by 0 if none [C, …]."""
    impossible = np.isneginf(values)
    least = np.minimum.reduceat(np.where(impossible, np.inf, values), offsets[:-1]) - 1.0
    least[np.isposinf(least)] = 0.0
    return np.where(impossible, np.repeat(least, np.diff(offsets), axis=0), values)


def spread_by_list(values: Floats, offsets: Ints) -> float:
    """Return the root-mean-square deviation of finite values [C] from their list's mean."""
    return float(np.sqrt(np.mean(centre_by_list(floor_by_list(values, offsets), offsets) ** 2)))


def standardise_features(problem: TuningProblem) -> tuple[TuningProblem, Floats]:
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
