"""The split of a text into tokenized prefix and unfinished word; near-miss prefixes."""

import time

import numpy as np
import pytest
from rapidfuzz.distance import OSA

from models.completion.prefix import (
    EDIT_PENALTY,
    FIRST_LETTER_PENALTY,
    MAX_TAKEN_BYTES,
    corrected_prefixes,
    join_words,
    needs_space,
    split_prefix,
    take_back,
)
from models.completion.token_trie import LetterTable, TokenTrie
from models.language_model import Vocabulary
from models.tokenizers import CharacterTokenizer, WordTokenizer
from tests.reference.decoding import Pieces
from tests.support.text_models import learnt_pieces, spelled_pieces

WORDS = Vocabulary(["the", "cat"])
PATTERN = r"\w+|[^\w\s]"


@pytest.fixture(scope="module")
def pieces():
    return learnt_pieces("unigram")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("", "", 0, b" ", False)),
        ("th", ("", "th", 0, b" th", False)),
        ("the cat", ("the", "cat", 4, b" cat", False)),
        ("the cat ", ("the cat", "", 8, b" ", False)),
        ("the cat,", ("the cat,", "", 8, b" ", True)),
        ("the  cat", ("the", "cat", 5, b" cat", False)),
        ("the\ncat", ("the", "cat", 4, b" cat", False)),
        ("   ", ("", "", 3, b" ", False)),
        ("  ca", ("", "ca", 2, b" ca", False)),
        ("(", ("(", "", 1, b"", False)),
        ("(ca", ("(", "ca", 1, b"ca", False)),
        ("the 'ca", ("the '", "ca", 5, b"ca", False)),
        ("don'", ("", "don'", 0, b" don'", False)),
        ("hi 😀", ("hi 😀", "", 4, b" ", True)),
        ("😀 ca", ("😀", "ca", 2, b" ca", False)),
        ("cafe\u0301", ("", "cafe\u0301", 0, " cafe\u0301".encode(), False)),
        ("זה חת", ("זה", "חת", 3, " חת".encode(), False)),
    ],
)
def test_pieces_carry_the_space_before_a_word(pieces, text, expected):
    assert split_prefix(pieces, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("", "", 0, b"", False)),
        ("the ca", ("the ", "ca", 4, b"ca", False)),
        ("the ", ("the ", "", 4, b"", False)),
        ("the,", ("the,", "", 4, b" ", True)),
        ("the (", ("the (", "", 5, b"", False)),
    ],
)
def test_characters_carry_no_space(text, expected):
    assert split_prefix(CharacterTokenizer(Vocabulary("the ca")), text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("", "", 0, b" ", False)),
        ("the ca", ("the", "ca", 4, b" ca", False)),
        ("the ca ", ("the ca", "", 7, b" ", False)),
        ("the ca,", ("the", "ca,", 4, b" ca,", False)),
        ("  ", ("", "", 2, b" ", False)),
    ],
)
def test_words_between_white_space(text, expected):
    assert split_prefix(WordTokenizer(WORDS), text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the ca", ("the", "ca", 4, b" ca", False)),
        ("the,", ("the,", "", 4, b" ", True)),
        ("the (", ("the (", "", 5, b" ", False)),
        ("the '", ("the '", "", 5, b" ", False)),
        ("the,ca", ("the,", "ca", 4, b" ca", False)),
        ("İ İST", ("İ", "İST", 2, " i\u0307st".encode(), False)),
    ],
)
def test_words_of_a_pattern(text, expected):
    """A match that another letter would not extend is not the start of a word."""
    pattern = r"[\w\u0307]+|[^\w\s]"
    assert split_prefix(WordTokenizer(WORDS, pattern=pattern, lowercase=True), text) == expected


