"""Handles of freed states, of other models and processes; too many states; and invalid requests."""

import time

import httpx
import pytest

from gramophone_client import Client, NotFoundError, OverloadedError, ServerError, StateElsewhereError
from models.checkpoint.registry import LocalRegistry
from models.tokenizers import WordTokenizer
from service.api_keys import create_key
from service.settings import Settings
from tests.contract.conftest import publish
from tests.support.fake_models import FakeModel, fake_vocabulary
from tests.support.services import running

ADVANCE, NEXT, OPEN, FREE = "/v1/states/advance", "/v1/states/next", "/v1/states", "/v1/states/free"
HERE = "here.0a0b0c.ABCDEFGHIJKLMNOP"


def add_version(registry):
    words = WordTokenizer(fake_vocabulary())
    seed = len(registry.versions("lm")) if "lm" in registry.models() else 0
    return publish(registry, "lm", FakeModel(words.vocabulary, seed=seed), words)


@pytest.fixture
def registry(fake_family, tmp_path):
    registry = LocalRegistry(tmp_path)
    add_version(registry)
    registry.set_alias("lm", "champion", 1)
    return registry


def started(registry, **options):
    return running(Settings(registry=registry.root, process_name="here", **options))


@pytest.fixture(scope="module")
def http(fake_family, tmp_path_factory):
    registry = LocalRegistry(tmp_path_factory.mktemp("refused"))
    add_version(registry)
    limits = {"max_texts_per_request": 10, "max_tokens_per_sequence": 50, "max_body_bytes": 100_000}
    with started(registry, **limits) as server, httpx.Client(base_url=server.url, timeout=20) as client:
        yield client


def error_of(response, status):
    assert response.status_code == status, response.text
    return response.json()["error"]


def opened(http, **body):
    return http.post(OPEN, json=body).raise_for_status().json()["states"][0]["state"]


@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [
        (OPEN, {"context": 5}, "context", "5"),
        (OPEN, {"context": [3, 99]}, "context[1]", "0 to 12"),
        (OPEN, {"context": ["a"] * 11}, "context", "11 entries; at most 10"),
        (OPEN, {"context": "a " * 51}, "context", "51 tokens; at most 50"),
        (OPEN, {"bos": 1}, "bos", "1"),
        (OPEN, {"phrases": [{"text": f"p{i}"} for i in range(1001)]}, "phrases", "at most 1000"),
        (OPEN, {"phrases": [{"text": "a", "weight": 0.0}]}, "phrases[0].weight", "above 0 and at most 1000"),
        (
            OPEN,
            {"phrases": [{"text": "a"}, {"text": "A"}]},
            "phrases[1].text",
            "the words of phrases[0].text",
        ),
        (OPEN, {"phrases": [{"text": "a", "score": 1.0}]}, "phrases[0].score", "score"),
        (ADVANCE, {}, "continuations", "required"),
        (ADVANCE, {"continuations": []}, "continuations", "[]"),
        (ADVANCE, {"continuations": [{"text": "a"}]}, "continuations[0].state", "required"),
        (ADVANCE, {"continuations": [{"state": ""}]}, "continuations[0].state", "1 character"),
        (ADVANCE, {"continuations": [{"state": "x" * 201}]}, "continuations[0].state", "200"),
        (ADVANCE, {"continuations": [{"state": HERE}] * 11}, "continuations", "11 entries"),
        (ADVANCE, {"continuations": [{"state": HERE}], "free": [HERE] * 11}, "free", "11 entries"),
        (NEXT, {"states": []}, "states", "[]"),
        (NEXT, {"states": [HERE], "token_ids": []}, "token_ids", "[]"),
        (NEXT, {"states": HERE}, "states", "array"),
        (FREE, {"states": [5]}, "states[0]", "5"),
        (FREE, {"handles": []}, "states", "required"),
    ],
)
def test_a_wrong_value_is_named_with_its_limit(http, path, body, param, said):
    error = error_of(http.post(path, json=body), 400)
    assert error["param"] == param
    assert said in error["message"]


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"token_ids": [3, 13]}, "continuations[0].token_ids[1]", "0 to 12"),
        ({"token_ids": [10**30]}, "continuations[0].token_ids[0]", "0 to 12"),
        ({"token_ids": [3] * 51}, "continuations[0].token_ids", "51 tokens; at most 50"),
        ({"text": "a", "token_ids": [3]}, "continuations[0]", "either text or token_ids"),
        ({"text": "a " * 40_000}, "continuations[0].text", "80000 characters"),
        ({"words": "a"}, "continuations[0].words", "words"),
    ],
)
def test_a_wrong_continuation_is_named_and_leaves_the_state_as_it_was(http, body, param, said):
    state = opened(http)
    error = error_of(http.post(ADVANCE, json={"continuations": [{"state": state, **body}]}), 400)
    assert error["param"] == param
    assert said in error["message"]
    assert http.post(FREE, json={"states": [state]}).json()["freed"] == 1


