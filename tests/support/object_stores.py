"""Object stores for tests: in memory and an S3 server on a free port, both with fault injection."""

import contextlib
import logging
import threading
import time
import uuid

import httpx
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from models.checkpoint import registry
from models.checkpoint.fsspec_store import MemoryStore
from models.checkpoint.stores import StoreTimeouts
from models.errors import RegistryError

QUICK = StoreTimeouts(connect_s=2.0, read_s=2.0, call_s=10.0, attempts=2)
"""Short timeouts for tests with an unresponsive store."""


class FlakyStore(MemoryStore):
    """Store that can become unreachable and run a callback between two calls.

    Attributes:
        down: fail every read.
        num_calls: number of reads.
        before_put: callback, run once before the next conditional write.
    """

    down = False
    num_calls = 0
    before_put = None

    def entries(self, folder=""):
        self._count()
        return super().entries(folder)

    def read(self, key, num_bytes=None):
        self._count()
        return super().read(key, num_bytes)

    def chunks(self, key, num_bytes):
        self._count()
        return super().chunks(key, num_bytes)

    def put_if_match(self, key, content, tag):
        self._act()
        return super().put_if_match(key, content, tag)

    def _count(self):
        if self.down:
            raise RegistryError("cannot read memory://: it is down")
        self.num_calls += 1

    def _act(self):
        act, self.before_put = self.before_put, None
        if act is not None:
            act()


class Clock:
    """Clock that tests set."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class S3Server:
    """moto's S3 server. Its If-None-Match and If-Match checks are not atomic, so requests are serialised.

    Attributes:
        url: endpoint.
        requests: method, path and condition (or None) of each request.
        fault: WSGI application that replaces the server; None disables it.
    """

    def __init__(self):
        self._application = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self.fault = None
        self.requests = []
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def environment(self):
        """Environment variables for a client."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def make_bucket(self, name):
        """Create a bucket with this name prefix and return its URL; servers of a process share buckets."""
        bucket = f"{name}-{uuid.uuid4().hex[:8]}"
        assert httpx.put(f"{self.url}/{bucket}").status_code == 200
        return f"s3://{bucket}"

    def close(self):
        """Refuse connections from now on."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def pass_on(self, environ, start_response):
        """Forward the request to S3."""
        with self._lock:
            return list(self._application(environ, start_response))

    def _answer(self, environ, start_response):
        condition = environ.get("HTTP_IF_NONE_MATCH") or environ.get("HTTP_IF_MATCH")
        self.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], condition))
        fault = self.fault
        if fault is not None:
            return fault(environ, start_response)
        return self.pass_on(environ, start_response)


@contextlib.contextmanager
def s3_server():
    """Run a new S3 server."""
    server = S3Server()
    try:
        yield server
    finally:
        with contextlib.suppress(OSError):
            server.close()


@contextlib.contextmanager
def using(server, monkeypatch, *, patience=None):
    """Configure this process to use the server, with the timeouts `patience`."""
    with monkeypatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        if patience is not None:
            patch.setattr(registry, "STORE_TIMEOUTS", patience)
        yield server


def stalling(*methods, seconds=60.0):
    """Fault that delays requests of some methods."""
    released = threading.Event()

    def fault(environ, start_response):
        if environ["REQUEST_METHOD"] in methods:
            released.wait(seconds)
        start_response("503 Slow Down", [("Content-Length", "0")])
        return []

    fault.release = released.set
    return fault


def altering(server, change, *, of="/.blobs/"):
    """Fault that changes the content of GET responses for some paths."""

    def fault(environ, start_response):
        if environ["REQUEST_METHOD"] != "GET" or of not in environ["PATH_INFO"]:
            return server.pass_on(environ, start_response)
        kept = []
        body = b"".join(server.pass_on(environ, lambda *answer: kept.extend(answer)))
        changed = change(body)
        dropped = {"content-length", "x-amz-checksum-crc32", "x-amz-checksum-crc64nvme"}
        headers = [(name, value) for name, value in kept[1] if name.lower() not in dropped]
        start_response(kept[0], [*headers, ("Content-Length", str(len(changed)))])
        return [changed]

    return fault


def wait_until(condition, seconds=20.0):
    """Wait until the condition holds; fail after a timeout."""
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.02)
