"""What tuning found, and what it would be worth on lists it has not seen."""

from typing import Literal, NamedTuple

from models.reranking.metrics.significance import BootstrapTest
from models.reranking.tuning.fitting import FittedWeights
from models.reranking.tuning.posterior_scale import PosteriorScale
from models.reranking.tuning.problem import Ints

Decision = Literal["tuned", "first_pass"]


class FoldOutcome(NamedTuple):
    """One fold, held out.

    Attributes:
        fitted: on all other folds.
        lists: the numbers of this fold's lists.
        baseline: score of their first candidates, in percent.
        tuned: of the candidates that the weights choose.
        oracle: of the best candidates.
        in_sample: score, by these weights, of the lists that they were found with.
    """

    fitted: FittedWeights
    lists: Ints
    baseline: float
    tuned: float
    oracle: float
    in_sample: float


class TuningOutcome(NamedTuple):
    """What tuning found.

    Attributes:
        decision: whether to use the weights, or to keep the first pass.
        reason: a sentence why.
        fitted: on all lists; what to use from now on.
        folds: each held out.
        first: the candidate of each list that came first [N].
        held_out: the one chosen by the weights that were found without its fold [N].
        oracle: the best one [N].
        baseline: score of the first candidates, in percent.
        tried: of those chosen by weights that had not seen their list.
        tuned: what the answer is worth on lists held out: `tried`, or `baseline` where the first pass is kept.
        best: of the oracle's.
        worst: of the worst candidates.
        significance: of the difference between tried and baseline.
        posteriors: of all lists under `fitted`, the totals scaled.
    """

    decision: Decision
    reason: str
    fitted: FittedWeights
    folds: tuple[FoldOutcome, ...]
    first: Ints
    held_out: Ints
    oracle: Ints
    baseline: float
    tried: float
    tuned: float
    best: float
    worst: float
    significance: BootstrapTest
    posteriors: PosteriorScale
