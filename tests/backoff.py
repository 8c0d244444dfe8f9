"""Back-off models as dictionaries: slow, in double precision, written from the definition alone."""

import itertools

import numpy as np

from models.ngram.build import NGrams, NGramWeights
from models.vocabulary import BOS, EOS


class SlowBackoff:
    """A back-off model as {n-gram: probability} and {context: back-off weight}."""

    def __init__(self, vocab_size, probs, backoffs):
        self.words = [w for w in range(vocab_size) if w != BOS]
        self.probs = probs
        self.backoffs = backoffs

    @property
    def order(self):
        return max(map(len, self.probs))

    def probability(self, word, context):
        """p(word | context); the context may be longer than any that is listed."""
        if (*context, word) in self.probs:
            return self.probs[*context, word]
        return self.backoffs.get(context, 1.0) * self.probability(word, context[1:])

    def row(self, context):
        """p(· | context) of every word but `<s>`."""
        return np.array([self.probability(word, context) for word in self.words])

    def listed(self, context):
        """The words that the context itself lists."""
        return [w for w in self.words if (*context, w) in self.probs]

    def contexts(self):
        """Every context that lists a word, the shortest first."""
        return sorted({g[:-1] for g in self.probs if len(g) > 1}, key=len)

    def renormalise(self):
        """Back-off weights with which every row sums to 1, the shortest contexts first."""
        self.backoffs = {}
        for context in self.contexts():
            listed = self.listed(context)
            left = 1 - sum(self.probs[*context, w] for w in listed)
            room = 1 - sum(self.probability(w, context[1:]) for w in listed)
            self.backoffs[context] = left / room if len(listed) < len(self.words) else 1.0


def random_model(seed, *, vocab_size=8, order=3, share=0.4):
    """A model of random n-grams whose rows sum to 1; suffixes of n-grams may be missing, prefixes not."""
    rng = np.random.default_rng(seed)
    words = [w for w in range(vocab_size) if w != BOS]
    unigrams = rng.dirichlet(np.ones(len(words)))
    model = SlowBackoff(vocab_size, dict(zip(((w,) for w in words), unigrams.tolist(), strict=True)), {})
    model.probs[BOS,] = 0.0
    for length in range(2, order + 1):
        for context in [g for g in model.probs if len(g) == length - 1 and g[-1] != EOS]:
            if rng.random() < share:
                listed = rng.choice(words, rng.integers(1, len(words)), replace=False)
                total = rng.uniform(0.3, 0.95)
                shares = total * rng.dirichlet(np.ones(len(listed)))
                model.probs |= {(*context, int(w)): p for w, p in zip(listed, shares.tolist(), strict=True)}
    model.renormalise()
    return model


def to_orders(model, *, suffixes=True):
    """The model order by order, as estimators give it; suffixes are −1 where they are not listed, or all."""
    shorter = {(): 0}
    answer = []
    for length in range(1, model.order + 1):
        ngrams = sorted(g for g in model.probs if len(g) == length)
        own = NGrams(
            np.array([g[-1] for g in ngrams], np.int32),
            np.array([shorter[g[:-1]] for g in ngrams], np.int32),
            np.array([shorter.get(g[1:], -1) if suffixes or length == 1 else -1 for g in ngrams], np.int32),
        )
        with np.errstate(divide="ignore"):
            probs = np.log10([model.probs[g] for g in ngrams]).astype(np.float32)
        backoffs = np.log10([model.backoffs.get(g, 1.0) for g in ngrams]).astype(np.float32)
        answer.append((own, NGramWeights(probs, backoffs)))
        shorter = {g: i for i, g in enumerate(ngrams)}
    return answer


def from_orders(orders):
    """The dictionary of a model given order by order, which is checked on the way."""
    vocab_size = len(orders[0][0].words)
    model = SlowBackoff(vocab_size, {}, {})
    shorter = [()]
    for length, (ngrams, weights) in enumerate(orders, start=1):
        listed = [(*shorter[p], int(w)) for p, w in zip(ngrams.prefixes, ngrams.words, strict=True)]
        assert listed == sorted(set(listed))
        for ngram, suffix in zip(listed, ngrams.suffixes, strict=True):
            assert ngram[1:] not in shorter if suffix < 0 else shorter[suffix] == ngram[1:]
        model.probs |= dict(zip(listed, np.power(10.0, weights.log10_probs, dtype=np.float64), strict=True))
        if length < len(orders):
            backoffs = np.power(10.0, weights.log10_backoffs, dtype=np.float64)
            model.backoffs |= dict(zip(listed, backoffs, strict=True))
        shorter = listed
    return model


def all_contexts(model):
    """Every context up to the model's order, seen or not, with `<s>` at the start or nowhere."""
    inner = [w for w in model.words if w != EOS]
    for length in range(model.order):
        for tail in itertools.product(inner, repeat=length):
            yield tail
            if length:
                yield (BOS, *tail[1:])
