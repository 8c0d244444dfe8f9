"""Parameters fitted on held-out text: matching, optimum, and gain."""

import itertools
import math

import numpy as np
import pytest

from models.language_model import BOS, EOS, Vocabulary
from tests.reference import smoothing as slow
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import evaluate
from training.ngram.counts import Observations, count_ngrams, match_counts
from training.ngram.estimate import estimate, make_smoothing
from training.ngram.smoothing.kneser_ney import MIN_DISCOUNT
from training.progress import Progress

PRUNE = (0, 0, 1)
ORDER = 4
TYPES = 30
VOCABULARY = Vocabulary([f"w{i}" for i in range(TYPES)])


def texts(seed, sentences):
    """Texts in which each word depends on its predecessor, with some words much more frequent."""
    rng = np.random.default_rng(seed)
    answer = []
    for _ in range(sentences):
        steps = rng.geometric(0.3, size=rng.integers(0, 10))
        answer.append((np.cumsum(steps) % TYPES + 3).tolist())
    return answer


TRAIN, HELD_OUT = texts(1, 200), [*texts(2, 40), [0, 5, 0]]


def estimated(name, train=TRAIN, held_out=HELD_OUT, **settings):
    return estimate(
        EncodedCorpus.from_sentences(train),
        VOCABULARY,
        order=ORDER,
        smoothing=make_smoothing(name, **settings),
        prune=PRUNE,
        held_out=EncodedCorpus.from_sentences(held_out),
        progress=Progress(),
    )


def histories(sentences):
    """Every token with its complete context."""
    for sentence in sentences:
        text = (BOS, *sentence, EOS)
        yield from ((text[i], text[:i]) for i in range(1, len(text)))


@pytest.mark.parametrize("continuations", [False, True])
def test_matches_are_what_dictionaries_find(continuations):
    corpus = EncodedCorpus.from_sentences(TRAIN)
    counted = count_ngrams(corpus, len(VOCABULARY), order=ORDER, progress=Progress())
    observations = Observations(counted, prune=PRUNE)
    orders = observations.orders(continuations=continuations)
    found = list(match_counts(orders, EncodedCorpus.from_sentences(HELD_OUT), vocab_size=len(VOCABULARY)))
    model = (slow.SlowKneserNey if continuations else slow.SlowAbsolute)(TRAIN, len(VOCABULARY), ORDER, PRUNE)
    for place, (word, history) in enumerate(histories(HELD_OUT)):
        for k, matches in enumerate(found, start=1):
            context = history[len(history) - k + 1 :] if k > 1 else ()
            knows = len(history) >= k - 1 and model.knows(context)
            counts = model.listed_counts(context) if knows else []
            total = sum(model.followers[context].values()) if knows else 0
            listed = knows and (*context, word) in model.listed
            assert matches.counts[place] == (model.followers[context].get(word, 0) if listed else 0)
            assert matches.totals[place] == total
            assert matches.pruned[place] == total - sum(counts)
            assert matches.types[place].tolist() == [sum(min(c, 3) == j for c in counts) for j in (1, 2, 3)]


def log_likelihood(model):
    model.memory = {}
    return sum(math.log(model.p(word, history)) for word, history in histories(HELD_OUT))


@pytest.mark.parametrize("name", ["absolute", "kneser-ney", "modified-kneser-ney"])
def test_no_other_discount_nearby_makes_the_held_out_text_more_probable(name):
    result = estimated(name, discounts="held-out")
    definition = {"absolute": slow.SlowAbsolute, "kneser-ney": slow.SlowKneserNey}.get(
        name, slow.SlowModifiedKneserNey
    )
    model = definition(TRAIN, len(VOCABULARY), ORDER, PRUNE)
    best = result.facts["discounts"]
    model.fitted = best
    expected = log_likelihood(model)
    groups = [(0,), (1,), (2,)] if name == "modified-kneser-ney" else [(0, 1, 2)]
    for k, group, change in itertools.product(range(ORDER), groups, (-0.005, 0.005)):
        moved = best[k][group[0]] + change
        if MIN_DISCOUNT <= moved <= group[0] + 1:
            model.fitted = [[*d] for d in best]
            for j in group:
                model.fitted[k][j] = moved
            assert log_likelihood(model) < expected + 1e-6


@pytest.mark.parametrize("buckets", [1, 4])
def test_no_other_weight_nearby_makes_the_held_out_text_more_probable(buckets):
    found = estimated("jelinek-mercer", buckets=buckets).facts["lambdas"]
    best = [row if isinstance(row, list) else [row] for row in found]
    model = slow.SlowJelinekMercer(TRAIN, len(VOCABULARY), ORDER, PRUNE)
    model.lambdas = best
    expected = log_likelihood(model)
    assert len({weight for row in best for weight in row}) >= (4 if buckets == 1 else 6)
    for k, bucket, change in itertools.product(range(ORDER), range(buckets), (-0.005, 0.005)):
        if 0 <= best[k][bucket] + change < 1:
            model.lambdas = [[*row] for row in best]
            model.lambdas[k][bucket] += change
            assert log_likelihood(model) < expected + 1e-4


def test_a_bucket_that_nothing_reaches_takes_the_weight_of_the_one_before():
    found = estimated("jelinek-mercer", buckets=31).facts["lambdas"][1]
    assert found[-1] == found[-2] == found[-20]
    assert found[-1] != 0.5


def test_weights_stay_below_one_so_that_nothing_becomes_impossible():
    """The held-out text equals the training text, which contains every token except <unk>."""
    result = estimate(
        EncodedCorpus.from_sentences([[3, 3, 3]]),
        Vocabulary(["a"]),
        order=2,
        smoothing=make_smoothing("jelinek-mercer"),
        held_out=EncodedCorpus.from_sentences([[3, 3, 3]]),
        progress=Progress(),
    )
    assert all(0 <= weight < 1 for weight in result.facts["lambdas"])
    assert np.isfinite(result.model.next_log_probs(result.model.initial_state(1))[0, 0])


def test_discounts_stop_exactly_at_their_bounds():
    """Held-out text of unknown words drives all discounts to their maximum, known text to their minimum."""
    unknown = estimated("absolute", held_out=[[0] * 200], discounts="held-out")
    assert unknown.facts["discounts"][0] == [1.0, 1.0, 1.0]
    known = estimated("absolute", train=[[3, 4, 5]] * 9, held_out=[[3, 4, 5]] * 9, discounts="held-out")
    assert known.facts["discounts"][0] == [MIN_DISCOUNT] * 3


def test_fitted_discounts_beat_the_fallback_on_other_text_of_a_closed_vocabulary():
    """Sentences are words of four pieces, and every word occurs five times in the training text.

    Nothing occurs once, so counts of counts give no discounts for words or the highest order, and the
    constant discounts are far too large for the few new combinations.
    """
    rng = np.random.default_rng(3)
    words = rng.integers(3, TYPES + 3, size=(150, 4)).tolist()
    held_out, other = ([words[i] for i in rng.integers(0, 150, size=100)] for _ in range(2))
    results = {
        source: estimated("modified-kneser-ney", words * 5, held_out, discounts=source)
        for source in ("counts", "held-out")
    }
    assert {1, 4} <= set(results["counts"].facts["fallback_orders"])
    assert results["held-out"].facts["fallback_orders"] == []
    fallback, fitted = (
        evaluate(result.model, EncodedCorpus.from_sentences(other), progress=Progress()).perplexity
        for result in results.values()
    )
    assert fitted < 0.9 * fallback
