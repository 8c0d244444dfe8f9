"""Minimum-Bayes-risk choice against sacrebleu's sentence scores, and on the translations of a shared task."""

import numpy as np
import pytest
import sacrebleu

from models.reranking.mbr import expected_utilities
from models.reranking.metrics import make_metric
from tests.nbest_data import translated

SENTENCE_SCORES = {"chrf": sacrebleu.sentence_chrf, "bleu": sacrebleu.sentence_bleu}
TEXTS = ["The goods cost less than 20 euros.", "The goods have cost under 20 Euros.", "", "Goods: 20.", "No"]


@pytest.mark.parametrize("utility", SENTENCE_SCORES)
def test_utilities_are_expected_sentence_scores(utility):
    posteriors = np.array([0.4, 0.25, 0.05, 0.2, 0.1])
    score = SENTENCE_SCORES[utility]
    expected = [[score(text, [reference]).score for reference in TEXTS] @ posteriors for text in TEXTS]
    np.testing.assert_allclose(expected_utilities(TEXTS, posteriors, utility), expected, atol=1e-9)


@pytest.mark.data
def test_choosing_by_chrf_reproduces_the_known_gain(data_dir):
    lists = translated(data_dir)
    uniform = np.ones(9)
    chosen = [one.texts[expected_utilities(one.texts, uniform, "chrf").argmax()] for one in lists]
    for name, known in (("chrf", 59.46), ("bleu", 34.47)):
        metric = make_metric(name)
        rows = [
            metric.statistics([text], [one.reference])[0] for text, one in zip(chosen, lists, strict=True)
        ]
        assert round(float(metric.score(np.sum(rows, axis=0))), 2) == known
