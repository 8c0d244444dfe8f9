"""Made-up problems of re-ranking, whose right weights are known."""

import numpy as np

from models.reranking.candidates import Candidate, CandidateList
from models.reranking.features import NUM_WORDS, ListFeatures
from models.reranking.metrics import make_metric
from models.reranking.tuning.cross_fitting import ListCounts, TuningData
from models.reranking.tuning.fitting import ProblemVariant
from models.reranking.tuning.problem import TuningProblem, standardise_features

WORDS_A_LIST = 10


def problem(errors, features, sizes=None, names=None):
    """Lists of candidates with so many word errors of ten, one after the other; sizes of the lists, or all in one."""
    errors = np.asarray(errors)
    features = np.asarray(features, dtype=float).reshape(len(errors), -1)
    offsets = np.concatenate(([0], np.cumsum(sizes or [len(errors)])))
    statistics = np.stack([errors, np.full_like(errors, WORDS_A_LIST)], axis=1)
    names = names or tuple("abcdefgh"[: features.shape[1]])
    return TuningProblem(tuple(names), features, statistics, offsets, make_metric("wer"))


def informative(num_lists=60, size=5, seed=0, noise=0.5):
    """The place in the list says little, `good` tells errors, `useless` nothing."""
    rng = np.random.default_rng(seed)
    errors = rng.integers(0, 6, num_lists * size)
    good = -errors + noise * rng.standard_normal(len(errors))
    rank = -np.tile(np.arange(size), num_lists)
    features = np.stack([rank, good, rng.standard_normal(len(errors))], axis=1)
    return problem(errors, features, [size] * num_lists, ("rank", "good", "useless"))


def uninformative(num_lists=60, size=5, seed=0):
    """The first candidates are best on the whole, and nothing tells which are better."""
    rng = np.random.default_rng(seed)
    rank = np.tile(np.arange(size), num_lists)
    errors = np.minimum(rank, 2) + rng.integers(0, 4, len(rank))
    features = np.column_stack([-rank, rng.standard_normal((len(rank), 3))])
    return problem(errors, features, [size] * num_lists, ("rank", "x", "y", "z"))


def data_of(one):
    """A problem as tuning takes it; its lists have no texts."""
    return TuningData(
        (), (ProblemVariant(0.0, one),), np.zeros(0, dtype=np.int64), ListCounts(0, 0, 0, 0, 0), ()
    )


def scaled(one):
    """The problem with comparable features."""
    return standardise_features(one)[0]


def candidate_list(*texts, reference="a b c", name=None, features=None):
    """A list of candidates, with features by candidate."""
    given = features or [{} for _ in texts]
    candidates = tuple(Candidate(t, f) for t, f in zip(texts, given, strict=True))
    return CandidateList(name, "", candidates, () if reference is None else (reference,))


def words_alone(lists):
    """What is computed where no model scores."""
    counts = [float(len(c.text.split())) for one in lists for c in one.candidates]
    offsets = np.concatenate(([0], np.cumsum([len(one.candidates) for one in lists])))
    return ListFeatures((NUM_WORDS,), np.array(counts)[:, None], offsets)
