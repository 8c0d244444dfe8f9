"""Entropy pruning and static interpolation of random back-off models against sums over dictionaries."""

import lzma
import math

import numpy as np
import pytest

from models.errors import InputError
from models.language_model import BOS, EOS, Vocabulary
from models.ngram.build import build_automaton
from models.ngram.model import NGramModel
from models.tokenizers import WordTokenizer
from tests.reference import backoff
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import evaluate
from training.ngram.counts import count_ngrams
from training.ngram.pruning import history_frequencies, prune_by_entropy
from training.progress import Progress
from training.static_mixture import interpolate_models

SEEDS = range(12)
THRESHOLDS = (1e-4, 1e-3, 1e-2)


def thinned(model, probs):
    """Return the model with other n-grams and unchanged back-off weights."""
    return backoff.SlowBackoff(len(model.words) + 1, probs, dict(model.backoffs))


def row_without(model, ngram):
    """Renormalised row of the n-gram's context after only that n-gram is removed."""
    context = ngram[:-1]
    thinner = thinned(model, {g: p for g, p in model.probs.items() if g != ngram})
    listed = thinner.listed(context)
    left = 1 - sum(thinner.probs[*context, w] for w in listed)
    room = 1 - sum(thinner.probability(w, context[1:]) for w in listed)
    thinner.backoffs[context] = left / room
    return thinner.row(context)


def chain_rule(model, context):
    """p(context), with p(`<s>`) = 1."""
    return math.prod(
        1.0 if word == BOS else model.probability(word, context[:i]) for i, word in enumerate(context)
    )


def slow_prune(model, threshold, history=chain_rule):
    """Prune n-grams, longest first, by the relative entropy that their removal adds to the context's row."""
    kept = dict(model.probs)
    for ngram in sorted((g for g in model.probs if len(g) > 1), key=len, reverse=True):
        if any(other[:-1] == ngram for other in kept):
            continue
        before, after = model.row(ngram[:-1]), row_without(model, ngram)
        entropy = history(model, ngram[:-1]) * (before * np.log(before / after)).sum()
        if math.expm1(entropy) < threshold:
            del kept[ngram]
    pruned = thinned(model, kept)
    pruned.renormalise()
    return pruned


def assert_same(got, expected):
    assert got.probs.keys() == expected.probs.keys()
    for context in backoff.all_contexts(expected):
        assert got.row(context) == pytest.approx(expected.row(context), abs=1e-6)


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_entropy_pruning_equals_its_definition(seed, threshold):
    """Random models whose n-grams may lack suffixes, like those of pruned models."""
    orders = backoff.to_orders(backoff.random_model(seed, order=3 + seed % 2))
    model = backoff.from_orders(orders)
    assert_same(backoff.from_orders(prune_by_entropy(orders, threshold)), slow_prune(model, threshold))


def test_some_n_grams_go_and_some_stay():
    orders = backoff.to_orders(backoff.random_model(0, order=4))
    sizes = [[len(n.words) for n, _ in prune_by_entropy(orders, t)] for t in (0, 1e-4, 1e-3, 1e-2)]
    assert sizes[0] > sizes[1] > sizes[2] > sizes[3]


def test_suffixes_need_not_be_given():
    model = backoff.random_model(3, order=4)
    given = prune_by_entropy(backoff.to_orders(model), 1e-3)
    sought = prune_by_entropy(backoff.to_orders(model, suffixes=False), 1e-3)
    for (ngrams, weights), (same_ngrams, same_weights) in zip(given, sought, strict=True):
        for one, other in zip([*ngrams, *weights], [*same_ngrams, *same_weights], strict=True):
            assert np.array_equal(one, other)


def test_contexts_count_as_often_as_the_caller_says():
    orders = backoff.to_orders(backoff.random_model(5))
    random = np.random.default_rng(5)
    shares = [random.random(len(ngrams.words)) for ngrams, _ in orders[:-1]]
    listed = [sorted(g for g in backoff.from_orders(orders).probs if len(g) == k) for k in (1, 2)]
    of = {g: s for gs, ss in zip(listed, shares, strict=True) for g, s in zip(gs, ss.tolist(), strict=True)}
    expected = slow_prune(backoff.from_orders(orders), 1e-2, lambda _, context: of[context])
    assert_same(backoff.from_orders(prune_by_entropy(orders, 1e-2, history_probs=shares)), expected)


def test_frequencies_are_shares_of_all_words_and_a_start_is_as_frequent_as_an_end():
    counts = [np.array([1, 0, 2, 5]), np.array([2, 4, 1]), np.array([1])]
    unigrams, bigrams = history_frequencies(counts)
    assert unigrams.tolist() == [1 / 8, 2 / 8, 2 / 8, 5 / 8]
    assert unigrams[BOS] == unigrams[EOS]
    assert bigrams.tolist() == [2 / 8, 4 / 8, 1 / 8]


