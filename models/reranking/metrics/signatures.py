"""Signatures: what was counted, in the form sacrebleu gave them, so that figures can be compared."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacrebleuMetric

_VARYING = "var"


def error_rate_signature(num_references: int | None, units: str, normaliser: str) -> str:
    """Of an error rate, such as `nrefs:1|units:words|normaliser:none`."""
    references = _VARYING if num_references is None else num_references
    return f"nrefs:{references}|units:{units}|normaliser:{normaliser}"


def bleu_signature(num_references: int | None) -> str:
    """What sacrebleu prints for its default BLEU."""
    from sacrebleu.metrics.bleu import BLEU  # here, as nothing but signatures needs it

    return _signature(BLEU(), num_references)


def chrf_signature(num_references: int | None) -> str:
    """What sacrebleu prints for its default chrF."""
    from sacrebleu.metrics.chrf import CHRF

    return _signature(CHRF(), num_references)


def _signature(metric: "SacrebleuMetric", num_references: int | None) -> str:
    metric.num_refs = -1 if num_references is None else num_references
    return str(metric.get_signature())
