"""Profiles as they are read."""

import json

import pytest

from models.errors import InvalidInputError
from models.reranking.ranking import parse_profile

GOOD = {
    "name": "one",
    "weights": {"lm": 0.5},
    "metric": "wer",
    "signature": "",
    "models": [{"address": "small@1", "weight": 1.0}],
    "decision": "tuned",
    "figures": {"baseline": 15.4},
    "created": "2026-01-01T00:00:00+00:00",
}


@pytest.mark.parametrize(
    "wrong",
    [{"models": [{"address": "small@1", "weight": float("nan")}]}, {"figures": {"baseline": [float("inf")]}}],
    ids=["models", "figures"],
)
def test_what_no_reply_could_hold_is_refused(wrong):
    assert parse_profile(json.dumps(GOOD).encode()).name == "one"
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        parse_profile(json.dumps(GOOD | wrong).encode())