def test_ids_outside_the_vocabulary_are_refused(http):
    state = opened(http)
    body = {"continuations": [{"state": state}], "next_token_ids": [13]}
    assert error_of(http.post(ADVANCE, json=body), 400)["param"] == "next_token_ids[0]"
    body = {"states": [state], "token_ids": [-1]}
    assert error_of(http.post(NEXT, json=body), 400)["param"] == "token_ids[0]"
    body = {"states": [state], "token_ids": [3] * 14}
    assert "14 entries; the model's vocabulary has 13" in error_of(http.post(NEXT, json=body), 400)["message"]


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b'{"states":["\\ud800"]}', b"[" * 50_000])
@pytest.mark.parametrize("path", [OPEN, ADVANCE, NEXT, FREE])
def test_body_that_is_not_json_in_utf8_is_refused(http, path, content):
    assert len(error_of(http.post(path, content=content), 400)["message"]) < 300


@pytest.mark.parametrize("state", [HERE, "nonsense", "\u0000", "here.0a0b0c.ABCDEFGHIJKLMNO\u00e9"])
def test_an_unknown_state_is_not_found(http, state):
    error = error_of(
        http.post(ADVANCE, json={"continuations": [{"state": opened(http)}, {"state": state}]}), 404
    )
    assert (error["code"], error["param"]) == ("unknown_state", "continuations[1].state")
    assert error_of(http.post(NEXT, json={"states": [state]}), 404)["code"] == "unknown_state"
    assert http.post(FREE, json={"states": [state]}).json() == {"freed": 0}


def test_a_freed_state_is_not_found_and_its_fork_is(http):
    state = opened(http)
    fork = http.post(ADVANCE, json={"continuations": [{"state": state}], "free": [state]}).json()["results"][
        0
    ]
    error = error_of(http.post(NEXT, json={"states": [state]}), 404)
    assert "freed, was not used for 300 s" in error["message"]
    assert http.post(NEXT, json={"states": [fork["state"]]}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (ADVANCE, {"continuations": [{"state": HERE.replace("here", "there")}]}),
        (NEXT, {"states": [HERE.replace("here", "there")]}),
        (FREE, {"states": [HERE.replace("here", "there")]}),
    ],
)
def test_a_state_of_another_process_is_a_conflict_that_names_it(http, path, body):
    error = error_of(http.post(path, json=body), 409)
    assert error["code"] == "state_elsewhere"
    assert "by the process there, and this is here" in error["message"]
    assert error["param"].endswith(("[0]", "[0].state"))


def test_the_client_says_which_kind_of_error_it_was(http):
    with Client(str(http.base_url)) as client:
        with pytest.raises(NotFoundError):
            client.states.next([HERE])
        with pytest.raises(StateElsewhereError):
            client.states.free([HERE.replace("here", "there")])


def test_a_state_that_is_not_used_expires_and_its_memory_is_given_back(registry):
    with started(registry, state_ttl_s=0.2) as server, httpx.Client(base_url=server.url) as client:
        state = opened(client)
        store = server.app.state.services.states
        assert len(store) == 1
        until = time.monotonic() + 5
        while len(store) and time.monotonic() < until:  # without any request
            time.sleep(0.02)
        assert "gramophone_states 0.0" in client.get("/metrics").text
        assert "not used for 0.2 s" in error_of(client.post(NEXT, json={"states": [state]}), 404)["message"]


def test_one_state_too_many_is_told_the_numbers_and_costs_nothing(registry):
    with started(registry, max_states=2) as server, Client(server.url, max_retries=0) as client:
        (state,) = (one.state for one in client.states.open("the").states)
        with pytest.raises(OverloadedError, match=r"1 states are stored and 2 are to be added; .* is 2"):
            client.states.advance([{"state": state, "text": "cat"}, {"state": state, "text": "dog"}])
        with pytest.raises(OverloadedError) as caught:
            client.states.open(["the"] * 2)
        assert caught.value.code == "states_full"
        assert client.states.advance([{"state": state, "text": "cat", "keep": False}] * 3).results
        assert client.states.advance([{"state": state, "text": "cat"}]).results
        metrics = httpx.get(f"{server.url}/metrics").text
    assert 'gramophone_rejections_total{reason="states_full"} 2.0' in metrics


def test_memory_is_bounded_too(registry):
    with started(registry, max_state_bytes=1500) as server, Client(server.url, max_retries=0) as client:
        client.states.open("the")
        with pytest.raises(
            OverloadedError, match=r"take 1000 bytes and the 1 to be added take 1000; .* 1500"
        ):
            client.states.open("the")


