"""What those who run the service are told of its condition: readiness, the registry's reach, memory, nothing yet."""

import importlib.metadata

import httpx
import pytest

from service.settings import Settings
from tests.servers import running


def value(text, series):
    """The value of a series in an exposition."""
    (line,) = [line for line in text.splitlines() if line.rpartition(" ")[0] == series]
    return float(line.rpartition(" ")[2])


@pytest.fixture(scope="module")
def watching(registry):
    """A service that looks at its registry often."""
    settings = Settings(registry=registry.root, models=("mixture",), watch_interval_s=0.05)
    with running(settings) as server:
        yield server


def read(server):
    return httpx.get(f"{server.url}/metrics").text


def test_what_runs_is_told_by_its_version(watching):
    version = importlib.metadata.version("gramophone-lm")
    assert value(read(watching), f'gramophone_build_info{{version="{version}"}}') == 1


def test_a_service_that_is_ready_says_so(watching):
    text = read(watching)
    assert (value(text, "gramophone_ready"), value(text, "gramophone_draining")) == (1, 0)


def test_a_service_that_drains_is_not_ready(registry):
    with running(Settings(registry=registry.root, models=("mixture",))) as server:
        server.app.state.services.engine.scheduler.drain()
        text = read(server)
    assert (value(text, "gramophone_ready"), value(text, "gramophone_draining")) == (0, 1)


def test_the_age_of_the_last_look_is_small_while_the_registry_can_be_read(watching):
    assert value(read(watching), "gramophone_registry_look_age_seconds") < 5


def test_a_service_that_does_not_follow_the_registry_tells_no_age(registry):
    with running(Settings(registry=registry.root, models=("mixture",), watch_interval_s=0)) as server:
        assert "registry_look_age" not in read(server)


def test_memory_in_use_is_below_what_there_is(watching):
    text = read(watching)
    used, limit = (value(text, f"gramophone_memory_{name}_bytes") for name in ("working_set", "limit"))
    assert 0 < used < limit


@pytest.mark.parametrize(
    "series",
    [
        'rejections_total{reason="tokens"}',
        'auth_failures_total{reason="unknown"}',
        'model_loads_total{outcome="failed"}',
        'jobs_ended_total{how="deadline"}',
    ],
)
def test_what_has_not_happened_yet_counts_nought(watching, series):
    assert value(read(watching), f"gramophone_{series}") == 0
