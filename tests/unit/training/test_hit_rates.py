"""Which orders' n-grams are found in a text."""

import json
import math

import numpy as np
import pytest

from models.vocabulary import BOS, EOS
from tests import families
from training.evaluation.evaluate import evaluate, evaluation_facts, score_corpus
from training.ngram.counts import hit_rates
from training.progress import Silent

HELD_OUT = families.corpus(25, seed=9)


def test_tokens_are_grouped_by_the_length_of_what_was_found():
    log_probs = np.log([0.5, 0.1, 0.2, 0.4])
    one, two, three = hit_rates(log_probs, np.array([2, 1, 2, 1], np.uint8), order=3)
    assert (one.order, one.tokens, one.share) == (1, 2, 0.5)
    assert one.perplexity == pytest.approx(1 / math.sqrt(0.1 * 0.4))
    assert two.logprob == pytest.approx(np.log(0.5 * 0.2) / 2)
    assert (three.order, three.tokens, three.logprob, three.perplexity) == (3, 0, None, None)


def test_an_impossible_token_has_no_perplexity_and_can_be_written_as_json():
    (one,) = hit_rates(np.array([-np.inf, -1.0]), np.array([1, 1]), order=1)
    assert (one.tokens, one.logprob, one.perplexity) == (2, None, None)
    json.dumps(one._asdict(), allow_nan=False)


def test_no_token_has_no_rates():
    assert [h.share for h in hit_rates(np.zeros(0), np.zeros(0, np.uint8), order=2)] == [0, 0]


def seen_ngrams(order):
    """Every n-gram of the text that the families' n-gram model was estimated from."""
    training = families.corpus()
    rows = [(BOS, *training.sentence(i).tolist(), EOS) for i in range(training.num_sentences)]
    return {row[i : i + k] for row in rows for k in range(1, order + 1) for i in range(len(row) - k + 1)}


def longest_seen(seen, history, order):
    return next((k for k in range(min(order, len(history)), 1, -1) if tuple(history[-k:]) in seen), 1)


@pytest.mark.parametrize("context", ["sentence", "stream", "document"])
def test_what_is_found_is_the_longest_n_gram_that_was_seen(context, monkeypatch):
    monkeypatch.setattr("training.evaluation.evaluate.CHUNK_TOKENS", 5)
    model = families.model("ngram")
    seen = seen_ngrams(model.order)
    rows = [[BOS, *HELD_OUT.sentence(i).tolist(), EOS] for i in range(HELD_OUT.num_sentences)]
    if context == "document":
        rows = [row[:-1] for row in rows]
    if context == "stream":
        rows = [[token for row in rows for token in row]]
    expected = [
        longest_seen(seen, row[: i + 1], model.order)
        for row in rows
        for i in range(1, len(row))
        if row[i] != BOS
    ]
    got = score_corpus(model, HELD_OUT, context=context, progress=Silent())
    assert got.matched.tolist() == expected


def test_groups_make_up_the_whole():
    figures = evaluation_facts(evaluate(families.model("ngram"), HELD_OUT, progress=Silent()))
    rates = figures["hit_rates"]
    assert [rate["order"] for rate in rates] == [1, 2, 3, 4]
    assert sum(rate["tokens"] for rate in rates) == figures["tokens"]
    assert sum(rate["share"] for rate in rates) == pytest.approx(1)
    assert sum(rate["tokens"] * rate["logprob"] for rate in rates) == pytest.approx(figures["logprob"])


@pytest.mark.parametrize("name", ["lstm", "mixture"])
def test_other_families_have_none(name):
    assert "hit_rates" not in evaluation_facts(evaluate(families.model(name), HELD_OUT, progress=Silent()))
