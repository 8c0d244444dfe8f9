"""Re-ranking, over all lists."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.language_model import pad_sequences, score_sequences
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.ranking import LogLinearModel, rank
from service.engine.job import run_to_completion
from service.engine.loaded_model import LoadedModel
from service.use_cases.candidate_features import ScoringModels, ScoringOptions, compute_features
from service.use_cases.inputs import Limits
from service.use_cases.rerank import RerankItem, RerankOptions, rerank
from service.use_cases.sequence_scoring import build_tree, score_tree
from tests import families

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
    from models.neural.model import Int8Model

    inner = families.model("lstm")
    return Int8Model(inner.network, inner.vocabulary)


def loaded(name):
    tokenizer = families.tokenizer()
    manifest = SimpleNamespace(vocab_size=len(tokenizer.vocabulary), direction="forward")
    return LoadedModel(
        f"{name}@1", SimpleNamespace(model=model_of(name), tokenizer=tokenizer, manifest=manifest)
    )


LOADED = {name: loaded(name) for name in (*EXACT, *NEAR)}


@given(totals)
def test_a_ranking_is_a_permutation_in_falling_order(values):
    ranking = rank(values)
    assert sorted(ranking.order) == list(range(len(values)))
    assert (np.diff(values[ranking.order]) <= 0).all()


@given(totals)
def test_posteriors_are_a_distribution_in_falling_order(values):
    posteriors = rank(values).posteriors
    assert abs(posteriors.sum() - 1) < 1e-9
    assert (np.diff(posteriors) <= 0).all()


@given(totals, st.floats(-100, 100))
def test_posteriors_do_not_depend_on_what_all_share(values, shift):
    np.testing.assert_allclose(rank(values + shift).posteriors, rank(values).posteriors, atol=1e-6)


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
    options = RerankOptions(weighting=LogLinearModel(weights=given_weights, length_exponent=exponent))
    for ranked in run_to_completion(rerank(models, [RerankItem(one) for one in some], options, LIMITS)):
        for place, total in enumerate(ranked.totals):
            told = ranked.features(place)
            assert abs(total - sum(w * told[name] for name, w in given_weights.items())) < 1e-6


@pytest.mark.parametrize("name", [*EXACT, *NEAR])
@settings(deadline=None, max_examples=15)
@given(some=lists, bos=st.booleans(), eos=st.booleans())
def test_features_do_not_depend_on_company(name, some, bos, eos):
    models, options = ScoringModels((LOADED[name],)), ScoringOptions(bos=bos, eos=eos)
    together = run_to_completion(compute_features(models, some, LIMITS, options))
    alone = [run_to_completion(compute_features(models, [one], LIMITS, options)).values for one in some]
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
    told = run_to_completion(score_tree(model, before, levels, tokens.shape))
    wanted = score_sequences(model, before.select(numbers), tokens, lengths)
    np.testing.assert_allclose(told, wanted, rtol=0, atol=0 if name in EXACT else 2e-5)
