"""Clients of the service, synchronous and asynchronous: the same methods, from `service.client.endpoints`."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx

from service.client.calls import (
    Call,
    LineReader,
    ensure_success,
    request_headers,
    retry_delay_s,
    transport_error,
)
from service.client.endpoints import AsyncCaller, BlockingCaller, ClientMethods, StateMethods, UserMethods

R = TypeVar("R")
H = TypeVar("H", httpx.Client, httpx.AsyncClient)
T = TypeVar("T")


class _SyncGroup:
    def __init__(self, client: BlockingCaller) -> None:
        self.fetch, self.fetch_lines = client.fetch, client.fetch_lines


class _AsyncGroup:
    def __init__(self, client: AsyncCaller) -> None:
        self.fetch, self.fetch_lines = client.fetch, client.fetch_lines


class States(StateMethods, _SyncGroup):
    """Methods for states kept by the service: `Client.states`."""


class AsyncStates(StateMethods, _AsyncGroup):
    """Methods for states kept by the service: `AsyncClient.states`."""


class Users(UserMethods, _SyncGroup):
    """Methods for the users of autocomplete: `Client.users`."""


class AsyncUsers(UserMethods, _AsyncGroup):
    """Methods for the users of autocomplete: `AsyncClient.users`."""


class _HttpClient(ClientMethods, Generic[H, T]):
    """Connections of either client."""

    _connect: Callable[..., H]

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        max_retries: int = 2,
        transport: T | None = None,
    ) -> None:
        self._http: H = self._connect(
            base_url=base_url,
            headers=request_headers(api_key, headers),
            timeout=timeout_s,
            transport=transport,
        )
        self._max_retries = max_retries

    @property
    def url(self) -> str:
        """Base URL of the service."""
        return str(self._http.base_url)


class AsyncClient(_HttpClient[httpx.AsyncClient, httpx.AsyncBaseTransport]):
    """Client for asyncio, with the methods of `Client`.

    Args:
        base_url: URL of the service, such as `http://localhost:8000`.
        api_key: API key sent with every request, if the service requires one.
        headers: further headers, such as `X-Gramophone-Session`, by which a proxy routes a session to one process.
        timeout_s: seconds to wait for an answer, or for the next part of one.
        max_retries: retries of a request that an overloaded or unready service refused.
        transport: transport of httpx, for tests.

    Every method raises GramophoneError.
    """

    _connect = httpx.AsyncClient

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def states(self) -> AsyncStates:
        """Methods for states kept by the service, for decoders."""
        return AsyncStates(self)

    @property
    def users(self) -> AsyncUsers:
        """Methods for the users of autocomplete and their accepted words."""
        return AsyncUsers(self)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def fetch(self, call: Call[R]) -> R:
        """Send a call and parse its reply."""
        return call.read(await self._send(call))

    async def _send(self, call: Call[Any], *, stream: bool = False) -> httpx.Response:
        attempt = 0
        while True:
            try:
                response = await self._http.send(call.request(self._http), stream=stream)
                if not response.is_success:
                    await response.aread()
            except httpx.TransportError as error:
                raise transport_error(error) from error
            delay_s = retry_delay_s(response, attempt, self._max_retries)
            if delay_s is None:
                return ensure_success(response)
            attempt += 1
            await asyncio.sleep(delay_s)

    async def fetch_lines(self, call: Call[list[R]]) -> AsyncIterator[R]:
        """Send a call and yield the results in its reply's lines."""
        response = await self._send(call, stream=True)
        try:
            reader = LineReader()
            async for chunk in response.aiter_bytes():
                for line in reader.push(chunk):
                    for result in call.read(line):
                        yield result
        except httpx.TransportError as error:
            raise transport_error(error) from error
        finally:
            await response.aclose()


class Client(_HttpClient[httpx.Client, httpx.BaseTransport]):
    """Synchronous client of the service.

    Args:
        base_url: URL of the service, such as `http://localhost:8000`.
        api_key: API key sent with every request, if the service requires one.
        headers: further headers, such as `X-Gramophone-Session`, by which a proxy routes a session to one process.
        timeout_s: seconds to wait for an answer, or for the next part of one.
        max_retries: retries of a request that an overloaded or unready service refused.
        transport: transport of httpx, for tests.

    Every method raises GramophoneError.
    """

    _connect = httpx.Client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def states(self) -> States:
        """Methods for states kept by the service, for decoders."""
        return States(self)

    @property
    def users(self) -> Users:
        """Methods for the users of autocomplete and their accepted words."""
        return Users(self)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def fetch(self, call: Call[R]) -> R:
        """Send a call and parse its reply."""
        return call.read(self._send(call))

    def _send(self, call: Call[Any], *, stream: bool = False) -> httpx.Response:
        attempt = 0
        while True:
            try:
                response = self._http.send(call.request(self._http), stream=stream)
                if not response.is_success:
                    response.read()
            except httpx.TransportError as error:
                raise transport_error(error) from error
            delay_s = retry_delay_s(response, attempt, self._max_retries)
            if delay_s is None:
                return ensure_success(response)
            attempt += 1
            time.sleep(delay_s)

    def fetch_lines(self, call: Call[list[R]]) -> Iterator[R]:
        """Send a call and yield the results in its reply's lines."""
        response = self._send(call, stream=True)
        try:
            reader = LineReader()
            for chunk in response.iter_bytes():
                for line in reader.push(chunk):
                    yield from call.read(line)
        except httpx.TransportError as error:
            raise transport_error(error) from error
        finally:
            response.close()
