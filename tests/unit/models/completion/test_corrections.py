"""Beginnings that typed letters may mean: edits against optimal string alignment, keys against their products."""

import functools
import itertools
from math import log

import numpy as np
import pytest
from rapidfuzz.distance import OSA

from models.completion.beginnings import find_beginnings
from models.completion.corrections import (
    EDIT_PENALTY,
    FIRST_LETTER_PENALTY,
    SortedLetters,
    corrected_prefixes,
    letters_meant,
    share_of,
)
from models.completion.token_trie import TokenTrie
from models.completion.words import NextWords
from models.language_model import Vocabulary
from models.tokenizers import WordTokenizer
from tests.reference.decoding import Pieces
from tests.support.text_models import learnt_pieces

NEAR_WORDS = [
    "hello",
    "help",
    "Helsinki",
    "world",
    "would",
    "the",
    "then",
    "happy",
    "un\ud7ffi",
]
TOKENS = TokenTrie(WordTokenizer(Vocabulary(NEAR_WORDS)))
EVEN = np.full(len(TOKENS.token_bytes), np.log(0.05), np.float32)


def near(typed, edits, **options):
    return {
        p.spelled.decode()[1:]: p
        for p in corrected_prefixes(TOKENS, f" {typed}".encode(), EVEN, edits, **options)
    }


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("hlelo", "hello"),
        ("helo", "help"),
        ("wrold", "world"),
        ("hte", "the"),
        ("hapy", "happ"),
    ],
)
def test_one_mistake_is_seen(typed, meant):
    assert max(prefix.edits for text, prefix in near(typed, 1).items() if meant.startswith(text)) == 1


def test_two_mistakes_are_seen_if_asked_for():
    assert "world" not in near("wrlod", 1)
    assert near("wrlod", 2)["world"].edits == 2


def test_the_prefix_typed_is_no_mistake():
    assert "hel" not in near("hel", 1)
    assert "hello" not in near("hello", 2)


def test_short_prefixes_have_no_mistakes():
    assert not near("h", 2)
    assert all(prefix.edits == 1 for prefix in near("hte", 2).values())


def test_edits_and_another_first_letter_are_penalised():
    prefix = near("jello", 1)["hello"]
    assert prefix.penalty == pytest.approx(EDIT_PENALTY * FIRST_LETTER_PENALTY)
    assert prefix.weight == pytest.approx(0.05 * prefix.penalty, rel=1e-5)


def test_an_edit_makes_a_prefix_a_hundred_times_less_probable():
    assert near("helo", 1)["hel"].penalty == pytest.approx(1e-2)  # with an o too many
    assert near("wrlod", 2)["world"].penalty == pytest.approx(1e-4)
    assert near("jello", 1)["hello"].penalty == pytest.approx(1e-3)  # another first letter: ten times less


def test_the_likeliest_come_first():
    rows = EVEN.copy()
    rows[TOKENS.exact.equal_to(b" would")[0]] = np.log(0.5)
    best = corrected_prefixes(TOKENS, b" wolld", rows, 2, limit=2)
    assert [prefix.spelled for prefix in best] == [b" would", b" world"]


def test_any_case_may_be_meant():
    assert near("Hesl", 1).keys() == {"Hel"}
    assert near("Hlep", 1) == {}
    assert near("Hlep", 1, ignore_case=True)["help"].edits == 1


def test_words_of_many_letters_are_left_alone():
    assert not near("h" * 40, 2)


@pytest.mark.parametrize(("letters", "edits", "found"), [(30, 2, 1), (31, 2, 0), (31, 1, 1), (32, 1, 0)])
def test_a_correction_of_a_long_word_has_at_most_as_many_letters_as_are_compared(letters, edits, found):
    word = "abcdefghijklmnopqrstuvwxyz" * 2
    tokens = TokenTrie(WordTokenizer(Vocabulary([word])))
    typed = f" {word[:9]}-{word[10:letters]}".encode()
    assert bool(corrected_prefixes(tokens, typed, np.zeros(4, np.float32), edits)) == found


def test_of_beginnings_with_as_many_edits_the_shortest_stands_for_all():
    """Two letters were left out, or the word was abandoned: "aaab" is two edits from "ab" and from "abcaab"."""
    tokens = TokenTrie(WordTokenizer(Vocabulary(["abcaab"])))
    (one,) = corrected_prefixes(tokens, b" aaab", np.zeros(4, np.float32), 2)
    assert (one.text, one.edits) == ("ab", 2)


@pytest.mark.parametrize(("the", "they"), [(0.5, 0.01), (0.01, 0.5), (0.5, 0.1), (0.3, 0.3)])
def test_of_ways_to_spell_a_correction_the_most_probable_counts(the, they):
    """Each letter that is left as typed has a tenth."""
    tokens = TokenTrie(Pieces([b" the", b" they"]))
    row = np.log(np.array([1e-9, 1e-9, 1e-9, the, they], np.float32))
    (found,) = (p for p in corrected_prefixes(tokens, b" tehyz", row, 1) if p.text == "theyz")
    assert found.weight == pytest.approx(0.01 * max(the * 0.1**2, they * 0.1), rel=1e-4)


