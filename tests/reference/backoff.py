"""ARPA files for tests with a slow reader, and back-off models as dictionaries in double precision."""

import itertools

import numpy as np

from models.language_model import BOS, EOS
from models.ngram.build import NGrams, NGramWeights
from training.ngram.counts import Observations, count_ngrams
from training.ngram.smoothing.kneser_ney import Discounting
from training.progress import SILENT

SMALL = """\
\\data\\
ngram 1=5
ngram 2=4
ngram 3=2

\\1-grams:
-1.5\t<unk>
-99\t<s>\t-0.3
-0.7\t</s>
-0.6\ta\t-0.2
-0.8\tb\t-0.1

\\2-grams:
-0.2\t<s> a\t-0.15
-0.3\ta b\t-0.25
-0.4\tb </s>
-0.5\ta a

\\3-grams:
-0.1\t<s> a b
-0.05\ta b </s>

\\end\\
"""


def random_arpa(rng, *, order, num_words=8, words=None, unknown=True, orphans=0, start="-99"):
    """Make an ARPA file with the n-grams of random sentences, in random order.

    Args:
        rng: random generator.
        order: length of the longest n-grams.
        num_words: number of words except control tokens.
        words: the words; by default they are made up.
        unknown: include `<unk>`.
        orphans: number of omitted n-grams that are a suffix of another; KenLM copes with few.
        start: log-probability of `<s>`.

    Returns:
        The text, and the words without control tokens.
    """
    words = words or [f"{'äbc'[i % 3]}{i}" for i in range(num_words)]
    inner = [*words, "<unk>"] if unknown else words
    ngrams = {(word,) for word in ["<s>", "</s>", *inner]}
    for _ in range(2 * len(words)):
        sentence = ["<s>", *rng.choice(inner, rng.integers(order, 2 * order)).tolist(), "</s>"]
        ngrams |= {
            tuple(sentence[i : i + k]) for k in range(1, order + 1) for i in range(len(sentence) - k + 1)
        }
    prefixes, suffixes = ({n[part] for n in ngrams} for part in (slice(-1), slice(1, None)))
    ngrams -= set(sorted(n for n in ngrams & suffixes - prefixes if len(n) > 1)[:orphans])
    levels = [sorted(n for n in ngrams if len(n) == k) for k in range(1, order + 1)]
    lines = ["\\data\\", *(f"ngram {k}={len(level)}" for k, level in enumerate(levels, start=1))]
    for k, level in enumerate(levels, start=1):
        lines += ["", f"\\{k}-grams:"]
        for i in rng.permutation(len(level)):
            prob = start if level[i] == ("<s>",) else _number(rng, -4)
            backoff = "" if k == order or rng.random() < 0.3 else f"\t{_number(rng, rng.choice([-1.5, 0.4]))}"
            lines.append(f"{prob}\t{' '.join(level[i])}{backoff}")
    return "\n".join([*lines, "", "\\end\\", ""]), words


def _number(rng, limit):
    """Decimal between 0 and a limit, with as many digits as tools write."""
    return f"{rng.uniform(min(limit, 0), max(limit, 0)):.{rng.choice([6, 7, 9, 17])}g}"


def parse_arpa(text):
    """Return {words: (log10 probability, back-off weight)} as Python floats."""
    table = {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) > 1:
            table[tuple(fields[1].split(" "))] = (float(fields[0]), float(fields[2]) if fields[2:] else 0.0)
    return table


def listed(vocabulary, orders):
    """Return {words: (log10 probability, back-off weight)} of a model given order by order, as float32."""
    table, shorter = {}, [()]
    for ngrams, weights in orders:
        shorter = [(*shorter[p], vocabulary[w]) for p, w in zip(ngrams.prefixes, ngrams.words, strict=True)]
        backoffs = (
            weights.log10_backoffs if len(weights.log10_backoffs) else np.zeros(len(shorter), np.float32)
        )
        table |= dict(zip(shorter, zip(weights.log10_probs, backoffs, strict=True), strict=True))
    return table


class SlowBackoff:
    """Back-off model as {n-gram: probability} and {context: back-off weight}."""

    def __init__(self, vocab_size, probs, backoffs):
        self.words = [w for w in range(vocab_size) if w != BOS]
        self.probs = probs
        self.backoffs = backoffs

    @property
    def order(self):
        return max(map(len, self.probs))

    def probability(self, word, context):
        """p(word | context); the context may exceed the model's order."""
        if (*context, word) in self.probs:
            return self.probs[*context, word]
        return self.backoffs.get(context, 1.0) * self.probability(word, context[1:])

    def row(self, context):
        """p(· | context) of every word except `<s>`."""
        return np.array([self.probability(word, context) for word in self.words])

    def listed(self, context):
        """Words listed directly after the context."""
        return [w for w in self.words if (*context, w) in self.probs]

    def contexts(self):
        """Contexts with listed words, shortest first."""
        return sorted({g[:-1] for g in self.probs if len(g) > 1}, key=len)

    def renormalise(self):
        """Set the back-off weights to make every row sum to 1, shortest contexts first."""
        self.backoffs = {}
        for context in self.contexts():
            listed = self.listed(context)
            left = 1 - sum(self.probs[*context, w] for w in listed)
            room = 1 - sum(self.probability(w, context[1:]) for w in listed)
            self.backoffs[context] = left / room if len(listed) < len(self.words) else 1.0


def random_model(seed, *, vocab_size=8, order=3, share=0.4):
    """Random model whose rows sum to 1; suffixes of n-grams may be missing, prefixes are not."""
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
    """Convert a model to the estimators' arrays by order; unlisted suffixes are −1, or all if not `suffixes`."""
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
    """Convert a model given order by order to dictionaries, and validate it."""
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
    """Every context up to the model's order, seen or not; `<s>` occurs only at the start."""
    inner = [w for w in model.words if w != EOS]
    for length in range(model.order):
        for tail in itertools.product(inner, repeat=length):
            yield tail
            if length:
                yield (BOS, *tail[1:])


def estimated_orders(corpus, vocab_size, *, order, prune=()):
    """N-grams and weights of a modified Kneser-Ney model before the automaton; empty orders are included."""
    counted = count_ngrams(corpus, vocab_size, order=order, progress=SILENT)
    return Discounting()(Observations(counted, prune=prune), None)[0]


def weights_by_words(orders, vocabulary):
    """Every n-gram in words, with its log10 probability and back-off, 0 by default."""
    table, shorter = {}, [""]
    for ngrams, weights in orders:
        spelt = [
            f"{shorter[p]} {vocabulary[w]}".lstrip()
            for p, w in zip(ngrams.prefixes.tolist(), ngrams.words.tolist(), strict=True)
        ]
        backoffs = weights.log10_backoffs if len(weights.log10_backoffs) else np.zeros(len(spelt))
        table.update(zip(spelt, zip(weights.log10_probs, backoffs, strict=True), strict=True))
        shorter = spelt
    return table
