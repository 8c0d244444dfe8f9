"""Inputs for which the model raises, hangs or returns NaN: only their requests fail."""

import contextlib
import json
import threading
import time

import httpx
import numpy as np
import pytest

from models.calls import Read, run_to_completion
from models.errors import EngineFailedError
from models.language_model import SCORES, pad_sequences
from service.engine.job import Job, RequestOptions
from service.engine.metrics import Metrics
from service.engine.scheduler import Scheduler, SchedulerLimits
from tests.support import families
from tests.support.fake_models import HANG_S, HANGS, RAISES, SPEAKS_NONSENSE, FakeModel, take_turn
from tests.support.http import connect
from tests.support.services import SCORE, faulty_service, made_up_registry, wait_until

TIMES = 1000
MIB = 1 << 20


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    registry = made_up_registry(tmp_path_factory.mktemp("poison"), endless=True)
    with faulty_service(registry, tmp_path_factory.mktemp("log")) as service:
        yield service


@pytest.fixture
def client(service):
    with httpx.Client(base_url=service.url, timeout=60) as client:
        yield client


def poisoned(poison):
    """Return a path and a body for each kind of model call."""
    generate = {"prompt": poison, "max_tokens": 5, "ignore_eos": True}
    return [
        ("/v1/score", {"texts": [f"the {poison} cat"]}),
        ("/v1/next-token", {"context": poison}),
        ("/v1/generate", generate),
        ("/v1/generate", {**generate, "stream": True}),
        ("/v1/rerank", {"lists": [{"candidates": [{"text": f"{poison} cat"}, {"text": "cat"}]}]}),
        ("/v1/autocomplete", {"text": f"{poison} c"}),
        ("/v1/states", {"context": poison}),
    ]


def at_rest(service):
    """Return the files, threads and states of a service once no request is under way."""
    wait_until(lambda: service.metric("gramophone_num_requests_running") == 0)
    return service.files(), service.threads(), service.metric("gramophone_states")


@pytest.mark.parametrize(("path", "body"), poisoned(RAISES))
def test_a_request_that_makes_the_model_raise_fails_alone(client, path, body):
    answer = client.post(path, json=body)
    error = json.loads(answer.text.removeprefix("data: "))["error"]
    assert (answer.status_code, error["code"]) == (500, "internal_error")
    assert "ZeroDivision" not in answer.text
    assert client.post("/v1/score", json=SCORE).status_code == 200


@pytest.mark.parametrize(("path", "body"), poisoned(SPEAKS_NONSENSE)[:6])
def test_a_model_that_speaks_nonsense_is_not_repeated(client, path, body):
    answer = client.post(path, json=body)
    assert answer.status_code == 500
    assert "NaN" not in answer.text
    assert client.post("/v1/score", json=SCORE).status_code == 200


def test_a_request_over_which_the_model_hangs_is_given_up_and_others_are_answered(client):
    answers = []

    def ask(body):
        answers.append(httpx.post(f"{client.base_url}/v1/score", json=body, timeout=60).status_code)

    healthy = [threading.Thread(target=ask, args=(SCORE,)) for _ in range(5)]
    began_s = time.monotonic()
    hung = threading.Thread(target=ask, args=({"texts": [HANGS], "timeout_ms": 100},))
    hung.start()
    for thread in healthy:
        thread.start()
    for thread in (hung, *healthy):
        thread.join()
    assert sorted(answers) == [200] * 5 + [504]
    assert time.monotonic() - began_s < HANG_S + 20


def test_a_thousand_times_poison_leaves_nothing(service, client):
    kinds = poisoned(RAISES)
    for path, body in kinds:
        client.post(path, json=body)
    before, resident_bytes = at_rest(service), service.resident_bytes()
    for number in range(TIMES):
        path, body = kinds[number % len(kinds)]
        assert client.post(path, json=body).status_code == 500
    assert client.post("/v1/score", json=SCORE).status_code == 200
    (_, *others), (files_before, *others_before) = at_rest(service), before
    # older connections may have closed, and the last one is about to; others close only later, when
    # idle, and could hide a leaked file
    wait_until(lambda: service.files() <= files_before, seconds=2)
    assert others == others_before
    assert service.resident_bytes() - resident_bytes < 24 * MIB


def stages():
    """Return requests cut off at different points, each with the number of reply bytes to read."""
    body = json.dumps({"prompt": "the cat", "max_tokens": 400, "ignore_eos": True, "stream": True}).encode()
    head = b"POST /v1/generate HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
    whole = head + body
    return {
        "in the line": (whole[:10], 0),
        "in the headers": (head[:-10], 0),
        "before the body": (head, 0),
        "in the body": (whole[:-5], 0),
        "when it is sent": (whole, 0),
        "at the first byte": (whole, 1),
        "in the stream": (whole, 2000),
        "in the next request": (whole + head, 100),
    }


@pytest.mark.parametrize("stage", stages())
def test_requests_that_are_cancelled_leave_nothing(service, client, stage):
    sent, read = stages()[stage]
    before = at_rest(service)
    for _ in range(20):
        with connect(service.url, timeout_s=30) as connection, contextlib.suppress(OSError):
            connection.sendall(sent)
            received = 0
            while received < read:
                received += len(connection.recv(read))
    assert client.post("/v1/score", json=SCORE).status_code == 200
    wait_until(lambda: at_rest(service)[1:] == before[1:])
    wait_until(lambda: at_rest(service)[0] <= before[0] + 1)


FATAL = 9
"""Token on which the model fails."""


class BrittleModel(FakeModel):
    """Fails on one token."""

    def advance(self, state, tokens):
        if FATAL in tokens:
            raise ZeroDivisionError
        return super().advance(state, tokens)


class Outcome:
    def __call__(self, item):
        assert item.last
        self.told = item.value


def scoring(model, texts):
    tokens, lengths = pad_sequences(texts)
    return (yield from Read(model, model.initial_state(len(texts)), tokens, lengths, SCORES)).log_probs


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("place", [0, 35, 69])
def test_only_the_request_with_that_text_fails(place, bulk):
    model = BrittleModel(families.tokenizer().vocabulary)
    bad = [3] * 70
    bad[place] = FATAL
    requests = [[[4] * 60], [[5] * 12, bad], [[6] * 30], [[7, 3] * 40]]
    scheduler = Scheduler(
        clock=lambda: 0.0, limits=SchedulerLimits(max_jobs=9, slice_s=1e-4), metrics=Metrics()
    )
    outcomes = [Outcome() for _ in requests]
    for texts, outcome in zip(requests, outcomes, strict=True):
        scheduler.submit(Job(scoring(model, texts), outcome, 1, RequestOptions(bulk=bulk)))
    while take_turn(scheduler):
        pass
    assert isinstance(outcomes[1].told, EngineFailedError)
    for texts, outcome in zip(requests[:1] + requests[2:], outcomes[:1] + outcomes[2:], strict=True):
        np.testing.assert_array_equal(outcome.told, run_to_completion(scoring(model, texts)))
