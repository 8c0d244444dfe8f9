"""Cross-origin guard and CORS options.

A web page can make a browser send requests to any address that its machine can reach. If the service
requires API keys, such a page has none. Without keys, two checks apply:

- *Origin of a request that changes something*: browsers send it in `Sec-Fetch-Site` or `Origin`.
  Reads need no check, because without CORS other pages cannot see the reply.
- *Host name*, if the service listens on a loopback address: a page whose name resolves to 127.0.0.1
  (DNS rebinding) counts as same-origin; only `Host` distinguishes it.

Other programs send neither header and are not affected.

A browser first asks whether a page may send a request (a preflight). `CrossOriginReplies` tells a
page of an unlisted origin which setting would list it.
"""

import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from typing_extensions import override

from service.api_errors import error_response, not_found
from service.api_keys import KeyStore
from service.engine.metrics import Metrics
from service.middleware.guarded_request import GuardedRequest
from service.schemas.replies import ErrorBody

ANY = "*"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({b"same-origin", b"none"})
_SHOWN_CHARS = 100


@dataclass(eq=False)
class CrossOriginGuard:
    """Rejections of browser requests from pages of other sites.

    Attributes:
        keys: the service's keys; with any, the origin of changes is not checked.
        metrics: counters of rejected requests.
        host: listening address.
        allowed_hosts: allowed names in `Host`, `*` for any; if empty, only local names, but every name with keys
            or if `host` is not a loopback address.
        origins: origins whose pages may send changes, `*` for any.
    """

    keys: KeyStore
    metrics: Metrics
    host: str
    allowed_hosts: Collection[str] = ()
    origins: Collection[str] = ()

    def __post_init__(self) -> None:
        self._is_loopback = is_loopback(self.host)
        self._allowed = frozenset(name.lower() for name in self.allowed_hosts)

    def refusal(self, request: GuardedRequest) -> Response | None:
        """Return the reply to a request of another site's page; None if the request is allowed."""
        scope = request.scope
        host = request.headers.get(b"host", b"").decode("latin-1")
        if not self._is_allowed_host(_host_name(host)):
            message = (
                f"host is {host[:_SHOWN_CHARS]!r}, which is not allowed: add it to GRAMOPHONE_ALLOWED_HOSTS, or "
                "configure API keys"
            )
            return self._refused(421, ErrorBody(message, "invalid_request_error", None, "unknown_host"))
        if self.keys or scope["method"] in _SAFE_METHODS or self._is_same_origin(request.headers, host):
            return None
        message = (
            "a page of another site sent this request, and the service requires no key: add the site to "
            "GRAMOPHONE_CORS_ORIGINS, or configure API keys"
        )
        return self._refused(403, ErrorBody(message, "permission_error", None, "foreign_page"))

    def _refused(self, status: int, body: ErrorBody) -> Response:
        self.metrics.auth_failures.labels(body.code).inc()
        return error_response(status, body)

    def _is_allowed_host(self, name: str) -> bool:
        """Return true if clients may use a host name for the service."""
        if self._allowed:
            return ANY in self._allowed or name in self._allowed or _is_address(name)
        if self.keys or not self._is_loopback:
            return True
        # a name without a dot cannot be registered, so it is of this machine or network
        return "." not in name or name.endswith(".localhost") or _is_address(name)

    def _is_same_origin(self, headers: Mapping[bytes, bytes], host_header: str) -> bool:
        """Return true if a request comes from the service's own page, an allowed one, or none."""
        origin = headers.get(b"origin")
        if ANY in self.origins or (origin is not None and origin.decode("latin-1") in self.origins):
            return True
        site = headers.get(b"sec-fetch-site")
        if site is not None:
            return site in _OWN_SITES
        return origin is None or _origin_host(origin.decode("latin-1")) == host_header.lower()


@lru_cache(maxsize=64)
def _host_name(host: str) -> str:
    """Return the host name of a `Host` header, without the port."""
    bracketed, end, _ = host.partition("]")
    name = bracketed[1:] if end else host.partition(":")[0]
    return name.lower().removesuffix(".")


def _origin_host(origin: str) -> str | None:
    """Return name and port of an origin, as in `Host`; None for an invalid origin, such as `null`."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:  # unbalanced brackets
        return None


@lru_cache(maxsize=64)  # parsing takes longer than all other checks
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return true if an address is reachable from this machine only."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


class CrossOriginReplies(CORSMiddleware):
    """Middleware that lets pages of listed origins read replies; preflights of other pages get 403.

    Args:
        origins: listed origins, `*` for any.
    """

    def __init__(self, *, origins: Collection[str]) -> None:
        super().__init__(
            not_found(""),  # the guard sets the application behind it
            allow_origins=tuple(origins),
            allow_methods=("GET", "POST", "PUT", "DELETE"),
            # any: clients send custom headers, such as x-stainless-…, and a header alone grants nothing
            allow_headers=("*",),
            expose_headers=("x-request-id", "retry-after", "x-model", "x-shape"),
            allow_credentials=False,  # clients send keys explicitly, not in cookies
            allow_private_network=True,
        )

    @override
    def preflight_response(self, request_headers: Headers) -> Response:
        origin = request_headers["origin"]
        if self.is_allowed_origin(origin):
            return super().preflight_response(request_headers)
        message = (
            f"pages of the origin {origin[:_SHOWN_CHARS]!r} may not send requests: add it to "
            "GRAMOPHONE_CORS_ORIGINS"
        )
        return error_response(403, ErrorBody(message, "permission_error", None, "foreign_page"))
