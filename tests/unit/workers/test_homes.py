"""Which worker a request goes to."""

import json
from pathlib import Path

import pytest

from service.workers.peers import Affinity, has_affinity
from service.workers.pool import SharedStatus, WorkerPool

SIZE = 5


@pytest.fixture
def homes():
    crew = WorkerPool(
        number=0,
        size=SIZE,
        name="host",
        status=SharedStatus(SIZE),
        folder=Path("/nowhere"),
        weights=Path("/nowhere"),
        lifeline=-1,
    )
    return Affinity(crew)


def scope(path, *, session=None, client="10.0.0.1"):
    headers = [] if session is None else [(b"x-gramophone-session", session)]
    return {"path": path, "headers": headers, "client": (client, 1)}


def handle(process):
    return f"{process}.a1b2c3.kJ9dXw0hT2mQvB7s"


def body(**fields):
    return json.dumps(fields).encode()


def test_states_are_with_the_process_that_their_handle_names(homes):
    asked = body(continuations=[{"state": handle("host-3"), "text": "a"}])
    assert homes.of(scope("/v1/states/advance"), asked) == 3
    assert homes.of(scope("/v1/states/next"), body(states=[handle("host-4"), handle("host-1")])) == 4


def test_states_of_other_services_are_answered_where_they_come(homes):
    assert homes.of(scope("/v1/states/free"), body(states=[handle("other-3")])) is None
    assert homes.of(scope("/v1/states/free"), b"no handle at all") is None


def test_states_of_one_client_are_opened_by_one_worker(homes):
    opened = {homes.of(scope("/v1/states"), body(context=text)) for text in ("a", "b", "c")}
    assert len(opened) == 1
    clients = {homes.of(scope("/v1/states", client=f"10.0.0.{i}"), b"{}") for i in range(50)}
    assert clients == set(range(SIZE))


def test_a_client_may_name_itself(homes):
    named = {homes.of(scope("/v1/states", session=b"d7", client=f"10.0.0.{i}"), b"{}") for i in range(20)}
    assert len(named) == 1


def test_a_user_falls_to_one_worker_however_the_request_names_them(homes):
    for user in ("ann", "b.o-b", "c@d:e+f="):
        by_path = homes.of(scope(f"/v1/autocomplete/users/{user}/accepted"), b"{}")
        assert homes.of(scope(f"/v1/autocomplete/users/{user}"), b"") == by_path
        asked = json.dumps({"session": "s", "user": user, "text": ""}, indent=2).encode()
        assert homes.of(scope("/v1/autocomplete"), asked) == by_path


def test_a_name_may_be_written_as_some_clients_escape_it(homes):
    by_path = homes.of(scope("/v1/autocomplete/users/ann+x@example.org"), b"")
    escaped = rb'{"text": "", "user": "ann\u002Bx\u0040example.org"}'
    assert homes.of(scope("/v1/autocomplete"), escaped) == by_path
    assert homes.of(scope("/v1/autocomplete"), rb'{"text": "", "user": "ann\uD8zz"}') is not None


def test_a_session_of_somebody_unnamed_falls_to_one_worker(homes):
    fallen = {homes.of(scope("/v1/autocomplete"), body(text="", session=f"s{i}")) for i in range(50)}
    assert fallen == set(range(SIZE))


def test_words_of_a_text_name_nobody(homes):
    text = 'He said "user": "ann", "session": "s1"'
    assert homes.of(scope("/v1/autocomplete"), body(text=text)) is None
    assert homes.of(scope("/v1/autocomplete"), body(text="", dictionary=["user", "ann"])) is None


def test_reranking_is_with_its_session_only_if_it_has_one(homes):
    lists = [{"candidates": [{"text": "a"}]}]
    assert homes.of(scope("/v1/rerank"), body(lists=lists)) is None
    assert homes.of(scope("/v1/rerank"), body(lists=lists, commit_eos=True)) is None
    session = f"{handle('host-2')},{handle('host-2')}"
    assert homes.of(scope("/v1/rerank"), body(lists=[*lists, {"session": session}])) == 2
    begun = body(lists=[{"commit": "a", "session": None}])
    assert homes.of(scope("/v1/rerank"), begun) == homes.of(scope("/v1/states"), b"{}")


def test_all_else_is_answered_where_it_comes():
    assert not any(
        has_affinity(path)
        for path in ("/v1/score", "/v1/rerank/tune", "/v1/autocompletes", "/health/live", "/metrics", "/")
    )
