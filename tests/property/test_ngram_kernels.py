"""Every compiled kernel against dictionaries, on random automata as irregular as files may be.

Probabilities and back-offs are drawn from a few values, so many tie; some n-grams are impossible,
some back-offs exceed 1, some suffixes are missing, and some contexts have more arcs than are ranked
on demand. The floats must be bit-identical.
"""

import itertools
import math

import numpy as np
import pytest

from models.language_model import BOS, Vocabulary, prefill_sequences
from models.ngram.build import (
    MAX_UNRANKED_ARCS,
    NGrams,
    NGramWeights,
    build_automaton,
    find_problem,
    list_ngrams,
    quantise_automaton,
)
from models.ngram.model import NGramModel, NGramState

SEEDS = range(24)
NEAR = np.nextafter(np.float32(-3.6), np.float32([-4, 0]))  # two decimal logarithms, one natural logarithm
PROBS = np.float32([-1, -1, -2, -0.25, 0, -3.6, *NEAR, -50, -np.inf])
BACKOFFS = np.float32([0, 0, -0.0, -0.3, -1, -20, 0.5, 3, -np.inf])


class Odd:
    """Random automaton, and its log10 values as dictionaries by n-gram."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        large = seed % 10 == 0
        self.vocab_size = MAX_UNRANKED_ARCS + 12 if large else int(self.random.choice([3, 4, 5, 8]))
        self.order = int(self.random.integers(2, 4) if large else self.random.integers(1, 9))
        self.spelt = [[()], [(w,) for w in range(self.vocab_size)]]
        for _ in range(2, self.order + 1):
            self.spelt.append(self.longer(self.spelt[-1], large=large))
        self.automaton = build_automaton([self.listed(n) for n in range(1, self.order + 1)])
        if seed % 3 == 0:
            self.automaton = quantise_automaton(self.automaton)
        self.probs, self.backoffs = {}, {(): 0.0}
        for ngrams, (_, weights) in zip(self.spelt[1:], list_ngrams(self.automaton), strict=True):
            self.probs |= dict(zip(ngrams, weights.log10_probs.tolist(), strict=True))
            self.backoffs |= dict(zip(ngrams, weights.log10_backoffs.tolist(), strict=False))
        self.states = list(itertools.chain(*self.spelt[: self.order]))
        self.numbers = {context: i for i, context in enumerate(self.states)}
        self.continued = {ngram[:-1] for ngram in self.probs}
        self.model = NGramModel(self.automaton, Vocabulary([f"w{i}" for i in range(self.vocab_size - 3)]))
        some = self.random.integers(0, len(self.states), 20)
        self.state = NGramState(np.append(some, len(self.states) - 1).astype(np.int32))

    def longer(self, contexts, *, large):
        """Extend some of the contexts by one word."""
        share = 8 / len(contexts) if large else self.random.uniform(0.1, 0.9)
        parents = [c for c in contexts if self.random.random() < share][:150]
        sizes = (
            [1, 3, MAX_UNRANKED_ARCS, MAX_UNRANKED_ARCS + 1, self.vocab_size]
            if large
            else range(1, self.vocab_size)
        )
        words = (self.random.permutation(self.vocab_size)[: self.random.choice(sizes)] for _ in parents)
        return sorted((*c, int(w)) for c, own in zip(parents, words, strict=True) for w in own)

    def listed(self, length):
        """N-grams of one length as `build_automaton` takes them."""
        ngrams, places = self.spelt[length], {g: i for i, g in enumerate(self.spelt[length - 1])}
        probs = self.random.choice(PROBS, len(ngrams))
        probs[[g[-1] == BOS for g in ngrams]] = -np.inf
        given = length == 1 or self.random.random() < 0.7
        columns = (
            [g[-1] for g in ngrams],
            [places[g[:-1]] for g in ngrams],
            [places.get(g[1:], -1) if given else -1 for g in ngrams],
        )
        own = NGrams(*(np.array(column, np.int32) for column in columns))
        return own, NGramWeights(probs, self.random.choice(BACKOFFS, len(ngrams)))

    def chain(self, context):
        """Listed suffixes of a context of any length, longest first."""
        starts = range(max(0, len(context) - self.order + 1), len(context) + 1)
        return [context[i:] for i in starts if context[i:] in self.numbers]

    def score(self, context, word):
        """Log-probability, length of the n-gram found, and log back-off charged."""
        charged = 0.0
        for known in self.chain(context):
            if (*known, word) in self.probs:
                value = (self.probs[*known, word] + charged) * math.log(10)
                return np.float32(value), len(known) + 1, np.float32(charged * math.log(10))
            charged += self.backoffs[known]
        raise AssertionError("every word is a unigram")

    def minimal(self, context):
        """State after a context: its longest suffix that affects later scores."""
        return next(
            self.numbers[c] for c in self.chain(context) if not c or c in self.continued or self.backoffs[c]
        )

    def rows(self):
        """Next-token distributions after the batch's states."""
        contexts = [self.states[i] for i in self.state.ids]
        return np.array([[self.score(c, w)[0] for w in range(self.vocab_size)] for c in contexts])

    def texts(self):
        """Tokens and lengths, one row per state; their scores, orders and back-offs; and the resulting states."""
        tokens = self.random.integers(0, self.vocab_size, (len(self.state), 9))
        lengths = self.random.integers(0, 10, len(self.state))
        expected = [np.zeros(tokens.shape, kind) for kind in (np.float32, np.uint8, np.float32)]
        after = []
        for row, (number, length) in enumerate(zip(self.state.ids, lengths, strict=True)):
            context = self.states[number]
            for place in range(length):
                word = int(tokens[row, place])
                for array, value in zip(expected, self.score(context, word), strict=True):
                    array[row, place] = value
                context = (*context, word)
            after.append(self.minimal(context) if length else number)
        return tokens, lengths, expected, after


@pytest.fixture(scope="module", params=SEEDS)
def odd(request):
    return Odd(request.param)


def test_a_file_of_it_would_be_accepted(odd):
    assert find_problem(odd.automaton) == 0


def test_distributions_and_their_tops_of_every_size(odd):
    rows = odd.rows()
    assert np.array_equal(odd.model.next_log_probs(odd.state), rows)
    ranked = np.argsort(-rows, axis=1, kind="stable")
    for k in {*range(1, 9), MAX_UNRANKED_ARCS, odd.vocab_size} & set(range(1, odd.vocab_size + 1)):
        top = odd.model.top_k(odd.state, k)
        assert np.array_equal(top.ids, ranked[:, :k])
        assert np.array_equal(top.log_probs, np.take_along_axis(rows, top.ids, 1))


def test_walks(odd):
    tokens, lengths, (log_probs, orders, log_backoffs), after = odd.texts()
    detail = odd.model.score_detailed(odd.state, tokens, lengths)
    assert np.array_equal(detail.log_probs, log_probs)
    assert np.array_equal(detail.orders, orders)
    assert np.array_equal(detail.log_backoffs, log_backoffs)
    assert prefill_sequences(odd.model, odd.state, tokens, lengths).ids.tolist() == after or odd.order == 1
    inside = np.arange(9) < lengths[:, None]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    assert np.array_equal(odd.model.score_ragged(odd.state, tokens[inside], offsets), log_probs[inside])


def test_one_word_more(odd):
    for word in {0, 2, odd.vocab_size - 1}:
        expected = [odd.minimal((*odd.states[i], word)) for i in odd.state.ids]
        assert odd.model.advance(odd.state, np.full(len(odd.state), word)).ids.tolist() == expected
