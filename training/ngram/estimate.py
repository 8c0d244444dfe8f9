"""Estimation of an n-gram model from a corpus: count, smooth, prune, build; smoothing by name."""

import ctypes
import gc
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from models.language_model import Vocabulary
from models.ngram.model import NGramModel
from training.corpus import EncodedCorpus
from training.ngram.counts import Observations, count_ngrams
from training.ngram.pruning import compress, history_frequencies
from training.ngram.smoothing.interpolation import (
    Additive,
    JelinekMercer,
    Smoothing,
    good_turing,
    maximum_likelihood,
    witten_bell,
)
from training.ngram.smoothing.kneser_ney import Discounting, DiscountSource
from training.progress import SILENT, Progress

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

DEFAULT_SMOOTHING: Smoothing = Discounting()


def make_smoothing(
    name: SmoothingName, *, k: float = 0.1, buckets: int = 1, discounts: DiscountSource = "counts"
) -> Smoothing:
    """Create a smoothing by name.

    Args:
        name: name of the smoothing.
        k: constant that `add-k` adds to every count.
        buckets: weights that `jelinek-mercer` fits per order.
        discounts: source of the discounts of `absolute`, `kneser-ney` and `modified-kneser-ney`.
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


def release_memory() -> None:
    """Return freed memory to the system if the allocator does not."""
    gc.collect()
    if sys.platform.startswith("linux") and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


class NGramEstimate(NamedTuple):
    """A model and statistics of its estimation.

    Attributes:
        model: the model.
        facts: for metrics.json, lists by order from 1: listed `ngrams`, 0 for orders
            that pruning emptied, which the model may lack; `ngrams_before_pruning` by entropy;
            `discounts` for counts of 1, 2, and 3 or more; `fallback_orders`, with constant
            parameters as their counts allow no estimate; and the smoothing's fitted parameters.
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

    Words that never occur get the probability of `<unk>`.

    Args:
        corpus: sentences, without `<s>` and `</s>`.
        vocabulary: maps ids to words.
        order: length of the longest n-grams, at least 1.
        smoothing: by default, modified Kneser–Ney.
        prune: count thresholds by order from 1; n-grams with counts up to it are dropped.
            The last threshold applies to all higher orders.
        prune_entropy: relative increase in perplexity below which an n-gram is dropped.
        quantise: store probabilities and back-off weights in eight bits each.
        held_out: other sentences, to fit the smoothing's parameters.
        progress: display of the stages.

    Raises:
        InputError: the order is out of range, a text is empty or does not
            match the vocabulary, or required held-out text is missing.
    """
    counted = count_ngrams(corpus, len(vocabulary), order=order, progress=progress)
    with progress.stage("smoothing n-grams"):
        observations = Observations(counted, prune=prune)
        orders, smoothing_facts = smoothing(observations, held_out)
        histories = None
        if prune_entropy > 0:
            histories = history_frequencies([one_order.counts for one_order in observations.orders()])
        del counted, observations  # an automaton is about as large
        release_memory()
    model, _, facts = compress(
        orders, vocabulary, prune_entropy, quantise=quantise, history_probs=histories, progress=progress
    )
    return NGramEstimate(model, {"discounts": [], "fallback_orders": [], **smoothing_facts, **facts})
