"""Proposed candidates: gains in windows against totals of whole texts, batching, limits, and sources of proposals."""

import functools

import numpy as np
import pytest

from models.calls import run_to_completion
from models.errors import InputError
from models.phrases import NO_PHRASES, Phrase, PhraseList
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.corrections import CorrectionTable, PhraseCorrection
from models.reranking.forms import Forms
from models.reranking.proposals import (
    FORM_FEATURES,
    MAX_SOURCES,
    MAX_VARIANTS,
    MAX_WORDS,
    Proposal,
    ProposedCandidate,
    proposals_of,
    sum_of,
)
from models.reranking.ranking import LogLinearModel
from models.reranking.similar_phrases import SimilarPhrases
from models.scoring import proposed_candidates
from models.scoring.candidate_features import ScoringModels, score_candidates
from models.scoring.proposed_candidates import (
    WINDOW_WORDS,
    ProposalSource,
    _gains,
    make_proposers,
    propose_candidates,
    untuned_weights,
)
from models.text_model import Limits, TextModel
from tests.support import families
from tests.support.nbest_lists import candidate_list
from tests.support.text_models import trigram
from training.ngram.estimate import estimate
from training.ngram.smoothing.interpolation import maximum_likelihood
from training.progress import Progress

WEIGHTING = LogLinearModel(weights={"lm": 1.0, "words": 0.5, "unk": -3.0, "correction": 2.0, "spoken": 0.1})
NO_MODELS = ScoringModels((), ())
FAR = 2 * WINDOW_WORDS + 1


def limits(most=1000):
    return Limits(max_texts=100, max_tokens_per_sequence=most, max_new_tokens=1)


@functools.cache
def models(order=3):
    """An n-gram model of words w0 to w36."""
    tokenizer = families.tokenizer()
    model = estimate(families.corpus(), tokenizer.vocabulary, order=order, progress=Progress()).model
    return ScoringModels((TextModel("m@1", model, tokenizer),))


@functools.cache
def english():
    """A trigram model of a few English sentences."""
    model, tokenizer = trigram()
    return ScoringModels((TextModel("m@1", model, tokenizer),))


def table(*pairs):
    return CorrectionTable(
        [PhraseCorrection(heard=heard, written=written, log_odds=odds) for heard, written, odds in pairs]
    )


def proposed(lists, proposers, scoring=NO_MODELS, weighting=WEIGHTING, most=1000, **options):
    """Run the proposing of candidates to its end."""
    work = propose_candidates(scoring, lists, proposers, weighting, limits(most), **options)
    return run_to_completion(work)


def added(text, proposers, scoring=NO_MODELS, **options):
    """Texts made of one, in order."""
    (one,) = proposed([candidate_list(text)], proposers, scoring, **options)
    return [candidate.text for candidate in one.candidates[1:]]


def totals(scoring, texts, weighting):
    """Weighted sums of the models' features of whole texts."""
    features = run_to_completion(score_candidates(scoring, [candidate_list(*texts)], limits())).features
    names = [name for name in weighting.weights if name in features.names]
    return features.matrix(names, {}) @ [weighting.weights[name] for name in names]


def words_of(rng, count):
    """Words of the model and, seldom, others."""
    return [f"w{number}" if number < 37 else "other" for number in rng.integers(0, 39, count)]


def replaced(words, *chosen):
    """Text with some proposals."""
    words = list(words)
    for one in sorted(chosen, reverse=True):
        words[one.begin : one.end] = one.written.split()
    return " ".join(words)


