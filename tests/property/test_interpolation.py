"""Static mixtures of random back-off models against sums over the parts, written with dictionaries."""

import numpy as np
import pytest

from models.errors import InvalidInputError, VocabularyMismatchError
from models.vocabulary import BOS
from tests import backoff
from training.corpus import EncodedCorpus
from training.ngram.estimate import smooth
from training.progress import Silent
from training.static_mixture import interpolate_models

SEEDS = range(12)


def random_parts(seed):
    """Two or three models of different orders, and weights; n-grams may lack their suffixes."""
    parts = [backoff.random_model(3 * seed + i, order=1 + (seed + i) % 4) for i in range(2 + seed % 2)]
    return parts, np.random.default_rng(seed).dirichlet(np.full(len(parts), 3.0))


def mixed(parts, weights, *, suffixes=True):
    return backoff.from_orders(
        interpolate_models([backoff.to_orders(part, suffixes=suffixes) for part in parts], weights)
    )


def sum_over(parts, weights, word, context):
    return sum(w * part.probability(word, context) for w, part in zip(weights, parts, strict=True))


def suffix_closed(seed, **options):
    """A random model that lists every suffix of what it lists, as estimated models do."""
    model = backoff.random_model(seed, **options)
    for ngram in sorted((g for g in model.probs if len(g) > 2), key=len, reverse=True):
        for begin in range(1, len(ngram) - 1):
            for end in range(begin + 2, len(ngram) + 1):
                model.probs.setdefault(ngram[begin:end], 0.01)
    for context in model.contexts():
        total = sum(model.probs[*context, w] for w in model.listed(context))
        model.probs |= {(*context, w): 0.8 * model.probs[*context, w] / total for w in model.listed(context)}
    model.renormalise()
    return model


@pytest.mark.parametrize("seed", SEEDS)
def test_the_union_is_listed_with_the_weighted_sum_of_the_parts(seed):
    parts, weights = random_parts(seed)
    got = mixed(parts, weights, suffixes=seed % 3 > 0)
    assert got.probs.keys() == set().union(*(part.probs for part in parts))
    for ngram in got.probs.keys() - {(BOS,)}:
        assert got.probs[ngram] == pytest.approx(sum_over(parts, weights, ngram[-1], ngram[:-1]), rel=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_sum_to_one(seed):
    got = mixed(*random_parts(seed))
    for context in backoff.all_contexts(got):
        assert got.row(context).sum() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_words_that_are_not_listed_have_the_parts_mass_together(seed):
    parts, weights = random_parts(seed)
    got = mixed(parts, weights)
    for context in got.contexts():
        unlisted = [w for w in got.words if (*context, w) not in got.probs]
        expected = sum(sum_over(parts, weights, w, context) for w in unlisted)
        assert sum(got.probability(w, context) for w in unlisted) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_back_off_weights_lie_between_those_of_the_parts(seed):
    """Where every suffix is listed, the weight is an average of theirs; 1 for a part without the context."""
    parts = [suffix_closed(2 * seed + i, order=3) for i in range(2)]
    got = mixed(parts, [0.3, 0.7])
    for context in got.contexts():
        if len(got.listed(context)) < len(got.words):
            own = [part.backoffs.get(context, 1.0) for part in parts]
            assert min(own) - 1e-5 <= got.backoffs[context] <= max(own) + 1e-5


@pytest.mark.parametrize("order", [1, 2, 4])
def test_a_mixture_of_a_model_with_itself_is_that_model(order):
    model = suffix_closed(order, order=order)
    got = mixed([model, model], [0.25, 0.75])
    assert got.probs == pytest.approx(model.probs, rel=1e-6)
    for context in got.contexts():
        assert got.row(context) == pytest.approx(model.row(context), abs=1e-6)


def test_an_order_that_pruning_left_no_part_anything_of_stays_empty():
    pruned = smooth(
        EncodedCorpus.from_sentences([[3, 4], [4, 3]]), 5, order=3, prune=(0, 9), progress=Silent()
    )
    orders = interpolate_models([pruned.orders, pruned.orders], [0.5, 0.5])
    assert [len(ngrams.words) for ngrams, _ in orders] == [5, 0, 0]
    assert np.allclose(orders[0][1].log10_probs, pruned.orders[0][1].log10_probs, atol=1e-6)


def test_the_parts_order_does_not_matter():
    parts, weights = random_parts(4)
    forth = interpolate_models([backoff.to_orders(p) for p in parts], weights)
    back = interpolate_models([backoff.to_orders(p) for p in reversed(parts)], weights[::-1])
    for (ngrams, scores), (same_ngrams, same_scores) in zip(forth, back, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(ngrams, same_ngrams, strict=True))
        assert np.allclose(scores.log10_backoffs, same_scores.log10_backoffs, atol=1e-6)


@pytest.mark.parametrize("weights", [[1.0], [0.5, 0.6], [1.5, -0.5], [1.0, 0.0], [float("nan"), 1.0]])
def test_weights_must_be_a_distribution_over_the_parts(weights):
    orders = backoff.to_orders(backoff.random_model(1))
    with pytest.raises(InvalidInputError, match="weights"):
        interpolate_models([orders, orders], weights)


def test_parts_must_have_vocabularies_of_one_size():
    parts = [backoff.to_orders(backoff.random_model(1, vocab_size=size)) for size in (7, 8)]
    with pytest.raises(VocabularyMismatchError, match=r"\[7, 8\] tokens"):
        interpolate_models(parts, [0.5, 0.5])
