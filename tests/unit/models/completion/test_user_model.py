"""User models: fading counts, Witten-Bell back-off, bounds, export and import."""

import math

import pytest

from models.calls import run_to_completion
from models.completion.user_model import (
    SENTENCE_START,
    NextWordModel,
    ScoredPhrase,
    UserModel,
    UserModelLimits,
    WordSequence,
    corrected_words,
    extend_phrases,
    next_word_models,
    phrase_probability,
    previous_word,
    sentence_words,
    split_word_sequences,
    user_model_from_counts,
)

NEVER_FADING = UserModelLimits(half_life_words=math.inf)
SENTENCES = [
    WordSequence(SENTENCE_START, words.split()) for words in ("the cat sat", "the cat ran", "the dog")
]


@pytest.fixture
def model():
    return UserModel().updated(SENTENCES, NEVER_FADING)


def test_a_word_is_as_probable_as_witten_and_bell_say(model):
    after_the = NextWordModel([model], "the")
    alone = 2 / 8  # unigram probability of "cat": 2 of 8 words
    assert after_the.probability("cat") == pytest.approx((2 + 2 * alone) / (3 + 2))
    assert after_the.probability("sat") == pytest.approx((0 + 2 * 1 / 8) / (3 + 2))
    assert NextWordModel([model], SENTENCE_START).probability("the") == pytest.approx(
        (3 + 1 * 3 / 8) / (3 + 1)
    )


@pytest.mark.parametrize("previous", [SENTENCE_START, "the", "cat", "sat", "never"])
def test_probabilities_sum_to_one_after_any_word(model, previous):
    words = NextWordModel([model, user_model_from_counts([("mat", 2.5)])], previous)
    assert sum(
        words.probability(word) for word in ["the", "cat", "sat", "ran", "dog", "mat"]
    ) == pytest.approx(1)


def test_a_faded_follower_makes_others_less_probable_by_its_count():
    words = NextWordModel([UserModel({"cat": 1.0, "dog": 1.0}, {"the": {"cat": 0.5}})], "the")
    assert words.probability("cat") == pytest.approx((0.5 + 0.5 * 1 / 2) / (0.5 + 0.5))


def test_counts_of_several_models_add_up(model):
    both = NextWordModel([model, user_model_from_counts([("cat", 4.0)])], "never")
    assert both.probability("cat") == pytest.approx((2 + 4) / (8 + 4))


def test_without_words_nothing_is_probable():
    assert not NextWordModel([UserModel()], "the")
    assert NextWordModel([UserModel()], "the").probability("cat") == 0


def test_the_mass_of_a_beginning_is_that_of_all_its_words(model):
    mass, words = run_to_completion(
        NextWordModel([model], "cat").words_with_prefix("s", ignore_case=False, limit=5)
    )
    assert (mass, words) == (
        pytest.approx(words[0].probability),
        [ScoredPhrase("sat", mass)],
    )
    every = NextWordModel([model], "cat").words_with_prefix("", ignore_case=False, limit=1)
    assert run_to_completion(every)[0] == 1


def test_the_mass_of_a_beginning_is_also_of_words_beyond_the_limit():
    words = NextWordModel([user_model_from_counts([("sat", 3.0), ("sit", 2.0), ("cat", 5.0)])], "never")
    assert run_to_completion(words.words_with_prefix("s", ignore_case=False, limit=1)) == (
        0.5,
        [("sat", 0.3)],
    )
    mass, best = run_to_completion(words.rate(["sat", "sit"], 1, penalty={"sat": 0.1, "sit": 0.5}.get))
    assert (mass, best) == (pytest.approx(0.03 + 0.1), [("sit", 0.1)])


def test_case_counts_unless_it_is_ignored():
    words = NextWordModel(
        [user_model_from_counts([("Paris", 1.0), ("part", 1.0), ("PAR", 1.0)])],
        SENTENCE_START,
    )
    exact = run_to_completion(words.words_with_prefix("par", ignore_case=False, limit=9))[1]
    assert [one.text for one in exact] == ["part"]
    every = run_to_completion(words.words_with_prefix("paR", ignore_case=True, limit=9))[1]
    assert {one.text for one in every} == {
        "Paris",
        "part",
        "PAR",
    }


def test_older_words_count_less(model):
    faded = model.updated(
        [WordSequence(SENTENCE_START, ["new"] * 10)],
        UserModelLimits(half_life_words=10),
    )
    assert faded.count("the") == pytest.approx(3 / 2)
    assert faded.count("new") == pytest.approx(sum(2 ** (-age / 10) for age in range(10)))
    assert faded.total == pytest.approx(8 / 2 + faded.count("new"))


