"""The simulated typist before a model whose completions can be worked out by hand."""

import numpy as np
import pytest

from models.tokenizers import CharacterTokenizer, WordTokenizer
from models.vocabulary import BOS, EOS, UNK, Vocabulary
from tests.fakes import FakeModel
from tests.remembering import RememberingModel
from training.evaluation.autocomplete import Typist, typing_line
from training.evaluation.autocomplete_metrics import Ranks, ratios
from training.progress import SILENT
from training.tokenizer import TokenizerSettings, learn_tokenizer

SHARES = {"the": 0.4, "then": 0.2, "they": 0.1, "cat": 0.15, "car": 0.05}


def steady(shares):
    """A word model that expects the same words everywhere, and a line's end with what is left."""
    tokenizer = WordTokenizer(Vocabulary(shares))
    model = FakeModel(tokenizer.vocabulary)
    row = np.full(len(tokenizer.vocabulary), -np.inf)
    for word, share in shares.items():
        row[tokenizer.vocabulary.id_of(word)] = np.log(share)
    row[EOS] = np.log(1 - sum(shares.values()))
    model.table = np.tile(row.astype(np.float32), (len(row) + 1, 1))
    return model, tokenizer


def looks(model, tokenizer, *texts):
    lines = [typing_line(tokenizer, text) for text in texts]
    return Typist(model, tokenizer).type_lines(lines, progress=SILENT)


def test_ranks_are_those_among_words_that_begin_as_typed():
    (typed,) = looks(*steady(SHARES), "they cat car")
    assert [[look.rank for look in of_word] for of_word in typed.completion_ranks] == [
        [4, 3, 3, 3],
        [3, 1, 1],
        [5, 2, 2],
    ]


def test_savings_of_a_line_worked_out_by_hand():
    """13 keys; three shown: t-they 2, cat 1, c-car 2; one shown: they and a space 5, c-cat 2, car and its end 4."""
    told = ratios(Ranks.of(looks(*steady(SHARES), "they cat car")))
    values = {
        name: ratio.numerator.sum() / ratio.denominator.sum()
        for name, ratio in told.items()
        if ratio.denominator.sum()
    }
    expected = {
        "keystroke_savings_top_1": 2 / 13,
        "keystroke_savings_top_3": 8 / 13,
        "next_word_recall_top_1": 0,
        "next_word_recall_top_3": 1 / 3,
        "next_word_mrr": (1 / 4 + 1 / 3 + 1 / 5) / 3,
        "mrr": (1 / 4 + 3 / 3 + 1 / 3 + 2 + 1 / 5 + 2 / 2) / 10,
        "mean_recoverable_length_top_1": 2 / 3,
        "mean_recoverable_length_top_3": 8 / 3,
        "phrase_match_1": 0,
        "phrase_match_2": 0,
        "phrase_match_3": 0,
    }
    assert values == pytest.approx(expected)


def test_the_first_completions_probability_is_given_what_was_typed():
    (typed,) = looks(*steady(SHARES), "they")
    assert [look.probability for look in typed.completion_ranks[0]] == pytest.approx([4 / 9] + [4 / 7] * 3)


def test_unknown_words_are_typed_in_full_and_marks_never_shown():
    model, tokenizer = steady({"<unk>": 0.5, "cat": 0.3})
    (typed,) = looks(model, tokenizer, "cow <unk> cat")
    assert [[look.rank for look in of_word] for of_word in typed.completion_ranks] == [[0, 0, 0], [1, 1, 1]]


def cyclic_characters():
    """Characters of which each is followed by the next of "abab…" or a space."""
    tokenizer = CharacterTokenizer(Vocabulary("ab ."))
    model = FakeModel(tokenizer.vocabulary)
    _, a, b, space, stop = (tokenizer.vocabulary.id_of(c) for c in "\0ab .")
    p = np.zeros((8, 7))
    p[:, [a, b, space, EOS]] = 0.25
    p[a, [a, b, space, EOS, stop]] = [0, 0.6, 0.2, 0.1, 0.1]
    p[b, [a, b, space, EOS, stop]] = [0.1, 0, 0.7, 0.1, 0.1]
    p[space, [a, b, space, EOS, stop]] = [0.7, 0.3, 0, 0, 0]
    assert p[UNK].sum() == p[BOS].sum() == 1
    with np.errstate(divide="ignore"):
        model.table = np.log(p).astype(np.float32)
    return model, tokenizer


