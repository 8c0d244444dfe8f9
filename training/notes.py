"""What to know of a model, in sentences, from its metrics: its file, its sums, what was fitted on its text or seen."""

from collections.abc import Iterator, Mapping
from typing import Any

from training.overlap import is_suspicious, overlap_phrase

FITTED = {
    "weights_fitted_on": "the weights",
    "discounts_fitted_on": "the discounts",
    "lambdas_fitted_on": "the interpolation weights",
}
"""Metrics that name the text `valid` where something was fitted on it, and what was."""


def card_notes(metrics: Mapping[str, Any]) -> Iterator[str]:
    """What is odd about an imported file, and by how much rows miss 1."""
    if arpa := metrics.get("arpa"):
        yield from _file_notes(arpa)
    sums = metrics.get("normalisation")
    if sums and not sums["normalised"]:
        yield (
            f"probabilities do not sum to 1: after {sums['contexts']:,} contexts, "
            f"they are off by up to {sums['largest_deviation']:.3g}"
        )


def all_parts(metrics: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A model's parts, each after its own parts: the whole comes last."""
    for part in metrics.get("parts", ()):
        yield from all_parts(part)
        yield part


def overlap_notes(overlaps: Mapping[str, Any]) -> Iterator[str]:
    """A warning for each text, by name, of which too much is in the training text."""
    for name, facts in overlaps.items():
        if is_suspicious(facts):
            yield f"figures on {name} are too good: {overlap_phrase(facts)}"


def _file_notes(arpa: Mapping[str, Any]) -> Iterator[str]:
    if not arpa["lists_unknown"]:
        yield "the file has no <unk>; unknown words have the log10 probability -100"
    if arpa["ignored_backoffs"]:
        yield f"{arpa['ignored_backoffs']:,} back-off weights of the highest order mean nothing"
    if arpa["ignored_starts"]:
        yield f"{arpa['ignored_starts']:,} n-grams end in <s>, which is never predicted here"
    if arpa["split_words"]:
        yield f"{arpa['split_words']:,} words have white space in them; texts are split there"


def fitted_note(metrics: Mapping[str, Any]) -> str:
    """That figures on the text `valid` are no held-out figures, and why; empty where they are."""
    fitted = [key for key in FITTED if metrics.get(key)]
    if not fitted:
        return ""
    what = " and ".join(FITTED[key] for key in fitted)
    text = ", ".join(metrics[fitted[0]])
    tested = "; those on test are held out" if metrics.get("test") else ""
    return f"figures on valid are figures on the text that {what} were fitted on ({text}){tested}"
