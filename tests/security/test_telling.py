"""Effects of hostile requests on response headers, log lines, metrics and messages: no forged line, no secret."""

import json
import re

import httpx
import pytest

from service.api_keys import KeyScope, create_key
from service.middleware.guarded_request import header
from tests.support.http import asked, connect
from tests.support.services import running_process

KEY = create_key("operator", list(KeyScope))
OTHER_SECRET = "gm_a-key-of-another-service-0123456789"  # noqa: S105 - nobody's
FORGED = "x\r\n2026-01-01 00:00:00 [error    ] forged\x1b[2J\u2028\u202e"
STEERING = set("\r\x0b\x0c\x1b\x7f\x85\x9b\u2028\u2029\u202e\u2066")
PATHS = (
    f"/nowhere?key={OTHER_SECRET}",
    f"/v1/models?api_key={OTHER_SECRET}&access_token={OTHER_SECRET}",
    f"/v1/models/{OTHER_SECRET}",
    f"/v1/autocomplete/users/{OTHER_SECRET}",
    "/nowhere/%0d%0a2026-01-01%20forged%1b[2J",
    "/v1/models/%0d%0aset-cookie:%20forged=1",
    "/v1/models/mixture/files/%0d%0aforged",
)
HEADERS = (
    {"x-request-id": "forged id"},
    {"x-request-id": "a" * 5000},
    {"x-gramophone-session": "forged"},
    {"traceparent": "00-forged"},
    {"x-api-key": OTHER_SECRET, "cookie": OTHER_SECRET, "proxy-authorization": f"Bearer {OTHER_SECRET}"},
    {"authorization": f"Bearer {OTHER_SECRET}"},
    {"authorization": f"Basic {OTHER_SECRET}"},
)
BODIES = (
    {"model": FORGED, "texts": ["the"]},
    {"model": "mixture", "texts": [FORGED]},
    {FORGED: 1},
    {"texts": ["the"], "key": OTHER_SECRET},
    {"texts": OTHER_SECRET},
)