def test_characters_are_completed_to_words_up_to_punctuation():
    """After a space: "ab" 0.7·0.6·0.9, "a" 0.7·0.4, "b" 0.3·0.9, "ba" 0.3·0.1·0.4, …; the full stop ends a word."""
    (typed,) = looks(*cyclic_characters(), "a b. ab")
    assert [[look.rank for look in of_word] for of_word in typed.completion_ranks][1:] == [[3], [1, 1]]
    assert typed.completion_ranks[2][0].probability == pytest.approx(0.7 * 0.6 * 0.9, abs=1e-4)
    assert [word.spaced for word in typed.line.words] == [True, False, True]


TEXT = ["the cat sat on the mat .", "a cat , the cat ran", "they don't see the well-known house", "the"]


def tokenizers():
    pieces = TokenizerSettings(kind="bpe", vocab_size=60, byte_fallback=False)
    return {
        "words": WordTokenizer(Vocabulary(["the", "cat", "sat", "they", "a", "mat", "house", "see"])),
        "characters": CharacterTokenizer(Vocabulary(sorted(set("".join(TEXT))))),
        "pieces": learn_tokenizer(pieces, TEXT, progress=SILENT),
    }


@pytest.mark.parametrize("kind", ["words", "characters", "pieces"])
def test_lines_typed_side_by_side_are_as_typed_alone(kind):
    tokenizer = tokenizers()[kind]
    model = FakeModel(tokenizer.vocabulary, seed=3)
    typist = Typist(model, tokenizer)
    for typed in looks(model, tokenizer, *TEXT):
        alone = list(typist.type_line(typed.line, model.initial_state(1)))
        together = [look for of_word in typed.completion_ranks for look in of_word]
        assert [look.rank for look in together] == [look.rank for look in alone]
        assert [look.probability for look in together] == pytest.approx([look.probability for look in alone])


def test_ranks_equal_those_by_going_through_all_words():
    tokenizer = tokenizers()["words"]
    model = FakeModel(tokenizer.vocabulary, seed=5)
    words = tokenizer.vocabulary.tokens[3:]
    for typed in looks(model, tokenizer, *TEXT):
        for word, of_word in zip(typed.line.words, typed.completion_ranks, strict=True):
            last = [BOS, *tokenizer.encode(typed.line.text[: word.begin])][-1]
            spelled = typed.line.text[word.begin : word.end]
            for letters, look in enumerate(of_word):
                fitting = [w for w in words if w.startswith(spelled[:letters])]
                fitting.sort(key=lambda w: -model.table[last, tokenizer.vocabulary.id_of(w)])
                assert look.rank == (fitting.index(spelled) + 1 if spelled in fitting else 0)


def test_case_does_not_count_where_the_tokenizer_lower_cases():
    tokenizer = WordTokenizer(Vocabulary(["the", "cat"]), lowercase=True)
    (typed,) = looks(FakeModel(tokenizer.vocabulary), tokenizer, "The CAT")
    assert all(look.rank > 0 for of_word in typed.completion_ranks for look in of_word)
    assert [of_word[-1].rank for of_word in typed.completion_ranks] == [1, 1]


@pytest.mark.parametrize("kind", ["words", "characters"])
def test_what_is_first_stays_first_while_more_of_it_is_typed(kind):
    """All other words that go on likewise are fewer with each letter; so long as nothing was cut away."""
    tokenizer = tokenizers()[kind]
    for typed in looks(FakeModel(tokenizer.vocabulary), tokenizer, *TEXT):
        for word, of_word in zip(typed.line.words, typed.completion_ranks, strict=True):
            ranks = [look.rank for look in of_word]
            assert len(ranks) == word.num_letters
            assert 1 not in ranks or set(ranks[ranks.index(1) :]) == {1}


def test_a_line_of_a_stream_begins_where_the_one_before_ended():
    tokenizer = tokenizers()["words"]
    model = RememberingModel(tokenizer.vocabulary)
    lines = [typing_line(tokenizer, text) for text in ("the cat", "a mat", "see")]
    starts = list(Typist(model, tokenizer, carries_state=True).starts(lines))
    ids = [tokenizer.encode(line.text) for line in lines]
    assert starts[2].texts == [(BOS, *ids[0], EOS, BOS, *ids[1], EOS, BOS)]
    assert [start.texts for start in Typist(model, tokenizer).starts(lines)] == [[(BOS,)]] * 3
    typed = Typist(model, tokenizer, carries_state=True).type_lines(lines, progress=SILENT)
    assert [one.line for one in typed] == lines
    assert starts[2].texts[0] in model.asked
