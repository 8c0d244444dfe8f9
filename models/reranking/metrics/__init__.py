"""Error rates and translation metrics as additive counts, for tuning, significance tests and reports."""

from collections.abc import Callable

from models.errors import InvalidInputError
from models.reranking.metrics.error_rate import CharacterErrorRate, WordErrorRate
from models.reranking.metrics.metric import NORMALISERS, UNCHANGED, Metric


def _bleu(num_references: int | None, _normaliser: str) -> Metric:
    from models.reranking.metrics.ngram_overlap import Bleu  # compiles kernels: only where it is asked for

    return Bleu(num_references)


def _chrf(num_references: int | None, _normaliser: str) -> Metric:
    from models.reranking.metrics.ngram_overlap import ChrF

    return ChrF(num_references)


_METRIC_FACTORIES: dict[str, Callable[[int | None, str], Metric]] = {
    "wer": WordErrorRate,
    "cer": CharacterErrorRate,
    "bleu": _bleu,
    "chrf": _chrf,
}
METRIC_NAMES = tuple(_METRIC_FACTORIES)
_WITH_NORMALISERS = ("wer", "cer")


def make_metric(name: str, *, num_references: int | None = 1, normaliser: str = UNCHANGED) -> Metric:
    """The metric of a name.

    Args:
        name: one of `METRICS`.
        num_references: of each input, for the signature only; None where it varies.
        normaliser: what is done to texts and references first; error rates alone have it.

    Raises:
        InvalidInputError: there is no such metric or normaliser, or the metric has none.
    """
    if name not in _METRIC_FACTORIES:
        raise InvalidInputError(
            f"metric is {name!r}; it must be one of {', '.join(METRIC_NAMES)}", parameter="metric"
        )
    allowed = tuple(NORMALISERS) if name in _WITH_NORMALISERS else (UNCHANGED,)
    if normaliser not in allowed:
        raise InvalidInputError(
            f"normaliser is {normaliser!r}; for {name} it must be one of {', '.join(allowed)}",
            parameter="normaliser",
        )
    return _METRIC_FACTORIES[name](num_references, normaliser)
