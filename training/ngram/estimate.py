"""Estimation of an n-gram model from an encoded corpus: count, smooth, prune, build; smoothing by name."""

import ctypes
import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from models.errors import InvalidInputError
from models.ngram.model import NGramModel
from models.vocabulary import BOS, Vocabulary
from training.corpus import EncodedCorpus
from training.ngram.counts import Observations, OrderCounts, count_ngrams
from training.ngram.pruning import compress, history_frequencies
from training.ngram.smoothing.good_turing import good_turing
from training.ngram.smoothing.interpolation import Level, Smoothed, Smoothing, interpolate
from training.ngram.smoothing.jelinek_mercer import JelinekMercer
from training.ngram.smoothing.kneser_ney import Discounting, DiscountSource
from training.progress import SILENT, Progress


@dataclass(frozen=True, slots=True)
class Additive:
    """Add k to every count: p(w|h) = (c(hw) + k) / (c(h) + k V').

    V' is the number of words except `<s>`. After an unseen context, every word has the probability
    1 / V'; shorter contexts are not used. So only contexts of full length and contexts that begin with
    `<s>` have estimates. Other contexts exist only as states of the automaton, with the probabilities
    1 / V' and a back-off weight of 1. All words share the mass of pruned n-grams equally.

    As an interpolation, the uniform distribution has the share k V' / (c(h) + k V').

    Source: Lidstone (1920); Chen and Goodman (1998), section 2.1. With k = 1, Laplace's law of succession.

    Args:
        k: added constant, above 0.

    Raises:
        InvalidInputError: k is not a number above 0.
    """

    k: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.k < np.inf:
            raise InvalidInputError(f"ngram.k is {self.k}; it must be above 0", parameter="ngram.k")

    def __call__(self, observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:  # noqa: ARG002 - a smoothing's signature
        """Estimate a model."""
        added = self.k * (observations.vocab_size - 1)
        k = 0
        begins = np.zeros(1, dtype=np.bool_)  # mask of contexts that begin with <s>; the empty one does not

        def level(order: OrderCounts) -> Level:
            nonlocal k, begins
            k += 1
            estimated = np.ones_like(begins) if k == observations.order else begins
            words, prefixes, _ = order.ngrams
            begins = words == BOS if k == 1 else begins[prefixes]
            with np.errstate(over="ignore"):  # k may be tiny or too large for a float
                shares = 1.0 / (1.0 + order.totals / added)
            return np.zeros(4), np.where(estimated, shares, 1.0)

        orders = interpolate(observations.occurrences(), level)
        return Smoothed(orders, {"k": self.k})


def maximum_likelihood(observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:  # noqa: ARG001 - a smoothing's signature
    """Estimate relative frequencies: p(w|h) = c(hw) / c(h).

    Words that never followed a context have the probability 0 after it. An unseen context is replaced
    by the next shorter context. Pruned n-grams are estimated by the shorter context, with their total
    weight.

    Source: Jelinek (1997), "Statistical methods for speech recognition", section 4.2.
    """
    orders = interpolate(observations.occurrences(), lambda order: (np.zeros(4), np.zeros(len(order.totals))))
    return Smoothed(orders, {})


def witten_bell(observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:  # noqa: ARG001 - likewise
    """Interpolate by the diversity of a context: p(w|h) = (c(hw) + T(h) p(w|h')) / (c(h) + T(h)).

    T(h) is the number of distinct words after h, which equals the number of times a new word occurred.

    Source: Witten and Bell (1991), "The zero-frequency problem", method C; Chen and Goodman (1998), section 2.5.
    """

    def level(order: OrderCounts) -> Level:
        types = order.types.astype(np.float64)
        shares = np.divide(types, order.totals + types, out=np.ones_like(types), where=types > 0)
        return np.zeros(4), shares

    return Smoothed(interpolate(observations.occurrences(), level), {})


SmoothingName: TypeAlias = Literal[
    "mle",
    "laplace",
    "add-k",
    "good-turing",
    "jelinek-mercer",
    "witten-bell",
    "absolute",
    "kneser-ney",
    "modified-kneser-ney",
]

WITH_DISCOUNTS: tuple[SmoothingName, ...] = ("absolute", "kneser-ney", "modified-kneser-ney")
"""Smoothings whose discounts can be fitted on held-out text."""

SMOOTHING_OF_KEY: dict[str, SmoothingName] = {"k": "add-k", "buckets": "jelinek-mercer"}
"""Settings that only one smoothing uses."""


def make_smoothing(
    name: SmoothingName, *, k: float = 0.1, buckets: int = 1, discounts: DiscountSource = "counts"
) -> Smoothing:
    """Create a smoothing by name.

    Args:
        name: name of the smoothing.
        k: constant that `add-k` adds to every count.
        buckets: number of weights that `jelinek-mercer` fits per order.
        discounts: source of the discounts of `absolute`, `kneser-ney` and `modified-kneser-ney`.

    Raises:
        InvalidInputError: a value is out of range.
    """
    smoothings: dict[SmoothingName, Smoothing] = {
        "mle": maximum_likelihood,
        "laplace": Additive(1.0),
        "add-k": Additive(k),
        "good-turing": good_turing,
        "jelinek-mercer": JelinekMercer(buckets),
        "witten-bell": witten_bell,
        "absolute": Discounting(continuations=False, num_discounts=1, discounts=discounts),
        "kneser-ney": Discounting(num_discounts=1, discounts=discounts),
        "modified-kneser-ney": Discounting(discounts=discounts),
    }
    return smoothings[name]


DEFAULT_SMOOTHING: Smoothing = Discounting()


def release_memory() -> None:
    """Return freed memory to the system if the allocator does not return it automatically."""
    gc.collect()
    if sys.platform.startswith("linux") and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


class NGramEstimate(NamedTuple):
    """A model and statistics of its estimation.

    Attributes:
        model: the model.
        facts: for metrics.json, lists by order from 1: number of listed `ngrams`, 0 for orders emptied by pruning,
            which the model may lack; `ngrams_before_pruning` by entropy; `discounts` for counts of 1, 2, and
            3 or more; `fallback_orders`, which have constant parameters because their counts allow no estimate;
            and the parameters fitted by the smoothing.
    """

    model: NGramModel
    facts: Mapping[str, Any]


def estimate(
    corpus: EncodedCorpus,
    vocabulary: Vocabulary,
    *,
    order: int,
    smoothing: Smoothing = DEFAULT_SMOOTHING,
    prune: Sequence[int] = (),
    prune_entropy: float = 0.0,
    quantise: bool = False,
    held_out: EncodedCorpus | None = None,
    progress: Progress = SILENT,
) -> NGramEstimate:
    """Estimate an n-gram model.

    Words of the vocabulary that never occur get the probability of `<unk>`.

    Args:
        corpus: sentences, without `<s>` and `</s>`.
        vocabulary: maps ids to words.
        order: length of the longest n-grams, at least 1.
        smoothing: smoothing method; by default, modified Kneser–Ney.
        prune: count thresholds by order from 1; n-grams with a count up to the threshold are dropped.
            The last threshold applies to all higher orders.
        prune_entropy: relative increase in perplexity below which an n-gram is dropped.
        quantise: store probabilities and back-off weights in eight bits each.
        held_out: other sentences, to fit the parameters of the smoothing.
        progress: display of the stages.

    Raises:
        InvalidInputError: the order or a threshold is out of range; a text is empty or does not match
            the vocabulary; or the required held-out text is missing.
    """
    counted = count_ngrams(corpus, len(vocabulary), order=order, progress=progress)
    progress.start("smoothing n-grams", None)
    observations = Observations(counted, prune=prune)
    smoothed = smoothing(observations, held_out)
    histories = None
    if prune_entropy > 0:
        histories = history_frequencies([one_order.counts for one_order in observations.occurrences()])
    del counted, observations  # an automaton is about as large
    release_memory()
    progress.finish()
    orders, own_facts = smoothed.orders, smoothed.facts
    estimated = {
        "discounts": [list(discounts) for discounts in smoothed.discounts],
        "fallback_orders": list(smoothed.fallback_orders),
    }
    del smoothed
    model, _, facts = compress(
        orders,
        vocabulary,
        prune_entropy=prune_entropy,
        quantise=quantise,
        history_probs=histories,
        progress=progress,
    )
    return NGramEstimate(model, {**estimated, **own_facts, **facts})
