"""That requests make the service ask nobody: no address in a request is ever connected to."""

import json
import socket
from urllib.parse import urlsplit

import pytest

from models.errors import InvalidInputError
from service.settings import read_settings

ADDRESSES = (
    "http://{}",
    "http://{}/x@1",
    "s3://{}/x",
    "//{}/x",
    "file:///etc/passwd",
    "memory://x/y",
    "{}",
    "x@http://{}",
)
PLACES = [
    ("POST", "/admin/models/load", lambda address: {"model": address, "wait": True}),
    ("POST", "/admin/models/unload", lambda address: {"model": address}),
    ("POST", "/v1/score", lambda address: {"model": address, "texts": ["the"]}),
    ("POST", "/v1/rerank", lambda address: {"profile": address, "candidates": ["the"]}),
    ("POST", "/v1/check", lambda address: {"model": address, "text": "the"}),
    ("PUT", "/admin/profiles/a", lambda address: {"weights": {"lm": 1.0}, "models": [{"address": address}]}),
]


@pytest.fixture
def connections(monkeypatch):
    """Where this process connects to, from now on."""
    made, connect = [], socket.socket.connect

    def watching(self, address):
        made.append(address)
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", watching)
    return made


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[1])
def test_no_address_in_a_request_is_connected_to(client, locked, connections, place):
    method, path, body = place
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)
        port = listening.getsockname()[1]
        for address in ADDRESSES:
            answer = client.request(method, path, json=body(address.format(f"127.0.0.1:{port}")))
            assert answer.status_code < 500
            assert "passwd: " not in answer.text
        with pytest.raises(TimeoutError):
            listening.accept()
    assert {made[1] for made in connections} <= {urlsplit(locked.url).port}
    client.delete("/admin/profiles/a")


def test_settings_that_may_hold_a_password_are_not_repeated(monkeypatch):
    monkeypatch.setenv("GRAMOPHONE_OTLP_ENDPOINT", "https://user:hunter2@collector:4318")
    with pytest.raises(InvalidInputError) as refused:
        read_settings()
    assert "hunter2" not in str(refused.value)
    assert "OTEL_EXPORTER_OTLP_HEADERS" in str(refused.value)


def test_the_document_of_the_interface_names_no_other_host(client):
    document = client.get("/openapi.json").json()
    assert "servers" not in document
    assert "http://" not in json.dumps(document["components"]["securitySchemes"])
