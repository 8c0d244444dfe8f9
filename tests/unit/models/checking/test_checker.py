"""Error probabilities of words, against a word-by-word computation."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from models.checking.checker import (
    MIN_SUGGESTION_PROBABILITY,
    Checker,
    Issue,
    error_probabilities,
    without_overlaps,
)
from models.checking.error_model import _NEIGHBOURS, _TWO_EDITS_WEIGHT, CandidateSettings, GivenSpan
from models.checking.lexicon import UserDictionary
from models.language_model import BOS, EOS, UNK, Vocabulary
from models.tokenizers import WordTokenizer
from tests.support.fake_models import FakeModel
from tests.support.text_models import check, fake, trigram, weigh

EXACT = CandidateSettings(slack_nats=1e9, max_alternatives=100, likeliest=0)


def log_prob(model, words):
    """Ln P(words, `</s>`) by the table of a fake model."""
    ids = [BOS, *(model.vocabulary.ids.get(word, 0) for word in words), EOS]
    return math.fsum(float(model.table[a, b]) for a, b in itertools.pairwise(ids))


def slow_probability(model, words, place, neighbours, error_rate):
    """P(another word was intended) by Bayes' rule over complete sentences."""
    typed = log_prob(model, words) + math.log(1 - error_rate)
    others = []
    for word, edits in neighbours.items():
        weight = _TWO_EDITS_WEIGHT if edits == 2 else 1.0
        channel = math.log(error_rate * weight / _NEIGHBOURS)
        others.append(channel + log_prob(model, [*words[:place], word, *words[place + 1 :]]))
    wrong = math.fsum(map(math.exp, others))
    return wrong / (wrong + math.exp(typed))


@pytest.mark.parametrize("right_tokens", [1, 5])
@pytest.mark.parametrize("error_rate", [0.01, 0.3])
def test_the_probability_is_that_of_bayes_rule_with_both_contexts(right_tokens, error_rate):
    """One word to the right suffices for a bigram model."""
    model, tokenizer = fake(["hat", "cats"])
    words = ["the", "cat", "sat", "on", "a", "mat"]
    search = CandidateSettings(slack_nats=1e9, max_alternatives=100, right_tokens=right_tokens)
    (weighed,) = weigh(model, tokenizer, " ".join(words), error_rate=error_rate, search=search)
    slots, found = error_probabilities(weighed)
    near = {"sat": 1, "mat": 1, "hat": 1, "cats": 1}
    assert found[slots.tolist().index(1)] == pytest.approx(
        slow_probability(model, words, 1, near, error_rate), rel=1e-4
    )


RATE = 0.1


def log_odds(model, tokenizer, text, typed, meant, *, search=EXACT, **options):
    """Log-odds of one correction of some words of a text."""
    (weighed,) = weigh(model, tokenizer, text, error_rate=RATE, search=search, **options)
    found, start = weighed.alternatives, text.index(typed)
    for number, slot in enumerate(found.slots.tolist()):
        told, span = found.texts[number], weighed.slots[slot][:2]
        if told is None:
            told = tokenizer.vocabulary[found.tokens[found.offsets[number]]]
        if (told, *span) == (meant, start, start + len(typed)):
            return weighed.log_odds[number]
    raise AssertionError(f"{meant} was not tried for {typed}")


SPACES = [("ofon", "of on"), ("of on", "ofon"), ("gn u", "gnu")]


@pytest.mark.parametrize(("typed", "meant"), SPACES)
def test_one_error_in_ten_adds_or_omits_a_space(typed, meant):
    model, tokenizer = fake(["ofon", "gnu"])
    model.table[:, UNK] = math.log(0.002)
    text, spelling = "the cat {} the mat", Checker(tokenizer).log_spelling
    unknown = sum(spelling(word) for word in typed.split() if word not in tokenizer.vocabulary.ids)
    right, wrong = (log_prob(model, text.format(some).split()) for some in (typed, meant))
    expected = wrong + math.log(RATE * 0.1) - right - unknown - math.log(1 - RATE)
    assert log_odds(model, tokenizer, text.format(typed), typed, meant) == pytest.approx(expected, rel=1e-5)


def text_log_prob(model, tokenizer, text):
    """Ln P(text, `</s>`) by a model of pieces or characters."""
    state, total = model.initial_state(1), 0.0
    for token in [*tokenizer.encode(text), EOS]:
        total += float(model.next_log_probs(state)[0, token])
        state = model.advance(state, np.array([token]))
    return total


