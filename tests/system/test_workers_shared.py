"""State and administration shared by two workers."""

import asyncio
import threading
import time

import httpx
import pytest

from models.checkpoint.registry import LocalRegistry
from models.tokenizers import WordTokenizer
from service.api_keys import create_key
from tests.contract.conftest import publish
from tests.support.fake_models import FakeModel, fake_vocabulary
from tests.support.http import asked
from tests.support.services import running_workers, wait_for

USERS = ["ann", "bob", "cid", "dan"]
"""Users of different workers."""


@pytest.fixture(scope="module")
def key():
    return create_key("our-app", ["infer", "metrics"])


@pytest.fixture(scope="module")
def workers(registry, tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers")
    with running_workers(registry, folder, GRAMOPHONE_MODELS="mixture,slow") as two:
        yield two


@pytest.fixture(scope="module")
def clients(workers):
    return [workers.client(number) for number in (0, 1)]


def test_a_users_words_are_offered_by_both_workers(clients):
    for user in USERS:
        clients[0].post(f"/v1/autocomplete/users/{user}/accepted", json={"text": "zebra"})
        for client in clients:
            reply = client.post("/v1/autocomplete", json={"text": "the ze", "user": user}).json()
            assert [one["text"] for one in reply["completions"]] == ["zebra"]


def test_a_user_is_told_and_forgotten_by_both_workers(clients):
    for user in USERS:
        path = f"/v1/autocomplete/users/{user}"
        clients[1].put(path, json={"words": [{"text": "quagga", "count": 2}]})
        assert clients[0].get(path).json()["words"][0]["text"] == "quagga"
        assert clients[0].delete(f"{path}/words/quagga").json()["num_words"] == 0
        assert clients[1].get(path).json()["words"] == []
        assert clients[1].delete(f"{path}/words/quagga").status_code == 404
        assert clients[0].delete(path).json()["forgotten"]
        assert clients[1].get(path).status_code == 404


def test_a_newer_request_of_a_session_takes_the_place_of_an_older_at_the_other_worker(workers, clients):
    answers = {}

    def ask(number, **effort):
        body = {"model": "slow", "text": "the c", "session": "s1", **effort}
        answers[number] = clients[number].post("/v1/autocomplete", json=body)

    old = threading.Thread(target=ask, args=(0,), kwargs={"max_words": 8, "max_steps": 4000})  # some seconds
    old.start()
    wait_for(lambda: sum(workers.metric("gramophone_num_requests_running").values()) == 1)
    ask(1)
    old.join()
    assert (answers[0].status_code, answers[1].status_code) == (409, 200)
    assert answers[0].json()["error"]["code"] == "superseded"


def test_a_session_shows_a_completion_once_whichever_worker_is_asked(clients):
    for session in USERS:  # of different workers
        asked = {"model": "mixture", "limit": 1, "session": session, "no_repeats": True}
        shown = [
            [one["text"] for one in reply.json()["completions"]]
            for client, text in zip(clients, ("the c", "the ca"), strict=True)
            for reply in [client.post("/v1/autocomplete", json={"text": text, **asked})]
        ]
        assert shown == [["cat"], []]


def test_states_are_found_by_both_workers_and_may_stand_together(clients):
    states = [
        clients[number].post("/v1/states", json={"context": ["the cat"]}).json()["states"][0]["state"]
        for number in (0, 1, 0)
    ]
    replies = []
    for client in clients:
        body = {"continuations": [{"state": state, "text": "sat"} for state in states]}
        replies.append(
            [one["logprob"] for one in client.post("/v1/states/advance", json=body).json()["results"]]
        )
    assert replies[0] == replies[1]
    assert clients[0].post("/v1/states/free", json={"states": states}).json()["freed"] == 3
    gone = clients[1].post("/v1/states/next", json={"states": states})
    assert gone.json()["error"]["code"] == "unknown_state"


def test_clients_with_names_of_their_own_are_spread(clients):
    keepers = set()
    for session in range(12):
        headers = {"x-gramophone-session": f"decoder-{session}"}
        reply = clients[0].post("/v1/states", json={"context": ["the"]}, headers=headers).json()
        keepers.add(reply["states"][0]["state"].split(".")[0][-2:])
    assert keepers == {"-0", "-1"}


def test_numbers_of_any_size_come_through_the_other_worker(clients):
    headers = {"x-gramophone-session": "raw"}
    contexts = {"context": ["the"] * 64}
    states = [
        one["state"] for one in clients[0].post("/v1/states", json=contexts, headers=headers).json()["states"]
    ]
    replies = [
        client.post(
            "/v1/states/next", json={"states": states * 40}, headers={"accept": "application/octet-stream"}
        )
        for client in clients
    ]
    assert len(replies[0].content) == 64 * 40 * 13 * 4
    assert replies[0].content == replies[1].content
    assert replies[0].headers["x-shape"] == replies[1].headers["x-shape"] == "2560,13"
    assert all(len(reply.headers.get_list("date")) == 1 for reply in replies)


def test_a_session_of_reranking_goes_on_at_the_other_worker(clients):
    def rerank(number, session):
        one = {
            "candidates": [{"text": "the mat"}, {"text": "a dog"}],
            "session": session,
            "commit": "the cat",
        }
        return clients[number].post("/v1/rerank", json={"lists": [one]}).json()["lists"][0]

    session = None
    for number in (0, 1, 1, 0):
        reply = rerank(number, session)
        session = reply["session"]
    assert session


def test_lists_without_a_session_are_answered_where_they_come(workers, clients):
    before = workers.metric("gramophone_relayed_requests_total")
    for client in clients:
        client.post("/v1/rerank", json={"lists": [{"candidates": [{"text": "the mat"}]}]})
        client.post("/v1/autocomplete", json={"text": "the"})
    assert workers.metric("gramophone_relayed_requests_total") == before


def test_a_relayed_request_is_counted_and_logged_once_by_who_answers(workers, clients):
    ids = [f"once-{number}" for number in (0, 1)]
    for client, own in zip(clients, ids, strict=True):
        answer = client.post(
            "/v1/autocomplete", json={"text": "the", "session": "ann"}, headers={"x-request-id": own}
        )
        assert answer.headers.get_list("x-request-id") == [own]
    time.sleep(0.2)
    lines = [line for line in workers.lines() if line.get("request_id") in ids]
    assert len(lines) == 2
    assert len({line["worker"] for line in lines}) == 1  # ann's


def test_a_client_that_hangs_up_ends_its_work_at_the_other_worker(workers):
    async def main():
        async with httpx.AsyncClient(base_url=workers.url) as client:
            for user in USERS:
                body = {"model": "slow", "text": "the c", "max_words": 8, "max_steps": 4000, "session": user}
                task = asyncio.create_task(client.post("/v1/autocomplete", json=body))
                await asyncio.sleep(0.2)
                task.cancel()

    asyncio.run(main())
    wait_for(lambda: sum(workers.metric("gramophone_num_requests_running").values()) == 0, seconds=5)


def test_invalid_requests_are_refused_by_the_receiving_worker(registry, tmp_path, key):
    settings = {"GRAMOPHONE_API_KEYS": key.key.line, "GRAMOPHONE_MAX_BODY_BYTES": "1000"}
    good = {"authorization": f"Bearer {key.secret}"}
    with running_workers(registry, tmp_path, GRAMOPHONE_MODELS="mixture", **settings) as two:
        for user in USERS:
            for client in (two.client(0), two.client(1)):
                body = {"text": "the", "session": user}
                assert client.post("/v1/autocomplete", json=body).status_code == 401
                assert client.post("/v1/autocomplete", json=body, headers=good).status_code == 200
                body = {"text": "the " * 1000, "session": user}
                assert client.post("/v1/autocomplete", json=body, headers=good).status_code == 413


def test_nobody_outside_reaches_what_workers_ask_of_one_another(clients):
    assert clients[0].get("/workers/served").status_code == 404


SCORE = {"texts": ["the cat sat"]}


@pytest.fixture(scope="module")
def admin_registry(fake_family, tmp_path_factory):
    """Publish `main` and `twin` with two versions, the first the champion, and `other` and `later` with one each."""
    registry = LocalRegistry(tmp_path_factory.mktemp("admin") / "registry", create=True)
    words = WordTokenizer(fake_vocabulary())
    for seed, name in enumerate(("main", "main", "twin", "twin", "other", "later")):
        publish(registry, name, FakeModel(words.vocabulary, seed=seed, endless=True), words)
    registry.set_alias("main", "champion", 1)
    registry.set_alias("twin", "champion", 1)
    return registry


@pytest.fixture(scope="module")
def admin_key():
    return create_key("operator", ["admin", "infer", "metrics"])


@pytest.fixture(scope="module")
def admin_workers(admin_registry, tmp_path_factory, admin_key):
    settings = {
        "GRAMOPHONE_MODELS": "main,twin",
        "GRAMOPHONE_WATCH_INTERVAL_S": "0",
        "GRAMOPHONE_API_KEYS": admin_key.key.line,
        "GRAMOPHONE_BODY_TIMEOUT_S": "2",
        "GRAMOPHONE_MAX_BODY_BYTES": "100000",
    }
    headers = {"authorization": f"Bearer {admin_key.secret}"}
    with running_workers(admin_registry, tmp_path_factory.mktemp("admin"), headers, **settings) as two:
        yield two


@pytest.fixture(scope="module")
def admin_clients(admin_workers):
    return [admin_workers.client(number) for number in (0, 1)]


def served(clients, model):
    return [client.post("/v1/score", json={**SCORE, "model": model}).status_code for client in clients]


def test_a_model_is_loaded_and_unloaded_by_both(admin_clients):
    assert served(admin_clients, "other") == [404, 404]
    loaded = admin_clients[0].post("/admin/models/load", json={"model": "other", "wait": True})
    assert (loaded.status_code, loaded.json()["state"]) == (200, "loaded")
    assert served(admin_clients, "other") == [200, 200]
    assert admin_clients[1].post("/admin/models/unload", json={"model": "other"}).status_code == 200
    assert served(admin_clients, "other") == [404, 404]


def test_an_alias_moved_at_one_is_followed_by_both(admin_clients):
    moved = admin_clients[1].put("/admin/models/main/aliases/champion", json={"version": 2, "wait": True})
    assert moved.json()["serving"] == "main@2"
    models = [
        client.post("/v1/score", json={**SCORE, "model": "main"}).json()["model"] for client in admin_clients
    ]
    assert models == ["main@2", "main@2"]


def test_an_alias_that_is_taken_away_is_taken_away_once(admin_clients):
    assert admin_clients[0].delete("/admin/models/twin/aliases/champion").json()["previous"] == 1
    assert admin_clients[1].delete("/admin/models/twin/aliases/champion").status_code == 404


def test_a_body_that_nobody_asked_for_does_not_spoil_an_answer(admin_clients):
    admin_clients[0].put("/admin/models/main/aliases/old", json={"version": 1})
    gone = admin_clients[0].request("DELETE", "/admin/models/main/aliases/old", content=b"nothing to read")
    assert (gone.status_code, gone.json()["previous"]) == (200, 1)


@pytest.mark.parametrize("name", ["a%00b", "%2e%2e", 300 * "x"])
def test_alias_of_an_invalid_model_name_is_404(admin_clients, name):
    answer = admin_clients[0].put(f"/admin/models/{name}/aliases/new", json={"version": 1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_error_of_workers_equals_that_of_one_process(admin_clients):
    answer = admin_clients[0].post("/admin/models/load", json={"model": "nothing"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert "worker" not in answer.text


@pytest.mark.parametrize(
    ("header", "body", "status", "code"),
    [
        pytest.param(b"content-encoding: gzip\r\ncontent-length: 2", b"{}", 415, "", id="compressed"),
        pytest.param(b"content-length: 100", b"{", 408, "body_too_slow", id="slow"),
        pytest.param(
            b"transfer-encoding: chunked", b"20000\r\n" + 0x20000 * b" " + b"\r\n", 413, "", id="oversized"
        ),
    ],
)
@pytest.mark.parametrize("line", [b"POST /admin/models/load", b"PUT /admin/models/main/aliases/new"])
def test_a_body_of_a_change_that_is_not_taken_is_refused_as_by_a_lone_process(
    admin_workers, admin_key, line, header, body, status, code
):
    key = f"authorization: Bearer {admin_key.secret}".encode()
    head = b"\r\n".join([line + b" HTTP/1.1", b"host: a", key, header, b"", b""])
    told = asked(admin_workers.url, head + body)
    assert (told.status, told.headers["connection"]) == (status, "close")
    assert code in told.error["code"]


def test_nobody_without_the_key_changes_anything_anywhere(admin_workers):
    answer = httpx.post(f"{admin_workers.url}/admin/models/load", json={"model": "other"})
    assert answer.status_code == 401


def test_both_log_a_change_with_the_id_of_the_request(admin_workers, admin_clients):
    admin_clients[0].post("/admin/models/load", json={"model": "later"}, headers={"x-request-id": "a-change"})
    wait_for(
        lambda: (
            {line["worker"] for line in admin_workers.lines() if line.get("request_id") == "a-change"}
            == {0, 1}
        )
    )


def test_a_version_published_later_is_served_by_both(admin_registry, tmp_path):
    settings = {"GRAMOPHONE_MODELS": "other", "GRAMOPHONE_WATCH_INTERVAL_S": "0.2"}
    with running_workers(admin_registry, tmp_path, **settings) as two:
        clients = [two.client(number) for number in (0, 1)]
        words = WordTokenizer(fake_vocabulary())
        publish(admin_registry, "other", FakeModel(words.vocabulary, seed=9), words)
        wait_for(
            lambda: (
                [client.post("/v1/score", json=SCORE).json()["model"] for client in clients]
                == ["other@2"] * 2
            )
        )
