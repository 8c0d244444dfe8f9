"""Heads that are refused for whom they are for, or for how their bodies are framed."""

import pytest

from service.http_protocol import head_error

HOST = (b"host", b"a")


def status_of(*headers, version="1.1"):
    fault = head_error(headers, version)
    return None if fault is None else int(fault[0])


@pytest.mark.parametrize(
    ("coding", "status"),
    [
        (b"chunked", None),
        (b"\tChunked ", None),
        (b"gzip, chunked", 501),
        (b"chunked, chunked", 400),
        (b"chunked, gzip", 400),
        (b"gzip", 400),
        (b"chunked;a=b", 400),
        (b"", 400),
    ],
)
def test_chunked_is_the_only_coding(coding, status):
    assert status_of(HOST, (b"transfer-encoding", coding)) == status
    assert status_of(HOST, (b"transfer-encoding", coding), version="1.0") == 400


def test_codings_of_several_headers_are_one_list():
    gzip, chunked = (b"transfer-encoding", b"gzip"), (b"transfer-encoding", b"chunked")
    assert (status_of(HOST, gzip, chunked), status_of(HOST, chunked, chunked)) == (501, 400)


@pytest.mark.parametrize(("version", "statuses"), [("1.1", (400, None, 400)), ("1.0", (None, None, 400))])
def test_there_is_one_host(version, statuses):
    assert tuple(status_of(*[HOST] * number, version=version) for number in range(3)) == statuses
