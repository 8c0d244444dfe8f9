"""Models over different words under one vocabulary."""

import numpy as np
import pytest

from models.errors import InvalidInputError
from models.tokenizers import CharacterTokenizer, WordTokenizer
from models.vocabulary import BOS, EOS, UNK, Vocabulary
from tests import backoff
from training.static_mixture import id_translation, remap, union_tokenizer


def words(*tokens, **rules):
    return WordTokenizer(Vocabulary(tokens), **rules)


def test_the_union_has_the_first_parts_words_and_then_what_the_others_add():
    joined = union_tokenizer([("a", words("x", "y")), ("b", words("z", "y")), ("c", words("x"))])
    assert joined.vocabulary.tokens[3:] == ("x", "y", "z")


def test_the_rules_of_the_parts_are_kept():
    rules = {"pattern": r"\w+", "lowercase": True, "marked_unknown": "unknown"}
    joined = union_tokenizer([("a", words("x", **rules)), ("b", words("z", **rules))])
    assert {k: v for k, v in joined.settings().items() if k != "tokens"} == rules


def test_parts_that_add_nothing_leave_the_first_tokenizer():
    first = words("x", "y")
    assert union_tokenizer([("a", first), ("b", words("y"))]) is first
    characters = CharacterTokenizer(Vocabulary("xy"))
    assert union_tokenizer([("a", characters), ("b", CharacterTokenizer(Vocabulary("xy")))]) is characters


def test_rules_that_differ_are_named():
    with pytest.raises(
        InvalidInputError, match=r"of a@1 \(word\) and b@2 \(word\) .*: lowercase is False in one and True"
    ):
        union_tokenizer([("a@1", words("x")), ("b@2", words("x", lowercase=True))])


@pytest.mark.parametrize("other", [words("x"), CharacterTokenizer(Vocabulary("xz"))])
def test_only_word_tokenizers_can_be_joined(other):
    with pytest.raises(InvalidInputError, match=r"b has another tokenizer \((word|char)\) than a \(char\)"):
        union_tokenizer([("a", CharacterTokenizer(Vocabulary("xy"))), ("b", other)])


def test_translation_keeps_control_tokens_and_makes_strangers_unknown():
    ids = id_translation(Vocabulary(["x", "y"]), Vocabulary(["y", "<s>"]))
    assert ids.tolist() == [UNK, BOS, EOS, UNK, 3]


@pytest.mark.parametrize("seed", range(6))
def test_a_model_moved_to_a_larger_vocabulary_says_the_same_of_its_words(seed):
    model = backoff.random_model(seed, order=4)
    ids = np.array([0, 1, 2, *np.random.default_rng(seed).permutation(np.arange(3, 11))[:5]], np.int32)
    moved = backoff.from_orders(remap(backoff.to_orders(model), ids, 11))
    assert len(moved.probs) == len(model.probs) + 3
    for ngram in model.probs:
        there = tuple(ids[list(ngram)].tolist())
        assert moved.probs[there] == pytest.approx(model.probs[ngram], rel=1e-6)
        assert moved.backoffs.get(there, 1.0) == pytest.approx(model.backoffs.get(ngram, 1.0), rel=1e-6)


def test_words_that_a_model_does_not_have_are_impossible_and_empty_the_context():
    model = backoff.random_model(0)
    ids = np.array([0, 1, 2, 4, 5, 6, 7, 8], np.int32)
    moved = backoff.from_orders(remap(backoff.to_orders(model), ids, 9))
    assert moved.probability(3, (4,)) == 0
    assert moved.row((4, 3)) == pytest.approx(moved.row(()))
