"""Services that are fuzzed, and that must be as they were once that is over."""

import contextlib

import pytest

from service.api_keys import KeyScope, create_key
from tests.fuzz.asking import Asker
from tests.fuzz.served import fuzzed

GROWTH_BYTES = 200 * 2**20
"""What a process may grow by: what numba and torch make when something is first asked for, and caches."""

POOL_THREADS = 8
"""What asyncio and numba may start when something is first asked for."""


@contextlib.contextmanager
def unharmed(service):
    """See that a service holds no more when the block ends than before, answers the same, and logged no fault."""
    golden, asked, before = service.golden(), service.num_asked(), service.process
    most_files = before.open_files + 1  # the connection over which it is asked may be there or closed
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
    """A key for each scope, and one for all."""
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
    """Asks that one, with the key for all unless told otherwise; there are a profile and a user to ask about."""
    with guarded.client() as client:
        client.put("/admin/profiles/ngram", json={"weights": {"lm": 1.0}}).raise_for_status()
        client.post("/v1/autocomplete/users/ann/accepted", json={"text": "the cat"}).raise_for_status()
    with contextlib.closing(Asker(guarded)) as asker:
        yield asker


@pytest.fixture(scope="module")
def unguarded_asker(unguarded):
    """Asks the other."""
    with contextlib.closing(Asker(unguarded)) as asker:
        yield asker


@pytest.fixture(scope="module")
def guarded_client(guarded):
    """A client of the guarded service, with the key for all."""
    with guarded.client() as client:
        yield client
