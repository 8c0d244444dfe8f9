"""Every invalid request gets its status, its parameter, and one shape of body."""

import json
import socket

import pytest

from tests.support.http import asked

NEXT, SCORE, RERANK, GENERATE = "/v1/next-token", "/v1/score", "/v1/rerank", "/v1/generate"
LIST = {"candidates": [{"text": "a"}]}


def error_of(response, status):
    """Check a reply's shape and status; return its error."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert "Traceback" not in error["message"]
    assert "/tmp" not in error["message"]  # noqa: S108 - what must not be told
    return error


@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [
        (NEXT, {}, "context", "required"),
        (NEXT, {"context": 5}, "context", "5"),
        (NEXT, {"context": None}, "context", "None"),
        (NEXT, {"context": ["a", 1]}, "context[1]", "1"),
        (NEXT, {"context": [1, "a"]}, "context[1]", "'a'"),
        (NEXT, {"context": [3, 13]}, "context[1]", "0 to 12"),
        (NEXT, {"context": [[3], [-1]]}, "context[1][0]", "-1"),
        (NEXT, {"context": [10**30]}, "context[0]", "0 to 12"),
        (NEXT, {"context": "a", "top_k": 14}, "top_k", "top_k is 14; the model's vocabulary has 13"),
        (NEXT, {"context": "a", "top_k": 0}, "top_k", "0"),
        (NEXT, {"context": "a", "top_k": "5"}, "top_k", "'5'"),
        (NEXT, {"context": "a", "top_k": 2.0}, "top_k", "2.0"),
        (NEXT, {"context": "a", "topk": 5}, "topk", "topk"),
        (NEXT, {"context": ["a"] * 101}, "context", "101 entries; at most 100"),
        (NEXT, {"context": "the " * 1001}, "context", "1001 tokens; at most 1000"),
        (SCORE, {}, None, "texts or token_ids"),
        (SCORE, {"texts": ["a"], "token_ids": [[3]]}, None, "texts or token_ids"),
        (SCORE, {"texts": []}, "texts", "[]"),
        (SCORE, {"texts": ["a", ""]}, "texts[1]", "empty"),
        (SCORE, {"token_ids": [[]]}, "token_ids[0]", "empty"),
        (SCORE, {"token_ids": [[3, 99]]}, "token_ids[0][1]", "99"),
        (SCORE, {"texts": [" "], "eos": False}, "texts[0]", "no token"),
        (SCORE, {"texts": ["a"], "context": [3]}, "context", "both must be of one kind"),
        (SCORE, {"texts": ["a"], "detail": "all"}, "detail", "'all'"),
        (SCORE, {"texts": ["a"], "bos": 1}, "bos", "1"),
        (RERANK, {"lists": []}, "lists", "[]"),
        (RERANK, {"lists": [{"candidates": []}]}, "lists[0].candidates", "[]"),
        (RERANK, {"lists": [LIST], "weights": {"am": 1}}, "lists[0].candidates[0].features", "am"),
        (RERANK, {"lists": [LIST], "length_exponent": -1}, "length_exponent", "-1"),
        (RERANK, {"lists": [LIST] * 101}, "lists[].candidates", "101"),
        (GENERATE, {"temperature": -1}, "temperature", "-1"),
        (GENERATE, {"temperature": 1e6}, "temperature", "1000000"),
        (GENERATE, {"top_p": 0}, "top_p", "0"),
        (GENERATE, {"top_k": 0}, "top_k", "0"),
        (GENERATE, {"max_tokens": 0}, "max_tokens", "0"),
        (GENERATE, {"max_tokens": 1001}, "max_tokens", "at most 1000"),
        (GENERATE, {"seed": -1}, "seed", "-1"),
        (GENERATE, {"stop": [""]}, "stop[0]", "0 characters"),
        (GENERATE, {"strategy": "luck"}, "strategy", "luck"),
        (GENERATE, {"strategy": "luck" * 10_000}, "strategy", "luck"),
        (NEXT, {"context": ["a"] * 100, "top_k": 2000}, "top_k", "top_k is 2000"),
        (GENERATE, {"strategy": "beam", "num_beams": 65}, "num_beams", "65"),
        (GENERATE, {"n": 65}, "n", "65"),
        (GENERATE, {"timeout_ms": 0}, "timeout_ms", "0"),
        (GENERATE, {"logit_bias": {"9" * 5000: 1.0}}, "logit_bias", "token ids"),
        (GENERATE, {"prompt": "the " * 1001}, "prompt", "1001"),
    ],
)
def test_a_wrong_value_is_named_with_its_limit(http, path, body, param, said):
    error = error_of(http.post(path, json=body), 400)
    assert error["param"] == param
    assert said in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"context":"\xff\xfe"}',
        b'{"context":"\\ud800"}',
        b'{"context":"a","top_k":NaN}',
        b'{"context":' + b"[" * 50_000,
        b'{"context":["' + b"a" * 200 + b'",5]}',
        b'{"context":"a","top_k":' + b"9" * 5000 + b"}",
        b'\xef\xbb\xbf{"context":"a"}',
    ],
)
def test_body_that_is_not_json_in_utf8_is_refused(http, content):
    error = error_of(http.post(NEXT, content=content), 400)
    assert len(error["message"]) < 300


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_are_finite(http, number):
    content = f'{{"lists":[{{"candidates":[{{"text":"a","features":{{"am":{number}}}}}]}}]}}'
    error = error_of(http.post(RERANK, content=content.encode()), 400)
    assert error["param"] == "lists[0].candidates[0].features.am"


@pytest.mark.parametrize(
    ("path", "body"),
    [(NEXT, {"context": "a"}), (SCORE, {"texts": ["a"]}), (RERANK, {"lists": [LIST]}), (GENERATE, {})],
)
@pytest.mark.parametrize("address", ["nobody", "mixture@9", "mixture@nobody", "../mixture", "", "a" * 5000])
def test_an_unknown_model_is_not_found(http, path, body, address):
    error = error_of(http.post(path, json={**body, "model": address}), 404)
    assert error["code"] == "model_not_found"
    assert "mixture@1" in error["message"]


def test_a_published_model_that_is_not_loaded_is_not_found_and_says_so(http):
    error = error_of(http.post(NEXT, json={"context": "a", "model": "mixture@2"}), 404)
    assert "published but not loaded" in error["message"]


def test_a_damaged_model_is_unavailable_and_says_why(http):
    response = http.post(NEXT, json={"context": "a", "model": "damaged"})
    error = error_of(response, 503)
    assert "damaged/versions/1/config.json" in error["message"]
    assert int(response.headers["retry-after"]) >= 1


def test_a_failing_model_is_an_internal_error_without_its_cause(http):
    error = error_of(http.post(NEXT, json={"context": "a", "model": "broken"}), 500)
    assert error["code"] == "internal_error"
    assert "made to fail" not in error["message"]


def test_an_announced_body_over_the_limit_is_refused(http):
    error = error_of(http.post(NEXT, content=b" " * 100_001), 413)
    assert "the limit is 100000" in error["message"]


@pytest.mark.parametrize(
    ("length", "status"),
    [
        (10**17, 413),
        (10**18, 413),
        (2**64 - 1, 413),
        (2**64, 400),
        ("0" * 5000 + "9" * 7, 413),
        ("1, 1", 400),
    ],
)
def test_a_body_of_any_length_over_the_limit_is_not_waited_for(server, length, status):
    """Regression: from 10¹⁸ on the service waited for the body until the timeout and answered 408."""
    head = f"POST {NEXT} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{{"
    got = asked(server.url, head.encode())
    assert (got.status, got.headers["connection"]) == (status, "close")


def test_a_length_with_many_noughts_is_what_it_is(server):
    head = f"POST {NEXT} HTTP/1.1\r\nhost: a\r\ncontent-length: {'0' * 5000}16\r\n\r\n"
    assert asked(server.url, head.encode() + b'{"context": "a"}').status == 200


def test_a_streamed_body_over_the_limit_is_refused(http):
    pieces = (b" " * 10_000 for _ in range(11))  # no Content-Length: sent in chunks
    assert error_of(http.post(NEXT, content=pieces), 413)["code"] == "body_too_large"


def test_a_false_content_length_does_not_help(server):
    """A body shorter than announced is never treated as complete."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"POST /v1/next-token HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{}")
        connection.shutdown(socket.SHUT_WR)
        assert b"200 OK" not in connection.recv(1000)


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", NEXT, 405), ("PUT", "/metrics", 405)]
)
def test_unknown_paths_and_methods_have_the_same_shape(http, method, path, status):
    error = error_of(http.request(method, path), status)
    assert path in error["message"]


