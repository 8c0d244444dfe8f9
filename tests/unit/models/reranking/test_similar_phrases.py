"""Phrases spelled like words: the kernel against all substrings, and what is proposed for names."""

import itertools
import time

import numpy as np
import pytest
from rapidfuzz.distance import Levenshtein

from models.calls import run_to_completion
from models.phrases import Phrase, PhraseList
from models.reranking.proposals import DISTANCE, proposals_of
from models.reranking.similar_phrases import (
    MAX_LETTERS,
    SimilarPhrases,
    find_similar,
    letters_of,
)


def phrases(*texts):
    return [Phrase(text=text) for text in texts]


def proposed(text, *texts, is_known=None):
    """Begin, end and text of each proposal."""
    found = filter(None, SimilarPhrases(PhraseList(phrases(*texts)), is_known).propose(text.split()))
    return [(one.begin, one.end, one.written) for one in found]


def search(text, is_end, targets, most, size=10_000):
    """Run the kernel; return what it found, and the masks after it."""
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in targets])]).astype(np.int64)
    letters = np.array([letter for one in targets for letter in one], np.int32)
    masks = np.zeros((max([*letters, *text, 0]) + 1, 8), np.uint64)
    found = np.full((size, 2), -1, np.int32)
    given = np.array(text, np.int32), np.array(is_end, np.bool_), letters, offsets
    count = find_similar(*given, masks, np.array(most, np.int64), len(text) + 1, found)
    return sorted(tuple(row) for row in found[:count].tolist()), masks, found[count:]


def test_a_phrase_takes_no_more_places_than_it_may():
    numbers, offsets = np.ones(1, np.int32), np.array([0, 1], np.int64)
    found, masks = np.zeros((9, 2), np.int32), np.zeros((2, 8), np.uint64)
    text, is_end = np.ones(9, np.int32), np.ones(9, np.bool_)
    assert find_similar(text, is_end, numbers, offsets, masks, np.zeros(1, np.int64), 3, found) == 3
    assert found[:3].tolist() == [[0, 0], [0, 1], [0, 2]]


def edits_up_to(text, target):
    """Fewest edits of a phrase to any part of the text that ends at each letter."""
    return [
        min(Levenshtein.distance(text[begin : at + 1], target) for begin in range(at + 2))
        for at in range(len(text))
    ]


@pytest.mark.parametrize("seed", range(25))
def test_the_ends_with_few_edits_are_those_of_all_parts_of_the_text(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 6))
    # letter 0 is in no phrase
    text = rng.integers(0, size + 1, rng.integers(0, 40)).tolist()
    targets = [rng.integers(1, size + 1, rng.choice([1, 2, 5, 9, 63, 64])).tolist() for _ in range(6)]
    most = rng.integers(0, 1 + np.array([len(one) for one in targets])).tolist()
    is_end = (rng.random(len(text)) < 0.5).tolist()
    found, masks, rest = search(text, is_end, targets, most)
    expected = [
        (phrase, at)
        for phrase, target in enumerate(targets)
        for at, edits in enumerate(edits_up_to(text, target))
        if is_end[at] and edits <= most[phrase]
    ]
    assert found == expected
    assert not masks.any()
    assert (rest == -1).all()


@pytest.mark.parametrize("length", [1, 63, 64])
def test_a_phrase_of_up_to_64_letters_is_found_where_it_ends(length):
    target = [1 + number % 7 for number in range(length)]
    text = [0, 0, *target, 0]
    assert search(text, [True] * len(text), [target], [0])[0] == [(0, 1 + length)]
    changed = [0, 0, 8, *target[1:], 0]
    assert search(changed, [True] * len(text), [target], [0])[0] == []
    assert (0, 1 + length) in search(changed, [True] * len(text), [target], [1])[0]


def test_the_ends_with_the_fewest_edits_are_kept():
    # the phrase 1 2 3 with two, one, no and one edits
    text = [1, 9, 9, 0, 1, 2, 9, 0, 1, 2, 3, 0, 9, 2, 3]
    is_end = [at in {2, 6, 10, 14} for at in range(len(text))]
    numbers, offsets = np.array([1, 2, 3], np.int32), np.array([0, 3], np.int64)
    for places, expected in ((1, {10}), (3, {6, 10, 14}), (4, {2, 6, 10, 14})):
        found, masks = np.zeros((places, 2), np.int32), np.zeros((10, 8), np.uint64)
        given = np.array(text, np.int32), np.array(is_end), numbers, offsets, masks
        assert find_similar(*given, np.array([2], np.int64), places, found) == len(expected)
        assert set(found[: len(expected), 1].tolist()) == expected


