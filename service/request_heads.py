"""What a request's head may say of whom it is for and of how its body is framed: RFC 9112, sections 3.2 and 6.1.

The parser lets these pass. Two programs that read them differently, a proxy and this service for instance, see
requests in different places of the same bytes.
"""

from collections.abc import Sequence
from http import HTTPStatus

OLD_VERSIONS = frozenset({"0.9", "1.0"})
"""Of HTTP: they know no chunks, and need no `Host`."""

_MAX_QUOTED_BYTES = 40
_BLANK = b" \t"


def head_error(headers: Sequence[tuple[bytes, bytes]], version: str) -> tuple[int, str] | None:
    """The status and the message with which a head is refused, or None.

    Args:
        headers: their names in lower case, and their values.
        version: of HTTP, such as `1.1`.
    """
    names = [name for name, _ in headers]
    hosts = names.count(b"host")
    if hosts > 1 or (not hosts and version not in OLD_VERSIONS):
        return HTTPStatus.BAD_REQUEST, f"the request has {hosts} Host headers; send one"
    if b"transfer-encoding" not in names:
        return None
    if version in OLD_VERSIONS:
        return HTTPStatus.BAD_REQUEST, f"HTTP/{version} has no Transfer-Encoding; send Content-Length"
    return _coding_error(b",".join(value for name, value in headers if name == b"transfer-encoding"))


def _coding_error(said: bytes) -> tuple[int, str] | None:
    shown = said[:_MAX_QUOTED_BYTES].decode("latin-1")
    *before, last = (coding.strip(_BLANK).lower() for coding in said.split(b","))
    if last != b"chunked" or b"chunked" in before:
        return (
            HTTPStatus.BAD_REQUEST,
            f"the request's Transfer-Encoding is {shown!r}; chunked must stand last, and once",
        )
    if before:
        return (
            HTTPStatus.NOT_IMPLEMENTED,
            f"the request's Transfer-Encoding is {shown!r}; only chunked is known",
        )
    return None
