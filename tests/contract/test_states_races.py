"""States that many clients free and continue at the same moment."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from models.checkpoint.registry import LocalRegistry
from service.settings import Settings
from tests import families
from tests.contract.conftest import publish
from tests.servers import running

CLIENTS, ROUNDS = 8, 10


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    registry = LocalRegistry(tmp_path_factory.mktemp("races"))
    publish(registry, "lstm", families.model("lstm"), families.tokenizer())
    with running(Settings(registry=registry.root)) as server:
        yield server


@pytest.fixture
def ask(server):
    """Asks for JSON; whatever the status."""
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield lambda path, body: client.post(f"/v1/states{path}", json=body)


@pytest.fixture
def kept(server):
    """How many states are kept, and their bytes."""
    store = server.app.state.services.states
    return lambda: (len(store), store.num_bytes)


def at_once(work):
    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(work, range(CLIENTS)))


def test_a_state_that_many_free_is_freed_once(ask, kept):
    states = [one["state"] for one in ask("", {"context": ["w1"] * 200}).json()["states"]]
    freed = at_once(lambda _: ask("/free", {"states": states}).json()["freed"])
    assert (sum(freed), kept()) == (200, (0, 0))


def test_a_state_that_is_freed_meanwhile_is_continued_rightly_or_not_found(ask, kept):
    def race(number):
        told = []
        for _ in range(ROUNDS):
            state = ask("", {"context": "w1 w2"}).json()["states"][0]["state"]
            bodies = [{"continuations": [{"state": state, "text": "w3"}], "free": [state]}] * 2
            with ThreadPoolExecutor(2) as pool:
                told += pool.map(lambda body: ask("/advance", body), bodies)
        return told

    replies = [one for told in at_once(race) for one in told]
    assert {one.status_code for one in replies} <= {200, 404}
    results = [one.json()["results"][0] for one in replies if one.status_code == 200]
    assert len(results) >= CLIENTS * ROUNDS  # of each two that ask, one at least comes before the other frees
    assert max(r["logprob"] for r in results) == pytest.approx(min(r["logprob"] for r in results), abs=1e-5)
    ask("/free", {"states": [r["state"] for r in results]})
    assert kept() == (0, 0)