def test_fading_for_ever_does_not_overflow():
    model = UserModel()
    for _ in range(20):
        model = model.updated(
            [WordSequence(SENTENCE_START, ["again", "and"] * 100)],
            UserModelLimits(half_life_words=1),
        )
    assert model.count("and") == pytest.approx(1 / (1 - 1 / 4), rel=1e-6)


def test_learning_changes_no_model_that_somebody_reads(model):
    before = model.export()
    model.updated([WordSequence(SENTENCE_START, ["the", "mouse"])], NEVER_FADING)
    assert model.export() == before


def test_the_rarest_words_are_forgotten_first():
    bounds = UserModelLimits(max_words=2, half_life_words=math.inf)
    model = UserModel().updated([WordSequence(SENTENCE_START, "ababca")], bounds)
    words, pairs, _ = model.export()
    assert {word for word, _ in words} == {"a", "b"}
    assert {pair[1] for pair in pairs} == {"a", "b"}
    assert model.num_pairs == len(pairs)


def test_pairs_are_bounded_and_long_words_not_learnt():
    bounds = UserModelLimits(max_words=3, pairs_per_word=1, max_word_characters=5)
    model = UserModel().updated(
        [WordSequence(SENTENCE_START, ["a", "b", "abcdef", "c", "a", "c", "b", "a"])],
        bounds,
    )
    assert (len(model), model.num_pairs) == (3, 3)


def test_words_on_both_sides_of_one_that_is_too_long_are_no_neighbours():
    bounds = UserModelLimits(max_word_characters=5, half_life_words=math.inf)
    model = UserModel().updated([WordSequence(SENTENCE_START, ["a", "abcdef", "b", "c"])], bounds)
    assert {pair[:2] for pair in model.export()[1]} == {
        (SENTENCE_START, "a"),
        ("b", "c"),
    }


def test_exported_user_model_is_restored(model):
    faded = model.updated(
        [WordSequence(SENTENCE_START, ["the", "end"])],
        UserModelLimits(half_life_words=7),
    )
    again = user_model_from_counts(*faded.export())
    assert again.export() == faded.export()
    assert NextWordModel([again], "the").probability("cat") == NextWordModel([faded], "the").probability(
        "cat"
    )


def test_a_phrase_is_as_probable_as_its_words_in_turn(model):
    expected = NextWordModel([model], "the").probability("cat") * NextWordModel([model], "cat").probability(
        "sat"
    )
    assert phrase_probability(next_word_models([model]), "the", ["cat", "sat"]) == pytest.approx(expected)
    first = [ScoredPhrase("cat", NextWordModel([model], "the").probability("cat"))]
    found = run_to_completion(extend_phrases(next_word_models([model]), first, 3, 5))
    assert {one.text for one in found} == {"cat sat", "cat ran"}
    assert found[0].probability == pytest.approx(expected)


@pytest.mark.parametrize(
    ("typed", "edits", "expected"),
    [
        ("ct", 1, {"cat": 1}),
        ("ca", 1, {"cat": 0, "sat": 1}),
        ("acts", 2, {"cat": 2}),
        ("SAT", 1, {"sat": 0, "cat": 1}),
        ("xyz", 1, {}),
    ],
)
def test_mistyped_beginnings_are_found(model, typed, edits, expected):
    words = NextWordModel([model], SENTENCE_START)
    found, others = run_to_completion(words.fuzzy_matches(typed, edits, ignore_case=typed.isupper(), limit=5))
    assert others == 0
    assert {word: n for word, n in found.items() if word in {"cat", "sat"}} == expected


def test_texts_are_cut_into_the_words_of_their_sentences():
    text = "Hello, world! I don't like 3.14.\nnew-fangled 🙂 “café\u2019s” नमस्ते 'tis --"
    assert sentence_words(text) == [
        ["Hello", "world"],
        ["I", "don't", "like", "3", "14"],
        ["new-fangled", "café\u2019s", "नमस्ते", "tis"],
    ]


def test_words_are_learnt_as_they_are_seen_and_very_long_ones_in_runs():
    assert sentence_words("co\u00adop mi\u200cravam \u200eulm\u200e") == [["coop", "mi\u200cravam", "ulm"]]
    assert [len(word) for word in sentence_words("あ" * 144)[0]] == [16, 64, 64]
    assert previous_word("あ" * 144) == "あ" * 64


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", SENTENCE_START),
        ("hello ", "hello"),
        ("hello, ", "hello"),
        ("He said “yes.” ", SENTENCE_START),
        ("a line\n", SENTENCE_START),
        ("don't ", "don't"),
        ("🙂 ", SENTENCE_START),
        ("x" * 1000 + " y", "y"),
    ],
)
def test_the_previous_word_is_found(text, word):
    assert previous_word(text) == word


