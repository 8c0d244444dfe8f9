"""Clients of the service, synchronous and asynchronous: the same methods, from `service.client.endpoints`."""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

import httpx

import service.client.endpoints as endpoints  # noqa: PLR0402 - the package imports this module
from service.client.calls import Call, LineReader, retry_delay_s, transport_error

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", httpx.Client, httpx.AsyncClient)
T = TypeVar("T")
C_co = TypeVar("C_co", covariant=True)


class MethodGroup(Generic[C_co]):
    """Methods of a client about one subject.

    Args:
        client: sends the requests.
    """

    def __init__(self, client: C_co) -> None:
        self.client = client


class Method(Generic[P, R]):
    """A client's method that returns a reply; the asynchronous client's returns it when awaited."""

    def __init__(self, call: Callable[P, Call[R]]) -> None:
        self._call = call

    @overload
    def __get__(self, caller: "Client | MethodGroup[Client]", owner: type) -> Callable[P, R]: ...
    @overload
    def __get__(
        self, caller: "AsyncClient | MethodGroup[AsyncClient]", owner: type
    ) -> Callable[P, Awaitable[R]]: ...
    def __get__(self, caller: Any, owner: type) -> Any:
        """Bind to a client."""
        return _bound(self._call, caller, "fetch")


class LinesMethod(Generic[P, R]):
    """A client's method that yields results as they come; the asynchronous client's is iterated with `async for`."""

    def __init__(self, call: Callable[P, Call[list[R]]]) -> None:
        self._call = call

    @overload
    def __get__(self, caller: "Client", owner: type) -> Callable[P, Iterator[R]]: ...
    @overload
    def __get__(self, caller: "AsyncClient", owner: type) -> Callable[P, AsyncIterator[R]]: ...
    def __get__(self, caller: Any, owner: type) -> Any:
        """Bind to a client."""
        return _bound(self._call, caller, "fetch_lines")


def _bound(call: Callable[..., Any], caller: Any, fetch: str) -> Callable[..., Any]:
    """A function with the signature and docstring of `call`; without a client, `call` itself, for documentation."""
    if caller is None:
        return call
    client = caller.client if isinstance(caller, MethodGroup) else caller

    @functools.wraps(call)
    def method(*args: Any, **kwargs: Any) -> Any:
        return getattr(client, fetch)(call(*args, **kwargs))

    return method


class States(MethodGroup[C_co]):
    """Requests about states kept by the service, for decoders. Every method raises GramophoneError."""

    open = Method(endpoints.open_states_call)
    advance = Method(endpoints.advance_states_call)
    next = Method(endpoints.next_of_states_call)
    log_probs = Method(endpoints.log_probs_of_states_call)
    free = Method(endpoints.free_states_call)


class Users(MethodGroup[C_co]):
    """Requests about users of autocomplete and their accepted words. Every method raises GramophoneError."""

    accept = Method(endpoints.accept_call)
    export = Method(endpoints.export_call)
    restore = Method(endpoints.restore_call)
    forget = Method(endpoints.forget_call)


class _HttpClient(Generic[H, T]):
    """Methods of both clients, and their connections."""

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
        key = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._http: H = self._connect(
            base_url=base_url, headers={**(headers or {}), **key}, timeout=timeout_s, transport=transport
        )
        self._max_retries = max_retries

    next_token = Method(endpoints.next_token_call)
    next_word = Method(endpoints.next_word_call)
    log_probs = Method(endpoints.log_probs_call)
    score = Method(endpoints.score_call)
    score_lines = LinesMethod(endpoints.score_lines_call)
    rerank = Method(endpoints.rerank_call)
    rerank_lines = LinesMethod(endpoints.rerank_lines_call)
    tune = Method(endpoints.tune_call)
    generate = Method(endpoints.generate_call)
    stream = LinesMethod(endpoints.stream_call)
    autocomplete = Method(endpoints.autocomplete_call)
    check = Method(endpoints.check_call)
    quality = Method(endpoints.quality_call)
    quality_lines = LinesMethod(endpoints.quality_lines_call)
    models = Method(endpoints.models_call)
    model = Method(endpoints.model_call)

    @property
    def states(self) -> States[Self]:
        """Methods for states kept by the service, for decoders."""
        return States(self)

    @property
    def users(self) -> Users[Self]:
        """Methods for the users of autocomplete and their accepted words."""
        return Users(self)

    @property
    def url(self) -> str:
        """Base URL of the service."""
        return str(self._http.base_url)


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
                return response
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


class AsyncClient(_HttpClient[httpx.AsyncClient, httpx.AsyncBaseTransport]):
    """Client for asyncio, with the arguments and methods of `Client`. Every method raises GramophoneError."""

    _connect = httpx.AsyncClient

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

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
                return response
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