def test_without_a_lexicon_tokens_may_spell_a_part_and_the_rest_is_as_typed():
    tokens = TokenTrie(Pieces([b" the", b" cat"]))
    found = {p.text: p for p in corrected_prefixes(tokens, b" tehy", np.full(5, -5.0, np.float32), 1)}
    assert found.keys() == {"they", "thehy"}  # the, and the rest typed
    assert found["they"].weight == pytest.approx(0.01 * np.exp(-5) * 0.1), "a letter has a tenth"


def test_a_correction_is_the_beginning_of_one_word():
    tokens = TokenTrie(Pieces([b" the", b" t,e"]))
    found = corrected_prefixes(tokens, b" tehy", np.full(5, -1.0, np.float32), 1)
    assert {prefix.text for prefix in found} == {"they", "thehy"}  # not "t,ehy"


def random_words(rng, count, letters="abc", longest=7):
    return {"".join(rng.choice(list(letters), rng.integers(1, longest + 1))) for _ in range(count)}


def least_edits(typed, word, most):
    """Fewest edits between the typed letters and a beginning of the word, and the shortest such beginning."""
    distances = [(OSA.distance(typed, word[:size]), size) for size in range(len(word) + 1)]
    edits, size = min(one for one in distances if one[1])
    return (edits, word[:size]) if edits <= most else None


def walk(table, typed, most, *, ties=False, least=-100.0, evidence=None):
    if evidence is None:
        evidence = np.full((len(typed), len(table.numbers)), -np.inf)
        for at, letter in enumerate(typed):
            if letter in table.numbers:
                evidence[at, table.numbers[letter]] = 0.0
    found, scores = np.empty((5000, 4), np.int64), np.empty(5000)
    count = find_beginnings(
        table.letters,
        table.starts,
        table.shared,
        evidence,
        -1.0,
        least,
        most,
        ties,
        False,  # noqa: FBT003
        found,
        scores,
    )
    return [
        (table.words[word][:depth], score)
        for (word, depth, _, _), score in zip(found[:count].tolist(), scores[:count], strict=True)
    ]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("most", [0, 1, 2])
def test_the_walk_finds_what_all_alignments_find(seed, most):
    rng = np.random.default_rng(seed)
    words = random_words(rng, 80)
    table = SortedLetters(words)
    for typed in sorted(random_words(rng, 12, letters="abcd")):
        found = walk(table, typed, most)
        assert len({text for text, _ in found}) == len(found)
        for word in words:
            begun = [score for text, score in found if word.startswith(text)]
            want = least_edits(typed, word, most)
            assert (-max(begun) if begun else None) == (want and want[0]), (typed, word)


def test_each_beginning_is_found_at_its_shortest():
    table = SortedLetters(["help", "helium", "hello"])
    assert walk(table, "helo", 1) == [("hel", -1.0), ("hello", -1.0)][:1]
    assert walk(table, "helo", 1, ties=True) == [
        ("hel", -1.0),
        ("heli", -1.0),
        ("hell", -1.0),
        ("hello", -1.0),
        ("help", -1.0),
    ]


@pytest.mark.parametrize("seed", range(4))
def test_keys_weigh_each_beginning_by_the_product_of_its_letters(seed):
    rng = np.random.default_rng(seed)
    words = random_words(rng, 60, letters="abcdef")
    table, size = SortedLetters(words), 4
    shares = rng.dirichlet(np.ones(6), size)
    keys = [dict(zip("abcdef", row.tolist(), strict=True)) for row in shares]
    evidence = np.array([[log(key[letter]) for letter in table.numbers] for key in keys])
    found = dict(walk(table, "abcd", 0, evidence=evidence))
    assert found.keys() == {word[:size] for word in words if len(word) >= size}
    for text, score in found.items():
        assert score == pytest.approx(sum(log(key[letter]) for key, letter in zip(keys, text, strict=True)))
    few = dict(walk(table, "abcd", 0, evidence=evidence, least=-6.0))
    assert few == {text: score for text, score in found.items() if score >= -6.0}


def best_alignment(word, evidence, numbers, most):
    """Best sum of an alignment of all typed letters with a beginning of a word; an edit costs 1."""

    @functools.cache
    def best(depth, at, edits):
        if edits < 0:
            return -np.inf
        ways = [0.0] if not depth and not at else []
        letter = word[depth - 1] if depth else ""
        if depth and at:
            ways += [
                best(depth - 1, at - 1, edits) + evidence[at - 1, numbers[letter]],
                best(depth - 1, at - 1, edits - 1) - 1,
            ]
        if depth:
            ways.append(best(depth - 1, at, edits - 1) - 1)
        if at:
            ways.append(best(depth, at - 1, edits - 1) - 1)
        if depth > 1 and at > 1:
            swapped = evidence[at - 2, numbers[letter]] + evidence[at - 1, numbers[word[depth - 2]]]
            ways.append(best(depth - 2, at - 2, edits - 1) + swapped - 1)
        return max(ways, default=-np.inf)

    return max(best(depth, len(evidence), most) for depth in range(1, len(word) + 1))


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_keys_and_edits_together_are_the_best_alignment(seed, most):
    rng = np.random.default_rng(seed)
    words = random_words(rng, 40, letters="abcd")
    table = SortedLetters(words)
    for size in (2, 4, 5):
        with np.errstate(divide="ignore"):
            evidence = np.log(np.where(rng.random((size, 4)) < 0.3, 0, rng.dirichlet(np.ones(4), size)))
        found = walk(table, "a" * size, most, evidence=evidence)
        for word in words:
            got = max(
                (score for text, score in found if word.startswith(text)),
                default=-np.inf,
            )
            assert got == pytest.approx(best_alignment(word, evidence, table.numbers, most)), word


