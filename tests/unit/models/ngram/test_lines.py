"""Scores of texts from their bytes are those of their ids, for any white space, alphabet and automaton."""

import numpy as np
import pytest

from models.language_model import EOS, STATE, Vocabulary
from models.ngram.build import quantise_automaton
from models.ngram.model import NGramModel
from models.ngram.texts import NGramTexts
from models.slot_model import with_slots
from models.tokenizers import WordTokenizer
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress

WORDS = ["the", "cat", "sat", "naïve", "Ελλάδα", "日本", "a\u00a0b", "🙂", "$city"]
TEXTS = [
    "the cat sat",
    "",
    "  the\tcat \r\n sat\f\v",
    "the\ncat",
    "\n",
    "unknown naïve Ελλάδα",
    "a\u00a0b a b",
    "日本 🙂\u2028the",
    "\ud800 the",
    "the cat " * 500,
]


def word_model(**options):
    """A trigram model of a few words, and its tokenizer."""
    tokenizer = WordTokenizer(Vocabulary(WORDS), **options)
    texts = ["the cat sat", "the cat", "naïve Ελλάδα 日本 🙂", "a\u00a0b the cat sat the cat", "$city"]
    corpus = EncodedCorpus.from_sentences([tokenizer.encode(text) for text in texts])
    return estimate(corpus, tokenizer.vocabulary, order=3, progress=Progress()).model, tokenizer


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"normalise": "nfkc"}, {"normalise": "casefold"}, {"lowercase": True}], ids=str
)
@pytest.mark.parametrize(("bos", "eos"), [(True, True), (True, False), (False, True), (False, False)])
def test_scores_and_ids_are_those_of_each_text(quantised, options, bos, eos):
    model, tokenizer = word_model(**options)
    if quantised:
        model = NGramModel(quantise_automaton(model.automaton), model.vocabulary)
    scorer = NGramTexts.of(model, tokenizer)
    assert scorer is not None
    together = scorer.score(TEXTS, bos=bos, eos=eos)
    for text, begin, end in zip(TEXTS, together.offsets, together.offsets[1:], strict=False):
        ids = np.array([*tokenizer.encode(text), *([EOS] if eos else [])], dtype=np.int64)
        state = model.initial_state(1) if bos else model.empty_state(1)
        np.testing.assert_array_equal(together.tokens[begin:end], ids)
        expected = model.score_ragged(state, ids, np.array([0, len(ids)]))
        np.testing.assert_array_equal(together.log_probs[begin:end], expected)
        alone = scorer.score([text], bos=bos, eos=eos)
        np.testing.assert_array_equal(alone.log_probs[: alone.offsets[-1]], expected)


@pytest.mark.parametrize("options", [{"pattern": r"\w+"}, {"unicode_spaces": True}], ids=str)
def test_texts_that_are_split_otherwise_are_not_scored_from_their_bytes(options):
    model, tokenizer = word_model(**options)
    texts = NGramTexts.of(model, tokenizer)
    assert not texts.is_plain
    for text in TEXTS:
        ids = np.array([tokenizer.encode(text)], np.int64)
        state = model.read(model.initial_state(1), ids, np.array([ids.size]), STATE).state
        num_words, read = texts.read(text)
        assert (num_words, read.ids.tolist()) == (ids.size, state.ids.tolist())


def test_members_of_classes_have_no_such_scorer():
    assert NGramTexts.of(*with_slots(*word_model(), {"city": ["Ulm"]})) is None
