"""Merged replies and metrics of several workers; exclusive changes."""

import asyncio
import json
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from service.engine.metrics import Metrics, MetricsSource
from service.workers.broadcast import _merge_responses, merge_expositions, pool_metrics
from service.workers.peers import PeerResponse
from service.workers.pool import SharedStatus, WorkerPool

DONE = PeerResponse(200, [(b"content-type", b"application/json")], b'{"id": "a@1"}')
HEADERS = [(b"content-type", b"application/json"), (b"x-request-id", b"7"), (b"retry-after", b"1")]


def failed(message):
    error = {"message": message, "type": "service_unavailable_error", "param": None, "code": "engine_error"}
    return PeerResponse(503, HEADERS, json.dumps({"error": error}).encode())


def test_equal_outcomes_give_the_reply_of_the_receiving_worker():
    assert _merge_responses(DONE, 1, {0: PeerResponse(202, [], b"{}"), 2: DONE}) is DONE
    refused = failed("no room")
    assert _merge_responses(refused, 0, {1: failed("none here")}) is refused


def test_partial_failure_names_the_failed_workers():
    answer = _merge_responses(DONE, 1, {0: DONE, 2: failed("no room for a@1")})
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"]) == (503, "engine_error")
    assert (
        error["message"]
        == "worker 2 of 3 failed and workers 0, 1 succeeded; repeat the request: no room for a@1"
    )
    assert dict(answer.headers)[b"content-length"] == str(len(answer.body)).encode()


def test_failure_of_the_receiving_worker_alone_is_named():
    answer = _merge_responses(failed("no room"), 0, {1: DONE})
    assert json.loads(answer.body)["error"]["message"].startswith(
        "worker 0 of 2 failed and worker 1 succeeded"
    )


def test_headers_of_workers_are_merged_without_duplicates():
    names = [name for name, _ in _merge_responses(DONE, 0, {1: failed("no room")}).headers]
    assert names == [b"content-type", b"retry-after", b"content-length"]


def parsed(text):
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def two():
    workers = [Metrics(0), Metrics(1)]
    workers[0].rejected("tokens")
    workers[1].rejected("tokens")
    workers[1].scored_tokens.labels('a"b\\c\n').inc(7)
    return workers


def test_samples_of_a_family_stand_under_one_head():
    text = merge_expositions([metrics.exposition() for metrics in two()])
    heads = [line for line in text.splitlines() if line.startswith(b"#")]
    assert len(heads) == len(set(heads))
    samples = parsed(text)["gramophone_rejections"].samples
    counts = {
        sample.labels["worker"]: sample.value
        for sample in samples
        if sample.name.endswith("_total") and sample.labels["reason"] == "tokens"
    }
    assert counts == {"0": 1, "1": 1}


def test_nothing_is_lost_and_nothing_added():
    texts = [metrics.exposition() for metrics in two()]
    lines = {line for text in texts for line in text.splitlines()}
    assert sorted(merge_expositions(texts).splitlines()) == sorted(lines)


def test_labels_of_any_kind_come_through():
    text = merge_expositions([metrics.exposition() for metrics in two()])
    samples = parsed(text)["gramophone_scored_tokens"].samples
    assert samples[0].labels == {"model_name": 'a"b\\c\n', "worker": "1"}


def test_histograms_keep_their_buckets():
    metrics = two()[0]
    metrics.queue_time.observe(0.002)
    family = parsed(metrics.exposition())["gramophone_request_queue_time_seconds"]
    assert family.type == "histogram"
    assert {sample.labels["worker"] for sample in family.samples} == {"0"}
    assert sum(sample.value for sample in family.samples if sample.name.endswith("_count")) == 1


def test_a_lone_process_has_no_label():
    assert b"worker" not in Metrics().exposition()


def test_the_whole_is_told_of():
    told = parsed(generate_latest(MetricsSource(lambda: pool_metrics(2, [0, 4, 0]))))
    assert told["gramophone_workers"].samples[0].value == 3
    assert told["gramophone_workers_answering"].samples[0].value == 2
    restarts = {
        sample.labels["worker"]: sample.value for sample in told["gramophone_worker_restarts"].samples
    }
    assert restarts == {"0": 0, "1": 4, "2": 0}


def crew(number, folder):
    return WorkerPool(number, 2, "host", SharedStatus(2), folder, Path(), -1)


@pytest.mark.parametrize("others", [0, 1], ids=["the same worker", "another"])
def test_one_has_the_turn_at_a_time(tmp_path, others):
    log = []

    async def change(worker, name):
        async with crew(worker, tmp_path).lock_changes():
            log.append(f"{name} begins")
            await asyncio.sleep(0.05)
            log.append(f"{name} ends")

    async def main():
        await asyncio.gather(change(0, "a"), change(others, "b"))

    asyncio.run(main())
    assert log in (
        ["a begins", "a ends", "b begins", "b ends"],
        ["b begins", "b ends", "a begins", "a ends"],
    )


def test_one_that_gives_up_gives_the_turn_back(tmp_path):
    async def main():
        ours = crew(0, tmp_path)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02), ours.lock_changes():
                await asyncio.sleep(10)
        async with asyncio.timeout(5), ours.lock_changes():
            return True

    assert asyncio.run(main())