@pytest.mark.parametrize(
    ("text", "brings"),
    [
        ("end.", True),
        ("a)", True),
        ("a (", False),
        ("say \u201c", False),
        ("say\u201d", True),
        ('say "', False),
        ('say"', True),
        ('("', False),
        ("and/", False),
        ("x -", False),
        ("word\u2014", False),
        ("word \u2014", True),
        ("$", False),
        ("好。", False),
        ("end.\t", False),
        ("see `", False),
        ("see ``", False),
        ("`len`", True),
    ],
)
def test_completions_bring_a_space_where_one_is_missing(pieces, text, brings):
    for tokenizer in (pieces, WordTokenizer(WORDS, pattern=PATTERN)):
        assert split_prefix(tokenizer, text).space is brings


@pytest.mark.parametrize("text", ["it doesn'", "it doesn\u2019", "l'", "well-", "2-"])
def test_a_sign_that_joins_words_brings_no_space(text):
    assert not split_prefix(WordTokenizer(WORDS, pattern=PATTERN), text).space


@pytest.mark.parametrize(
    ("text", "following", "expected"),
    [
        ("value (", ")", False),
        ("value)", ")", False),
        ("value)", ",", False),
        ("value)", ".", False),
        ("value)", ":", False),
        ("why)", "?", False),
        ("50", "%", False),
        ("list", ",", False),
        ("list ", ",", False),
        ("\u201cyes.", "\u201d", False),
        ("\u00aboui", "\u00bb", False),
        ("\u597d)", "\u3002", False),
        ('a "word', '"', False),
        ("a `word", "`", False),
        ("doesn", "'", False),
        ("value)", "word", True),
        ("value)", "(", True),
        ("value)", "=", True),
        ("value)", "-", True),
        ("R)", "&", True),
        ('say "a" and', '"', True),
        ("end.", "\u201c", True),
        ("end.", "\u00bf", True),
        ("see", "@", True),
        ("C+", "+", False),
        ("a =", "=", False),
        ("a =", "-", True),
        ("a", "a", True),
        ("", ",", False),
    ],
)
def test_a_space_comes_before_words_and_not_before_punctuation(text, following, expected):
    assert needs_space(text, following) is expected


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [
        ("t exist .", "t exist."),
        ("it doesn ' t", "it doesn't"),
        ("it doesn \u2019 t", "it doesn\u2019t"),
        ("list , and", "list, and"),
        ("f ( x )", "f (x)"),
        ('a " word " now', 'a "word" now'),
        ("b - c", "b-c"),
        ("R & D", "R & D"),
        ("one two three", "one two three"),
        ("word", "word"),
    ],
)
def test_phrases_have_spaces_only_where_they_belong(phrase, expected):
    assert join_words(phrase) == expected


def test_lone_surrogate_stays_in_the_prefix():
    assert split_prefix(WordTokenizer(WORDS), "a\ud800").prefix == "a\ud800"


@pytest.mark.parametrize("text", ["word " * 20_000, "x" * 100_000, "x, " * 33_333 + "y", " " * 100_000])
def test_long_texts_are_cut_fast(pieces, text):
    for tokenizer in pieces, WordTokenizer(WORDS, pattern=PATTERN, lowercase=True), WordTokenizer(WORDS):
        begun = time.thread_time()
        split_prefix(tokenizer, text)
        assert time.thread_time() - begun < 0.5


def test_long_run_without_spaces_is_split_into_context_and_prefix(pieces):
    typed = split_prefix(pieces, "漢" * 100)
    assert (len(typed.context), len(typed.prefix), typed.start) == (36, 64, 36)
    assert typed.spelled == typed.prefix.encode()