def test_rows_of_an_impossible_rest_stay_so():
    """Maximum likelihood: a seen context leaves no probability for other words."""
    model = backoff.random_model(2)
    for context in model.contexts():
        total = sum(model.probs[*context, w] for w in model.listed(context))
        model.probs |= {(*context, w): model.probs[*context, w] / total for w in model.listed(context)}
        model.backoffs[context] = 0.0
    with np.errstate(divide="ignore"):
        orders = backoff.to_orders(model)
    got = backoff.from_orders(prune_by_entropy(orders, 1e-2))
    assert len(got.probs) < len(model.probs)
    assert all(got.row(c).sum() == pytest.approx(1, abs=1e-6) for c in backoff.all_contexts(got))
    untouched = [c for c in got.contexts() if got.listed(c) == model.listed(c)]
    assert untouched
    assert all(got.backoffs[c] == 0 for c in untouched)


def test_rows_that_sum_to_less_keep_their_sums():
    model = backoff.random_model(7)
    model.probs |= {(w,): 0.9 * model.probs[w,] for w in model.words}
    before = backoff.from_orders(orders := backoff.to_orders(model))
    after = backoff.from_orders(prune_by_entropy(orders, 3e-4))
    assert 8 < len(after.probs) < len(before.probs)
    for context in after.contexts():
        assert after.row(context).sum() == pytest.approx(before.row(context).sum(), abs=1e-6)


def test_a_threshold_of_nothing_changes_nothing():
    orders = backoff.to_orders(backoff.random_model(1))
    assert prune_by_entropy(orders, 0.0) == orders


def test_contexts_that_lose_nothing_keep_their_weights_to_the_last_bit():
    orders = backoff.to_orders(backoff.random_model(1, order=4))
    for (_, before), (_, after) in zip(orders[:-1], prune_by_entropy(orders, 1e-300), strict=False):
        assert np.array_equal(before.log10_backoffs, after.log10_backoffs)


def test_a_huge_threshold_leaves_the_unigrams():
    ((ngrams, weights),) = prune_by_entropy(backoff.to_orders(backoff.random_model(1)), 1e9)
    assert ngrams.words.tolist() == list(range(8))
    assert weights.log10_backoffs.size == 0


@pytest.mark.parametrize("threshold", [-1e-9, math.nan, math.inf])
def test_a_threshold_must_be_a_share(threshold):
    with pytest.raises(InputError, match=r"ngram\.prune_entropy is"):
        prune_by_entropy(backoff.to_orders(backoff.random_model(1)), threshold)


@pytest.mark.data
def test_counted_contexts_beat_the_chain_rule_on_a_kneser_ney_model(data_dir):
    """The full model has 785,747 n-grams and perplexity 243.79; at equal size counts are 2 % better."""
    train, test = (
        lzma.decompress((data_dir / "reference" / name).read_bytes()).decode().splitlines()
        for name in ("corpus.txt.xz", "test.txt.xz")
    )
    tokenizer = WordTokenizer(Vocabulary(dict.fromkeys(word for line in train for word in line.split())))
    corpus, held_out = (EncodedCorpus.from_sentences(tokenizer.encode_all(t)) for t in (train, test))
    size = len(tokenizer.vocabulary)
    counted = count_ngrams(corpus, size, order=4, progress=Progress())
    frequencies = history_frequencies([one_order.counts for one_order in counted])
    orders = backoff.estimated_orders(corpus, size, order=4)

    def pruned(**history):
        left = prune_by_entropy(orders, 1e-6, **history)
        model = NGramModel(build_automaton(left), tokenizer.vocabulary)
        return sum(len(n.words) for n, _ in left), evaluate(model, held_out, progress=Progress()).perplexity

    assert pruned(history_probs=frequencies) == (188_237, pytest.approx(249.18, abs=0.05))
    assert pruned() == (171_836, pytest.approx(252.41, abs=0.05))


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
    """Random model that lists every suffix of its n-grams, like an estimated model."""
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
    """With all suffixes listed, a weight averages those of the parts; a part without the context counts as 1."""
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
    pruned = backoff.estimated_orders(
        EncodedCorpus.from_sentences([[3, 4], [4, 3]]), 5, order=3, prune=(0, 9)
    )
    orders = interpolate_models([pruned, pruned], [0.5, 0.5])
    assert [len(ngrams.words) for ngrams, _ in orders] == [5, 0, 0]
    assert np.allclose(orders[0][1].log10_probs, pruned[0][1].log10_probs, atol=1e-6)


def test_the_parts_order_does_not_matter():
    parts, weights = random_parts(4)
    forth = interpolate_models([backoff.to_orders(p) for p in parts], weights)
    back = interpolate_models([backoff.to_orders(p) for p in reversed(parts)], weights[::-1])
    for (ngrams, scores), (same_ngrams, same_scores) in zip(forth, back, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(ngrams, same_ngrams, strict=True))
        assert np.allclose(scores.log10_backoffs, same_scores.log10_backoffs, atol=1e-6)
