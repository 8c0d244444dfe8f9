"""Every smoothing on toy and minimal corpora against hand-computed values."""

import math
from typing import get_args

import numpy as np
import pytest

from models.errors import InputError
from models.kernels.threads import THREADS
from models.language_model import BOS, EOS, UNK, Vocabulary
from models.ngram.model import NGramState
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import evaluate
from training.ngram.estimate import SmoothingName, estimate, make_smoothing
from training.progress import Progress

VOCABULARY = Vocabulary(["i", "love", "cats", "dogs", "chase", "mice"])


def corpus_of(*lines):
    return EncodedCorpus.from_sentences([[VOCABULARY.id_of(word) for word in line.split()] for line in lines])


CORPUS = corpus_of("i love cats", "i love dogs", "cats chase mice")


def model_of(name, *, order, held_out=None, **settings):
    smoothing = make_smoothing(name, **settings)
    result = estimate(
        CORPUS, VOCABULARY, order=order, smoothing=smoothing, held_out=held_out, progress=Progress()
    )
    return result.model


def p(model, word, context=""):
    """Probability of a word after a context, which may begin with `<s>`."""
    state = model.empty_state(1)
    for w in context.split():
        state = model.advance(state, np.array([BOS if w == "<s>" else VOCABULARY.id_of(w)]))
    number = {"<unk>": UNK, "</s>": EOS}.get(word)
    row = model.next_log_probs(state)[0]
    return math.exp(row[VOCABULARY.id_of(word) if number is None else number])


@pytest.mark.parametrize(
    ("word", "context", "expected"),
    [
        ("i", "<s>", 2 / 3),
        ("love", "<s> i", 1),
        ("cats", "i love", 1 / 2),
        ("</s>", "love cats", 1),
        ("chase", "love cats", 0),
        ("mice", "i love", 0),
        ("i", "", 2 / 12),
        ("<unk>", "", 0),
        ("i", "mice mice", 0),  # unseen, so the context «mice» decides, followed only by </s>
        ("</s>", "mice mice", 1),
        ("i", "mice </s>", 2 / 12),  # nothing follows </s>, so unigrams decide
    ],
)
def test_maximum_likelihood_is_relative_frequency(word, context, expected):
    assert p(model_of("mle", order=3), word, context) == pytest.approx(expected, rel=1e-6, abs=0)


def test_maximum_likelihood_finds_a_new_sentence_impossible():
    result = evaluate(model_of("mle", order=3), corpus_of("i love mice"), progress=Progress())
    assert result.logprob == -math.inf
    assert result.perplexity is None  # infinite


def test_maximum_likelihood_of_a_sentence_of_the_text():
    """p(i|<s>) p(love|<s> i) p(cats|i love) p(</s>|love cats) = 2/3 · 1 · 1/2 · 1."""
    result = evaluate(model_of("mle", order=3), corpus_of("i love cats"), progress=Progress())
    assert result.logprob == pytest.approx(math.log(1 / 3), rel=1e-6)
    assert result.perplexity == pytest.approx(3 ** (1 / 4), rel=1e-6)


@pytest.mark.parametrize(
    ("word", "context", "expected"),
    [
        ("i", "<s>", (2 + 1) / (3 + 8)),
        ("<unk>", "<s>", 1 / (3 + 8)),
        ("cats", "love", (1 + 1) / (2 + 8)),
        ("mice", "love", 1 / (2 + 8)),
        ("mice", "</s>", 1 / 8),
    ],
)
def test_laplace_counts_every_word_once_more(word, context, expected):
    assert p(model_of("laplace", order=2), word, context) == pytest.approx(expected, rel=1e-6)


def test_add_k_of_single_words():
    model = model_of("add-k", order=1, k=0.5)
    assert p(model, "i") == pytest.approx((2 + 0.5) / (12 + 0.5 * 8), rel=1e-6)
    assert p(model, "<unk>") == pytest.approx(0.5 / (12 + 0.5 * 8), rel=1e-6)


def test_additive_smoothing_does_not_ask_shorter_contexts():
    """«dogs love» is unseen and «love» is not used instead; nor is «love» alone in a model of order 3."""
    model = model_of("laplace", order=3)
    assert p(model, "cats", "dogs love") == pytest.approx(1 / 8, rel=1e-6)
    assert p(model, "cats", "love") == pytest.approx(1 / 8, rel=1e-6)
    assert p(model, "cats", "i love") == pytest.approx((1 + 1) / (2 + 8), rel=1e-6)
    assert p(model, "i", "<s>") == pytest.approx((2 + 1) / (3 + 8), rel=1e-6)