def test_without_letters_or_phrases_nothing_is_found():
    assert search([], [], [[1, 2]], [2])[0] == []
    assert search([1, 2], [True, True], [], [])[0] == []


SOUNDS = {letter: sound for sound in ("aeiouyh", "bfpv", "cgjkqsxz", "dt", "mn", "lr") for letter in sound}


def gap(letters, at):
    """Cost of a letter without a counterpart."""
    is_doubled = at > 0 and letters[at] == letters[at - 1]
    return 0.5 if is_doubled or letters[at] in "aeiouyh" else 1.0


def spelling_cost(heard, target, start=0):
    """Least cost of edits between the target and the letters heard from a start."""
    rows = len(heard) - start + 1
    costs = np.full((rows, len(target) + 1), np.inf)
    costs[0, 0] = 0.0
    for i in range(rows):
        for j in range(len(target) + 1):
            if i:
                costs[i, j] = min(costs[i, j], costs[i - 1, j] + gap(heard, start + i - 1))
            if j:
                costs[i, j] = min(costs[i, j], costs[i, j - 1] + gap(target, j - 1))
            if i and j:
                one, other = heard[start + i - 1], target[j - 1]
                alike = one in SOUNDS and SOUNDS.get(one) == SOUNDS.get(other)
                costs[i, j] = min(
                    costs[i, j], costs[i - 1, j - 1] + (0.0 if one == other else 0.5 if alike else 1.0)
                )
    return costs[-1, -1]


@pytest.mark.parametrize("seed", range(40))
def test_the_best_span_for_a_phrase_is_that_of_a_slow_search(seed):
    rng = np.random.default_rng(seed)
    letters = list("aeiobdkln\u0436")
    target = "".join(rng.choice(letters, rng.integers(4, 12)))
    noisy = [letter for letter in target if rng.random() > 0.15]
    noisy = [letter if rng.random() > 0.15 else rng.choice(letters) for letter in noisy]
    cuts = sorted({0, len(noisy), *rng.integers(0, len(noisy) + 1, 2).tolist()})
    words = ["".join(noisy[a:b]) for a, b in itertools.pairwise(cuts)]
    words = ["bad", *filter(None, words)]
    known = set(rng.choice(words, rng.integers(0, len(words))).tolist())
    joined, starts = "".join(words), np.cumsum([0, *map(len, words)]).tolist()
    expected = -np.inf
    for begin in range(len(words)):
        span = joined[starts[begin] :]
        cost = spelling_cost(joined, target, starts[begin])
        value = 0.95 * len(target) - 2.7 * cost - 4.2
        value -= 1.3 * (span[0] != target[0]) + 4.3 * known.issuperset(words[begin:])
        if cost <= 0.42 * max(len(span), len(target)) and (value > -1.25 or cost == 0):
            expected = max(expected, value)
    found = [
        one.value
        for one in SimilarPhrases(PhraseList(phrases(target)), known.__contains__).propose(words)
        if one is not None and one.end == len(words)
    ]
    if joined[starts[-2] :] == target or target in words:
        return  # words with exactly these letters are not replaced
    assert found == ([] if expected == -np.inf else [pytest.approx(expected)])


def test_edits_that_sounds_explain_cost_half():
    def value(text, phrase):
        return next(one.value for one in SimilarPhrases(PhraseList(phrases(phrase))).propose([text]) if one)

    full = value("kowalczyl", "Kowalczyk")
    for heard in ("kowolczyk", "kowalcsyk", "kowalczyg", "kowallczyk", "kowaleczyk"):
        assert value(heard, "Kowalczyk") == pytest.approx(full + 0.5 * 2.7), heard
    assert value(
        "\u0430\u043d\u043d\u0443\u0448\u043a\u0430", "\u0410\u043d\u043d\u0438\u0448\u043a\u0430"
    ) == (pytest.approx(0.95 * 7 - 2.7 - 4.2))


def test_a_long_phrase_at_the_end_of_a_long_text_is_seen_where_it_is():
    text = (
        "the meeting of the board was opened at nine and the chairman read the letters that had come from abroad "
        "during the summer months and then he asked for questions the restaurant at the end of the universe"
    )
    title = "the restaurant at the end of the universe"
    assert proposed(text, title) == proposed(text, title, "restaurant at the end of a universe") == []
    (found,) = proposed(f"{text[:-1]}", title)
    assert found == (len(text.split()) - 8, len(text.split()), title)


