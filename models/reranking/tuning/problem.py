"""Tuning problem: candidates as rows of features and of the counts that a metric sums.

`standardise_features` centres features within each list and scales them to deviation 1 over all.
"""

from dataclasses import dataclass, replace

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
        length_exponent: of the language models, under which the features are what they are.
    """

    names: tuple[str, ...]
    features: Floats
    statistics: Ints
    offsets: Ints
    metric: Metric
    length_exponent: float = 0.0

    @property
    def num_lists(self) -> int:
        """N."""
        return len(self.offsets) - 1

    def of(self, lists: Ints, depth: int | None = None) -> "TuningProblem":
        """The problem of some of its lists, by their numbers, or of so many first candidates of each."""
        begins, lengths = self.offsets[lists], np.diff(self.offsets)[lists]
        lengths = lengths if depth is None else np.minimum(lengths, depth)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        rows = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)
        return replace(self, features=self.features[rows], statistics=self.statistics[rows], offsets=offsets)

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

    def costs(self, totals: Ints) -> Floats:
        """Contribution of a candidate to the loss where the sums of counts are `totals` [S], to first order [C].

        A corpus score is no sum over lists, so a count is worth the loss's slope at the sums.
        """
        steps = np.eye(len(totals), dtype=np.int64)
        answer: Floats = self.statistics @ (self.losses(totals + steps) - self.losses(totals))
        return answer

    def oracle(self, *, worst: bool = False) -> Ints:
        """The candidates that a seer would choose, or the worst [N].

        Chosen is by cost at the sums of the choice so far, again and again, as long as that gets better.
        Exact for word and character errors against one reference each; for BLEU and chrF a better choice may exist.
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
    """The place of each list's greatest value, the first of equal ones; [C] → [N]."""
    greatest = np.maximum.reduceat(values, offsets[:-1])
    is_greatest = values == np.repeat(greatest, np.diff(offsets))
    indices = np.where(is_greatest, np.arange(len(values)), len(values))
    answer: Ints = np.minimum.reduceat(indices, offsets[:-1])
    return answer


def centre_by_list(values: Floats, offsets: Ints) -> Floats:
    """Values of candidates less their mean in each list [C, …]."""
    lengths = np.diff(offsets)
    means = np.add.reduceat(values, offsets[:-1], axis=0).T / lengths
    centred: Floats = values - np.repeat(means.T, lengths, axis=0)
    return centred


def standardise_features(problem: TuningProblem) -> tuple[TuningProblem, Floats]:
    """The problem with features of mean 0 in each list and of deviation 1 over all, and what they were divided by.

    What all candidates of a list share changes no choice, so it is taken away.

    Returns:
        The problem, and the deviation of each feature within its list, root mean square; 0 where it tells no
        candidates apart [D].
    """
    centred = centre_by_list(problem.features, problem.offsets)
    deviations = np.sqrt(np.mean(centred**2, axis=0))
    deviations[deviations <= 1e-9 * np.abs(problem.features).max(axis=0, initial=0.0)] = 0.0  # rounding alone
    scaled = np.divide(centred, deviations, out=np.zeros_like(centred), where=deviations > 0)
    return replace(problem, features=np.ascontiguousarray(scaled)), deviations
