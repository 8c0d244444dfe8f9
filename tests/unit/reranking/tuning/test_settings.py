"""Limits of what may be asked of a search."""

import pytest

from models.errors import InvalidInputError
from models.reranking.tuning.fitting import TuningSettings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("folds", 1),
        ("folds", 21),
        ("seed", -1),
        ("restarts", 1001),
        ("resamples", 0),
        ("max_p_value", 1.5),
        ("bootstrap_samples", 99),
        ("length_exponents", ()),
        ("length_exponents", (0.0, 5.0)),
        ("max_p_value", float("nan")),
    ],
)
def test_values_outside_their_limits_are_refused_by_name(field, value):
    with pytest.raises(InvalidInputError, match=f"^{field}.* is .*; it must be from") as caught:
        TuningSettings(**{field: value})
    assert caught.value.parameter.startswith(field)
