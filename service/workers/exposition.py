"""One text of metrics made of those of all workers."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_HELP = b"# HELP "
_COMMENT = b"#"


def merge_expositions(texts: Iterable[bytes]) -> bytes:
    """All samples of several texts, those of one family together under one head.

    Args:
        texts: in Prometheus' text format; no sample stands in two of them.
    """
    heads: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    for text in texts:
        name, is_new = b"", False
        for line in text.splitlines(keepends=True):
            if line.startswith(_HELP):
                name = line.split(b" ", 3)[2]
                is_new = name not in heads
                heads.setdefault(name, [])
                samples.setdefault(name, [])
            if not line.startswith(_COMMENT):
                samples[name].append(line)
            elif is_new:
                heads[name].append(line)
    return b"".join(line for name in heads for line in (*heads[name], *samples[name]))


def pool_metrics(*, answering: int, restarts: Sequence[int]) -> bytes:
    """What is told of the workers together.

    Args:
        answering: how many have told their metrics.
        restarts: how often each was started again.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_PoolCollector(answering, restarts))
    return generate_latest(registry)


class _PoolCollector(Collector):
    def __init__(self, answering: int, restarts: Sequence[int]) -> None:
        self._answering, self._restarts = answering, restarts

    def collect(self) -> Iterator[Metric]:
        """What there is."""
        yield GaugeMetricFamily("gramophone_workers", "worker processes there are to be", len(self._restarts))
        yield GaugeMetricFamily(
            "gramophone_workers_answering", "those that have told their metrics", self._answering
        )
        counter = CounterMetricFamily(
            "gramophone_worker_restarts", "worker processes started for one that died", labels=["worker"]
        )
        for number, count in enumerate(self._restarts):
            counter.add_metric([str(number)], count)
        yield counter