THIRDS = [dict.fromkeys(letters, 1 / 3) for letters in ("mno", "def", "jkl", "jkl")]


def test_letters_of_a_number_pad_are_a_third_each():
    found = {p.text: p for p in corrected_prefixes(TOKENS, b" gdkk", EVEN, 0, keys=THIRDS)}
    assert found == {}
    keys = [dict.fromkeys(letters, 1 / 3) for letters in ("ghi", "def", "jkl", "jkl")]
    found = {p.text: p for p in corrected_prefixes(TOKENS, b" gdjj", EVEN, 0, keys=keys)}
    assert found.keys() == {"hell"}
    assert found["hell"].penalty == pytest.approx(3**-4)
    assert found["hell"].weight == pytest.approx(3**-4 * 0.05, rel=1e-5)
    assert found["hell"].edits == 4


def test_letters_before_the_keys_are_certain_and_the_typed_case_counts():
    keys = [{"l": 0.5, "k": 0.5}, {"s": 0.9, "a": 0.1}]
    assert [p.text for p in corrected_prefixes(TOKENS, b" Heka", EVEN, 0, keys=keys)] == ["Hels"]
    assert not corrected_prefixes(TOKENS, b" heka", EVEN, 0, keys=keys)
    capital = [{"h": 0.5, "j": 0.5}, {"e": 1.0}]
    assert [p.text for p in corrected_prefixes(TOKENS, b" Je", EVEN, 0, keys=capital)] == ["He"]
    same = corrected_prefixes(TOKENS, b" Je", EVEN, 0, keys=capital, ignore_case=True)
    assert [p.text for p in same] == ["he"]


def test_words_of_an_interval_weigh_as_those_of_a_row():
    row = np.log(np.random.default_rng(1).dirichlet(np.ones(len(EVEN)))).astype(np.float32)
    for typed in ("hlelo", "wrold", "hapy"):
        spelled = f" {typed}".encode()
        by_row = corrected_prefixes(TOKENS, spelled, row, 2)
        by_interval = corrected_prefixes(TOKENS, spelled, NextWords.of_row(row), 2)
        assert [p.spelled for p in by_row] == [p.spelled for p in by_interval]
        assert [p.weight for p in by_row] == pytest.approx([p.weight for p in by_interval], rel=1e-5)


def test_a_share_is_the_product_of_the_letters():
    keys = [{"a": 0.5, "b": 0.25, "B": 0.25}, {"c": 1.0}]
    exact = letters_meant("xay", keys, ignore_case=False)
    assert exact == [{"x": 1.0}, {"a": 0.5, "b": 0.25, "B": 0.25}, {"c": 1.0}]
    assert share_of("xbc", exact) == 0.25
    assert share_of("xb", exact) == share_of("ybc", exact) == share_of("xbd", exact) == 0.0
    folded = letters_meant("xay", keys, ignore_case=True)
    assert share_of("xbcd", folded) == 0.5


def test_probabilities_of_errors_replace_equal_ones():
    def gains(pairs, edits):
        assert all(own == OSA.distance(*pair) for pair, own in zip(pairs, edits, strict=True))
        return np.array([5.0 if meant == "would" else 0.5 for _, meant in pairs])

    plain = {p.text: p.penalty for p in corrected_prefixes(TOKENS, b" wolld", EVEN, 2)}
    weighted = {p.text: p.penalty for p in corrected_prefixes(TOKENS, b" wolld", EVEN, 2, gains=gains)}
    assert weighted["would"] == pytest.approx(5 * plain["would"])
    assert weighted["world"] == pytest.approx(plain["world"] / 2)


def test_a_lexicon_corrects_words_of_several_pieces():
    """The next piece alone tells nothing about the letters after it."""
    tokenizer = learnt_pieces("bpe")
    words = [word for word in tokenizer.lexicon if len(word) >= 5 and len(tokenizer.encode(word)) >= 3]
    assert words
    tokens, rows = (
        TokenTrie(tokenizer),
        np.full(len(tokenizer.vocabulary), -5.0, np.float32),
    )
    for word, at in itertools.product(words, range(1, 4)):
        typed = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        if typed != word:
            found = corrected_prefixes(tokens, f" {typed}".encode(), rows, 1, limit=50)
            assert any(word.startswith(one.text) for one in found), (word, typed)