@pytest.mark.parametrize("kind", ["char", "unigram"])
@pytest.mark.parametrize(("typed", "meant"), [("tookoff", "took off"), ("ma t", "mat")])
def test_one_error_in_ten_is_of_a_space_whatever_the_tokens(kind, typed, meant):
    model, tokenizer = trigram(kind)
    text, search = "he {} the hat", CandidateSettings(slack_nats=1e9, min_surprisal_bits=0.0)
    right, wrong = (text_log_prob(model, tokenizer, text.format(some)) for some in (typed, meant))
    expected = wrong + math.log(RATE * 0.1) - right - math.log(1 - RATE)
    found = log_odds(model, tokenizer, text.format(typed), typed, meant, search=search)
    assert found == pytest.approx(expected, rel=1e-4)


def test_one_word_in_a_thousand_is_unknown_whatever_the_model_predicts():
    """Its spelling has a probability of its own."""
    model, tokenizer = fake()
    model.table[:, UNK] = -40
    text = "the houge sat"
    right = log_prob(model, text.split()) + 40 + math.log(1e-3) + Checker(tokenizer).log_spelling("houge")
    wrong = log_prob(model, ["the", "house", "sat"]) + math.log(RATE * 0.8 / (53 * 5 + 26))
    expected = wrong - right - math.log(1 - RATE)
    assert log_odds(model, tokenizer, text, "houge", "house") == pytest.approx(expected, rel=1e-3)


def test_every_second_unknown_word_is_one_of_the_dictionary():
    """The model predicts both unknown words alike, however improbable they are."""
    model, tokenizer = fake()
    model.table[:, UNK] = -40
    wrong = math.log(RATE * 0.8 / (53 * 7 + 26) * 0.5 / 2)
    right = math.log(1 - RATE) + Checker(tokenizer).log_spelling("gnuplto")
    dictionary = {"gnuplot": "gnuplot", "zebra": "zebra"}
    found = log_odds(model, tokenizer, "the gnuplto sat", "gnuplto", "gnuplot", dictionary=dictionary)
    assert found == pytest.approx(wrong - right, rel=1e-3)


def test_one_error_in_a_thousand_million_makes_a_word_like_no_other():
    """Both have the probability of the same spelling."""
    model, tokenizer = fake()
    model.table[:, UNK] = math.log(0.002)
    right, wrong = (log_prob(model, ["the", word, "sat"]) for word in ("zyxwvu", "house"))
    expected = wrong + math.log(RATE * 1e-9) - right - math.log(1 - RATE)
    search = dataclasses.replace(EXACT, likeliest=10)
    found = log_odds(model, tokenizer, "the zyxwvu sat", "zyxwvu", "house", search=search)
    assert found == pytest.approx(expected, rel=1e-5)


def test_surprisals_are_those_of_the_model():
    model, tokenizer = fake()
    (weighed,) = weigh(model, tokenizer, "the cat sat")
    expected = [model.table[BOS, 3], model.table[3, 4], model.table[4, 5]]
    np.testing.assert_allclose(weighed.word_log_probs, expected, rtol=1e-6)
    assert weighed.log_probs.sum() == pytest.approx(log_prob(model, ["the", "cat", "sat"]), rel=1e-6)
    assert weighed.num_ends == 1


@pytest.mark.parametrize("kind", ["word", "char", "unigram"])
def test_a_sentence_is_told_the_same_alone_and_beside_others(kind):
    lines = ["the cat sat of the mat", "he tok off his hat", "a dgo", "she thought off the old house"]
    together = check(*trigram(kind), "\n".join(lines), threshold=0.01)
    alone, offset = [], 0
    for line in lines:
        issues = check(*trigram(kind), line, threshold=0.01)
        alone += [i._replace(start=i.start + offset, end=i.end + offset) for i in issues]
        offset += len(line) + 1
    assert [issue[:3] for issue in together] == [issue[:3] for issue in alone]
    assert [i.probability for i in together] == pytest.approx([i.probability for i in alone], rel=1e-4)


@pytest.mark.parametrize("kind", ["word", "char", "unigram"])
def test_a_long_line_is_told_as_one_whose_state_was_never_cut(kind, monkeypatch):
    text = "the cat sat on the mat " * 6 + "he took of his hat"
    whole = weigh(*trigram(kind), text)
    monkeypatch.setattr("models.checking.sentences.MAX_SENTENCE_TOKENS", 40)
    parts = weigh(*trigram(kind), text)
    assert len(parts) > len(whole) == 1
    words = np.concatenate([part.word_log_probs for part in parts])
    np.testing.assert_allclose(words, whole[0].word_log_probs, rtol=1e-5)
    assert sum(part.log_probs.sum() for part in parts) == pytest.approx(whole[0].log_probs.sum(), rel=1e-6)
    assert sum(part.num_ends for part in parts) == 1


