"""The wall clock jumps by hours, as when it is set: nothing ends early, hangs or is lost."""

import ast
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from models.checkpoint import load
from models.checkpoint.registry import LocalRegistry, open_registry
from models.tokenizers import WordTokenizer
from service.settings import Settings
from tests.contract.conftest import publish
from tests.support.checkpoints import write_minimal
from tests.support.fake_models import FakeModel, fake_vocabulary
from tests.support.object_stores import wait_until
from tests.support.resumable import fit
from tests.support.services import running
from training.progress import Progress

ROOT = Path(__file__).parents[2]
HOURS_10 = 36_000.0
JUMPS = pytest.mark.parametrize("jump_s", [HOURS_10, -HOURS_10], ids=["forward", "back"])
WALL_CLOCKS = {"time.time", "time.time_ns", "time.localtime", "time.gmtime"}


class Wall:
    """Wall clock of this process, with an error."""

    def __init__(self):
        self.error_s = 0.0
        self._true = time.time

    def time(self):
        return self._true() + self.error_s

    def time_ns(self):
        return int(self.time() * 1e9)


@pytest.fixture
def wall(monkeypatch):
    wall = Wall()
    monkeypatch.setattr(time, "time", wall.time)
    monkeypatch.setattr(time, "time_ns", wall.time_ns)
    return wall


@pytest.fixture
def service(tmp_path, monkeypatch):
    """Run a service with a slow model; states live two seconds, requests one and a half."""
    monkeypatch.setitem(load.FAMILIES, "fake", ("tests.support.fake_models", "FakeModel"))
    registry = LocalRegistry(tmp_path / "registry", create=True)
    add_version(registry)
    settings = Settings(
        registry=registry.root,
        watch_interval_s=0.05,
        request_timeout_ms=1500,
        state_ttl_s=2.0,
        max_queued_requests=1,
    )
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=30) as http:
        yield server, http, registry


def add_version(registry):
    words = WordTokenizer(fake_vocabulary())
    model = FakeModel(words.vocabulary, seed=len(registry.versions("m")), endless=True)
    return publish(registry, "m", model, words)


def slow_down(server, delay_s):
    server.app.state.services.host.resolve("m").model.delay_s = delay_s


def generate(http, max_tokens):
    return http.post("/v1/generate", json={"prompt": "the", "max_tokens": max_tokens, "seed": 1})


@JUMPS
def test_a_request_under_way_is_not_given_up_early(service, wall, jump_s):
    server, http, _ = service
    slow_down(server, 0.02)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(generate, http, 15)
        time.sleep(0.1)
        wall.error_s = jump_s
        assert asked.result().status_code == 200


@JUMPS
def test_a_request_without_end_is_given_up_in_its_time(service, wall, jump_s):
    server, http, _ = service
    slow_down(server, 0.05)
    began_s = time.monotonic()
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(generate, http, 1000)
        time.sleep(0.1)
        wall.error_s = jump_s
        assert asked.result().status_code == 504
    assert time.monotonic() - began_s >= 1.4


@JUMPS
def test_those_turned_away_are_told_to_wait_for_seconds(service, wall, jump_s):
    server, http, _ = service
    slow_down(server, 0.05)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(generate, http, 1000)
        time.sleep(0.3)
        wall.error_s = jump_s
        refused = http.post("/v1/score", json={"texts": ["the cat"]})
        asked.result()
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 10


@JUMPS
def test_a_state_lives_as_long_as_was_said_and_no_longer(service, wall, jump_s):
    _, http, _ = service

    def advance(state):
        body = {"continuations": [{"state": state, "text": "sat"}]}
        return http.post("/v1/states/advance", json=body).status_code

    def state():
        [made] = http.post("/v1/states", json={"context": "the cat"}).json()["states"]
        return made["state"]

    first = state()
    wall.error_s = jump_s
    assert advance(first) == 200
    left = state()
    wall.error_s = 0.0
    time.sleep(2.5)
    assert advance(left) == 404


@JUMPS
def test_versions_and_aliases_are_followed(service, wall, jump_s):
    _, http, registry = service
    wall.error_s = jump_s
    add_version(registry)
    assert served(http, "m@2")
    registry.set_alias("m", "champion", 1)
    assert served(http, "m@1")


def served(http, address):
    """Wait until an address answers."""
    wait_until(
        lambda: http.post("/v1/score", json={"texts": ["a"]}).json().get("model") == address, seconds=10
    )
    return True


class Jumping(Progress):
    """Lets the clock jump at every update of a training."""

    def __init__(self, wall, jump_s):
        self._wall, self._jump_s = wall, jump_s

    def advance(self, _amount, _note=""):
        self._wall.error_s += self._jump_s


@JUMPS
def test_a_training_takes_the_minutes_it_was_given(wall, jump_s):
    began_s = time.monotonic()
    result = fit(
        progress=Jumping(wall, jump_s), max_minutes=0.03, max_steps=None, epochs=100_000, validations=2
    )
    assert result.stopped == "max_minutes"
    assert 1.8 <= result.history[-1].seconds <= time.monotonic() - began_s


@JUMPS
def test_contents_that_are_being_published_are_not_swept_away(jump_s, tmp_path):
    """The sweeping client's clock is wrong: relative to it, the store's times are shifted the other way."""
    registry = open_registry(f"memory://clock{jump_s:g}", cache=tmp_path)
    store = registry._store

    def seen(folder="", entries=store.entries):
        return [entry._replace(modified_s=entry.modified_s - jump_s) for entry in entries(folder)]

    def slowly(key, raw, tag, put=store.put_if_match):
        swept.append(registry.sweep(older_than_s=3600))
        return put(key, raw, tag)

    swept = []
    store.entries, store.put_if_match = seen, slowly
    registry.publish("m", write_minimal)
    assert swept == [0]
    fresh = open_registry(registry.location, cache=tmp_path / "another")
    assert (fresh.fetch(fresh.resolve("m")) / "weights.bin").read_bytes() == b"weights"


def test_durations_are_measured_by_no_wall_clock():
    """The time of day is only reported: as the time of a log line, of a creation or of a last use."""
    asking, unspelled = set(), []
    for package in ("models", "service", "training"):
        for path in (ROOT / package).rglob("*.py"):
            nodes = list(ast.walk(ast.parse(path.read_text())))
            named = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
            asking |= {path.relative_to(ROOT).as_posix()} if named & WALL_CLOCKS else set()
            now = [node for node in nodes if isinstance(node, ast.Call) and _is_now(node)]
            spelled = {
                id(node.value)
                for node in nodes
                if isinstance(node, ast.Attribute) and node.attr == "isoformat"
            }
            unspelled += [path for node in now if id(node) not in spelled]
    reporting = {
        "service/logs.py",
        "service/middleware/guarded_request.py",
        "service/operations/completions.py",
    }
    assert asking == reporting
    assert unspelled == []


def _is_now(call):
    return ast.unparse(call.func).rpartition(".")[2] in {"now", "utcnow", "today"}
