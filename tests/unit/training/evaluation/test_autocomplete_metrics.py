"""Autocomplete metrics against hand-computed values, and bootstrap intervals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.evaluation.autocomplete_metrics import (
    CompletionRank,
    Ranks,
    Ratio,
    TypedLine,
    TypingLine,
    WordSpan,
    acceptance,
    bootstrap_counts,
    bootstrap_interval,
    ratios,
    recall_by_letters,
    recoverable_letters,
    saved_keys,
)


def typed(*words, text=""):
    """Typed line of words given as (letters, spaced, joined, ranks); first completions have probability 0.5."""
    spans, looks = [], {}
    for letters, spaced, joined, ranks in words:
        begin = len(looks)
        spans.append(WordSpan(begin, begin + letters, spaced, joined))
        looks |= {begin + number: CompletionRank(rank, 0.5) for number, rank in enumerate(ranks)}
    return TypedLine(TypingLine(text, text, 100, tuple(spans)), looks)


@pytest.mark.parametrize(
    ("letters", "spaced", "ranks", "one", "three"),
    [
        (4, True, (4, 3, 3, 3), 0, 3),  # one letter typed, one key for the rest and the space
        (3, True, (3, 1, 1), 2, 3),
        (3, True, (1, 1, 1), 3, 3),
        (3, False, (1, 1, 1), 2, 2),  # followed by a comma, so the key writes no space
        (1, True, (1,), 1, 1),
        (1, False, (1,), 0, 0),  # one key saves one letter
        (3, True, (0, 0, 1), 1, 1),
        (3, False, (0, 0, 1), 0, 0),
        (3, True, (0, 0, 0), 0, 0),
        (3, True, (9, 4, 4), 0, 0),
    ],
)
def test_a_completion_spares_what_is_left_of_the_word_and_the_space(letters, spaced, ranks, one, three):
    ranks = Ranks.of([typed((letters, spaced, False, ranks))])
    assert [saved_keys(ranks, n).tolist() for n in (1, 3)] == [[one], [three]]


@pytest.mark.parametrize(
    ("text", "listed", "keys"),
    [
        ("the cat", {}, 8),  # seven characters and the line's end
        ("the cat", {0: 3}, 5),  # "the" and its space are one key
        ("the cat", {4: 7}, 6),  # the line's end is pressed in any case
        ("the cat", {2: 3}, 7),  # one key for "e" and the space
        ("cat.", {2: 3}, 5),  # no key saved: "t" is one key, too
        ("cat, so", {0: 3}, 6),  # the comma replaces the space
        ("cat, so", {0: 4}, 4),
        ("cat's", {0: 3}, 5),  # a key deletes the space
        ("cat's", {1: 3}, 6),  # two keys save nothing
        ("a\tb", {0: 1}, 4),
        ("", {}, 1),
    ],
)
def test_keys_of_a_line_as_it_is_written(text, listed, keys):
    assert keys_pressed(text, listed) == keys


def keys_pressed(text, listed):
    """Keys for a line; `listed` has the offset to which a completion spells it, by offset."""
    ranks = {offset: CompletionRank(0, 0.5, ends=(end, 0)) for offset, end in listed.items()}
    typed = TypedLine(TypingLine(text, text, len(text) + 1, ()), ranks)
    assert typed.keys_pressed(1) == len(text) + 1
    return typed.keys_pressed(0)


@st.composite
def offers(draw):
    """A text, and at some offsets the offset to which a completion spells it."""
    text = draw(st.text("aB .,'-\t", max_size=20))
    listed = st.dictionaries(st.integers(0, max(len(text) - 1, 0)), st.integers(0, len(text)))
    return text, {offset: end for offset, end in draw(listed).items() if end > offset}


@given(offers())
def test_as_many_keys_are_counted_as_a_field_receives(offered):
    """The field behaves as `autocomplete.js` does; the typist gains with each selection and writes the exact text."""
    text, listed = offered
    field, keys = "", 0
    while field != text:
        end = listed.get(len(field), 0)
        written, selected = field, 0
        if end:
            written, selected = text[:end] + " ", 1
            following = text[end : end + 1]
            if following and following in ".,;:!?)]}":
                written = written[:-1]  # as soon as it is typed
            elif following not in {"", " "}:
                written, selected = written[:-1], 2  # a key deletes the space
            if following == "":
                written = text  # the space at the line's end is no error
        if len(written) - len(field) > selected:
            field, keys = written, keys + selected
        else:
            field, keys = text[: len(field) + 1], keys + 1
    assert keys_pressed(text, listed) == keys + 1  # the line's end


def test_letters_are_recoverable_from_the_end_to_the_first_gap():
    ranks = Ranks.of(
        [typed((4, True, False, (1, 1, 1, 1)), (4, True, False, (2, 0, 2, 2)), (2, True, False, (0, 0)))]
    )
    assert recoverable_letters(ranks, 1).tolist() == [4, 0, 0]
    assert recoverable_letters(ranks, 3).tolist() == [4, 2, 0]


def test_phrases_match_where_each_word_was_first_and_only_a_space_stood_between():
    line = typed(
        (2, True, False, (1, 1)),
        (2, True, True, (1, 1)),
        (2, True, True, (2, 1)),
        (2, True, False, (1, 1)),  # preceded by a comma
        (2, True, True, (1, 1)),
    )
    told = ratios(Ranks.of([line]))
    assert [
        (told[f"phrase_match_{n}"].numerator.sum(), told[f"phrase_match_{n}"].denominator.sum())
        for n in range(1, 6)
    ] == [
        (4, 5),
        (2, 3),
        (0, 1),
        (0, 0),
        (0, 0),
    ]


def test_phrases_do_not_go_over_the_end_of_a_line():
    told = ratios(Ranks.of([typed((2, True, False, (1, 1)))] * 2))
    assert told["phrase_match_2"].denominator.tolist() == [0, 0]


def test_recall_after_letters_is_that_of_longer_words():
    ranks = Ranks.of([typed((1, True, False, (2,)), (3, True, False, (0, 2, 1)), (2, True, False, (1, 1)))])
    assert recall_by_letters(ranks) == [
        {"letters": 0, "words": 3, "top_1": pytest.approx(1 / 3), "top_3": pytest.approx(2 / 3)},
        {"letters": 1, "words": 2, "top_1": 0.5, "top_3": 1.0},
        {"letters": 2, "words": 1, "top_1": 1.0, "top_3": 1.0},
    ]


def test_acceptance_takes_the_most_probable_places_first():
    looks = [CompletionRank(1, 0.9), CompletionRank(0, 0.8), CompletionRank(1, 0.3), CompletionRank(0, 0.2)]
    words = tuple(WordSpan(n, n + 1, spaced=True, joined=False) for n, _ in enumerate(looks))
    one = TypedLine(TypingLine("", "", 9, words), dict(enumerate(looks)))
    told = {row["coverage"]: row for row in acceptance([one], first_only=True)}
    assert told[0.2] == {"coverage": 0.2, "threshold": 0.9, "mean_probability": 0.9, "precision": 1.0}
    assert told[0.5] == pytest.approx(
        {"coverage": 0.5, "threshold": 0.8, "mean_probability": 0.85, "precision": 0.5}
    )
    assert told[0.75]["precision"] == pytest.approx(2 / 3)
    assert (told[1.0]["threshold"], told[1.0]["precision"]) == (0.2, 0.5)


def test_acceptance_before_a_word_leaves_out_later_looks():
    one = typed((3, True, False, (0, 0, 1)))
    assert acceptance([one], first_only=True)[-1]["precision"] == 0.0
    assert acceptance([one], first_only=False)[-1]["precision"] == pytest.approx(1 / 3)


def test_a_text_without_looks_has_no_acceptance():
    assert acceptance([], first_only=True) == []


RANDOM = np.random.default_rng(5)


def ratio(over, under):
    return Ratio(np.asarray(over, dtype=float), np.asarray(under, dtype=float))


def test_an_interval_is_as_wide_as_the_standard_error_says():
    hits = (RANDOM.random(400) < 0.3).astype(float)
    told = bootstrap_interval(ratio(hits, np.ones(400)), bootstrap_counts(400))
    error = np.sqrt(hits.mean() * (1 - hits.mean()) / 400)
    assert told["value"] == pytest.approx(hits.mean())
    assert told["low"] == pytest.approx(hits.mean() - 1.96 * error, abs=0.3 * error)
    assert told["high"] == pytest.approx(hits.mean() + 1.96 * error, abs=0.3 * error)


def test_lines_that_agree_leave_no_doubt():
    told = bootstrap_interval(ratio([1, 2, 3], [2, 4, 6]), bootstrap_counts(3))
    assert list(told.values()) == pytest.approx([0.5, 0.5, 0.5])


def test_a_difference_over_the_same_lines_is_surer_than_either_figure():
    hits = (RANDOM.random(300) < 0.5).astype(float)
    better = hits + 0.125
    draws = bootstrap_counts(300)
    gap = bootstrap_interval(ratio(better, np.ones(300)), draws, less=ratio(hits, np.ones(300)))
    assert list(gap.values()) == pytest.approx([0.125, 0.125, 0.125])


def test_nothing_to_divide_by_is_no_figure():
    assert bootstrap_interval(ratio([0, 0], [0, 0]), bootstrap_counts(2)) == {
        "value": None,
        "low": None,
        "high": None,
    }


def test_draws_without_anything_to_divide_by_are_left_out():
    told = bootstrap_interval(ratio([1, 0], [1, 0]), bootstrap_counts(2))
    assert list(told.values()) == [1.0, 1.0, 1.0]
