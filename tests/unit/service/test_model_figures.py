"""The figures of a model as they are listed: what metrics.json says, as far as it can be told in JSON."""

import pytest

from service.schemas.models import _figures


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ({"test": {"perplexity": 7}, "valid": {"perplexity": 8.0}}, {"perplexity": 7.0}),
        ({"valid": {"perplexity": None, "exact": True, "tokens": 3}}, {"tokens": 3.0}),
        ({"test": {"tokens": 10**400, "oov": 1}}, {"oov": 1.0}),
        ({"test": {"bits": float("nan"), "nats": float("inf")}}, {}),
        ({"test": 3}, {}),
        ({}, {}),
    ],
)
def test_figures_are_finite_numbers(metrics, told):
    """A number too large, or figures that were none, made an error of the whole list of models."""
    assert _figures(metrics) == told
