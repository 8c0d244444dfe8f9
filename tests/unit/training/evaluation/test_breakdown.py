"""Metrics by frequency and position, paired differences, entropy and divergence."""

import math
from collections import defaultdict

import numpy as np
import pytest

from models.arrays import to_numpy
from models.language_model import BOS, EOS, UNK
from tests.support import families
from tests.support.fake_models import FakeModel, fake_vocabulary
from training.corpus import EncodedCorpus
from training.evaluation.breakdown import (
    EvaluationOptions,
    by_frequency,
    by_position,
    divergences_of,
    entropies_of,
    log_prob_difference,
    mean_over_positions,
    num_predicted,
    positions_in_sentence,
    positions_since_start,
    sample_positions,
    sampled_distributions,
    token_counts,
)
from training.evaluation.evaluate import CorpusScores, score_corpus
from training.progress import Progress

HELD_OUT = families.corpus(60, seed=5)
SENTENCES = EvaluationOptions()


def mean_entropy(model, corpus, options=SENTENCES):
    return mean_over_positions("entropy", entropies_of, [model], corpus, options, Progress())


def mean_divergence(a, b, corpus, options=SENTENCES):
    return mean_over_positions("divergence", divergences_of, [a, b], corpus, options, Progress())


@pytest.fixture(scope="module")
def targets():
    return score_corpus(families.model("ngram"), HELD_OUT, progress=Progress())


def assert_groups(groups, targets, name_of):
    """Check that each group has the tokens assigned by `name_of`, and their mean."""
    expected = defaultdict(list)
    for number, (token, log_prob) in enumerate(zip(targets.tokens.tolist(), targets.log_probs, strict=True)):
        expected[name_of(number, token)].append(float(log_prob))
    assert {g["name"]: g["tokens"] for g in groups} == {name: len(own) for name, own in expected.items()}
    for group in groups:
        mean = math.fsum(expected[group["name"]]) / group["tokens"]
        assert group["logprob"] == pytest.approx(mean, abs=1e-6)
        assert group["perplexity"] == pytest.approx(math.exp(-mean), rel=1e-5)
        assert group["share"] == pytest.approx(group["tokens"] / len(targets.tokens))


def test_frequencies_fall_into_powers_of_ten(targets):
    counts = np.random.default_rng(0).choice([0, 1, 9, 10, 99, 100, 1000, 10**9], 40)

    def name_of(_, token):
        if token in {UNK, EOS}:
            return "unknown" if token == UNK else "end of sentence"
        digits = len(str(counts[token]))
        return f"{10 ** (digits - 1)}-{10**digits - 1}" if counts[token] else "0"

    assert_groups(by_frequency(targets, counts), targets, name_of)


def test_positions_fall_into_powers_of_two(targets):
    places = [i + 1 for s in range(60) for i in range(len(HELD_OUT.sentence(s)) + 1)]
    assert positions_in_sentence(HELD_OUT).tolist() == places
    names = {1: "1", 2: "2", 3: "3-4", 4: "3-4", **dict.fromkeys(range(5, 9), "5-8")}
    names |= dict.fromkeys(range(9, 17), "9-16")
    groups = by_position(targets, np.array(places))
    assert_groups(groups, targets, lambda number, _: names[places[number]])


def test_positions_since_the_start_go_on_where_the_state_does():
    corpus = EncodedCorpus.from_sentences([[3, 4, 5], [6], []])
    by_context = {
        context: positions_since_start(corpus, context=context, window=2).tolist()
        for context in ("stream", "document")
    }
    assert by_context == {
        "stream": [1, 2, 3, 4, 5, 6, 7],
        "document": [1, 2, 1, 1],
    }


def test_token_counts_have_the_ends_of_sentences():
    corpus = EncodedCorpus.from_sentences([[3, 4, 4], [4]])
    assert token_counts(corpus, 6).tolist() == [0, 0, 2, 1, 3, 0]


def as_targets(log_probs):
    return CorpusScores(np.asarray(log_probs, np.float32), np.zeros(len(log_probs), np.int64), None)


def test_the_error_of_a_difference_is_what_resampling_sentences_gives():
    random = np.random.default_rng(1)
    corpus = EncodedCorpus.from_sentences([[3] * n for n in random.integers(0, 30, 300)])
    owners = np.repeat(np.arange(300), np.diff(corpus.offsets) + 1)
    shared = random.normal(-5, 3, corpus.num_tokens)  # difficulty shared by both
    a, b = shared + random.normal(0.1, 0.5, len(shared)) + random.normal(0, 0.3, 300)[owners], shared
    got = log_prob_difference(as_targets(a), as_targets(b), corpus, context="sentence")
    sums, lengths = np.bincount(owners, a - b), np.bincount(owners)
    draws = random.integers(0, 300, (4000, 300))
    resampled = sums[draws].sum(axis=1) / lengths[draws].sum(axis=1)
    assert got["nats_per_token"] == pytest.approx((a - b).mean(), abs=1e-5)
    assert got["standard_error"] == pytest.approx(resampled.std(), rel=0.1)
    assert (got["low"], got["high"]) == pytest.approx(np.percentile(resampled, [2.5, 97.5]), abs=0.01)


def test_a_difference_has_the_sign_of_the_better_model(targets):
    worse = targets._replace(log_probs=targets.log_probs - np.float32(0.5))
    got = log_prob_difference(targets, worse, HELD_OUT, context="sentence")
    assert got["nats_per_token"] == pytest.approx(0.5, abs=1e-5)
    assert got["standard_error"] == pytest.approx(0, abs=1e-5)
    assert log_prob_difference(worse, targets, HELD_OUT, context="sentence")["high"] < 0


