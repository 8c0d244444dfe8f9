"""Tuning problem: candidates as rows of features and of the counts that a metric sums.

`standardise_features` centres features within each list and scales them to deviation 1 over all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.reranking.metrics.metric import Metric

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_ORACLE_ROUNDS = 20


@dataclass(frozen=True, slots=True, eq=False)
class TuningProblem:
    """Lists of candidates, end to end.

    Attributes:
        names: of the features [D].
        features: of the candidates, as a weight finds them [C, D]; all finite.
        statistics: counts of each candidate against its list's references [C, S].
        offsets: where lists begin, and the last ends [N+1]; none is empty.
        metric: what sums of counts mean.
    """

    names: tuple[str, ...]
    features: Floats
    statistics: Ints
    offsets: Ints
    metric: Metric

    @property
    def num_lists(self) -> int:
        """N."""
        return len(self.offsets) - 1

    def of(self, lists: Ints) -> "TuningProblem":
        """The problem of some of its lists, by their numbers."""
        begins, lengths = self.offsets[lists], np.diff(self.offsets)[lists]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        rows = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)
        return TuningProblem(self.names, self.features[rows], self.statistics[rows], offsets, self.metric)

    def with_features(self, names: Sequence[str]) -> "TuningProblem":
        """The problem with some of its features only."""
        columns = [self.names.index(name) for name in names]
        return TuningProblem(
            tuple(names),
            np.ascontiguousarray(self.features[:, columns]),
            self.statistics,
            self.offsets,
            self.metric,
        )

    def chosen(self, weights: Floats) -> Ints:
        """The candidate of each list with the greatest total, the first of equal ones [N]."""
        return argmax_by_list(self.features @ weights, self.offsets)

    def first_pass(self) -> Ints:
        """The candidate of each list that came first [N]."""
        return self.offsets[:-1]

    def losses(self, totals: Ints) -> Floats:
        """Loss of sums of counts [..., S]: the score, negated where more is better [...]."""
        scores = self.metric.score(totals)
        return -scores if self.metric.higher_is_better else scores

    def score(self, chosen: Ints) -> float:
        """The metric's figure for a choice of candidates [N], in percent."""
        return float(self.metric.score(self.statistics[chosen].sum(axis=0)))

    def oracle(self) -> Ints:
        """The candidates that a seer would choose [N]."""
        return self._extreme_choice(1.0)

    def anti_oracle(self) -> Ints:
        """The worst choice [N]."""
        return self._extreme_choice(-1.0)

    def costs(self, totals: Ints) -> Floats:
        """Contribution of a candidate to the loss where the sums of counts are `totals` [S], to first order [C].

        A corpus score is no sum over lists, so a count is worth the loss's slope at the sums.
        """
        steps = np.eye(len(totals), dtype=np.int64)
        answer: Floats = self.statistics @ (self.losses(totals + steps) - self.losses(totals))
        return answer

    def _extreme_choice(self, sign: float) -> Ints:
        """The choice of least loss, or of greatest.

        Chosen is by cost at the sums of the choice so far, again and again, as long as that gets better.
        Exact for word and character errors against one reference each; for BLEU and chrF a better choice may exist.
        """
        best = self.first_pass()
        totals = self.statistics[best].sum(axis=0)
        for _ in range(_ORACLE_ROUNDS):
            choice = argmax_by_list(-sign * self.costs(totals), self.offsets)
            new_totals = self.statistics[choice].sum(axis=0)
            if not sign * self.losses(new_totals) < sign * self.losses(totals):
                break
            best, totals = choice, new_totals
        return best


def argmax_by_list(values: Floats, offsets: Ints) -> Ints:
    """The place of each list's greatest value, the first of equal ones; [C] → [N]."""
    greatest = np.maximum.reduceat(values, offsets[:-1])
    is_greatest = values == np.repeat(greatest, np.diff(offsets))
    indices = np.where(is_greatest, np.arange(len(values)), len(values))
    answer: Ints = np.minimum.reduceat(indices, offsets[:-1])
    return answer


class FeatureScaling(NamedTuple):
    """Standardization of features.

    Attributes:
        deviations: of each feature within its list, root mean square; 0 where it tells no candidates apart [D].
    """

    deviations: Floats

    def raw(self, weights: Floats) -> Floats:
        """Weights [D] of the features as they were, from those of the comparable ones; 0 where they tell nothing."""
        return np.divide(weights, self.deviations, out=np.zeros_like(weights), where=self.deviations > 0)


def standardise_features(problem: TuningProblem) -> tuple[TuningProblem, FeatureScaling]:
    """The problem with features of mean 0 in each list and of deviation 1 over all.

    What all candidates of a list share changes no choice, so it is taken away.
    """
    lengths = np.diff(problem.offsets)
    means = np.add.reduceat(problem.features, problem.offsets[:-1], axis=0) / lengths[:, None]
    centred = problem.features - np.repeat(means, lengths, axis=0)
    deviations = np.sqrt(np.mean(centred**2, axis=0))
    deviations[deviations <= 1e-9 * np.abs(problem.features).max(axis=0, initial=0.0)] = 0.0  # rounding alone
    scaled = np.divide(centred, deviations, out=np.zeros_like(centred), where=deviations > 0)
    features = np.ascontiguousarray(scaled)
    return (
        TuningProblem(problem.names, features, problem.statistics, problem.offsets, problem.metric),
        FeatureScaling(deviations),
    )
