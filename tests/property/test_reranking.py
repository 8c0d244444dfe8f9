"""Re-ranking, minimum-Bayes-risk choice, metrics and weight search, for any lists."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.calls import run_to_completion
from models.language_model import pad_sequences, score_sequences
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.mbr import UTILITIES, expected_utilities, word_confidences
from models.reranking.metrics import METRIC_NAMES, make_metric
from models.reranking.metrics.metric import pairwise_distances
from models.reranking.ranking import LogLinearModel, rank_by, scaled_posteriors
from models.reranking.tuning.mert import argmax_by_list, line_loss, standardise_features
from models.scoring.candidate_features import ScoringModels, score_candidates
from models.scoring.sequences import build_tree, may_be_cheaper, score_tree, tree_is_cheaper
from models.text_model import Limits, TextModel
from service.operations.rerank import rerank
from service.operations.rerank_request import ProposalSettings, RerankItem, RerankJob, RerankSettings
from tests.support import families
from tests.support.nbest_lists import problem

LIMITS = Limits(max_texts=1000, max_tokens_per_sequence=1000, max_new_tokens=1)
EXACT = ("ngram", "int8 lstm")
NEAR = ("lstm", "mixture", "mixture by context", "nested mixture", "cache", "tensor ngram")

totals = st.lists(st.floats(-9999, 9999), min_size=1, max_size=30).map(np.array)
words = st.sampled_from(["w1", "w2", "w36", "no-such-word"])
texts = st.lists(words, max_size=6).map(" ".join)
features = st.dictionaries(st.sampled_from(["am", "tm"]), st.floats(-100, 100), min_size=2)
candidates = st.lists(st.builds(Candidate, texts, features), min_size=1, max_size=8).map(tuple)
lists = st.lists(
    st.builds(CandidateList, st.none(), st.sampled_from(["", "w3", "w3 w5"]), candidates),
    min_size=1,
    max_size=5,
)


def model_of(name):
    if name != "int8 lstm":
        return families.model(name)
    from models.neural.int8.model import Int8Model

    inner = families.model("lstm")
    return Int8Model(inner.network.weights(), inner.vocabulary)


def loaded(name):
    return TextModel(f"{name}@1", model_of(name), families.tokenizer())


LOADED = {name: loaded(name) for name in (*EXACT, *NEAR)}


@given(totals)
def test_a_ranking_is_a_permutation_in_falling_order(values):
    order = rank_by(values)
    assert sorted(order) == list(range(len(values)))
    assert (np.diff(values[order]) <= 0).all()


@given(totals)
def test_posteriors_are_a_distribution_in_falling_order(values):
    posteriors = scaled_posteriors(values)[rank_by(values)]
    assert abs(posteriors.sum() - 1) < 1e-9
    assert (np.diff(posteriors) <= 0).all()


@given(totals, st.floats(-100, 100))
def test_posteriors_do_not_depend_on_what_all_share(values, shift):
    np.testing.assert_allclose(scaled_posteriors(values + shift), scaled_posteriors(values), atol=1e-6)


weights = st.dictionaries(
    st.sampled_from(
        ["lm", "lm:o", "words", "tokens", "unk", "unk:o", "am", "tm", "rank", "am*words", "tm*tokens"]
    ),
    st.floats(-10, 10),
)


@settings(deadline=None, max_examples=60)
@given(lists, weights, st.sampled_from([0.0, 0.5, 1.0]))
def test_every_total_is_the_weighted_sum_of_the_returned_features(some, given_weights, exponent):
    models = ScoringModels((LOADED["ngram"],), extra={"o": LOADED["mixture"]})
    weighting = LogLinearModel(weights=given_weights, length_exponent=exponent)
    proposals = ProposalSettings(None, phrases=False, forms=None)
    job = RerankJob(models, weighting, 1.0, proposals, RerankSettings())
    for ranked in run_to_completion(rerank(job, [RerankItem(one) for one in some], LIMITS)):
        for place, total in enumerate(ranked.totals):
            told = ranked.features(place)
            assert abs(total - sum(w * told[name] for name, w in given_weights.items())) < 1e-6


@pytest.mark.parametrize("name", [*EXACT, *NEAR])
@settings(deadline=None, max_examples=15)
@given(some=lists, bos=st.booleans(), eos=st.booleans())
def test_features_do_not_depend_on_company(name, some, bos, eos):
    models = ScoringModels((LOADED[name],))
    together = run_to_completion(score_candidates(models, some, LIMITS, bos=bos, eos=eos)).features
    alone = [
        run_to_completion(score_candidates(models, [one], LIMITS, bos=bos, eos=eos)).features.values
        for one in some
    ]
    atol = 0 if name in EXACT else 2e-5
    np.testing.assert_allclose(together.values, np.concatenate(alone), rtol=0, atol=atol)


@pytest.mark.parametrize("name", [*EXACT, *NEAR])
@settings(deadline=None, max_examples=20)
@given(
    some=st.lists(st.lists(st.integers(3, 4), max_size=6), min_size=1, max_size=12),
    contexts=st.lists(st.integers(0, 2), min_size=12, max_size=12),
)
def test_a_tree_of_texts_scores_as_each_alone_does(name, some, contexts):
    model = LOADED[name].model
    used, numbers = np.unique(contexts[: len(some)], return_inverse=True)
    tokens, lengths = pad_sequences(some)
    before = model.advance(model.initial_state(len(used)), used + 5)
    levels = run_to_completion(build_tree(numbers, tokens, lengths))
    if lengths.max():
        assert may_be_cheaper(numbers, tokens, lengths) or not tree_is_cheaper(levels, len(used), lengths)
    told = run_to_completion(score_tree(model, before, levels, tokens.shape))
    wanted = score_sequences(model, before.select(numbers), tokens, lengths)
    np.testing.assert_allclose(told, wanted, rtol=0, atol=0 if name in EXACT else 2e-5)


short_texts = st.lists(st.sampled_from(["the", "a", "cat", "dog", "sat"]), max_size=6).map(" ".join)
weighted = st.lists(st.tuples(short_texts, st.integers(1, 9)), min_size=1, max_size=7)
utilities = st.sampled_from(UTILITIES)


def of(candidates, utility):
    texts, mass = zip(*candidates, strict=True)
    return run_to_completion(expected_utilities(texts, mass, utility))


def confidences(texts, mass):
    return [run_to_completion(word_confidences(texts, mass, chosen)) for chosen in range(len(texts))]


@given(weighted, utilities, st.randoms())
def test_the_order_of_candidates_does_not_count(candidates, utility, random):
    order = list(range(len(candidates)))
    random.shuffle(order)
    shuffled = of([candidates[place] for place in order], utility)
    np.testing.assert_allclose(shuffled, of(candidates, utility)[order], atol=1e-9)


@given(weighted, utilities)
def test_a_candidate_given_twice_is_one_with_the_mass_of_both(candidates, utility):
    halves = [(text, mass / 2) for text, mass in candidates]
    np.testing.assert_allclose(of(halves + halves, utility), np.tile(of(candidates, utility), 2), atol=1e-9)


@given(st.lists(short_texts, min_size=1, max_size=7, unique=True), utilities, st.data())
def test_certain_candidate_has_the_greatest_expected_utility(candidates, utility, data):
    certain = data.draw(st.integers(0, len(candidates) - 1))
    expected = run_to_completion(expected_utilities(candidates, np.eye(len(candidates))[certain], utility))
    assert expected[certain] == expected.max()


@given(weighted)
def test_confidences_lie_between_the_candidates_own_mass_and_one(candidates):
    mass = np.array([mass for _, mass in candidates]) / sum(mass for _, mass in candidates)
    answers = confidences([text for text, _ in candidates], mass)
    for own, words in zip(mass, answers, strict=True):
        assert all(own - 1e-9 <= word.confidence <= 1 for word in words)


@given(weighted)
def test_expected_word_errors_are_at_least_the_doubt_about_words(candidates):
    names, mass = zip(*candidates, strict=True)
    answers = confidences(names, mass)
    for errors, words in zip(-of(candidates, "wer"), answers, strict=True):
        assert errors >= sum(1 - word.confidence for word in words) - 1e-9


sequences = st.text("abc", max_size=12)
metric_texts = st.lists(st.sampled_from(["a", "b", "c", ".", ",", "it's", "10-3"]), max_size=8).map(" ".join)
names = st.sampled_from(METRIC_NAMES)


def distance(a, b):
    return int(pairwise_distances([a], [b])[0, 0])


@given(sequences, sequences)
def test_an_edit_distance_is_symmetric_and_zero_only_between_equals(a, b):
    assert distance(a, b) == distance(b, a)
    assert (distance(a, b) == 0) == (a == b)


@given(sequences, sequences, sequences)
def test_a_detour_is_never_shorter(a, b, c):
    assert distance(a, c) <= distance(a, b) + distance(b, c)


@given(sequences, sequences)
def test_an_edit_distance_lies_between_the_difference_of_lengths_and_the_longer(a, b):
    assert abs(len(a) - len(b)) <= distance(a, b) <= max(len(a), len(b))


@given(names, metric_texts, st.lists(metric_texts, min_size=1, max_size=3))
def test_metric_statistics_do_not_depend_on_the_batch(name, text, references):
    metric = make_metric(name)
    alone = metric.statistics([text], references)[0]
    np.testing.assert_array_equal(metric.statistics(["b c", text, text], references)[1:], [alone, alone])


@given(
    metric_texts,
    st.lists(metric_texts, min_size=1, max_size=3),
    metric_texts,
    st.sampled_from(["wer", "cer"]),
)
def test_another_reference_never_adds_errors(text, references, another, name):
    metric = make_metric(name)
    (before,), (after,) = (metric.statistics([text], known) for known in (references, [*references, another]))
    assert after[0] <= before[0]


@given(metric_texts, st.lists(metric_texts, min_size=1, max_size=3), metric_texts)
def test_another_reference_never_lowers_chrf(text, references, another):
    chrf = make_metric("chrf")
    before, after = (chrf.statistics([text], known) for known in (references, [*references, another]))
    assert chrf.score(after) >= chrf.score(before)


@given(metric_texts.filter(bool), st.lists(metric_texts, max_size=2))
def test_a_text_that_is_a_reference_is_right(text, others):
    references = [*others, text]
    assert make_metric("wer").statistics([text], references)[0, 0] == 0
    assert make_metric("cer").statistics([text], references)[0, 0] == 0
    assert float(make_metric("chrf").score(make_metric("chrf").statistics([text], references))[0]) == 100.0


@st.composite
def problems(draw):
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
    count = sum(sizes)
    whole = st.integers(-6, 6)  # few values, so candidates are often equal
    errors = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    features = draw(st.lists(st.tuples(whole, whole), min_size=count, max_size=count))
    return problem(errors, features, sizes)


@given(problems())
def test_the_loss_along_a_line_is_what_choosing_at_each_place_gives(one):
    values, slopes = np.ascontiguousarray(one.features.T)
    curve = run_to_completion(line_loss(one, values, slopes))
    grid = np.linspace(-20, 20, 401) + 0.013  # between the points where lines of small integers cross
    brute = [one.score(argmax_by_list(values + place * slopes, one.offsets)) for place in grid]
    np.testing.assert_allclose(curve.at(np.arctan(grid)), brute)


@given(problems(), st.floats(0.01, 0.5))
def test_the_best_place_is_as_good_as_any_on_a_grid(one, window):
    values, slopes = np.ascontiguousarray(one.features.T)
    curve = run_to_completion(line_loss(one, values, slopes))
    angle, loss = curve.best(window)
    grid = np.linspace(-np.pi / 2, np.pi / 2, 301)
    assert loss <= curve.smoothed(grid, window).min() + 1e-9
    assert abs(curve.smoothed(np.array([angle]), window)[0] - loss) < 1e-6


@given(problems())
def test_the_oracle_is_no_worse_than_any_choice(one):
    best = one.score(one.oracle())
    ends = zip(one.offsets[:-1], one.offsets[1:], strict=True)
    errors = sum(one.statistics[begin:end, 0].min() for begin, end in ends)
    assert best == one.losses(np.array([errors, one.statistics[one.first_pass(), 1].sum()]))


@settings(max_examples=50)
@given(problems(), st.tuples(st.floats(0.1, 9), st.floats(-9, -0.1)))
def test_comparable_features_choose_as_the_features_did(one, weights):
    scaled, deviations = standardise_features(one)
    totals = scaled.features @ (np.array(weights) * deviations)
    raw = one.features @ np.where(deviations > 0, weights, 0.0)
    lengths = np.diff(one.offsets)
    spread = raw - np.repeat(np.add.reduceat(raw, one.offsets[:-1]) / lengths, lengths)
    np.testing.assert_allclose(totals, spread, atol=1e-9)
