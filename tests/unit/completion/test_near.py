"""Prefixes that may have been meant."""

import numpy as np
import pytest
from rapidfuzz.distance import OSA

from models.completion.prefix import EDIT_PENALTY, FIRST_LETTER_PENALTY, corrected_prefixes
from models.completion.text import LetterTable
from models.completion.token_trie import TokenTrie
from models.tokenizers import WordTokenizer
from models.vocabulary import Vocabulary
from tests.completion_pieces import learnt_pieces, spelled_pieces

WORDS = ["hello", "help", "Helsinki", "world", "would", "the", "then", "happy", "un\ud7ffi"]
TOKENS = TokenTrie(WordTokenizer(Vocabulary(WORDS)))
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


def test_pieces_may_spell_a_part_and_the_rest_is_as_typed():
    tokens = spelled_pieces("bpe")
    rows = np.full(len(learnt_pieces("bpe").vocabulary), -5.0, np.float32)
    found = {p.spelled.decode() for p in corrected_prefixes(tokens, b" tehy", rows, 1, limit=50)}
    assert " they" in found, "the, and the y typed"


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
