"""Answers that are no numbers."""

import numpy as np
import pytest

from service.engine.batching import check_no_nan


@pytest.mark.parametrize("values", [[[-1.0, -np.inf]], [], [[0.0]]])
def test_log_probabilities_are_let_through(values):
    array = np.array(values, dtype=np.float32)
    assert check_no_nan(array) is array


def test_one_that_is_no_number_is_not():
    with pytest.raises(FloatingPointError, match="NaN"):
        check_no_nan(np.array([[-1.0, -2.0], [np.nan, -3.0]], dtype=np.float32))