@pytest.mark.parametrize("kind", ["word", "char", "unigram"])
def test_an_error_late_in_a_long_line_is_told_as_in_a_short_one(kind, monkeypatch):
    text, search = (
        "the cat sat on the mat " * 6 + "the cat sat on teh mat",
        CandidateSettings(min_surprisal_bits=6.0),
    )
    whole = check(*trigram(kind), text, search=search)
    monkeypatch.setattr("models.checking.sentences.MAX_SENTENCE_TOKENS", 40)
    parts = check(*trigram(kind), text, search=search)
    assert [(issue.start, issue.suggestions[0].text) for issue in parts] == [(153, "the")]
    assert [issue[:3] for issue in parts] == [issue[:3] for issue in whole]
    assert parts[0].probability == pytest.approx(whole[0].probability, rel=1e-3)


def test_the_right_context_saves_a_word_that_the_left_does_not_expect():
    model, tokenizer = trigram()
    text = "he took off his hat"
    left = CandidateSettings(right_tokens=0)
    blamed = {issue.start for issue in check(model, tokenizer, text, threshold=0.02, search=left)}
    both = {issue.start for issue in check(model, tokenizer, text, threshold=0.02)}
    assert both <= blamed


@pytest.mark.parametrize(
    ("text", "start", "first"),
    [
        ("we think off the cat in the house", 9, "of"),
        ("the cat sat on teh mat", 15, "the"),
        ("he took ofhis hat", 8, "of his"),
        ("the do g ran to the house", 4, "dog"),
        ("the dog took thehat off the mat", 13, "the hat"),
    ],
)
def test_errors_are_found_and_put_right(text, start, first):
    issues = check(*trigram(), text, threshold=0.5)
    assert [issue.start for issue in issues] == [start]
    assert first in {suggestion.text for suggestion in issues[0].suggestions[:2]}


def test_clean_text_has_no_issue():
    for text in ("the cat sat on the mat", "she thought of the old house", "he took off his hat"):
        assert check(*trigram(), text) == []


def test_suggestions_are_ordered_and_sum_to_the_probability_of_the_issue():
    for issue in check(*trigram(), "the cta sat off teh mat", threshold=0.01, max_suggestions=50):
        shares = [suggestion.probability for suggestion in issue.suggestions]
        assert shares == sorted(shares, reverse=True)
        untold = issue.probability - sum(shares)
        assert -1e-9 <= untold < 50 * MIN_SUGGESTION_PROBABILITY
        assert min(shares) >= MIN_SUGGESTION_PROBABILITY


def test_a_rare_name_is_not_wrong_for_being_unknown():
    """No word is within edit distance; expected words only serve as suggestions."""
    (weighed,) = weigh(*trigram(), "the zyxwvu sat on the mat")
    slots, wrong = error_probabilities(weighed)
    assert wrong[slots.tolist().index(1)] < 0.01


def test_dictionary_words_are_never_issues_and_are_suggested():
    dictionary = {"gnuplot": "Gnuplot", "teh": "teh"}
    assert check(*trigram(), "the cat sat on teh mat", dictionary=dictionary) == []
    (issue,) = check(*trigram(), "the gnuplto sat on the mat", threshold=0.2, dictionary=dictionary)
    assert issue.suggestions[0].text == "Gnuplot"


def given(start, end, *suggestions):
    return (GivenSpan(start, end, tuple((*s, None)[:2] for s in suggestions)),)


def test_a_callers_suggestion_counts_by_its_own_error_model():
    text = "she thought of the old house"
    doubtful = given(19, 22, ("cat", -20.0), ("hat", -25.0))
    certain = given(19, 22, ("cat", -0.001), ("old", -20.0))
    assert check(*trigram(), text, given=doubtful, threshold=0.5) == []
    (issue,) = check(*trigram(), text, given=certain, threshold=0.5)
    assert (issue.start, issue.end, issue.suggestions[0].text) == (19, 22, "cat")


@pytest.mark.parametrize("kind", ["word", "char", "unigram"])
def test_to_leave_a_word_out_is_told_as_an_empty_text(kind):
    (issue,) = check(
        *trigram(kind), "the dog the took off his hat", given=given(8, 12, ("", -0.5)), threshold=0.3
    )
    assert (issue.start, issue.end, issue.suggestions[0].text) == (8, 12, "")


