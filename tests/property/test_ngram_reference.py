"""The estimator and the automaton against Kneser–Ney written with dictionaries, on random texts."""

import itertools
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.vocabulary import BOS, EOS, Vocabulary
from training.corpora.encoded import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Silent

VOCABULARY = Vocabulary(["a", "b", "c", "never"])
WORDS = [w for w in range(len(VOCABULARY)) if w != BOS]
UNSEEN = VOCABULARY.id_of("never")

# ids 0 (<unk>, as a counted word), 3, 4, 5; few words, so that n-grams repeat
sentences = st.lists(st.lists(st.sampled_from([0, 3, 4, 5]), max_size=8), min_size=1, max_size=12)
orders = st.integers(1, 5)
contexts = st.lists(st.sampled_from([0, 3, 4, 5, UNSEEN]), max_size=6)


class SlowKneserNey:
    """Interpolated modified Kneser–Ney by its definition, a dictionary per order."""

    def __init__(self, texts, order):
        self.order = order
        marked = [(BOS, *text, EOS) for text in texts]
        occurrences = [Counter() for _ in range(order + 1)]
        for k, text in itertools.product(range(1, order + 1), marked):
            occurrences[k].update(text[i : i + k] for i in range(len(text) - k + 1))
        self.adjusted = [None, *(self._adjust(occurrences, k) for k in range(1, order + 1))]
        self.discounts = [None, *(self._discounts(self.adjusted[k]) for k in range(1, order + 1))]
        self.followers = [None, *(self._group(self.adjusted[k]) for k in range(1, order + 1))]

    def _adjust(self, occurrences, k):
        adjusted = dict(occurrences[k])
        if k < self.order:
            predecessors = defaultdict(set)
            for ngram in occurrences[k + 1]:
                predecessors[ngram[1:]].add(ngram[0])
            adjusted = {g: c if g[0] == BOS else len(predecessors[g]) for g, c in adjusted.items()}
        adjusted.pop((BOS,), None)
        return adjusted

    @staticmethod
    def _discounts(adjusted):
        n = Counter(adjusted.values())
        if not (n[1] and n[2] and n[3]):
            return (0, 0.5, 1.0, 1.5)
        y = n[1] / (n[1] + 2 * n[2])
        d = [j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3)]
        return (0, *d) if all(0 <= x <= j for j, x in enumerate(d, start=1)) else (0, 0.5, 1.0, 1.5)

    @staticmethod
    def _group(adjusted):
        followers = defaultdict(dict)
        for ngram, count in adjusted.items():
            followers[ngram[:-1]][ngram[-1]] = count
        return followers

    def probability(self, word, context):
        """p(word | context), at most order − 1 words of it."""
        context = tuple(context)[max(0, len(context) - self.order + 1) :]
        k = len(context) + 1
        lower = self.probability(word, context[1:]) if context else 1 / len(WORDS)
        seen = self.followers[k].get(context)
        if not seen:
            return lower
        discount = self.discounts[k]
        total = sum(seen.values())
        freed = sum(discount[min(c, 3)] for c in seen.values())
        count = seen.get(word, 0)
        return (count - discount[min(count, 3)] + freed * lower) / total


def fast(texts, order):
    return estimate(EncodedCorpus.from_sentences(texts), VOCABULARY, order=order, progress=Silent()).model


@given(sentences, orders)
@settings(max_examples=150, deadline=None)
def test_every_conditional_probability_is_that_of_the_definition(texts, order):
    slow, model = SlowKneserNey(texts, order), fast(texts, order)
    prefixes = {(BOS, *text)[:end] for text in texts for end in range(len(text) + 2)}
    for context in sorted(
        {p[begin:] for p in prefixes for begin in range(max(0, len(p) - order), len(p) + 1)}
    ):
        state = model.empty_state(1)
        for word in context:
            state = model.advance(state, np.array([word]))
        got = np.exp(model.next_log_probs(state)[0], dtype=np.float64)
        assert got[WORDS] == pytest.approx([slow.probability(w, context) for w in WORDS], rel=2e-6, abs=1e-12)


@given(sentences, orders)
@settings(max_examples=50, deadline=None)
def test_discounts_are_those_of_the_definition(texts, order):
    slow = SlowKneserNey(texts, order)
    got = estimate(EncodedCorpus.from_sentences(texts), VOCABULARY, order=order, progress=Silent())
    assert np.allclose(got.discounts, [d[1:] for d in slow.discounts[1:]])


@given(sentences, orders, contexts)
@settings(max_examples=50, deadline=None)
def test_unseen_contexts_are_scored_by_definition(texts, order, context):
    slow, model = SlowKneserNey(texts, order), fast(texts, order)
    scores = model.score(model.initial_state(1), np.array([[*context, EOS]]), np.array([len(context) + 1]))
    history = (BOS, *context, EOS)
    expected = [slow.probability(history[i], history[:i]) for i in range(1, len(history))]
    assert np.exp(scores[0], dtype=np.float64) == pytest.approx(expected, rel=2e-6, abs=1e-12)
