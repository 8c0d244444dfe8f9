"""Clients of the service, synchronous and asynchronous: the same methods, from `service.client.endpoints`."""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, overload

import httpx

from service.client import endpoints
from service.client.calls import (
    Call,
    LineReader,
    ensure_success,
    request_headers,
    retry_delay_s,
    transport_error,
)

P = ParamSpec("P")
R = TypeVar("R")


class BlockingCaller(Protocol):
    """Sends calls and waits for the replies."""

    def fetch(self, call: Call[R]) -> R:
        """Send a call and parse its reply."""
        ...

    def fetch_lines(self, call: Call[list[R]]) -> Iterator[R]:
        """Send a call and yield the results in its reply's lines."""
        ...


class AsyncCaller(Protocol):
    """Sends calls; the replies are awaited."""

    async def fetch(self, call: Call[R]) -> R:
        """Send a call and parse its reply."""
        ...

    def fetch_lines(self, call: Call[list[R]]) -> AsyncIterator[R]:
        """Send a call and yield the results in its reply's lines."""
        ...


class Method(Generic[P, R]):
    """A client's method that returns a reply; the asynchronous client's returns it when awaited."""

    def __init__(self, call: Callable[P, Call[R]]) -> None:
        self._call = call

    @overload
    def __get__(self, caller: BlockingCaller, owner: type) -> Callable[P, R]: ...
    @overload
    def __get__(self, caller: AsyncCaller, owner: type) -> Callable[P, Awaitable[R]]: ...
    def __get__(self, caller: Any, owner: type) -> Any:
        """Bind to a client."""
        return _bound(self._call, None if caller is None else caller.fetch)


class LinesMethod(Generic[P, R]):
    """A client's method that yields results as they come; the asynchronous client's is iterated with `async for`."""

    def __init__(self, call: Callable[P, Call[list[R]]]) -> None:
        self._call = call

    @overload
    def __get__(self, caller: BlockingCaller, owner: type) -> Callable[P, Iterator[R]]: ...
    @overload
    def __get__(self, caller: AsyncCaller, owner: type) -> Callable[P, AsyncIterator[R]]: ...
    def __get__(self, caller: Any, owner: type) -> Any:
        """Bind to a client."""
        return _bound(self._call, None if caller is None else caller.fetch_lines)


def _bound(call: Callable[..., Any], fetch: Callable[[Any], Any] | None) -> Callable[..., Any]:
    """A function with the signature and docstring of `call`; without a client, `call` itself, for documentation."""
    if fetch is None:
        return call

    @functools.wraps(call)
    def method(*args: Any, **kwargs: Any) -> Any:
        return fetch(call(*args, **kwargs))

    return method


class _Endpoints:
    """Methods of both clients."""

    next_token = Method(endpoints.next_token)
    next_word = Method(endpoints.next_word)
    log_probs = Method(endpoints.log_probs)
    score = Method(endpoints.score)
    score_lines = LinesMethod(endpoints.score_lines)
    rerank = Method(endpoints.rerank)
    rerank_lines = LinesMethod(endpoints.rerank_lines)
    tune = Method(endpoints.tune)
    generate = Method(endpoints.generate)
    stream = LinesMethod(endpoints.stream)
    autocomplete = Method(endpoints.autocomplete)
    check = Method(endpoints.check)
    quality = Method(endpoints.quality)
    quality_lines = LinesMethod(endpoints.quality_lines)
    models = Method(endpoints.models)
    model = Method(endpoints.model)


class _StateEndpoints:
    """Requests about states kept by the service, for decoders. Every method raises GramophoneError."""

    open = Method(endpoints.open_states)
    advance = Method(endpoints.advance_states)
    next = Method(endpoints.next_of_states)
    log_probs = Method(endpoints.log_probs_of_states)
    free = Method(endpoints.free_states)


class _UserEndpoints:
    """Requests about users of autocomplete and their accepted words. Every method raises GramophoneError."""

    accept = Method(endpoints.accept)
    export = Method(endpoints.export)
    restore = Method(endpoints.restore)
    forget = Method(endpoints.forget)


class _SyncGroup:
    def __init__(self, client: BlockingCaller) -> None:
        self.fetch, self.fetch_lines = client.fetch, client.fetch_lines


class _AsyncGroup:
    def __init__(self, client: AsyncCaller) -> None:
        self.fetch, self.fetch_lines = client.fetch, client.fetch_lines


class States(_StateEndpoints, _SyncGroup):
    """Methods for states kept by the service: `Client.states`."""


class AsyncStates(_StateEndpoints, _AsyncGroup):
    """Methods for states kept by the service: `AsyncClient.states`."""


class Users(_UserEndpoints, _SyncGroup):
    """Methods for the users of autocomplete: `Client.users`."""


class AsyncUsers(_UserEndpoints, _AsyncGroup):
    """Methods for the users of autocomplete: `AsyncClient.users`."""


class AsyncClient(_Endpoints):
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

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        max_retries: int = 2,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers=request_headers(api_key, headers),
            timeout=timeout_s,
            transport=transport,
        )
        self._max_retries = max_retries

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def url(self) -> str:
        """Base URL of the service."""
        return str(self._http.base_url)

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


class Client(_Endpoints):
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

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        max_retries: int = 2,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(
            base_url=base_url,
            headers=request_headers(api_key, headers),
            timeout=timeout_s,
            transport=transport,
        )
        self._max_retries = max_retries

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Base URL of the service."""
        return str(self._http.base_url)

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