def test_one_sentence_and_impossible_tokens_have_no_error():
    corpus = EncodedCorpus.from_sentences([[3, 4]])
    a, b = as_targets([-1, -2, -3]), as_targets([-1, -1, -np.inf])
    same = log_prob_difference(a, a, corpus, context="sentence")
    assert tuple(same.values()) == (0, None, None, None, 1)
    assert log_prob_difference(a, b, corpus, context="sentence")["nats_per_token"] is None


FEW_HELD_OUT = families.corpus(25, seed=9)
CONTEXTS = ["sentence", "stream", "document"]
WINDOW = 4


def texts(context):
    """(Context, tokens) of each sequence read from an empty state."""
    rows = [FEW_HELD_OUT.sentence(i).tolist() for i in range(FEW_HELD_OUT.num_sentences)]
    if context == "sentence":
        return [([BOS], [*row, EOS]) for row in rows]
    if context == "stream":
        return [([BOS], [token for row in rows for token in [*row, EOS, BOS]][:-1])]
    starts = [(row, start) for row in rows for start in range(0, len(row), WINDOW)]
    return [
        (row[min(start, len(row) - WINDOW) - 1 : start] if start else [BOS], row[start : start + WINDOW])
        for row, start in starts
    ]


def every_row(model, context):
    """Distributions at every predicted token [N, V], in corpus order."""
    rows = []
    for before, ids in texts(context):
        state = model.empty_state(1)
        for token in before:
            state = model.advance(state, np.array([token]))
        for token in ids:
            if token != BOS:
                rows.append(to_numpy(model.next_log_probs(state))[0].astype(np.float64))
            state = model.advance(state, np.array([token]))
    return np.array(rows)


def entropy_of(rows):
    return -sum(p * math.log(p) for p in np.exp(rows).ravel() if p > 0) / len(rows)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", families.NAMES)
def test_the_entropy_of_all_predictions_is_their_mean(name, context, monkeypatch):
    monkeypatch.setattr("training.evaluation.evaluate.CHUNK_TOKENS", 3)
    model = families.model(name)
    got = mean_entropy(model, FEW_HELD_OUT, EvaluationOptions(context, WINDOW))
    rows = every_row(model, context)
    assert got["positions"] == len(rows) == num_predicted(FEW_HELD_OUT, context)
    assert got["nats"] == pytest.approx(entropy_of(rows), abs=1e-4)
    assert got["bits"] == pytest.approx(got["nats"] / math.log(2))


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_sample_is_just_the_sampled_rows(context, monkeypatch):
    monkeypatch.setattr("training.evaluation.breakdown._BATCH_ROWS", 3)
    model = families.model("lstm")
    places = sample_positions(num_predicted(FEW_HELD_OUT, context), 17)
    options = EvaluationOptions(context, WINDOW)
    got = np.concatenate(list(sampled_distributions(model, FEW_HELD_OUT, places, options, Progress())))
    expected = every_row(model, context)[places]
    weights = np.random.default_rng(0).random(got.shape[1])
    assert np.sort(np.exp(got) @ weights) == pytest.approx(np.sort(np.exp(expected) @ weights), abs=1e-5)


def test_sampled_places_are_spread_evenly_over_the_text():
    assert sample_positions(10, 100).tolist() == list(range(10))
    assert sample_positions(1000, 4).tolist() == [125, 375, 625, 875]
    assert sample_positions(0, 4).tolist() == []


def test_the_standard_error_covers_the_mean_of_all():
    model, corpus = families.model("ngram"), families.corpus(400, seed=3)
    whole = mean_entropy(model, corpus, EvaluationOptions(sample=10**9))
    part = mean_entropy(model, corpus, EvaluationOptions(sample=300))
    assert (part["positions"], whole["positions"]) == (300, corpus.num_tokens)
    assert 0 < abs(part["bits"] - whole["bits"]) < 4 * part["standard_error_bits"] < 1


@pytest.mark.parametrize("context", CONTEXTS)
def test_divergence_is_the_expected_difference_of_log_probabilities(context):
    a, b = families.model("ngram"), families.model("gru")
    got = mean_divergence(a, b, FEW_HELD_OUT, EvaluationOptions(context, WINDOW))
    p, q = every_row(a, context), every_row(b, context)
    with np.errstate(invalid="ignore"):
        terms = np.where(np.exp(p) > 0, np.exp(p) * (p - q), 0.0)
    assert got["nats"] == pytest.approx(terms.sum() / len(p), abs=1e-4)
    assert got["nats"] > 0.01


def test_a_model_does_not_diverge_from_itself():
    model = families.model("mixture")
    got = mean_divergence(model, model, FEW_HELD_OUT)
    assert got["nats"] == pytest.approx(0, abs=1e-9)


def test_rows_that_miss_1_are_taken_as_if_they_did_not():
    corpus = EncodedCorpus.from_sentences([[3, 4, 5], [6]])
    right, wrong = FakeModel(fake_vocabulary()), FakeModel(fake_vocabulary())
    wrong.table = wrong.table + np.float32(0.25)
    assert mean_divergence(right, wrong, corpus)["nats"] == pytest.approx(0, abs=1e-6)


def test_divergence_from_a_model_that_rules_out_what_happens_is_infinite():
    corpus = EncodedCorpus.from_sentences([[3, 4, 5]])
    a, b = FakeModel(fake_vocabulary()), FakeModel(fake_vocabulary())
    b.table = b.table.copy()
    b.table[:, 7] = -np.inf
    assert mean_divergence(a, b, corpus)["nats"] is None
    assert mean_divergence(b, a, corpus)["nats"] > 0


def test_no_text_has_no_entropy():
    empty = EncodedCorpus.from_sentences([])
    found = mean_entropy(FakeModel(fake_vocabulary()), empty)
    assert found == {"nats": None, "bits": None, "standard_error_bits": None, "positions": 0}
