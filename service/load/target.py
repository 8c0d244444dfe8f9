"""Where requests go, and what they are as bytes of HTTP/1.1."""

from dataclasses import dataclass
from typing import NamedTuple, Self
from urllib.parse import quote, urlsplit

from models.errors import InvalidInputError

_PORTS = {"http": 80, "https": 443}
_API_ROOT = "/v1"


class Request(NamedTuple):
    """One request.

    Attributes:
        path: below the target's; empty for the target's own.
        body: JSON, or nothing.
        method: of HTTP.
        num_items: texts, candidates or contexts in it: what is counted besides requests.
    """

    path: str
    body: bytes = b""
    method: str = "POST"
    num_items: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, and the path below which it is asked.

    Attributes:
        tls: whether the connection is encrypted; certificates are verified.
        path: of the URL, without a slash at its end.
        query: of the URL, with its question mark.
        api_key: sent with every request as a bearer token.
    """

    host: str
    port: int
    tls: bool
    path: str = ""
    query: str = ""
    api_key: str | None = None

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> Self:
        """The target of a URL.

        Raises:
            InvalidInputError: it is no http or https URL, or the key cannot stand in a header.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
            host = (parts.hostname or "").encode("idna").decode()
        except ValueError as error:
            raise InvalidInputError(f"URL is {url!r}: {error}", parameter="url") from None
        if parts.scheme not in _PORTS or not host or parts.username is not None:
            raise InvalidInputError(
                f"URL is {url!r}; it must be http://HOST[:PORT][/PATH], or https, and name no user",
                parameter="url",
            )
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise InvalidInputError("the API key has characters that no header may hold", parameter="key")
        return cls(
            host=host,
            port=_PORTS[parts.scheme] if port is None else port,
            tls=parts.scheme == "https",
            path=quote(parts.path.rstrip("/"), safe="/%:@"),
            query=f"?{quote(parts.query, safe='=&%+,:/?@')}" if parts.query else "",
            api_key=api_key,
        )

    def path_of(self, request: Request) -> str:
        """The whole path of a request, which the target's own may hold already, or the `/v1` of it."""
        base = self.path
        for part in (request.path, _API_ROOT):
            if part and base.endswith(part) and request.path.startswith(part):
                base = base.removesuffix(part)
                break
        return (base + request.path or "/") + self.query

    def encode(self, request: Request) -> bytes:
        """The request as it is sent over a connection that stays open."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{request.method} {self.path_of(request)} HTTP/1.1",
            f"host: {host}:{self.port}",
            "accept: application/json, text/event-stream",
            "user-agent: gramophone-bench",
        ]
        if request.body:
            lines += ["content-type: application/json", f"content-length: {len(request.body)}"]
        if self.api_key is not None:
            lines.append(f"authorization: Bearer {self.api_key}")
        return "\r\n".join([*lines, "", ""]).encode() + request.body