@pytest.mark.parametrize(
    ("context", "previous"),
    [
        (None, None),
        ("", SENTENCE_START),
        ("see the ", "the"),
        ("That was it. ", SENTENCE_START),
    ],
)
def test_sentences_know_what_stands_before_them(context, previous):
    assert split_word_sequences("Big cat! It ran.", context) == [
        (previous, ["Big", "cat"]),
        (SENTENCE_START, ["It", "ran"]),
    ]


def test_of_an_unknown_context_no_pair_is_learnt():
    model = UserModel().updated(
        [WordSequence(None, ["cat", "sat"]), WordSequence("never", ["cat"])],
        NEVER_FADING,
    )
    assert (model.count("cat"), model.num_pairs) == (2, 2)
    assert model.followers("never") == {"cat": 1}


def test_words_with_a_count_of_zero_are_not_exported():
    """An export can be restored: counts are positive, and words of pairs are among the words."""
    model = user_model_from_counts(
        [("cat", 5e-324), ("dog", 1.0)], [("the", "cat", 1.0), ("the", "dog", 1.0)]
    )
    assert model.export() == ([("dog", 1.0)], [("the", "dog", 1.0)], [])


def test_a_word_is_exported_for_less_than_forty_half_lives():
    bounds = UserModelLimits(half_life_words=1.0)
    model = UserModel().updated([WordSequence(SENTENCE_START, ["cat"])], bounds)
    old = model.updated([WordSequence(SENTENCE_START, ["a"] * 39)], bounds)
    assert old.count("cat") == pytest.approx(2.0**-39)
    assert {word for word, _ in old.export()[0]} == {"cat", "a"}
    older = old.updated([WordSequence(SENTENCE_START, ["a"])], bounds)
    assert {word for word, _ in older.export()[0]} == {"a"}


def test_phrases_of_words_with_many_followers_are_the_likeliest():
    hub = user_model_from_counts(
        [("the", 50.0), *((f"w{n}", 1.0) for n in range(50))],
        [
            *(("the", f"w{n}", float(n + 1)) for n in range(50)),
            *((f"w{n}", "the", 1.0) for n in range(50)),
        ],
    )
    after = next_word_models([hub])
    found = run_to_completion(extend_phrases(after, [ScoredPhrase("the", 1.0)], 3, 2))
    assert [one.text for one in found] == [
        "the w49",
        "the w48",
        "the w49 the",
        "the w48 the",
    ]
    assert found[2].probability == pytest.approx(phrase_probability(after, "the", ["w49", "the"]))


def corrected(model, times, typed="refudn", text="refund", bounds=NEVER_FADING):
    for _ in range(times):
        model = model.updated([WordSequence(None, text.split())], bounds, typed)
    return model


def meant(models, *forms, ignore_case=False, begins_word=False):
    """Return edits and probabilities of a spelling by the words that it was corrected to."""
    found = corrected_words(models, forms, ignore_case=ignore_case, begins_word=begins_word)
    edits, probabilities = run_to_completion(found)
    assert edits.keys() == probabilities.keys()
    return {word: (edits[word], pytest.approx(probabilities[word])) for word in edits}


def test_a_spelling_means_a_word_from_its_second_correction_on(model):
    assert meant([corrected(model, 1)], "refudn") == {}
    twice = corrected(model, 2)
    assert meant([twice], "refudn") == {"refund": (1, 1.0)}
    often = twice.updated([WordSequence(None, ["refund"] * 6)], NEVER_FADING)
    assert meant([often], "refudn") == {"refund": (1, 2 / 8)}
    others = user_model_from_counts([("refudn", 9.0)])
    assert meant([others, often, user_model_from_counts([("refund", 100.0)])], "refudn") == {
        "refund": (1, 2 / 8)
    }


def test_a_spelling_is_at_least_as_probable_as_its_edits():
    model = user_model_from_counts([("the", 1000.0)], corrections=[("teh", "the", 2.0), ("hte", "the", 30.0)])
    assert meant([model], "teh") == {"the": (1, 0.01)}
    assert meant([model], "hte") == {"the": (1, 0.03)}


