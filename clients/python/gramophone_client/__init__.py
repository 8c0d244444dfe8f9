"""Typed client of the service, synchronous and asynchronous.

`Client` and `AsyncClient` share requests and reply parsing, in `gramophone_client.client`; they
differ only in waiting.

    with Client("http://localhost:8000") as client:
        client.next_token("the cat", top_k=3).results[0].candidates
"""

from gramophone_client.calls import (
    AccessError,
    BadRequestError,
    DeadlineError,
    GramophoneError,
    NotFoundError,
    OverloadedError,
    ServerError,
    StateElsewhereError,
    SupersededError,
    UnavailableError,
    UnreachableError,
    VersionError,
    __version__,
)
from gramophone_client.client import AsyncClient, Client

__all__ = [
    "AccessError",
    "AsyncClient",
    "BadRequestError",
    "Client",
    "DeadlineError",
    "GramophoneError",
    "NotFoundError",
    "OverloadedError",
    "ServerError",
    "StateElsewhereError",
    "SupersededError",
    "UnavailableError",
    "UnreachableError",
    "VersionError",
    "__version__",
]
