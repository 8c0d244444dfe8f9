"""Whether one choice of candidates is better than another, or only seems so."""

import numpy as np

from models.reranking.metrics.significance import BootstrapTest, bootstrap_difference, resampled_scores
from models.reranking.tuning.problem import Ints, TuningProblem
from models.reranking.tuning.steps import Steps

_DRAWS_PER_STEP = 1 << 14


def compare_choices(
    problem: TuningProblem, before: Ints, after: Ints, *, samples: int, seed: int
) -> Steps[BootstrapTest]:
    """Paired bootstrap test of two choices of candidates [N], in steps.

    Args:
        problem: whose candidates.
        before: the baseline.
        after: what may be better.
        samples: how many resamples of the lists.
        seed: of the draws.
    """
    both = problem.statistics[np.stack([before, after])]
    score_before, score_after = problem.metric.score(both.sum(axis=1)).tolist()
    at_once = max(1, _DRAWS_PER_STEP // problem.num_lists)
    seeds = np.random.default_rng(seed)
    differences = []
    for begin in range(0, samples, at_once):
        count = min(at_once, samples - begin)
        drawn = int(seeds.integers(1 << 62))
        scores = resampled_scores(problem.metric, both, samples=count, seed=drawn)
        differences.append(scores[:, 1] - scores[:, 0])
        yield
    return bootstrap_difference(score_after - score_before, np.concatenate(differences))


def is_improvement(problem: TuningProblem, test: BootstrapTest) -> bool:
    """Whether the difference is for the better."""
    return (test.difference > 0) == problem.metric.higher_is_better and test.difference != 0
