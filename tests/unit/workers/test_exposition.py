"""Metrics of several workers in one text."""

from prometheus_client.parser import text_string_to_metric_families

from service.engine.metrics import Metrics
from service.workers.broadcast import merge_expositions, pool_metrics


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
    metrics.started(0.002)
    family = parsed(metrics.exposition())["gramophone_request_queue_time_seconds"]
    assert family.type == "histogram"
    assert {sample.labels["worker"] for sample in family.samples} == {"0"}
    assert sum(sample.value for sample in family.samples if sample.name.endswith("_count")) == 1


def test_a_lone_process_has_no_label():
    assert b"worker" not in Metrics().exposition()


def test_the_whole_is_told_of():
    told = parsed(pool_metrics(answering=2, restarts=[0, 4, 0]))
    assert told["gramophone_workers"].samples[0].value == 3
    assert told["gramophone_workers_answering"].samples[0].value == 2
    restarts = {
        sample.labels["worker"]: sample.value for sample in told["gramophone_worker_restarts"].samples
    }
    assert restarts == {"0": 0, "1": 4, "2": 0}
