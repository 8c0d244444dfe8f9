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
    assert (mass, words) == (pytest.approx(words[0].probability), [ScoredPhrase("sat", mass)])
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
        [user_model_from_counts([("Paris", 1.0), ("part", 1.0), ("PAR", 1.0)])], SENTENCE_START
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
    faded = model.updated([WordSequence(SENTENCE_START, ["new"] * 10)], UserModelLimits(half_life_words=10))
    assert faded.count("the") == pytest.approx(3 / 2)
    assert faded.count("new") == pytest.approx(sum(2 ** (-age / 10) for age in range(10)))
    assert faded.total == pytest.approx(8 / 2 + faded.count("new"))


def test_fading_for_ever_does_not_overflow():
    model = UserModel()
    for _ in range(20):
        model = model.updated(
            [WordSequence(SENTENCE_START, ["again", "and"] * 100)], UserModelLimits(half_life_words=1)
        )
    assert model.count("and") == pytest.approx(1 / (1 - 1 / 4), rel=1e-6)


def test_learning_changes_no_model_that_somebody_reads(model):
    before = model.export()
    model.updated([WordSequence(SENTENCE_START, ["the", "mouse"])], NEVER_FADING)
    assert model.export() == before


def test_the_rarest_words_are_forgotten_first():
    bounds = UserModelLimits(max_words=2, half_life_words=math.inf)
    model = UserModel().updated([WordSequence(SENTENCE_START, "ababca")], bounds)
    words, pairs = model.export()
    assert {word for word, _ in words} == {"a", "b"}
    assert {pair[1] for pair in pairs} == {"a", "b"}
    assert model.num_pairs == len(pairs)


def test_pairs_are_bounded_and_long_words_not_learnt():
    bounds = UserModelLimits(max_words=3, pairs_per_word=1, max_word_characters=5)
    model = UserModel().updated(
        [WordSequence(SENTENCE_START, ["a", "b", "abcdef", "c", "a", "c", "b", "a"])], bounds
    )
    assert (len(model), model.num_pairs) == (3, 3)


def test_words_on_both_sides_of_one_that_is_too_long_are_no_neighbours():
    bounds = UserModelLimits(max_word_characters=5, half_life_words=math.inf)
    model = UserModel().updated([WordSequence(SENTENCE_START, ["a", "abcdef", "b", "c"])], bounds)
    assert {pair[:2] for pair in model.export()[1]} == {(SENTENCE_START, "a"), ("b", "c")}


def test_exported_user_model_is_restored(model):
    faded = model.updated([WordSequence(SENTENCE_START, ["the", "end"])], UserModelLimits(half_life_words=7))
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
    [(None, None), ("", SENTENCE_START), ("see the ", "the"), ("That was it. ", SENTENCE_START)],
)
def test_sentences_know_what_stands_before_them(context, previous):
    assert split_word_sequences("Big cat! It ran.", context) == [
        (previous, ["Big", "cat"]),
        (SENTENCE_START, ["It", "ran"]),
    ]


def test_of_an_unknown_context_no_pair_is_learnt():
    model = UserModel().updated(
        [WordSequence(None, ["cat", "sat"]), WordSequence("never", ["cat"])], NEVER_FADING
    )
    assert (model.count("cat"), model.num_pairs) == (2, 2)
    assert model.followers("never") == {"cat": 1}


def test_words_with_a_count_of_zero_are_not_exported():
    """An export can be restored: counts are positive, and words of pairs are among the words."""
    model = user_model_from_counts(
        [("cat", 5e-324), ("dog", 1.0)], [("the", "cat", 1.0), ("the", "dog", 1.0)]
    )
    assert model.export() == ([("dog", 1.0)], [("the", "dog", 1.0)])


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
        [*(("the", f"w{n}", float(n + 1)) for n in range(50)), *((f"w{n}", "the", 1.0) for n in range(50))],
    )
    after = next_word_models([hub])
    found = run_to_completion(extend_phrases(after, [ScoredPhrase("the", 1.0)], 3, 2))
    assert [one.text for one in found] == ["the w49", "the w48", "the w49 the", "the w48 the"]
    assert found[2].probability == pytest.approx(phrase_probability(after, "the", ["w49", "the"]))
