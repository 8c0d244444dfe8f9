"""Refusals of requests that the event loop has delayed; shares of the memory of bodies."""

import asyncio
import json

import pytest
from starlette.exceptions import HTTPException

from service.api_keys import KeyScope, KeyStore
from service.engine.metrics import Metrics
from service.middleware.authentication import AccessTable, Authentication
from service.middleware.cross_origin import CrossOriginGuard, CrossOriginReplies
from service.middleware.guard import Guard
from service.middleware.guarded_request import ARRIVAL_S, BodyLimit, HeldBodies


def guard(app, metrics):
    """Guard of an application without keys."""
    keys = KeyStore()
    table = AccessTable({"/v1/score": KeyScope.INFER, "/health/live": None})
    return Guard(
        app,
        operations={},
        authentication=Authentication(keys=keys, metrics=metrics, table=table),
        origins=CrossOriginGuard(keys=keys, metrics=metrics, host="0.0.0.0"),  # noqa: S104 - any name
        cors=CrossOriginReplies(origins=()),
        body_limit=BodyLimit(1 << 20, HeldBodies(1 << 20)),
        metrics=metrics,
    )


def replies(count, *, delay_s, path="/v1/score"):
    """Statuses of requests that are under way together, the last reply, and the metrics."""
    metrics, sent = Metrics(), []

    async def app(_scope, _receive, send):
        await asyncio.sleep(0.01)  # until all are under way
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    async def main():
        limit, arrival_s = guard(app, metrics), asyncio.get_running_loop().time() - delay_s
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [],
            "state": {ARRIVAL_S: arrival_s},
        }
        await asyncio.gather(*(limit(scope, None, send) for _ in range(count)))

    asyncio.run(main())
    return [message for message in sent if "status" in message], sent, metrics.exposition().decode()


def test_a_delayed_request_is_refused_beside_others_and_told_when_to_come_back():
    starts, sent, metrics = replies(33, delay_s=0.3)
    assert sorted(start["status"] for start in starts) == [200] * 32 + [429]
    headers = dict(next(start["headers"] for start in starts if start["status"] == 429))
    assert (headers[b"retry-after"], headers[b"connection"]) == (b"1", b"close")
    error = json.loads(next(message["body"] for message in sent if message.get("body")))["error"]
    assert error["code"] == "overloaded"
    assert "has waited 0.3" in error["message"]
    assert 'gramophone_rejections_total{reason="delay"} 1.0' in metrics


@pytest.mark.parametrize(
    ("count", "delay_s", "path"),
    [(32, 100.0, "/v1/score"), (40, 0.1, "/v1/score"), (40, 100.0, "/health/live")],
    ids=["few", "soon", "health"],
)
def test_others_are_not(count, delay_s, path):
    starts, _, metrics = replies(count, delay_s=delay_s, path=path)
    assert [start["status"] for start in starts] == [200] * count
    assert 'gramophone_rejections_total{reason="delay"} 0.0' in metrics


def test_a_key_has_its_share_of_the_bodies_while_another_holds_all():
    held = HeldBodies(1 << 20)
    held.receive("busy", 1 << 20, before=0)
    held.receive("other", 1 << 19, before=0)
    held.receive("other", 1 << 16, before=0)  # a short body
    with pytest.raises(HTTPException, match="the share of this key 524288, of which 589824 are taken"):
        held.receive("other", (1 << 16) + 1, before=0)
    with pytest.raises(HTTPException, match="32768 of them of this request"):
        held.receive("third", 1 << 20, before=1 << 15)


def test_a_body_alone_may_have_more_than_the_maximum_of_all():
    held = HeldBodies(1 << 17)
    for before in range(0, 1 << 20, 1 << 16):
        held.receive("", 1 << 16, before=before)
    assert held.used == 1 << 20
