"""That a service nobody has configured is bounded and closed: no limit is missing, nothing listens to the world."""

import math

import pytest

from service.settings import Settings

DEFAULTS = Settings()
BOUNDS = [
    name
    for name in Settings.model_fields
    if name.startswith(("max_", "keep_alive", "body_", "send_", "request_timeout", "state_ttl", "drain_"))
]


@pytest.mark.parametrize("name", BOUNDS)
def test_every_limit_is_set(name):
    limit = getattr(DEFAULTS, name)
    assert name == "max_top_k" or 0 < limit < math.inf  # that one is bounded by the vocabulary


def test_there_are_limits_on_all_that_a_client_can_make_grow():
    assert len(BOUNDS) > 14
    assert {"max_connections", "max_body_bytes", "max_states", "max_users", "max_queued_requests"} <= set(
        BOUNDS
    )


def test_nothing_is_open_that_need_not_be():
    assert DEFAULTS.host == "127.0.0.1"
    assert DEFAULTS.cors_origins == ()
    assert DEFAULTS.log_texts is False
    assert DEFAULTS.otlp_endpoint is None