def attack(url):
    """Send all hostile requests; return the replies and the metrics."""
    good = {"authorization": f"Bearer {KEY.secret}"}
    with httpx.Client(base_url=url, timeout=20) as client:
        answers = [client.get(path, headers=good) for path in PATHS]
        answers += [client.post("/v1/score", headers={**good, **extra}, json={}) for extra in HEADERS]
        answers += [client.post("/v1/score", headers=good, json=body) for body in BODIES]
        answers += [client.post("/v1/autocomplete", headers=good, json={"text": "a", "session": FORGED})]
        metrics = client.get("/metrics", headers=good).text
    return answers, metrics


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Replies, metrics and log of an attacked service, at log level debug in text form; JSON escapes anyway."""
    from models.checkpoint import load
    from tests.security.conftest import fill

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(load.FAMILIES, "fake", ("tests.support.fake_models", "SlowFakeModel"))
        folder = tmp_path_factory.mktemp("told")
        registry = fill(folder / "registry")
    settings = {
        "GRAMOPHONE_LOG_LEVEL": "debug",
        "GRAMOPHONE_API_KEYS": KEY.key.line,
        "GRAMOPHONE_MODELS": "mixture,damaged",
    }
    with running_process(registry, folder / "log", **settings) as (_, url):
        answers, metrics = attack(url)
    return answers, metrics, (folder / "log").read_bytes().decode()


def test_nothing_is_a_line_of_its_own_or_steers_a_terminal(told):
    answers, _, log = told
    assert not STEERING & set(log)
    lines = log.splitlines()
    assert len([line for line in lines if "/v1/score" in line]) >= len(BODIES)
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S* \[\w+ *\] ", line) for line in lines)
    assert not any(line.startswith("2026-01-01") for line in lines)
    assert len(answers) == len(PATHS) + len(HEADERS) + len(BODIES) + 1


def test_statuses_are_logged_as_numbers(told):
    log = told[2]
    assert "status=404" in log
    assert "HTTPStatus" not in log


def test_no_key_of_any_kind_is_logged_or_counted(told):
    _, metrics, log = told
    for secret in (KEY.secret, OTHER_SECRET, KEY.key.digest.hex(), KEY.key.salt.hex()):
        assert secret not in log
        assert secret not in metrics
    assert "forged" not in metrics


def test_texts_are_not_logged_unless_that_is_asked_for(told):
    assert "forged" not in told[2]


def test_no_reply_has_a_header_that_a_request_made_up(told):
    for answer in told[0]:
        assert not {"set-cookie", "forged"} & set(answer.headers)
        assert re.fullmatch(r"[A-Za-z0-9._:/+=-]{1,128}", answer.headers["x-request-id"])
        assert answer.status_code < 500


def test_replies_tell_no_place_on_this_machine(told, tmp_path_factory):
    """Not even for a model that failed to load, to an administrator; nor that the service runs Python."""
    answers = told[0]
    base = str(tmp_path_factory.getbasetemp())
    for answer in answers:
        assert base not in answer.text
        assert not re.search(r"Traceback|\.py\b|site-packages|pydantic|line \d+, in ", answer.text)
        assert "server" not in answer.headers


@pytest.mark.parametrize("scope", [KeyScope.INFER, KeyScope.ADMIN])
def test_a_model_that_fails_says_why_without_saying_where(locked, scope):
    with httpx.Client(base_url=locked.url, headers=locked.headers(scope)) as client:
        if scope is KeyScope.INFER:
            text = client.get("/v1/models").text + client.post("/v1/score", json={"model": "damaged"}).text
        else:
            told = [client.post("/admin/models/load", json={"model": "damaged", "wait": True})]
            told += [client.get("/admin/models"), client.get("/admin/profiles/none")]
            text = "".join(answer.text for answer in told)
    assert "config.json has" in text or "damaged" in text
    assert str(locked.root) not in text


@pytest.mark.parametrize(
    "damage", [".profiles/bad.json", "mixture/aliases.json"], ids=["a profile", "the aliases of a model"]
)
def test_a_damaged_file_is_named_without_its_folders(client, locked, damage):
    path = locked.root / damage
    path.parent.mkdir(exist_ok=True)
    path.write_text("{")
    try:
        answers = [
            client.get("/admin/profiles/bad"),
            client.post("/admin/models/load", json={"model": "mixture"}),
        ]
    finally:
        path.unlink()
    assert any(path.name in answer.text for answer in answers)
    assert not any(str(locked.root.parent) in answer.text for answer in answers)


SMUGGLED = [
    b"POST /v1/score HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/score HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    b"POST /v1/score HTTP/1.1\r\nhost: a\r\ntransfer-encoding: x, chunked\r\ncontent-length: 1\r\n\r\na",
    b"POST /v1/score HTTP/1.1\r\nhost: a\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\nhost: a\r\nx-request-id: a\r\n b: folded\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\nhost: a\r\nx-request-id: a\x00b\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\nhost: a\r\nx-request-id: a\rx-forged: b\r\n\r\n",
    b"GET /health/live HTTP/1.1\nhost: a\nx y: b\n\n",
    b"GET /nowhere\x00 HTTP/1.1\r\nhost: a\r\n\r\n",
    b"CONNECT evil:80 HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\nhost: a\r\nx: y\r\nHost: a\r\n\r\n",
    b"GET /health/live HTTP/1.0\r\nhost: a\r\nhost: b\r\nconnection: keep-alive\r\n\r\n",
    *(
        b"POST /v1/score HTTP/%b\r\nhost: a\r\n%btransfer-encoding: %b\r\n\r\n0\r\n\r\n" % case
        for case in [
            (b"1.1", b"", b"gzip, chunked"),
            (b"1.1", b"transfer-encoding: identity\r\n", b"chunked"),
            (b"1.1", b"", b"gzip"),
            (b"1.1", b"", b"chunked, chunked"),
            (b"1.0", b"connection: keep-alive\r\n", b"chunked"),
            (b"1.1", b"connection: upgrade\r\nupgrade: h2c\r\n", b"gzip, chunked"),
        ]
    ),
]


@pytest.mark.parametrize("request_bytes", SMUGGLED)
def test_smuggled_request_is_refused_and_the_connection_closed(locked, request_bytes):
    with connect(locked.url) as connection:
        connection.sendall(request_bytes + b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n")
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert received.split()[1] in {b"400", b"501"}  # an unknown coding is answered 501
    assert received.count(b"HTTP/1.1 ") == 1
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == "bad_http"
    assert b"forged" not in received


def test_an_address_in_the_request_line_is_only_a_path(locked):
    """The service is no proxy: it connects to no such address."""
    answer = asked(locked.url, b"GET http://127.0.0.1:9/health/live HTTP/1.1\r\nhost: a\r\n\r\n")
    assert (answer.status, json.loads(answer.body)["status"]) == (200, "ok")


def test_the_first_of_two_headers_counts():
    scope = {"headers": [(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")]}
    assert header(scope, b"authorization") == b"Bearer a"