def test_memory_of_phrases_is_bounded_and_given_back(registry):
    favoured = [{"text": "the cat"}]
    with started(registry, max_state_bytes=2500) as server, Client(server.url, max_retries=0) as client:
        (state,) = (one.state for one in client.states.open("the", phrases=favoured).states)
        with pytest.raises(
            OverloadedError, match=r"take 2\d{3} bytes and the 1 to be added take 1\d{3}; .* 2500"
        ):
            client.states.open("the", phrases=favoured)
        assert client.states.free([state]) == 1
        assert server.app.state.services.states.num_bytes == 0


def test_a_store_full_of_one_keys_states_takes_those_of_another_up_to_its_share(registry):
    keys = [create_key(name, ["infer"]) for name in ("hostile", "other")]
    lines = tuple(made.key.line for made in keys)
    with started(registry, api_keys=lines, max_states=4) as server:
        hostile, other = (Client(server.url, api_key=made.secret, max_retries=0) for made in keys)
        with hostile, other:
            lent = [kept.state for kept in hostile.states.open(["the"] * 4).states]
            mine = [kept.state for kept in other.states.open(["the"] * 2).states]
            assert hostile.states.next(lent[2:], token_ids=[2])
            assert other.states.next(mine, token_ids=[2])
            with pytest.raises(NotFoundError, match="gave way to another key's"):
                hostile.states.next(lent[:1])
            for client in (hostile, other):
                with pytest.raises(OverloadedError, match="the share of this key 2, of which 2 are taken"):
                    client.states.open("the")


def test_failed_advance_stores_and_frees_no_state(registry):
    with started(registry) as server, Client(server.url) as client:
        (state,) = (kept.state for kept in client.states.open("the").states)
        model = server.app.state.services.host.resolve("lm").model
        model.fails = True
        with pytest.raises(ServerError):
            client.states.advance([{"state": state, "text": "cat"}], free=[state])
        model.fails = False
        assert len(server.app.state.services.states) == 1
        assert client.states.advance([{"state": state, "text": "cat"}], free=[state]).results


def test_another_key_finds_nothing(registry):
    keys = [create_key(name, ["infer"]) for name in ("one", "other")]
    lines = tuple(made.key.line for made in keys)
    with started(registry, api_keys=lines) as server:
        one, other = (Client(server.url, api_key=made.secret) for made in keys)
        with one, other:
            (state,) = (kept.state for kept in one.states.open("the").states)
            for ask in (other.states.next, lambda s: other.states.advance([{"state": s[0]}])):
                with pytest.raises(NotFoundError, match="is no stored state"):
                    ask([state])
            assert other.states.free([state]) == 0
            assert one.states.free([state]) == 1


def test_states_stay_with_their_version_when_another_is_served(registry):
    with started(registry, watch_interval_s=0.02) as server, Client(server.url) as client:
        before = client.states.open("the")
        expected = client.states.next([before.states[0].state])
        add_version(registry)
        registry.set_alias("lm", "champion", 2)
        wait_for(lambda: client.states.open("the").model == "lm@2")
        state, other = before.states[0].state, client.states.open("the").states[0].state
        assert client.states.next([state]) == expected
        assert client.states.advance([{"state": state, "text": "cat"}]).model == "lm@1"
        answer = httpx.post(server.url + NEXT, json={"states": [state, other]})
        assert "states[1] was computed by lm@2" in error_of(answer, 400)["message"]
        host = server.app.state.services.host
        assert [gone.address for gone in host.unloading] == ["lm@1"]
        server.app.state.services.states.ttl_s = 0
        server.app.state.services.states.expire()
        wait_for(lambda: not host.unloading)


def test_states_go_with_a_version_that_is_unloaded_and_say_so(registry):
    admin = create_key("admin", ["infer", "admin"])
    add_version(registry)
    with (
        started(registry, models=("lm", "lm@2"), api_keys=(admin.key.line,)) as server,
        Client(server.url, api_key=admin.secret) as client,
    ):
        state = client.states.open("the", model="lm@2").states[0].state
        headers = {"authorization": f"Bearer {admin.secret}"}
        unload = httpx.post(f"{server.url}/admin/models/unload", json={"model": "lm@2"}, headers=headers)
        assert unload.status_code == 200
        with pytest.raises(NotFoundError, match=r"states\[0\] was a state of lm@2, which has been unloaded"):
            client.states.next([state])
        services = server.app.state.services
        assert (len(services.states), services.states.num_bytes) == (0, 0)
        wait_for(lambda: not services.host.unloading)


def wait_for(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it did not come about")