def test_the_beginning_of_a_spelling_means_its_word_if_it_begins_no_other(model):
    model = corrected(corrected(corrected(model, 1), 1, "refudnd"), 2, "tehm", "them")
    assert meant([model], "refud") == {"refund": (1, 1.0)}  # of both spellings
    assert meant([model], "refud", begins_word=True) == {}
    assert meant([model], "refudn") == {"refund": (1, 1.0)}
    assert meant([model], "refudn", begins_word=True) == {}  # once as it is
    assert meant([model], "ref") == {}  # as the word itself does
    assert meant([model], "teh") == {"them": (1, 1.0)}
    assert meant([model], "te") == {}
    assert meant([model], "") == {}


def test_spellings_are_compared_as_words_are():
    model = user_model_from_counts([("don't", 4.0)], corrections=[("dno't", "don't", 2.0)])
    assert meant([model], "dno\u2019t") == {"don't": (1, 0.5)}
    assert meant([model], "DNO'T") == {}
    assert meant([model], "DNO'T", ignore_case=True) == {"don't": (1, 0.5)}


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("ref", "refund"),
        ("REF", "refund"),
        ("refund", "Refund"),
        ("na\u00efv", "nai\u0308ve"),
        ("don\u2019", "don't"),
        ("x", "y" * 65),
        ("\u00ad", "refund"),
        ("", "refund"),
    ],
)
def test_what_begins_the_word_or_is_too_long_is_no_misspelling(typed, text):
    assert corrected(UserModel(), 2, typed, text).corrections == {}


def test_the_first_word_of_a_text_is_the_corrected_one(model):
    model = corrected(model, 1, "refudn", "refund of money")
    assert model.export()[2] == [("refudn", "refund", 1.0)]
    assert UserModel().updated([], NEVER_FADING, "refudn").export() == ([], [], [])


def test_corrections_fade_as_words_do(model):
    bounds = UserModelLimits(half_life_words=10)
    model = corrected(model, 2, bounds=bounds)
    assert meant([model], "refudn") != {}
    faded = model.updated([WordSequence(None, ["new"] * 10)], bounds)
    assert faded.export()[2] == [("refudn", "refund", pytest.approx((1 + 2**-0.1) / 2))]
    assert faded.count("refund") == pytest.approx((1 + 2**-0.1) / 2)
    assert meant([faded], "refudn") == {}  # as if it was corrected once


def test_a_word_is_not_offered_while_it_is_corrected_more_often_than_kept(model):
    model = model.updated([WordSequence("the", ["refudn"] * 2)], NEVER_FADING)
    assert corrected(model, 2).offered.count("refudn") == 2
    wrong = corrected(model, 3)
    assert wrong.offered.words.keys() == wrong.words.keys() - {"refudn"}
    assert "refudn" not in wrong.offered.followers("the")
    assert wrong.offered.followers("refudn") == {}
    assert meant([wrong.offered], "refudn") == meant([wrong], "refudn") != {}
    assert wrong.updated([WordSequence(None, ["refudn"])], NEVER_FADING).offered.count("refudn") == 3


def test_a_word_is_removed_with_its_pairs_and_corrections(model):
    model = corrected(corrected(model, 2), 2, "cta", "cat")
    model = corrected(model, 1, "cat", "car")
    less = model.without({"cat"})
    assert less.words == {word: count for word, count in model.words.items() if word != "cat"}
    assert less.followers("the") == {"dog": 1}
    assert less.followers("cat") == {}
    assert less.export()[2] == [("refudn", "refund", 2.0)]
    assert model.includes(less)
    assert not less.includes(model)
    assert less.includes(less.without({"cta"}))
    assert model.without({"never"}).includes(model)
    assert not model.without({"cta"}).includes(model)  # a spelling only
    assert model.without({"cta"}).words == model.words


def test_corrections_are_bounded_and_leave_with_their_words():
    bounds = UserModelLimits(max_words=4, pairs_per_word=1, half_life_words=2)
    model = UserModel()
    for number in range(9):
        model = corrected(model, 1, f"t{number}", "word", bounds)
    assert set(model.corrections) == {"t5", "t6", "t7", "t8"}
    model = model.updated([WordSequence(None, ["a", "b", "c", "d"] * 20)], bounds)
    assert "word" not in model.words
    assert model.corrections == {}


def test_exported_corrections_are_restored(model):
    faded = corrected(model, 3, bounds=UserModelLimits(half_life_words=7))
    again = user_model_from_counts(*faded.export())
    assert again.export() == faded.export()
    assert meant([again], "refudn") == meant([faded], "refudn")
