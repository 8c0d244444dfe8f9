"""What a request's head may say of whom it is for and of how its body is framed: RFC 9112, sections 3.2 and 6.1.

The parser lets these pass. Two programs that read them differently, a proxy and this service for instance, see
requests in different places of the same bytes.
"""

from collections.abc import Collection, Sequence
from http import HTTPStatus

OLD_VERSIONS = frozenset({"0.9", "1.0"})
"""Of HTTP: without `Host`, codings, and answers other than final ones."""

_SHOWN_BYTES = 40
_BLANK = b" \t"
Fault = tuple[int, str]


def fault_of(names: Sequence[bytes], values: Sequence[bytes], version: str) -> Fault | None:
    """The status and the message with which a head is refused, or None.

    Args:
        names: of its headers, in lower case.
        values: theirs.
        version: of HTTP, such as `1.1`.
    """
    hosts = names.count(b"host")
    if hosts > 1 or (not hosts and version not in OLD_VERSIONS):
        return HTTPStatus.BAD_REQUEST, f"the request has {hosts} Host headers; send one"
    codings = [value for name, value in zip(names, values, strict=True) if name == b"transfer-encoding"]
    return _coding_fault(b",".join(codings), names, version) if codings else None


def _coding_fault(said: bytes, names: Collection[bytes], version: str) -> Fault | None:
    shown = said[:_SHOWN_BYTES].decode("latin-1")
    if version in OLD_VERSIONS:
        return HTTPStatus.BAD_REQUEST, f"HTTP/{version} has no Transfer-Encoding; send Content-Length"
    if b"content-length" in names:
        return (
            HTTPStatus.BAD_REQUEST,
            "the request has both Transfer-Encoding and Content-Length; send one of them",
        )
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