@pytest.mark.parametrize(
    ("tokenizer", "text", "expected"),
    [
        (
            WordTokenizer(WORDS, normalise="nfc"),
            "e\u0301 cafe\u0301",
            ("e\u0301", "café", 3, " café".encode(), False),
        ),
        (
            WordTokenizer(WORDS, pattern=PATTERN, normalise="nfc"),
            "e\u0301 cafe\u0301",
            ("e\u0301", "café", 3, " café".encode(), False),
        ),
        (
            WordTokenizer(WORDS, pattern=PATTERN, normalise="nfkc"),
            "\ufb01, \ufb01",
            ("\ufb01,", "fi", 3, b" fi", False),
        ),
        (
            WordTokenizer(WORDS, normalise="casefold"),
            "Stra\u00dfe E\u0301T",
            ("Stra\u00dfe", "ÉT", 7, " ét".encode(), False),
        ),
        (
            WordTokenizer(WORDS, normalise="nfkc"),
            "a\u00a8b",
            ("", "a \u0308b", 0, " a \u0308b".encode(), False),
        ),
        (
            CharacterTokenizer(WORDS, normalise="nfc"),
            "le cafe\u0301",
            ("le ", "café", 3, "café".encode(), False),
        ),
        (
            CharacterTokenizer(WORDS, normalise="casefold"),
            "le CAFE\u0301",
            ("le ", "CAFÉ", 3, "café".encode(), False),
        ),
    ],
)
def test_the_beginning_of_a_word_is_composed(tokenizer, text, expected):
    """The start is a position in the text as given."""
    assert split_prefix(tokenizer, text) == expected


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_pieces_of_a_beginning_are_composed(kind):
    pieces = learnt_pieces(kind, normalise="nfc")
    assert split_prefix(pieces, "the cafe\u0301") == ("the", "café", 4, " café".encode(), False)
    assert take_back(pieces, TokenTrie(pieces), "the cafe\u0301") == take_back(
        pieces, TokenTrie(pieces), "the café"
    )


def test_a_tokenizer_that_normalises_is_heeded():
    assert split_prefix(learnt_pieces("unigram", normalization="nmt_nfkc_cf"), "ﬁT").spelled == b" fit"


NEAR_WORDS = ["hello", "help", "Helsinki", "world", "would", "the", "then", "happy", "un\ud7ffi"]
TOKENS = TokenTrie(WordTokenizer(Vocabulary(NEAR_WORDS)))
EVEN = np.full(len(TOKENS.token_bytes), np.log(0.05), np.float32)


def near(typed, edits, **options):
    return {
        p.spelled.decode()[1:]: p
        for p in corrected_prefixes(TOKENS, f" {typed}".encode(), EVEN, edits, **options)
    }


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("hlelo", "hello"), ("helo", "help"), ("wrold", "world"), ("hte", "the"), ("hapy", "happ")],
)
def test_one_mistake_is_seen(typed, meant):
    assert near(typed, 1)[meant].edits == 1


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
    assert near("helo", 1)["help"].penalty == pytest.approx(1e-2)
    assert near("wrlod", 2)["world"].penalty == pytest.approx(1e-4)
    assert near("jello", 1)["hello"].penalty == pytest.approx(1e-3)  # another first letter: ten times less


def test_the_likeliest_come_first():
    rows = EVEN.copy()
    rows[TOKENS.exact.equal_to(b" would")[0]] = np.log(0.5)
    best = corrected_prefixes(TOKENS, b" wolld", rows, 2, limit=2)
    assert [prefix.spelled for prefix in best] == [b" would", b" world"]


def test_any_case_may_be_meant():
    assert "hels" not in near("hesl", 1)
    assert near("hesl", 1, ignore_case=True)["hels"].edits == 1


def test_words_of_many_letters_are_left_alone():
    assert not near("h" * 40, 2)


@pytest.mark.parametrize(("letters", "edits", "found"), [(30, 2, 1), (31, 2, 0), (31, 1, 1), (32, 1, 0)])
def test_a_correction_of_a_long_word_has_at_most_as_many_letters_as_are_compared(letters, edits, found):
    word = "abcdefghijklmnopqrstuvwxyz" * 2
    tokens = TokenTrie(WordTokenizer(Vocabulary([word])))
    typed = f" {word[:9]}-{word[10:letters]}".encode()
    assert len(corrected_prefixes(tokens, typed, np.zeros(4, np.float32), edits)) == found


