"""Services to fuzz, whose resources and replies must be unchanged afterwards."""

import contextlib

import pytest

from service.api_keys import KeyScope, create_key
from tests.fuzz.asking import Asker
from tests.fuzz.served import fuzzed

GROWTH_BYTES = 200 * 2**20
"""Allowed growth of a process: first-use allocations of numba and torch, and caches."""

POOL_THREADS = 8
"""Threads that asyncio and numba may start on first use."""


@contextlib.contextmanager
def unharmed(service):
    """Check that after the block a service holds no more resources, gives the same replies, and logged no error."""
    golden, asked, before = service.golden(), service.num_asked(), service.process
    most_files = before.open_files + 1  # the metrics connection may be open or closed
    yield
    held, open_files = service.wait_until_idle(most_files)
    after = service.process
    print(f"\n{service.num_asked() - asked} requests; before {before}, after {after}")
    assert not held
    assert open_files <= most_files
    assert after.threads <= before.threads + POOL_THREADS
    assert after.resident_bytes <= before.resident_bytes + GROWTH_BYTES
    assert service.golden() == golden
    log = service.log.read_text(errors="replace")
    assert "Traceback" not in log
    assert "request failed" not in log


@pytest.fixture(scope="session")
def keys():
    """A key for each scope, and one with all scopes."""
    made = {scope: create_key(f"for-{scope}", [scope]) for scope in KeyScope}
    return {**made, "all": create_key("for-all", list(KeyScope))}


@pytest.fixture(scope="module")
def guarded(keys, tmp_path_factory):
    """A service with keys."""
    lines = " ".join(made.key.line for made in keys.values())
    headers = {"authorization": f"Bearer {keys['all'].secret}"}
    folder = tmp_path_factory.mktemp("guarded")
    with fuzzed(folder, headers=headers, GRAMOPHONE_API_KEYS=lines) as service, unharmed(service):
        yield service


@pytest.fixture(scope="module")
def unguarded(tmp_path_factory):
    """A service without keys."""
    with fuzzed(tmp_path_factory.mktemp("unguarded"), headers={}) as service, unharmed(service):
        yield service


@pytest.fixture(scope="module")
def guarded_asker(guarded):
    """Fuzz the guarded service, by default with the full key; a profile and a user exist."""
    with guarded.client() as client:
        client.put("/admin/profiles/ngram", json={"weights": {"lm": 1.0}}).raise_for_status()
        client.post("/v1/autocomplete/users/ann/accepted", json={"text": "the cat"}).raise_for_status()
    with contextlib.closing(Asker(guarded)) as asker:
        yield asker


@pytest.fixture(scope="module")
def unguarded_asker(unguarded):
    """Fuzz the unguarded service."""
    with contextlib.closing(Asker(unguarded)) as asker:
        yield asker


@pytest.fixture(scope="module")
def guarded_client(guarded):
    """A client of the guarded service, with the full key."""
    with guarded.client() as client:
        yield client