def test_fields_that_do_not_go_together_are_named_without_the_rest_of_the_body(http):
    body = {"text": "secret " * 5, "threshold": 0.5, "precision": 0.9}
    assert error_of(http.post("/v1/check", json=body), 400)["message"] == "give either threshold or precision"


@pytest.mark.parametrize("path", ["/v1/models", "/v2/languages", "/v2/check?text=a&language=en-US"])
def test_head_is_answered_as_get_without_the_body(http, path):
    got, headed = http.get(path), http.head(path)
    assert headed.status_code == 200
    assert headed.content == b""
    assert headed.headers["content-length"] == got.headers["content-length"]
    assert http.head(NEXT).status_code == 405


def test_a_model_that_is_not_there_has_the_same_shape(http):
    assert error_of(http.get("/v1/models/nobody"), 404)["code"] == "model_not_found"


def test_errors_are_plain_json(http):
    text = http.post(NEXT, content=b'{"context": 1, "\xc3\xa9": 2}').text
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


@pytest.mark.parametrize("field", ["x" * 50_000, "é" * 20_000])
def test_error_about_a_long_field_name_is_short(http, field):
    error = error_of(http.post(NEXT, json={"context": "a", field: 1}), 400)
    assert len(error["message"]) < 1100
    assert len(error["param"]) < 1100


