"""Smoothing methods by the names that recipes give them."""

from typing import Literal, TypeAlias

from training.ngram.smoothing.good_turing import GoodTuring
from training.ngram.smoothing.interface import Smoothing
from training.ngram.smoothing.jelinek_mercer import JelinekMercer
from training.ngram.smoothing.kneser_ney import (
    AbsoluteDiscounting,
    DiscountSource,
    KneserNey,
    ModifiedKneserNey,
)
from training.ngram.smoothing.simple import Additive, MaximumLikelihood, WittenBell

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
    """Make the smoothing of a name.

    Args:
        name: of the smoothing.
        k: constant that `add-k` adds to every count.
        buckets: number of weights that `jelinek-mercer` fits for each order.
        discounts: source of the discounts of `absolute`, `kneser-ney` and `modified-kneser-ney`.

    Raises:
        InvalidInputError: a value is out of range for the smoothing that uses it.
    """
    chosen: dict[SmoothingName, Smoothing] = {
        "mle": MaximumLikelihood(),
        "laplace": Additive(1.0),
        "good-turing": GoodTuring(),
        "witten-bell": WittenBell(),
        "absolute": AbsoluteDiscounting(discounts),
        "kneser-ney": KneserNey(discounts),
        "modified-kneser-ney": ModifiedKneserNey(discounts),
    }
    if name == "add-k":
        return Additive(k)
    if name == "jelinek-mercer":
        return JelinekMercer(buckets)
    return chosen[name]