def test_a_phrase_is_found_after_thousands_of_similar_ones():
    rng = np.random.default_rng(0)
    names = {"maria carvalho"}
    while len(names) < 9000:
        letters = list("maria carvalho")
        for place in rng.choice([0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13], 3, replace=False):
            letters[place] = rng.choice(list("abcdefghijklmnoprstuvz"))
        names.add("".join(letters))
    others = sorted(names - {"maria carvalho"})
    for listed in (["maria carvalho", *others], [*others, "maria carvalho"]):
        found = filter(None, SimilarPhrases(PhraseList(phrases(*listed))).propose(["maria", "caravalho"]))
        assert next(found).written == "maria carvalho"


@pytest.mark.parametrize("text", ["(anna karlsen) said", "\u201canna karlsen\u201d", "'anna karlsen's'"])
def test_a_phrase_in_quotation_marks_is_not_replaced_by_another(text):
    assert proposed(text, "Anna Karlsen", "Anne Karlsen") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("call (kowalchyk) now", "(kowalczyk)"),
        ("\u201ckowalchyk,\u201d he said", "\u201ckowalczyk,\u201d"),
        ("kowalchyk's house", "kowalczyk's"),
        ("the kowalchyks\u2019 house", "kowalczyk\u2019"),
        ("kowalchyk!?", "kowalczyk!?"),
    ],
)
def test_punctuation_around_a_name_is_kept(text, expected):
    (found,) = proposed(text, "Kowalczyk")
    assert found[2] == expected


def test_no_phrases_are_searched_in_texts_of_too_many_letters():
    ligature = "\ufdfa"  # of 18 letters
    words = ["kowalchyk", *[ligature * 200] * 2]
    assert proposed(" ".join(words[:1]), "Kowalczyk")
    assert proposed(" ".join(words), "Kowalczyk") == []


def test_two_letters_of_no_phrase_are_not_taken_for_a_doubled_one():
    def value(*texts):
        found = SimilarPhrases(PhraseList(phrases(*texts))).propose(["mariacarvalho\u0436\u0451"])
        return next(one.value for one in found if one is not None and one.written == "maria carvalho")

    assert value("maria carvalho") == value("maria carvalho", "\u0436\u0451\u0436\u0451\u0436\u0451")


def test_letters_have_no_case_accents_and_punctuation():
    assert letters_of("O\u2019Brien-M\u00fcller 2.") == "obrienmuller2"
    assert letters_of("Stra\u00dfe") == "strasse"
    assert letters_of("\u2026\U0001f389") == ""
    assert letters_of("Acme\u2122") == "acmetm"
    assert letters_of("\u0915\u093f") != letters_of("\u0915\u0940")