@pytest.mark.parametrize("kind", ["word", "char", "unigram"])
def test_a_callers_span_may_have_several_words(kind):
    (issue,) = check(
        *trigram(kind), "he took of fhis hat", given=given(8, 15, ("off his", -1.0)), threshold=0.3
    )
    assert (issue.start, issue.end) == (8, 15)
    assert issue.suggestions[0].text == "off his"


@pytest.mark.parametrize("kind", ["char", "unigram"])
def test_models_without_word_tokens_find_strings_near_surprising_words(kind):
    search = CandidateSettings(min_surprisal_bits=6.0)
    (issue,) = check(*trigram(kind), "the cat sat on teh mat", search=search)
    assert issue.start == 15
    assert issue.suggestions[0].text == "the"


def test_punctuation_that_sticks_to_a_word_stays():
    model, tokenizer = fake(["house,", "house.", "houses,"])
    issues = check(model, tokenizer, "the hosue, sat", threshold=0.0, max_suggestions=9)
    (issue,) = [issue for issue in issues if issue.start == 4]
    assert {s.text for s in issue.suggestions if s.probability > 1e-6} == {"house,", "houses,"}


@pytest.mark.parametrize("words", [["1", "2", ","], []])
def test_a_vocabulary_without_words_finds_nothing(words):
    tokenizer = WordTokenizer(Vocabulary(words))
    assert check(FakeModel(tokenizer.vocabulary), tokenizer, "1 , word 2", threshold=0.0) == []


@pytest.mark.parametrize("kind", ["word", "char", "unigram"])
def test_a_suggestion_of_the_callers_is_told_once(kind):
    """For a near spelling, a missing space and a dictionary word."""
    search = CandidateSettings(min_surprisal_bits=5.0)
    for typed, meant in (("teh", "the"), ("ofthe", "of the"), ("gnuplto", "gnuplot")):
        text = f"the cat sat on {typed} mat"
        suggested = given(15, 15 + len(typed), (meant, -2.0))
        dictionary = {"gnuplot": "gnuplot"}
        issues = check(
            *trigram(kind), text, given=suggested, search=search, dictionary=dictionary, threshold=0.0
        )
        (issue,) = [issue for issue in issues if issue.start == 15]
        assert [s.text for s in issue.suggestions].count(meant) == 1


def test_suggestions_have_the_case_of_what_was_typed_where_the_model_has_none():
    tokenizer = WordTokenizer(Vocabulary(["the", "house"]), lowercase=True)
    issues = check(FakeModel(tokenizer.vocabulary), tokenizer, "The HOSUE Teh", threshold=0.0)
    texts = {s.text for issue in issues for s in issue.suggestions}
    assert {"HOUSE", "The"} <= texts
    assert "house" not in texts


def test_the_most_probable_of_overlapping_issues_are_chosen():
    """As by comparing each with all more probable ones."""
    random = np.random.default_rng(3)
    for size in (0, 1, 5, 60):
        starts = np.sort(random.integers(0, 100, size)).tolist()
        issues = [
            Issue(start, start + int(random.integers(1, 8)), known=True, probability=p, suggestions=())
            for start, p in zip(starts, random.choice([0.2, 0.5, 0.9], size).tolist(), strict=True)
        ]
        chosen = []
        for issue in sorted(issues, key=lambda issue: -issue.probability):
            if all(issue.end <= one.start or one.end <= issue.start for one in chosen):
                chosen.append(issue)
        assert without_overlaps(issues) == sorted(chosen)


@pytest.mark.parametrize("kind", ["unigram", "char"])
def test_words_of_the_training_text_are_tried_although_their_letters_are_unlikely(kind, monkeypatch):
    monkeypatch.setattr("models.checking.generators.common_typo_corrections", lambda _: [])
    monkeypatch.setattr("models.checking.generators._MAX_SPELLINGS_BESIDE_WORDS", 0)
    model, tokenizer = trigram(kind)
    found = check(model, tokenizer, "the cat sat on the xhouse", threshold=0.0)
    assert [(issue.start, issue.suggestions[0].text) for issue in found] == [(19, "house")]
    monkeypatch.setattr("models.checking.generators._MAX_SPELLINGS", 0)
    tokenizer.lexicon = ()
    assert not any(issue.start == 19 for issue in check(model, tokenizer, "the cat sat on the xhouse"))


def test_words_of_addresses_are_not_looked_up(monkeypatch):
    asked = []
    monkeypatch.setattr(UserDictionary, "look_up", lambda _, words: iter(asked.extend(words) or ()))
    weigh(*trigram("unigram"), "see https://exmaple.com/lenght zebrs")
    assert "zebrs" in asked
    assert not {"https", "exmaple", "lenght"} & {*asked}
