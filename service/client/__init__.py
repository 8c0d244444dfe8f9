"""A typed client of the service, synchronous and asynchronous.

The two differ in nothing but how they wait: what is asked and how answers are read is
written once, in `service.client.calls`.

    with Client("http://localhost:8000") as client:
        client.next_token("the cat", top_k=3).results[0].candidates
"""

from service.client.asynchronous import AsyncClient
from service.client.blocking import Client
from service.client.errors import (
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
)

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
]