def test_phrases_of_up_to_64_letters_are_proposed():
    longest = "abcdefgh" * (MAX_LETTERS // 8)
    assert proposed(longest[:-1], longest) == [(0, 1, longest)]
    assert proposed(longest, longest + "i") == []


@pytest.mark.parametrize(
    ("text", "phrase", "expected"),
    [
        ("call kowalchyk now", "Kowalczyk", (1, 2, "kowalczyk")),
        ("call kowal czyk now", "Kowalczyk", (1, 3, "kowalczyk")),
        ("call ko wal chyk now", "Kowalczyk", (1, 4, "kowalczyk")),
        ("flights to newyork", "New York", (2, 3, "new york")),
        ("flights to ne york today", "New York", (2, 4, "new york")),
        ("flights to ne wyork", "New York", (2, 4, "new york")),
        ("ask muller", "M\u00fcller", (1, 2, "m\u00fcller")),
        ("mcdonalds is open", "McDonald's", (0, 1, "mcdonald's")),
        ("kowalchyk", "Kowalczyk", (0, 1, "kowalczyk")),
    ],
)
def test_a_misspelt_split_or_joined_name_is_proposed(text, phrase, expected):
    assert proposed(text, phrase) == [expected]
    assert proposed(text, "Anderson", phrase, "Zimmermann") == [expected]


def test_the_log_odds_of_fewer_edits_are_greater_and_those_of_known_words_smaller():
    def value(text, phrase="Kowalczyk", is_known=None):
        (one,) = filter(None, SimilarPhrases(PhraseList(phrases(phrase)), is_known).propose([text]))
        assert (one.feature, one.value) == (DISTANCE, one.prior)
        return one.value

    assert value("kowalcyk") > value("kowalrcyk") > -1.25
    assert value("kowalcyk") > value("powalczyk")
    long, known = ("swarzenegger", "Schwarzenegger"), {"swarzenegger"}.__contains__
    assert value(*long, known) == pytest.approx(value(*long) - 4.3)
    assert proposed("kowalcyk", "Kowalczyk", is_known={"kowalcyk"}.__contains__) == []


def test_proposals_are_in_order_of_their_log_odds():
    found = list(
        filter(
            None,
            SimilarPhrases(PhraseList(phrases("Kowalczyk", "Zimmermann"))).propose(["kowalchyk", "zimerman"]),
        )
    )
    assert {one.written for one in found} == {"kowalczyk", "zimmermann"}
    assert [one.value for one in found] == sorted((one.value for one in found), reverse=True)


@pytest.mark.parametrize("text", ["Anderson", "anderson", "ask anderson.", "ANDERSON's", "and Anderson, too"])
def test_words_that_are_exactly_another_phrase_are_not_replaced(text):
    assert proposed(text, "Anderson", "Andersen") == []
    assert proposed(text, "Andersen") != []


def test_words_next_to_an_exact_phrase_are_still_replaced():
    assert proposed("andersen met anderson", "Anderson") == [(0, 1, "anderson")]


@pytest.mark.parametrize("ending", ["", ".", ",", "?!", "'s", "'s.", "\u2019s,", "'"])
def test_the_ending_of_a_possessive_and_punctuation_are_kept(ending):
    assert proposed(f"ask kowalchyk{ending}", "Kowalczyk") == [(1, 2, f"kowalczyk{ending}")]


@pytest.mark.parametrize("text", ["b", "ab", "xa a x", "an", "the cat sat"])
@pytest.mark.parametrize("phrase", ["a", "Al", "Bob"])
def test_a_phrase_of_few_letters_is_not_proposed_for_other_letters(text, phrase):
    assert proposed(text, phrase) == []


@pytest.mark.parametrize(
    "text", ["", "\U0001f389", "... --", "cat", "42", "\u05e9\u05dc\u05d5\u05dd", "x" * 10_000]
)
def test_words_unlike_all_phrases_have_no_proposals(text):
    assert proposed(text, "Kowalczyk", "\u2665") == []


def test_a_phrase_is_proposed_once_for_overlapping_words():
    found = proposed("kowalczyk kowalchyk", "Kowalczyk")
    assert found == [(1, 2, "kowalczyk")]
    spans = [span[:2] for span in proposed("new new york york", "Newyork")]
    assert all(a[1] <= b[0] or b[1] <= a[0] for a in spans for b in spans if a != b)


def test_a_text_of_capitals_has_the_phrase_as_given():
    assert proposed("ASK KOWALCHYK", "Kowalczyk") == [(1, 2, "Kowalczyk")]


def test_a_text_with_a_capital_has_the_phrase_as_given():
    assert proposed("Ask Kowalchyk", "Kowalczyk") == [(1, 2, "Kowalczyk")]


@pytest.mark.parametrize(("text", "phrase"), [("at mcdonald's", "McDonald's"), ("yahoo!", "Yahoo!")])
def test_a_phrase_with_an_ending_of_its_own_is_not_given_another(text, phrase):
    assert proposed(text, phrase) == []


def test_a_dash_before_known_words_makes_them_no_less_known():
    known = {"hello", "brown"}.__contains__
    assert proposed("hello \u2014 brown", "Browne", is_known=known) == proposed(
        "hello brown", "Browne", is_known=known
    )


def test_short_phrases_do_not_hide_a_later_one():
    assert proposed("banana " * 100 + "kowalchyk", "a", "na", "ana", "Kowalczyk") == [(100, 101, "kowalczyk")]


def test_ten_thousand_phrases_are_searched_in_bounded_time():
    rng = np.random.default_rng(0)
    names = {"".join(rng.choice(list("abcdefghijklmnop"), rng.integers(4, 12))) for _ in range(9990)}
    proposer = SimilarPhrases(PhraseList(phrases(*sorted(names), "Zuckerberg")))
    words = ("the quick brown fox jumps over the lazy dog " * 22 + "zukerberg").split()
    begun = time.perf_counter()
    found = list(filter(None, proposer.propose(words)))
    assert time.perf_counter() - begun < 5
    assert (198, 199, "zuckerberg") in [(one.begin, one.end, one.written) for one in found]
    assert len(run_to_completion(proposals_of(words, [proposer]))) <= 32