@pytest.mark.parametrize("order", [2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_gains_in_windows_are_differences_of_the_totals_of_whole_texts(order, seed):
    rng = np.random.default_rng(seed)
    words = words_of(rng, 3 * FAR)
    begins = rng.integers(0, 4), FAR + rng.integers(0, 2), 2 * FAR + 2 + rng.integers(0, 5)
    proposals = [
        Proposal(int(b), int(b + n), " ".join(words_of(rng, m)), "correction", float(rng.normal()), 0.0)
        for b, n, m in zip(begins, (1, 2, 1), (1, 3, 0), strict=True)
    ]
    work = _gains([ProposalSource(words, proposals)], models(order), WEIGHTING, limits(), PhraseList(()))
    (gains,) = run_to_completion(work)
    texts = [" ".join(words), *(replaced(words, one) for one in proposals), replaced(words, *proposals)]
    before, *after, all_of_them = totals(models(order), texts, WEIGHTING)
    own = np.array([2.0 * one.value for one in proposals])
    assert gains == pytest.approx(own + np.array(after) - before, abs=1e-4)
    # far from one another, they add up
    assert gains.sum() == pytest.approx(own.sum() + all_of_them - before, abs=1e-4)
    assert np.abs(gains - own).max() > 0.1


def test_the_gain_of_a_phrase_counts_its_weight():
    phrases = PhraseList([Phrase(text="w5 w6", weight=3.0)])
    weighting = LogLinearModel(weights={"lm": 1.0, "phrases": 10.0})
    source = ProposalSource(["w1", "other"], [Proposal(0, 2, "w5 w6", "distance", 0.0, 0.0)])
    gains = [
        run_to_completion(_gains([source], models(), weighting, limits(), given))[0][0]
        for given in (phrases, PhraseList(()))
    ]
    assert gains[0] - gains[1] == pytest.approx(30.0)


def test_the_language_model_prefers_the_likelier_correction():
    corrections = table(("hut", "sat", 0.0), ("hut", "house", 0.0), ("hut", "mat", 0.0))
    texts = added("the cat hut on the mat", [corrections], english())
    assert texts[0] == "the cat sat on the mat"
    expected = totals(english(), texts, WEIGHTING)
    assert list(expected) == sorted(expected, reverse=True)


def test_a_great_prior_outweighs_the_language_model():
    corrections = table(("hut", "sat", 0.0), ("hut", "house", 50.0))
    assert added("the cat hut on the mat", [corrections], english())[0] == "the cat house on the mat"


def test_several_proposals_are_combined_in_one_text():
    corrections = table(("kat", "cat", 0.0), ("hut", "sat", 0.0), ("thee", "the", 0.0))
    (one,) = proposed([candidate_list("thee kat hut on the mat")], [corrections], english())
    best = one.candidates[1]
    assert isinstance(best, ProposedCandidate)
    assert best.text == "the cat sat on the mat"
    assert [(r.begin, r.heard, r.written) for r in best.replacements] == [
        (0, "thee", "the"),
        (1, "kat", "cat"),
        (2, "hut", "sat"),
    ]


def test_proposals_of_several_proposers_are_combined():
    proposers = [table(("kat", "cat", 1.0)), Forms("en")]
    (one,) = proposed([candidate_list("the kat ate 2 mats")], proposers, english())
    features = {r.feature for c in one.candidates[1:] for r in c.replacements}
    assert features == {"correction", "spoken"}
    assert "the cat ate two mats" in [c.text for c in one.candidates]


def test_without_models_values_times_weights_decide():
    corrections = table(("a", "x", 1.0), ("a", "y", 0.2), ("b", "z", -0.1))
    assert added("a b", [corrections]) == ["x b", "x z", "y b"]
    negative = LogLinearModel(weights={"correction": -1.0})
    assert added("a b", [corrections], weighting=negative) == ["a z", "y z", "y b"]


def test_features_without_a_weight_do_not_count():
    corrections = table(("a", "x", 1.0), ("b", "z", -5.0))
    given = [candidate_list("a b 2")]
    weights = LogLinearModel(weights={"spoken": 1.0, "lm": 1.0})
    (one,) = proposed(given, [corrections, Forms("en")], weighting=weights)
    assert one.candidates[1].text == "x b 2"  # all gains are 0, the first comes first
    spoken = LogLinearModel(weights={"correction": 1.0})
    (one,) = proposed(given, [corrections, Forms("en")], weighting=spoken)
    assert one.candidates[1].replacements[0].feature == "correction"


def many_lists():
    """Lists with any numbers of candidates and of proposals, with and without a context."""
    rng = np.random.default_rng(7)
    lists = [
        CandidateList(
            None,
            "w1 w2" if number % 3 == 0 else "",
            tuple(Candidate(" ".join(words_of(rng, rng.integers(1, 15)))) for _ in range(rng.integers(1, 8))),
        )
        for number in range(12)
    ]
    lists[4] = CandidateList(None, "", (Candidate("w1 w2"),), continuation="w3")
    lists[5] = candidate_list("none of these", "")
    return lists


PAIRS = table(*((f"w{n}", f"w{m}", odds) for n, m, odds in [(1, 2, 0.5), (2, 9, -1), (7, 8, 2), (9, 1, 0)]))


@pytest.mark.parametrize("windows", [1, 7, 512])
def test_candidates_of_a_list_do_not_depend_on_other_lists(monkeypatch, windows):
    monkeypatch.setattr(proposed_candidates, "_WINDOWS_PER_STEP", windows)
    phrases = PhraseList([Phrase(text="w10 w11 w12")])
    proposers = [PAIRS, SimilarPhrases(phrases)]
    lists = many_lists()
    together = proposed(lists, proposers, models())
    alone = [proposed([one], proposers, models())[0] for one in lists]
    assert together == alone
    assert (
        sum(len(new.candidates) - len(old.candidates) for new, old in zip(together, lists, strict=True)) > 20
    )
    assert proposed(lists[::-1], proposers, models()) == together[::-1]


def test_given_candidates_stay_in_front_and_lists_without_proposals_unchanged():
    lists = many_lists()
    for new, old in zip(proposed(lists, [PAIRS], models()), lists, strict=True):
        assert new.candidates[: len(old.candidates)] == old.candidates
        made = [candidate.text for candidate in new.candidates[len(old.candidates) :]]
        assert len(set(made)) == len(made)
    assert proposed(lists, [], models()) == lists
    unchanged = proposed(lists, [PAIRS], models())
    assert unchanged[4] is lists[4]  # it has a continuation
    assert unchanged[5] is lists[5]


def test_no_lists_have_no_candidates():
    assert proposed([], [PAIRS], models()) == []


@pytest.mark.parametrize("scoring", [NO_MODELS, english()], ids=["no model", "model"])
def test_only_the_first_candidates_and_few_variants_of_each_are_made(scoring):
    given = candidate_list(*(f"the kat sat {'on ' * number}" for number in range(20)))
    corrections = table(*(("kat", word, 0.1) for word in ("cat", "dog", "hat", "mat", "house")))
    (one,) = proposed([given], [corrections], scoring)
    origins = [c.origin for c in one.candidates[20:]]
    assert origins == [number for number in range(MAX_SOURCES) for _ in range(MAX_VARIANTS)]


@pytest.mark.parametrize("scoring", [NO_MODELS, english()], ids=["no model", "model"])
def test_texts_of_too_many_words_have_no_proposals(scoring):
    corrections = table(("kat", "cat", 1.0))
    longest = "on " * (MAX_WORDS - 1) + "kat"
    assert added(longest, [corrections], scoring) == [longest[:-3] + "cat"]
    assert added("on " + longest, [corrections], scoring) == []


def test_texts_that_may_have_too_many_tokens_are_left_out():
    corrections = table(("kat", "cat", 1.0))
    assert added("the kat", [corrections], english(), most=10) == ["the cat"]
    assert added("the kat", [corrections], english(), most=9) == []


def test_tokens_read_before_a_list_and_its_context_count():
    given = [CandidateList(None, context, (Candidate("the kat"),)) for context in ("", "", "abcde")]
    corrections = table(("kat", "cat", 1.0))
    lists = proposed(given, [corrections], english(), most=14, num_read=[4, 5, 0])
    assert [len(one.candidates) for one in lists] == [2, 1, 1]


def test_a_word_may_be_removed_but_not_all():
    corrections = table(("uh", "", 1.0))
    assert added("uh the cat", [corrections], english()) == ["the cat"]
    assert added("uh", [corrections], english()) == []


def test_windows_are_the_words_around_a_proposal_and_equal_ones_are_read_once():
    words = [f"w{number}" for number in range(20)]
    proposals = [
        Proposal(10, 11, "x", "correction", 0.0, 0.0),
        Proposal(10, 11, "y", "correction", 0.0, 0.0),
        Proposal(0, 2, "", "correction", 0.0, 0.0),
    ]
    texts, before, after = ProposalSource(words, proposals).windows()
    assert texts[before[0]] == "w6 w7 w8 w9 w10 w11 w12 w13 w14"
    assert texts[after[1]] == "w6 w7 w8 w9 y w11 w12 w13 w14"
    assert (texts[before[2]], texts[after[2]]) == ("w0 w1 w2 w3 w4 w5", "w2 w3 w4 w5")
    assert before[0] == before[1]
    assert len(texts) == len(set(texts)) == 5


def doubts(given, *pairs):
    """Doubt of each replacement in the texts made of a list, by the words heard."""
    weighting = LogLinearModel(weights={"correction": 1.0, "doubt": 0.0})
    (one,) = proposed([given], [table(*((h, w, 1.0) for h, w in pairs))], weighting=weighting)
    return {r.heard: r.doubt for c in one.candidates[len(given.candidates) :] for r in c.replacements}


def test_the_doubt_in_words_is_the_log_odds_that_they_are_wrong_by_their_mean_confidence():
    given = CandidateList(None, "", (Candidate("a b c d", confidences=(0.9, 0.5, 0.25, 1.0)),))
    expected = {"b c": np.log(0.625 / 0.375), "d": np.log(0.02 / 0.98), "a": np.log(0.1 / 0.9)}
    assert doubts(given, ("b c", "x"), ("d", "y"), ("a", "z")) == pytest.approx(expected)


def test_without_confidences_the_doubt_is_by_the_share_of_the_lists_texts_with_the_words():
    given = candidate_list("a b  c", "a b d", "ab c", "b c")
    expected = {"a b": 0.0, "c": np.log(1.5 / 3.5)}
    assert doubts(given, ("a b", "x"), ("c", "y")) == pytest.approx(expected)
    assert doubts(candidate_list("a b"), ("a", "x")) == {"a": 0.0}


def test_doubtful_words_are_replaced_where_sure_ones_stay():
    weighting = LogLinearModel(weights={"correction": 1.0, "doubt": 10.0})
    given = CandidateList(None, "", (Candidate("a b", confidences=(0.9, 0.2)),))
    corrections = table(("a", "x", -3.0), ("b", "y", -3.0))
    (one,) = proposed([given], [corrections], weighting=weighting)
    made = one.candidates[1:]
    assert [c.text for c in made] == ["a y", "x y", "x b"]
    odds = np.log([0.8 / 0.2, 0.8 / 0.2 * 0.1 / 0.9, 0.1 / 0.9])
    assert [sum_of("doubt", c.replacements) for c in made] == pytest.approx(odds)


def test_sources_of_proposals_are_those_given():
    assert make_proposers(NO_MODELS) == []
    corrections = table(("a", "b", 1.0))
    phrases = PhraseList([Phrase(text="Kowalczyk")])
    made = make_proposers(NO_MODELS, corrections=corrections, phrases=phrases, forms="en")
    assert made[0] is corrections
    assert [type(one) for one in made[1:]] == [SimilarPhrases, Forms]
    with pytest.raises(InputError, match="forms is 'xx'"):
        make_proposers(NO_MODELS, forms="xx")


def test_words_that_the_model_knows_are_treated_as_known():
    (with_model,) = make_proposers(english(), forms="en")
    (without,) = make_proposers(NO_MODELS, forms="en")
    # the model knows no digits, so that none are proposed
    assert {one.feature for one in filter(None, without.propose(["two"]))} == {"written"}
    assert {one.feature for one in filter(None, with_model.propose(["two"]))} <= set(FORM_FEATURES) - {
        "written"
    }
    texts = [one.written for one in filter(None, with_model.propose(["the", "th", "ought"]))]
    assert "thought" in texts
    phrases = PhraseList([Phrase(text="thoughtless")])
    (known,), (unknown,) = (make_proposers(given, phrases=phrases) for given in (english(), NO_MODELS))
    assert (
        len(run_to_completion(proposals_of(["thoughtles"], [known])))
        == len(run_to_completion(proposals_of(["thoughtles"], [unknown])))
        == 1
    )


def test_the_weights_before_tuning_prefer_the_usual_spelling():
    joined = added(
        "she th ought of the cat",
        make_proposers(english(), forms="en"),
        english(),
        weighting=untuned_weights(NO_PHRASES),
    )
    assert joined[0] == "she thought of the cat"


def test_a_replacement_of_too_many_tokens_is_left_out_and_does_not_fail_the_request():
    corrections = table(("cat", "the dog ran off", 1.0))
    assert added("cat", [corrections], english(), most=4) == []


def test_proposals_in_impossible_texts_are_decided_by_their_own_features():
    tokenizer = families.tokenizer()
    given = families.corpus(), tokenizer.vocabulary
    model = estimate(*given, order=3, smoothing=maximum_likelihood, progress=Progress()).model
    scoring = ScoringModels((TextModel("m@1", model, tokenizer),))
    text = " ".join(f"w{i}" for i in range(36, 20, -1))
    assert np.isneginf(totals(scoring, [text], WEIGHTING)[0])
    pairs = [("w36", f"w{i}", float(i)) for i in (1, 2)]
    assert [one.split()[0] for one in added(text, [table(*pairs)], scoring)] == ["w2", "w1"]