def test_a_version_number_without_end_is_not_found(http):
    error = error_of(http.post(NEXT, json={"context": "a", "model": "mixture@" + "9" * 5000}), 404)
    assert error["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (NEXT, {"POST"}),
        ("/v1/models", {"GET", "HEAD"}),
        ("/v1/autocomplete/users/ann", {"GET", "HEAD", "PUT", "DELETE"}),
    ],
)
def test_a_method_that_a_path_lacks_is_told_all_that_it_has(http, path, allowed):
    answer = http.request("PATCH", path)
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize(
    ("path", "body", "option"),
    [
        (SCORE, {"texts": ["a"]}, "detail=word"),
        (RERANK, {"lists": [LIST]}, "top=1"),
        ("/v1/quality", {"texts": ["a"]}, "against=chars"),
    ],
)
def test_options_of_lines_are_refused_where_the_body_is_json(http, path, body, option):
    """Regression: they were ignored silently."""
    error = error_of(http.post(f"{path}?{option}", json=body), 400)
    assert error["param"] == option.partition("=")[0]
    assert http.post(f"{path}?trace=1", json=body).status_code == 200


@pytest.mark.parametrize("path", [SCORE, "/v1/quality", RERANK])
def test_a_media_type_has_no_case(http, path):
    headers = {"content-type": "Application/X-NDJSON; charset=utf-8"}
    answer = http.post(path, content=b'{"text": "a"}\n{"candidates": [{"text": "a"}]}\n', headers=headers)
    assert answer.status_code == 200
    assert len(answer.text.splitlines()) == 2
