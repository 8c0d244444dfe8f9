"""Plan of a load: target and requests, open or closed loop, arrival times, durations.

An open loop sends at a rate whatever the replies, like independent users; in a closed loop,
each client sends its next request after the reply to the last. Equal seeds give equal arrival times.
Durations are written `50ms`, `2s` or `1.5min`. The command line imports this module at startup, so it
must not import slow packages.
"""

import itertools
import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self
from urllib.parse import quote, urlsplit

from models.errors import InputError

_MAX_RATE_PER_S = 1e6
_PORTS = {"http": 80, "https": 443}
_API_ROOT = "/v1"
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(us|ms|s|min)")
Arrivals = Literal["poisson", "constant"]


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests at a rate whatever the replies; measures the latency that users see.

    `typists` press keys in turn, if requests are keys.

    Raises:
        InputError: the rate is out of range.
    """

    rate_per_s: float
    arrivals: Arrivals = "poisson"
    seed: int = 0
    typists: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.rate_per_s <= _MAX_RATE_PER_S:
            raise InputError.of(
                "rate",
                f"is {self.rate_per_s:g}; it must be above 0 and at most {_MAX_RATE_PER_S:g} per second",
            )

    @classmethod
    def of_typists(cls, typists: int, pause_s: float) -> Self:
        """Return the load of typists who each press a key after every pause.

        Raises:
            InputError: no typist, or no pause.
        """
        if typists < 1:
            raise InputError.of("typists", f"is {typists}; it must be at least 1")
        if pause_s <= 0:
            raise InputError.of("pause", f"is {pause_s:g} s; it must be above 0")
        return cls(typists / pause_s, "constant", typists=typists)

    def arrival_times(self) -> Iterator[float]:
        """Yield times in seconds: exponential gaps (independent clients), or equal ones from 0."""
        if self.arrivals == "constant":
            yield from (number / self.rate_per_s for number in itertools.count())
        generator = random.Random(self.seed)
        yield from itertools.accumulate(generator.expovariate(self.rate_per_s) for _ in itertools.count())


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Clients that each send the next request after a reply; measures throughput.

    Raises:
        InputError: the number of clients is below 1.
    """

    clients: int

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise InputError.of("clients", f"is {self.clients}; it must be at least 1")


Load = OpenLoop | ClosedLoop


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """Durations and bounds of a load.

    Attributes:
        duration_s: length of the measurement; or
        num_requests: measured requests.
        warmup_s: length of the warm-up under the same load.
        max_connections: maximum connections of an open loop; a closed loop has one per client.
        timeout_s: time after which a request counts as failed.

    Raises:
        InputError: not exactly one of the first two is given, or a value is out of range.
    """

    duration_s: float | None = None
    num_requests: int | None = None
    warmup_s: float = 0.0
    max_connections: int = 512
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if (self.duration_s is None) == (self.num_requests is None):
            raise InputError("give either a duration or a number of requests", param="duration")
        for name in ("duration_s", "num_requests", "max_connections", "timeout_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InputError.of(name, f"is {value:g}; it must be above 0")


class Request(NamedTuple):
    """POST request.

    Attributes:
        path: path below the target's; empty for the target's.
        body: JSON, or empty.
        num_items: texts, candidates or contexts in the request.
    """

    path: str
    body: bytes = b""
    num_items: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, and the base path of its API.

    Attributes:
        tls: true for encrypted connections; certificates are verified.
        path: path of the URL, without a trailing slash.
        query: query string of the URL, with the question mark.
        api_key: bearer token sent with every request.
    """

    host: str
    port: int
    tls: bool
    path: str = ""
    query: str = ""
    api_key: str | None = None

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> Self:
        """Parse a URL.

        Raises:
            InputError: the URL is not http or https, or the key does not fit a header.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
            host = (parts.hostname or "").encode("idna").decode()
        except ValueError as error:
            raise InputError(f"URL is {url!r}: {error}", param="url") from None
        if parts.scheme not in _PORTS or not host or parts.username is not None:
            raise InputError(
                f"URL is {url!r}; it must be http://HOST[:PORT][/PATH], or https, without a user",
                param="url",
            )
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise InputError("the API key has characters that headers do not allow", param="key")
        return cls(
            host=host,
            port=_PORTS[parts.scheme] if port is None else port,
            tls=parts.scheme == "https",
            path=quote(parts.path.rstrip("/"), safe="/%:@"),
            query=f"?{quote(parts.query, safe='=&%+,:/?@')}" if parts.query else "",
            api_key=api_key,
        )

    def path_of(self, request: Request) -> str:
        """Return a request's full path; parts of the target's are not repeated."""
        base = self.path
        for part in (request.path, _API_ROOT):
            if part and base.endswith(part) and request.path.startswith(part):
                base = base.removesuffix(part)
                break
        return (base + request.path or "/") + self.query

    def encode(self, request: Request) -> bytes:
        """Encode a request for a persistent HTTP/1.1 connection."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        headers = [
            (b"host", f"{host}:{self.port}".encode()),
            (b"accept", b"application/json, text/event-stream"),
            (b"user-agent", b"gramophone-bench"),
            (b"content-type", b"application/json"),
        ]
        if self.api_key is not None:
            headers.append((b"authorization", f"Bearer {self.api_key}".encode()))
        from service.http_client import encode_request  # loads asyncio

        return encode_request("POST", self.path_of(request).encode(), headers, request.body)


def parse_duration_s(text: str, param: str) -> float:
    """Parse a number with its unit, `us`, `ms`, `s` or `min`, into seconds; `0` needs no unit.

    Raises:
        InputError: the text is not a time.
    """
    if text == "0":
        return 0.0
    found = _TIME.fullmatch(text)
    if found is None or math.isinf(float(found[1])):
        raise InputError.of(
            param, f"is {text!r}; it must be a number followed by us, ms, s or min, such as 200ms"
        )
    return float(found[1]) * _SECONDS[found[2]]
