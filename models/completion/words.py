"""Completions by models whose tokens are words: the best of an interval of the sorted vocabulary.

All words with a prefix are one interval, so its probability is a sum and no search
is needed.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Self

import numpy as np

from models.arrays import Float32s, Float64s, FloatArray, TokenIds
from models.completion.token_trie import TokenTrie, fold_case, restore_words
from models.language_model import TopTokens

_SPACE = b" "
_BLOCK = 128
"""Values of a block, whose largest decides whether the others are compared."""


class ScoredCompletion(NamedTuple):
    """Word or phrase that may continue the text.

    Attributes:
        text: the completion, from the start of the current word.
        mass: joint probability of completion and typed prefix; divided by
            `SearchResult.live_mass`, it is the probability given the prefix.
        num_words: number of words.
        is_complete: True if it ends with a word. A word's beginning is returned if
            the search ended before it found a word that starts with it; its mass is
            unexplored.
    """

    text: str
    mass: float
    num_words: int
    is_complete: bool


class SearchResult(NamedTuple):
    """Completions found so far by a search.

    Attributes:
        completions: the best ones of each number of words, most probable first.
        live_mass: upper bound of the probability of the typed prefix.
        unexplored_mass: share of the live mass without a word found. The sum of
            this and the shares of all words found, returned or not, is 1; both are
            0 if no tokens spell the prefix.
    """

    completions: tuple[ScoredCompletion, ...]
    live_mass: float
    unexplored_mass: float


class NextWords(NamedTuple):
    """Words after a context.

    Attributes:
        best: finds the n best in [i, j) of an order, and the mass of all, by
            (order, i, j, n).
        log_prob: returns a word's natural-log probability.
    """

    best: Callable[[TokenIds, int, int, int], tuple[TopTokens, float]]
    log_prob: Callable[[int], float]

    @classmethod
    def of_row(cls, row: FloatArray) -> Self:
        """Return the words of a distribution [V]."""
        return cls(partial(best_of_row, row), row.item)


def best_of_row(
    row: FloatArray, order: TokenIds, first: int, past: int, count: int
) -> tuple[TopTokens, float]:
    """Find the best words of an order's ranks by a distribution [V], as `NextWords.best`."""
    ids = order[first:past]
    log_probs = row.take(ids)
    masses = np.exp(log_probs).astype(np.float64)
    best = np.sort(largest_indices(masses, count))
    best = best[np.argsort(-masses[best], kind="stable")]
    best = best[masses[best] > 0]
    return TopTokens(ids[best], log_probs[best]), float(masses.sum())


def largest_indices(values: Float64s | Float32s, count: int) -> TokenIds:
    """Return the indices of the largest values, in no order, ties in any way."""
    if len(values) <= count:
        return np.arange(len(values))
    if len(values) < _BLOCK * max(count, _BLOCK):
        return np.argpartition(values, len(values) - count)[len(values) - count :]
    # within the best blocks: a partition of all takes long if many are equal
    starts = np.arange(0, len(values), _BLOCK)
    blocks = np.argsort(-np.maximum.reduceat(values, starts), kind="stable")[:count]
    within = (np.sort(starts[blocks])[:, None] + np.arange(_BLOCK)).ravel()
    within = within[within < len(values)]
    return within[np.argsort(-values[within], kind="stable")[:count]]


class WordSearch:
    """Search among the words with a prefix, complete at once.

    Args:
        after: finds the words after the context, and their log-probabilities.
        tokens: the model's token trie.
        spelled: bytes that the next word starts with.
        limit: maximum words in the result.
        any_case: match the prefix in any case.
    """

    def __init__(
        self, after: NextWords, tokens: TokenTrie, spelled: bytes, limit: int, *, any_case: bool
    ) -> None:
        self._after, self._tokens = after, tokens
        self._key = fold_case if any_case else bytes
        self._prefix = self._key(spelled)
        order = tokens.folded if any_case else tokens.exact
        self._found = after.best(order.ids, *order.interval(self._prefix), limit)

    def result(self) -> SearchResult:
        """Return the completions."""
        (ids, log_probs), mass = self._found
        texts = [self._tokens.token_bytes[word].decode().removeprefix(" ") for word in ids.tolist()]
        if self._tokens.has_members:
            texts = [*map(restore_words, texts)]
        masses = np.exp(log_probs).tolist()
        found = [ScoredCompletion(*one, 1, is_complete=True) for one in zip(texts, masses, strict=True)]
        return SearchResult(tuple(found), mass, 0.0)

    def mass_of(self, word: str) -> float:
        """Return a word's probability as continuation; 0 if unknown."""
        spelled = _SPACE + word.encode("utf-8", "surrogatepass")
        if not self._key(spelled).startswith(self._prefix):
            return 0.0
        same = self._tokens.exact.equal_to(spelled)
        return sum(float(np.exp(self._after.log_prob(token))) for token in same)
