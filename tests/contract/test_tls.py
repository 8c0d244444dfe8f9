"""HTTPS: handshakes and their limits, complete replies, the end of connections, renewed certificates."""

import contextlib
import json
import logging
import socket
import ssl

import httpx
import pytest
from structlog.testing import capture_logs

from service.http_server import DrainingServer
from service.settings import Settings
from tests.support.certificates import trusting, write_certificate
from tests.support.http import answer, answers, connect
from tests.support.services import running, wait_for

BODY = json.dumps({"texts": ["the cat sat"]}).encode()
POST = b"POST /v1/score HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
SCORE = POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
LAST = b"GET /health/live HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"


@contextlib.contextmanager
def serving(registry, folder, **options):
    """Run a service with a new certificate; yield the service and the certificate's path."""
    certificate, key = write_certificate(folder)
    files = {"tls_certificate": certificate, "tls_key": key}
    settings = Settings(registry=registry.root, models=("mixture", "slow"), **files, **options)
    with running(settings) as server:
        server.app.state.services.host.resolve("slow").model.delay_s = 0.02
        yield server, certificate


@pytest.fixture(scope="module")
def tls(registry, tmp_path_factory):
    with serving(registry, tmp_path_factory.mktemp("tls"), max_new_tokens=1000) as started:
        yield started


@contextlib.contextmanager
def handshake(started, context=None):
    """Open a TLS connection to a service."""
    server, certificate = started
    context = context or trusting(certificate)
    with (
        connect(server.url) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        yield connection


@pytest.fixture
def secure(tls):
    with handshake(tls) as connection:
        yield connection


def test_the_address_and_the_scheme_are_https(tls, secure):
    assert tls[0].url.startswith("https://127.0.0.1:")
    assert secure.version() == "TLSv1.3"
    secure.sendall(SCORE)
    assert b"logprob" in answer(secure).body


def test_clients_that_offer_http_2_get_http_1_1(tls):
    context = trusting(tls[1])
    context.set_alpn_protocols(["h2", "http/1.1"])
    with handshake(tls, context) as connection:
        assert connection.selected_alpn_protocol() == "http/1.1"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_are_refused(tls):
    context = trusting(tls[1], minimum_version=ssl.TLSVersion.TLSv1, maximum_version=ssl.TLSVersion.TLSv1_1)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError, match="EOF"), handshake(tls, context):
        pass


@pytest.mark.parametrize("sent", [LAST, b"\0garbage" * 100, b"", b"\x16\x03\x01\x02\x00"])
def test_invalid_handshake_closes_only_its_connection(tls, secure, caplog, sent):
    caplog.set_level(logging.WARNING)
    with connect(tls[0].url) as plain:
        plain.sendall(sent)
        plain.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP" not in plain.recv(1000)
    secure.sendall(LAST)
    (live,) = answers(secure)
    assert live.status == 200
    assert not caplog.records


def test_a_handshake_has_as_much_time_as_a_request(registry, tmp_path):
    with serving(registry, tmp_path, body_timeout_s=0.2) as (server, _), connect(server.url) as silent:
        assert silent.recv(1) == b""


def test_silent_connections_take_the_place_of_others_only_until_they_are_closed(registry, tmp_path):
    with (
        serving(registry, tmp_path, max_connections=1) as (server, certificate),
        contextlib.ExitStack() as stack,
    ):
        silent = [stack.enter_context(connect(server.url)) for _ in range(3)]
        assert silent[-1].recv(1) == b""
        for one in silent:
            one.close()

        def is_answered():
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{server.url}/health/live", verify=trusting(certificate)).status_code == 200

        wait_for(is_answered)


@pytest.mark.parametrize("offer", [b"", b"connection: upgrade\r\nupgrade: h2c\r\n"])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_requests_follow_one_another_on_a_connection(secure, offer, is_chunked):
    length = b"transfer-encoding: chunked\r\n" if is_chunked else b"content-length: %d\r\n" % len(BODY)
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY) if is_chunked else BODY
    first, second, last = answers(secure, *2 * (POST + offer + length + b"\r\n", body), LAST, pause_s=0.01)
    assert first.body == second.body
    assert (first.status, last.status) == (200, 200)


def test_a_slow_reader_gets_all_of_a_reply_whose_connection_is_then_closed(registry, tmp_path, monkeypatch):
    """The connection may not end while the service, the event loop or the kernel has unsent bytes."""
    monkeypatch.setattr(socket, "create_connection", slowly_reading)
    with serving(registry, tmp_path) as started, handshake(started) as connection:
        body = json.dumps({"texts": ["the cat sat on the mat"] * 2000, "detail": "token"}).encode()
        connection.sendall(POST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        (got,) = answers(connection)
        assert len(got.body) == int(got.headers["content-length"]) > 1_000_000


def slowly_reading(address, timeout):
    """Connect with a small buffer for received bytes."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(timeout)
    connection.connect(address)
    return connection


def test_a_service_stops_while_idle_clients_keep_their_connections(registry, tmp_path):
    """A client need not confirm the end of TLS; waiting for it would take ten minutes."""
    with contextlib.ExitStack() as stack:
        with serving(registry, tmp_path) as started:
            connection = stack.enter_context(handshake(started))
            connection.sendall(SCORE)
            assert answer(connection).status == 200
        assert connection.recv(1) == b""  # an end of TLS, not of the connection alone


def test_an_idle_connection_is_closed_without_its_clients_help(registry, tmp_path):
    with serving(registry, tmp_path, keep_alive_timeout_s=1) as started, handshake(started) as connection:
        connection.sendall(SCORE)
        assert answer(connection).status == 200
        with socket.socket(fileno=connection.detach()) as below:
            below.settimeout(10)
            assert b"".join(iter(lambda: below.recv(1000), b""))  # `close_notify`, then the end


def test_the_work_of_who_ends_tls_ends(tls, secure, caplog):
    caplog.set_level(logging.WARNING)
    scheduler = tls[0].app.state.services.engine.scheduler
    body = json.dumps({"model": "slow", "max_tokens": 900, "ignore_eos": True}).encode()
    secure.sendall(b"POST /v1/generate HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    wait_for(lambda: len(scheduler))
    with contextlib.suppress(OSError):
        secure.unwrap()
    wait_for(lambda: not len(scheduler))  # of 18 s of work
    assert not caplog.records


def test_a_renewed_certificate_is_used_and_a_damaged_one_is_not(registry, tmp_path, monkeypatch):
    servers, start = [], DrainingServer.__init__

    def keeping(self, *arguments):
        servers.append(self)
        start(self, *arguments)

    monkeypatch.setattr(DrainingServer, "__init__", keeping)
    with serving(registry, tmp_path) as (server, certificate):
        address = "127.0.0.1", int(server.url.rpartition(":")[2])
        shown = [ssl.get_server_certificate(address)]
        for change in (write_certificate, lambda folder: (folder / "key.pem").write_text("damaged")):
            change(tmp_path)
            assert ssl.get_server_certificate(address) == shown[-1]  # not before it is told to
            with capture_logs() as told:
                servers[0].reload_certificate()
                assert told == []  # a signal may arrive while a line is written
                shown.append(ssl.get_server_certificate(address))
        assert shown[0] != shown[1] == shown[2] == certificate.read_text()
        assert [line["event"] for line in told] == ["certificate not reloaded"]
