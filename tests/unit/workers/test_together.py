"""One answer for several workers."""

import json

from service.workers.broadcast import _merge_responses
from service.workers.peers import PeerResponse

DONE = PeerResponse(200, [(b"content-type", b"application/json")], b'{"id": "a@1"}')
HEADERS = [(b"content-type", b"application/json"), (b"x-request-id", b"7"), (b"retry-after", b"1")]


def failed(message):
    error = {"message": message, "type": "service_unavailable_error", "param": None, "code": "engine_error"}
    return PeerResponse(503, HEADERS, json.dumps({"error": error}).encode())


def test_where_all_agree_the_one_asked_answers():
    assert _merge_responses(DONE, 1, {0: PeerResponse(202, [], b"{}"), 2: DONE}) is DONE
    refused = failed("no room")
    assert _merge_responses(refused, 0, {1: failed("none here")}) is refused


def test_where_some_failed_it_is_told_which():
    answer = _merge_responses(DONE, 1, {0: DONE, 2: failed("no room for a@1")})
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"]) == (503, "engine_error")
    assert (
        error["message"] == "worker 2 of 3 failed and workers 0, 1 did not, so ask once more: no room for a@1"
    )
    assert dict(answer.headers)[b"content-length"] == str(len(answer.body)).encode()


def test_where_the_one_asked_failed_alone_it_is_told_too():
    answer = _merge_responses(failed("no room"), 0, {1: DONE})
    assert json.loads(answer.body)["error"]["message"].startswith("worker 0 of 2 failed and worker 1 did not")


def test_what_each_worker_adds_to_its_answers_is_not_added_twice():
    names = [name for name, _ in _merge_responses(DONE, 0, {1: failed("no room")}).headers]
    assert names == [b"content-type", b"retry-after", b"content-length"]