def test_witten_bell_mixes_by_the_number_of_kinds():
    """2 types start a sentence, the text has 7 types, and the lowest order is uniform, 1/8."""
    lower = (2 + 7 * 1 / 8) / (12 + 7)
    model = model_of("witten-bell", order=2)
    assert p(model, "i", "<s>") == pytest.approx((2 + 2 * lower) / (3 + 2), rel=1e-6)
    assert p(model, "love", "<s>") == pytest.approx(2 * lower / (3 + 2), rel=1e-6)


def test_absolute_discounting_takes_the_same_from_every_count():
    """n₁ = 3 words, n₂ = 3 words: D = 3/9, taken from 7 words."""
    model = model_of("absolute", order=1)
    freed = 7 * (1 / 3) / 12
    assert p(model, "i") == pytest.approx((2 - 1 / 3) / 12 + freed / 8, rel=1e-6)
    assert p(model, "<unk>") == pytest.approx(freed / 8, rel=1e-6)


def test_kneser_ney_counts_the_different_words_before():
    """</s> follows 3 words, «cats» 2, the other five words 1 each: n₁ = 5, n₂ = 1, D = 5/7."""
    model = model_of("kneser-ney", order=2)
    freed = 7 * (5 / 7) / 10
    assert p(model, "cats") == pytest.approx((2 - 5 / 7) / 10 + freed / 8, rel=1e-6)
    assert p(model, "i") == pytest.approx((1 - 5 / 7) / 10 + freed / 8, rel=1e-6)


def test_modified_kneser_ney_falls_back_on_constant_discounts():
    """No word has a fourth count, so counts 1, 2 and 3 get the discounts ½, 1 and 3/2."""
    model = model_of("modified-kneser-ney", order=2)
    freed = (5 * 0.5 + 1 + 1.5) / 10
    assert p(model, "cats") == pytest.approx((2 - 1) / 10 + freed / 8, rel=1e-6)
    assert p(model, "</s>") == pytest.approx((3 - 1.5) / 10 + freed / 8, rel=1e-6)


def test_good_turing_gives_what_it_frees_to_words_never_seen():
    """Too little data for an estimate: half a count is taken from each of 7 words, all for <unk>."""
    model = model_of("good-turing", order=2)
    assert p(model, "<unk>") == pytest.approx(3.5 / 12, rel=1e-6)
    assert p(model, "i") == pytest.approx(1.5 / 12, rel=1e-6)
    # after <s>, 1 of 3 is freed for all words except «i» and «cats», whose unigram shares are 1.5/12 each
    assert p(model, "i", "<s>") == pytest.approx(1.5 / 3, rel=1e-6)
    assert p(model, "love", "<s>") == pytest.approx((1 / 3) * (1.5 / 12) / (9 / 12), rel=1e-6)


def test_jelinek_mercer_mixes_with_the_weight_that_held_out_text_likes_best():
    """8 of 9 held-out words are known, each with frequency q = 1/4; the lowest order is uniform, u = 1/7.

    λ solves 8 (q − u) / (λ q + (1 − λ) u) = 1 / (1 − λ).
    """
    q, u = 1 / 4, 1 / 7
    result = estimate(
        EncodedCorpus.from_sentences([[3, 4, 5]]),
        Vocabulary(["a", "b", "c", "never", "nor this"]),
        order=1,
        smoothing=make_smoothing("jelinek-mercer"),
        held_out=EncodedCorpus.from_sentences([[3, 4, 5, 3, 4, 5, 3, 0]]),
        progress=Progress(),
    )
    assert result.facts["lambdas"] == pytest.approx([(8 * (q - u) - u) / (9 * (q - u))], abs=1e-4)


NAMES = get_args(SmoothingName)
TWO_WORDS = Vocabulary(["a", "b"])

TEXTS = {
    "one sentence": [[3, 4, 3]],
    "one word": [[3]],
    "only unknown words": [[UNK, UNK], [UNK]],
    "only empty sentences": [[], []],
    "one word again and again": [[3] * 50],
    "every word after every word": [[0, 0, 3, 0, 4, 3, 3, 4, 4, 0], [3], [4], []],
}


