"""Features made comparable, so that a step of the search means the same along each."""

from typing import NamedTuple

import numpy as np

from models.reranking.tuning.problem import Floats, TuningProblem


class FeatureScaling(NamedTuple):
    """How features were made comparable.

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