def test_of_beginnings_with_as_many_edits_the_longer_is_meant():
    """Two letters were left out, or the word was abandoned: "aaab" is two edits from "ab" and from "abcaab"."""
    tokens = TokenTrie(WordTokenizer(Vocabulary(["abcaab"])))
    (one,) = corrected_prefixes(tokens, b" aaab", np.zeros(4, np.float32), 2)
    assert (one.text, one.edits) == ("abcaab", 2)


@pytest.mark.parametrize(("the", "they"), [(0.5, 0.01), (0.01, 0.5), (0.5, 0.1), (0.3, 0.3)])
def test_of_ways_to_spell_a_correction_the_most_probable_counts(the, they):
    """Each letter that is left as typed has a tenth."""
    tokens = TokenTrie(Pieces([b" the", b" they"]))
    row = np.log(np.array([1e-9, 1e-9, 1e-9, the, they], np.float32))
    (found,) = (p for p in corrected_prefixes(tokens, b" tehyz", row, 1) if p.text == "theyz")
    assert found.weight == pytest.approx(0.01 * max(the * 0.1**2, they * 0.1), rel=1e-4)


def test_pieces_may_spell_a_part_and_the_rest_is_as_typed():
    tokens = spelled_pieces("bpe")
    rows = np.full(len(learnt_pieces("bpe").vocabulary), -5.0, np.float32)
    found = {p.spelled.decode(): p for p in corrected_prefixes(tokens, b" tehy", rows, 1, limit=50)}
    assert " they" in found, "the, and the y typed"
    assert found[" they"].weight == pytest.approx(0.01 * np.exp(-5) * 0.1), "a letter has a tenth"


def test_a_correction_is_the_beginning_of_one_word():
    tokens = TokenTrie(Pieces([b" the", b" t,e"]))
    found = corrected_prefixes(tokens, b" tehy", np.full(5, -1.0, np.float32), 1)
    assert [prefix.text for prefix in found] == ["they"]  # not "t,ehy"


def test_distances_are_those_of_optimal_string_alignment():
    random = np.random.default_rng(0)
    texts = ["".join(random.choice(list("ab"), random.integers(1, 8))) for _ in range(60)]
    table = LetterTable(range(60), texts)
    for word in texts[:20]:
        distances = table.distances(word, 2)
        for i, j, token in np.ndindex(*distances.shape):
            expected = min(OSA.distance(word[:i], texts[token][:j]), 3)
            if j <= len(texts[token]):
                assert distances[i, j, token] == expected


@pytest.mark.parametrize(
    ("text", "kept", "taken"),
    [
        ("the ca", "the", b" ca"),
        ("the cat", "the", b" cat"),
        ("the cat ", "the cat", b" "),
        ("the", "", b" the"),
        ("the dog", "the dog", b""),  # no word begins so
        ("the 'c", "the 'c", b""),  # a quotation mark belongs to the word, unless there is a pattern
    ],
)
def test_a_word_that_may_go_on_is_taken_back(text, kept, taken):
    words = WordTokenizer(WORDS)
    assert take_back(words, TokenTrie(words), text) == (words.encode(kept), taken)


@pytest.mark.parametrize(
    "text", ["the ca", "the cat", "the cat ", "t", "naïve", "the cat:", "x" * 99, "漢字"]
)
def test_pieces_are_taken_back_to_the_last_space(pieces, text):
    kept, taken = take_back(pieces, TokenTrie(pieces), text)
    spelled = b"".join(pieces.token_bytes[token] for token in kept) + taken
    assert spelled == f" {text}".encode()
    assert 0 < len(taken) <= MAX_TAKEN_BYTES
    assert taken.startswith(b" ") or len(taken) > MAX_TAKEN_BYTES - 8
    assert taken.count(b" ") <= 1


def test_an_unknown_character_is_not_taken_back():
    characters = CharacterTokenizer(Vocabulary("ab"))
    ids, taken = take_back(characters, TokenTrie(characters), "aéb")
    assert (len(ids), taken) == (2, b"b")
