"""Requests to all workers: merged metrics, and model changes on every worker.

A file lock serialises changes across processes. `Broadcast` is plain ASGI middleware behind the
authentication.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from urllib.parse import urlencode

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.engine.metrics import MetricsSource
from service.http_client import ExchangeError
from service.middleware.guarded_request import guarded
from service.workers.peers import (
    METRICS_PATH,
    REFRESH_PATH,
    Peer,
    PeerMiddleware,
    PeerResponse,
    encode_scope,
    is_from_peer,
)

_HELP = b"# HELP "
_MODELS_PATH = "/admin/models/"
_ALIASES_SEGMENT = "/aliases/"
_CHANGE_METHODS = frozenset({"POST", "PUT", "DELETE"})
_FIRST_ERROR_STATUS = 400
_KEPT_HEADERS = frozenset({b"content-type", b"retry-after"})
_log = structlog.get_logger(__name__)


def merge_expositions(texts: Iterable[bytes]) -> bytes:
    """Merge expositions in Prometheus' format, without common samples; each family gets one head."""
    # lines in order; the head of a family is identical in every text
    families: dict[bytes, dict[bytes, None]] = {}
    family: dict[bytes, None] = {}
    for text in texts:
        for line in text.splitlines(keepends=True):
            if line.startswith(_HELP):
                family = families.setdefault(line.split(b" ", 3)[2], {})
            family[line] = None
    return b"".join(line for family in families.values() for line in family)


def pool_metrics(answering: int, restarts: Sequence[int]) -> Iterator[Metric]:
    """Yield the metrics of the pool: the workers, those whose metrics were received, the restarts of each."""
    yield GaugeMetricFamily("gramophone_workers", "Worker processes configured", len(restarts))
    yield GaugeMetricFamily("gramophone_workers_answering", "Worker processes that sent metrics", answering)
    counter = CounterMetricFamily(
        "gramophone_worker_restarts", "Restarts of dead worker processes", labels=["worker"]
    )
    for number, count in enumerate(restarts):
        counter.add_metric([str(number)], count)
    yield counter


class Broadcast(PeerMiddleware):
    """Middleware that applies model changes on all workers and merges their metrics.

    A worker that does not reply is skipped; when restarted, it loads its peers' models.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        is_ours = scope["type"] == "http" and not is_from_peer(scope)
        if is_ours and scope["path"] == "/metrics" and scope["method"] in {"GET", "HEAD"}:
            await Response(await self._exposition(), media_type=CONTENT_TYPE_LATEST)(scope, receive, send)
        elif is_ours and scope["method"] in _CHANGE_METHODS and scope["path"].startswith(_MODELS_PATH):
            await self._change(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _exposition(self) -> bytes:
        """Return the metrics of all workers that reply in time."""
        replies = await self._ask_peers(lambda peer: peer.get(METRICS_PATH), "worker sent no metrics")
        texts = {number: reply.body for number, reply in replies.items()}
        texts[self.pool.number] = self.metrics.exposition()
        pool = MetricsSource(lambda: pool_metrics(len(texts), self.pool.status.restarts))
        return merge_expositions([*(texts[number] for number in sorted(texts)), generate_latest(pool)])

    async def _change(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await guarded(scope).body()
        # one change at a time: conflicting ones could end differently in different workers
        async with self.pool.lock_changes():
            if _ALIASES_SEGMENT in scope["path"]:
                answer = await self._change_alias(scope, receive, body)
            else:
                answer = await self._apply_everywhere(scope, receive, body)
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _apply_everywhere(self, scope: Scope, receive: Receive, body: bytes) -> PeerResponse:
        own = PeerResponse()
        headers = [(name, value) for name, value in scope["headers"] if name != b"x-request-id"]
        # all workers log the same id
        headers.append((b"x-request-id", scope["state"]["request_id"].encode()))
        request = encode_scope({**scope, "headers": headers}, body)
        asking = self._ask_peers(lambda peer: peer.ask(request))
        replies, _ = await asyncio.gather(asking, self.app(scope, receive, own.send))
        return _merge_responses(own, self.pool.number, replies)

    async def _ask_peers(
        self, ask: Callable[[Peer], Awaitable[PeerResponse]], warning: str = "worker missed a model change"
    ) -> dict[int, PeerResponse]:
        """Return the other workers' replies, and log a warning for each missing one."""
        replies: dict[int, PeerResponse] = {}

        async def add(number: int, peer: Peer) -> None:
            try:
                replies[number] = await ask(peer)
            except ExchangeError as error:
                _log.warning(warning, other=number, reason=str(error))

        await asyncio.gather(*(add(number, peer) for number, peer in self.peers.items()))
        return replies

    async def _change_alias(self, scope: Scope, receive: Receive, body: bytes) -> PeerResponse:
        """Change an alias, which all workers share, then make the other workers poll the registry."""
        own = PeerResponse()
        await self.app(scope, receive, own.send)
        if own.status >= _FIRST_ERROR_STATUS:
            return own
        reply = json.loads(own.body)
        query = {"address": f"{reply['model']}@{reply['alias']}"}
        if scope["method"] == "PUT" and json.loads(body).get("wait"):
            query["wait"] = "1"
        target = f"{REFRESH_PATH}?{urlencode(query)}".encode()
        request = encode_scope({**scope, "raw_path": target, "query_string": b"", "method": "POST"}, b"")
        replies = (await self._ask_peers(lambda peer: peer.ask(request))).values()
        bodies = (answer.body for answer in replies if answer.status < _FIRST_ERROR_STATUS)
        serving = [json.loads(body)["serving"] for body in bodies]
        behind = [address for address in serving if address != reply["serving"]]
        if "wait" not in query or not behind:
            return own
        # a worker that failed to load the version serves the previous one: reply as a single process would
        return _with_body(own, json.dumps({**reply, "serving": behind[0]}).encode())


def _merge_responses(own: PeerResponse, number: int, replies: Mapping[int, PeerResponse]) -> PeerResponse:
    """Merge all workers' replies into this worker's, or into an error if only some failed."""
    answers = {number: own, **replies}
    failed = sorted(n for n, answer in answers.items() if answer.status >= _FIRST_ERROR_STATUS)
    done = sorted(set(answers) - set(failed))
    if not failed or not done:
        return own
    first = answers[failed[0]]
    error = json.loads(first.body)["error"]
    error["message"] = (
        f"{_worker_names(failed)} of {len(answers)} failed and {_worker_names(done)} succeeded; repeat the "
        f"request: {error['message']}"
    )
    return _with_body(first, json.dumps({"error": error}).encode())


def _worker_names(numbers: list[int]) -> str:
    return f"worker{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _with_body(answer: PeerResponse, body: bytes) -> PeerResponse:
    """Replace a reply's body, without the headers that this worker adds to every reply."""
    headers = [(name, value) for name, value in answer.headers if name in _KEPT_HEADERS]
    return PeerResponse(answer.status, [*headers, (b"content-length", str(len(body)).encode())], body)