def estimated(name, texts, *, order=3, vocabulary=TWO_WORDS, **settings):
    corpus = EncodedCorpus.from_sentences(texts)
    return estimate(
        corpus,
        vocabulary,
        order=order,
        smoothing=make_smoothing(name, **settings),
        held_out=corpus,
        progress=Progress(),
    )


@pytest.mark.parametrize("order", [1, 2, 3, 20])
@pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("name", NAMES)
def test_every_row_sums_to_one(name, texts, order):
    model = estimated(name, texts, order=order).model
    states = NGramState(np.arange(model.automaton.num_states, dtype=np.int32))
    total = np.exp(model.next_log_probs(states), dtype=np.float64).sum(axis=1)
    assert total == pytest.approx(np.ones(len(total)), abs=1e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "mle"])
def test_every_word_is_possible_everywhere(name):
    model = estimated(name, [[3] * 50]).model
    states = NGramState(np.arange(model.automaton.num_states, dtype=np.int32))
    assert (model.next_log_probs(states)[:, [UNK, EOS, 3, 4]] > -math.inf).all()


def test_a_vocabulary_of_control_tokens_is_enough():
    for name in NAMES:
        model = estimated(name, [[UNK], []], vocabulary=Vocabulary([])).model
        row = np.exp(model.next_log_probs(model.initial_state(1))[0])
        assert row.sum() == pytest.approx(1)


@pytest.mark.parametrize("prune", [(), (0, 0, 1), (0, 50)])
def test_a_model_is_the_same_to_the_bit_on_any_number_of_cores(prune, monkeypatch):
    words = np.random.default_rng(3).integers(3, 9, size=(300, 7)).tolist()

    def estimated(cores):
        monkeypatch.setattr(THREADS, "limit", cores)
        found = estimate(EncodedCorpus.from_sentences(words), VOCABULARY, order=4, prune=prune)
        return [array.tobytes() for array in found.model.automaton]

    assert estimated(1) == estimated(2) == estimated(5)


@pytest.mark.parametrize("pruning", [{"prune": (0, 1000)}, {"prune_entropy": 1e3}])
def test_pruning_may_leave_nothing_but_the_words(pruning):
    corpus = EncodedCorpus.from_sentences([[3, 4, 3]] * 9)
    made = estimate(corpus, TWO_WORDS, order=3, progress=Progress(), **pruning)
    assert made.facts["ngrams"] == [5, 0, 0]
    state = made.model.advance(made.model.initial_state(1), np.array([3]))
    assert np.exp(made.model.next_log_probs(state)).sum() == pytest.approx(1)


@pytest.mark.parametrize("held_out", [None, EncodedCorpus.from_sentences([])])
@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("ngram.smoothing", {"name": "jelinek-mercer"}),
        ("ngram.discounts", {"name": "modified-kneser-ney", "discounts": "held-out"}),
    ],
)
def test_held_out_text_that_is_needed_and_missing_is_asked_for(held_out, key, settings):
    corpus = EncodedCorpus.from_sentences([[3, 4]])
    with pytest.raises(InputError, match=rf"{key}: .* held-out text, but there is none") as raised:
        estimate(
            corpus,
            TWO_WORDS,
            order=2,
            smoothing=make_smoothing(**settings),
            held_out=held_out,
            progress=Progress(),
        )
    assert raised.value.param == key


def test_held_out_text_of_another_vocabulary_is_refused():
    with pytest.raises(
        InputError, match=r"held-out text has ids from 7 to 7; the vocabulary has ids from 0 to 4"
    ):
        estimate(
            EncodedCorpus.from_sentences([[3, 4]]),
            TWO_WORDS,
            order=2,
            smoothing=make_smoothing("jelinek-mercer"),
            held_out=EncodedCorpus.from_sentences([[7]]),
            progress=Progress(),
        )


@pytest.mark.parametrize("k", [5e-324, 1e-300, 1e300, 1.7e308])
def test_rows_sum_to_one_however_little_or_much_is_added(k):
    model = estimated("add-k", [[3, 4, 3], [3]], k=k).model
    rows = np.exp(model.next_log_probs(NGramState(np.arange(model.automaton.num_states, dtype=np.int32))))
    assert rows.sum(axis=1) == pytest.approx(np.ones(len(rows)), abs=1e-6)
