"""Every smoothing by its definition: dictionaries and Python floats, no code shared with the estimators.

An n-gram is a tuple of word ids. `model.p(word, context)` is the reference probability.
"""

import itertools
from collections import Counter, defaultdict

from models.language_model import BOS, EOS

MAX_COUNT_DISCOUNTED = 5


class SlowModel:
    """Counts of a text and the listed n-grams; base of all smoothings."""

    continuations = False

    def __init__(self, texts, vocab_size, order, prune=()):
        self.order = order
        self.words = [w for w in range(vocab_size) if w != BOS]
        marked = [(BOS, *text, EOS) for text in texts]
        self.occurrences = [Counter() for _ in range(order + 1)]
        for k, text in itertools.product(range(1, order + 1), marked):
            self.occurrences[k].update(tuple(text[i : i + k]) for i in range(len(text) - k + 1))
        thresholds = [*(prune or [0]), *[(prune or [0])[-1]] * order]
        self.listed = {
            g for k in range(1, order + 1) for g, c in self.occurrences[k].items() if c > thresholds[k - 1]
        }
        self.counts = [None, *(self._counts(k) for k in range(1, order + 1))]
        self.followers = defaultdict(dict)
        for k in range(1, order + 1):
            for ngram, count in self.counts[k].items():
                self.followers[ngram[:-1]][ngram[-1]] = count
        self.memory = {}

    def _counts(self, k):
        counts = dict(self.occurrences[k])
        if self.continuations and k < self.order:
            before = defaultdict(set)
            for ngram in self.occurrences[k + 1]:
                before[ngram[1:]].add(ngram[0])
            counts = {g: c if g[0] == BOS else len(before[g]) for g, c in counts.items()}
        counts.pop((BOS,), None)
        return counts

    def counts_of_counts(self, k):
        return Counter(self.counts[k].values())

    def p(self, word, context):
        """Probability of a word after a context, which is cut to its last order − 1 words."""
        context = tuple(context)[max(0, len(context) - self.order + 1) :]
        if (word, context) not in self.memory:
            self.memory[word, context] = self._p(word, context)
        return self.memory[word, context]

    def knows(self, context):
        return (not context or context in self.listed) and bool(self.followers.get(context))

    def lower(self, word, context):
        return self.p(word, context[1:]) if context else 1 / len(self.words)

    def _p(self, word, context):
        if not self.knows(context):
            return self.lower(word, context)
        after = self.followers[context]
        count = after.get(word, 0) if (*context, word) in self.listed else 0
        pruned = sum(c for w, c in after.items() if (*context, w) not in self.listed)
        return self.estimate(word, context, count=count, total=sum(after.values()), pruned=pruned)

    def listed_counts(self, context):
        return [c for w, c in self.followers[context].items() if (*context, w) in self.listed]


class SlowMaximumLikelihood(SlowModel):
    def estimate(self, word, context, *, count, total, pruned):
        return count / total + (pruned / total * self.lower(word, context) if pruned else 0)


class SlowAdditive(SlowModel):
    k = 1.0

    def _p(self, word, context):
        full = len(context) == self.order - 1 or context[:1] == (BOS,)
        return super()._p(word, context) if full and self.knows(context) else 1 / len(self.words)

    def estimate(self, word, context, *, count, total, pruned):  # noqa: ARG002 - shorter contexts are not used
        return (count + self.k + pruned / len(self.words)) / (total + self.k * len(self.words))


class SlowWittenBell(SlowModel):
    def estimate(self, word, context, *, count, total, pruned):
        types = len(self.followers[context])
        return (count + (types + pruned) * self.lower(word, context)) / (total + types)


class SlowJelinekMercer(SlowModel):
    lambdas = None  # [order][bucket], set by tests

    def estimate(self, word, context, *, count, total, pruned):
        row = self.lambdas[len(context)]
        bucket = 0
        while bucket + 1 < len(row) and total >= 2 ** (bucket + 1):
            bucket += 1
        weight = row[bucket]
        lower = self.lower(word, context)
        return weight * (count + pruned * lower) / total + (1 - weight) * lower


class SlowAbsolute(SlowModel):
    """Absolute discounting, and Kneser–Ney with `continuations`; modified with three discounts."""

    modified = False
    fitted = None  # discounts by order, used instead of estimates from counts

    def discounts(self, k):
        if self.fitted is not None:
            return (0, *self.fitted[k - 1])
        n = self.counts_of_counts(k)
        y = n[1] / (n[1] + 2 * n[2]) if n[1] else 0
        if not self.modified:
            return (0, y, y, y) if n[1] and n[2] else (0, 0.5, 0.5, 0.5)
        if not (n[1] and n[2] and n[3]):
            return (0, 0.5, 1.0, 1.5)
        d = [j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3)]
        return (0, *d) if all(0 <= x <= j for j, x in enumerate(d, start=1)) else (0, 0.5, 1.0, 1.5)

    def estimate(self, word, context, *, count, total, pruned):
        discounts = self.discounts(len(context) + 1)
        freed = sum(discounts[min(c, 3)] for c in self.listed_counts(context)) + pruned
        return (count - discounts[min(count, 3)] + freed * self.lower(word, context)) / total


class SlowKneserNey(SlowAbsolute):
    continuations = True


class SlowModifiedKneserNey(SlowAbsolute):
    continuations = True
    modified = True


class SlowGoodTuring(SlowModel):
    def ratios(self, k):
        """Factors of counts 0, 1, … of one order; higher counts are not discounted."""
        n = self.counts_of_counts(k)
        for highest in range(MAX_COUNT_DISCOUNTED, 1, -1):
            if not all(n[r] for r in range(1, highest + 1)):
                continue
            share = (highest + 1) * n[highest + 1] / n[1]
            stars = [(r + 1) * n[r + 1] / n[r] for r in range(1, highest + 1)]
            if share < 1:
                found = [(star / r - share) / (1 - share) for r, star in enumerate(stars, start=1)]
                if all(0 < ratio < 1 for ratio in found):
                    return [0, *found]
        return [0, 0.5, 1.5 / 2, 2.5 / 3, 3.5 / 4, 4.5 / 5]

    def _p(self, word, context):
        if not self.knows(context):
            return self.lower(word, context)
        seen = {w: c for w, c in self.followers[context].items() if (*context, w) in self.listed}
        others = [w for w in self.words if w not in seen]
        remaining = sum(self.lower(w, context) for w in others)
        if remaining == 0:
            return seen.get(word, 0) / sum(seen.values())
        total = sum(self.followers[context].values())
        ratios = self.ratios(len(context) + 1)
        left = {w: c * (ratios[c] if c < len(ratios) else 1) for w, c in seen.items()}
        if not any(c < len(ratios) for c in seen.values()) and sum(seen.values()) == total:
            total += 1
        freed = sum(c - left[w] for w, c in seen.items()) + total - sum(seen.values())
        return left[word] / total if word in seen else freed / total * self.lower(word, context) / remaining
