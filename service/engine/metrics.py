"""Prometheus metrics of the service; names follow those of other model servers."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

# model requests take a quarter of a millisecond and more: the default buckets would put most into the first
_SECONDS = (
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)

_REJECTIONS = ("connections", "draining", "requests", "tokens")
_AUTH_FAILURES = ("foreign_page", "missing", "scope", "unknown", "unknown_host")
_LOAD_OUTCOMES = ("failed", "loaded", "refused")
_JOB_OUTCOMES = ("cancelled", "deadline", "done", "failed")


class MetricsSource(Collector):
    """Source of metrics for a scrape: those that a function yields then."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        return self._read()


class Metrics:
    """Metrics of one application, in a collector registry of their own.

    Args:
        worker: index of this worker process, a label of every sample; None for a single process without a label.
    """

    def __init__(self, worker: int | None = None) -> None:
        self._registry = CollectorRegistry()
        self._worker = worker
        ours: dict[str, Any] = {"namespace": "gramophone", "registry": self._registry}
        counter: Callable[..., Counter] = partial(Counter, **ours)
        self._counter = counter
        histogram: Callable[..., Histogram] = partial(Histogram, buckets=_SECONDS, **ours)
        ProcessCollector(**ours)
        self.http_requests = counter(
            "http_requests", "HTTP requests answered", ("handler", "method", "status")
        )
        self.latency = histogram(
            "e2e_request_latency_seconds", "from a request's head to its reply's last byte", ("handler",)
        )
        self.queue_time = histogram(
            "request_queue_time_seconds", "from submission to the model thread's first step"
        )
        self.first_token = histogram(
            "time_to_first_token_seconds", "from submission to the first generated token", ("model_name",)
        )
        self.inter_token = histogram(
            "inter_token_latency_seconds", "between generated tokens", ("model_name",)
        )
        self.prompt_tokens = counter("prompt_tokens", "tokens read as context", ("model_name",))
        self.scored_tokens = counter("scored_tokens", "tokens scored", ("model_name",))
        self.generation_tokens = counter("generation_tokens", "tokens generated", ("model_name",))
        self.generated = counter(
            "request_success", "generations that ended well", ("model_name", "finished_reason")
        )

        self.model_loads = counter("model_loads", "attempts to load a model", ("outcome",))
        self.load_seconds = histogram(
            "model_load_seconds", "loading of a model until it can answer, failed attempts included"
        )
        self.auth_failures = counter("auth_failures", "requests without a key that allows them", ("reason",))
        self.rejected_requests = counter("rejections", "requests that were not admitted", ("reason",))
        self.ended_jobs = counter("jobs_ended", "model work that ended", ("how",))
        self.batch_rows = histogram(
            "batch_rows",
            "rows of calls of one kind that were answered together",
            ("kind",),
            buckets=[1 << n for n in range(13)],
        )
        for counted, values in (
            (self.rejected_requests, _REJECTIONS),
            (self.auth_failures, _AUTH_FAILURES),
            (self.model_loads, _LOAD_OUTCOMES),
            (self.ended_jobs, _JOB_OUTCOMES),
        ):
            for value in values:  # export 0 from the start: a series that begins at 1 shows no increase
                counted.labels(value)

    def started(self, waited_s: float) -> None:
        """Record the queue time of a job that has run its first step."""
        self.queue_time.observe(waited_s)

    def rejected(self, reason: str) -> None:
        """Record a job that was not admitted: `requests`, `tokens` or `draining`."""
        self.rejected_requests.labels(reason).inc()

    def ended(self, how: str) -> None:
        """Record the end of a job: `done`, `failed`, `cancelled` or `deadline`."""
        self.ended_jobs.labels(how).inc()

    def answered(self, kind: str, rows: int) -> None:
        """Record the number of rows of one kind of call that were computed in one slice."""
        self.batch_rows.labels(kind).observe(rows)

    def generation(
        self, model: str, prompt_tokens: int, generated_tokens: int, finish_reasons: Iterable[str]
    ) -> None:
        """Record a successful generation request: tokens read and generated, finish reason of each choice."""
        self.prompt_tokens.labels(model).inc(prompt_tokens)
        self.generation_tokens.labels(model).inc(generated_tokens)
        for reason in finish_reasons:
            self.generated.labels(model, reason).inc()

    def model_load(self, outcome: str, seconds: float) -> None:
        """Record the end of a load."""
        self.model_loads.labels(outcome).inc()
        self.load_seconds.observe(seconds)

    def add_model_gauge(self, name: str, description: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Add a gauge with one sample per model, read at each scrape; models no longer hosted have none."""

        def collect() -> Iterator[Metric]:
            family = GaugeMetricFamily(f"gramophone_{name}", description, labels=["model_name"])
            for model, value in read().items():
                family.add_metric([model], value)
            yield family

        self._registry.register(MetricsSource(collect))

    def add_gauge(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Add a gauge that is read at each scrape."""
        gauge = Gauge(name, description, namespace="gramophone", registry=self._registry)
        gauge.set_function(read)

    def describe(self, **facts: str) -> None:
        """Set the labels of `gramophone_build_info`, which describe the running service."""
        Info("build", "what is running", namespace="gramophone", registry=self._registry).info(facts)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        if self._worker is None:
            return generate_latest(self._registry)
        return generate_latest(MetricsSource(self._labelled))

    def _labelled(self) -> Iterator[Metric]:
        """Yield the current samples of the registry with the label `worker`."""
        for family in self._registry.collect():
            labelled = Metric(family.name, family.documentation, family.type, family.unit)
            labelled.samples = [
                sample._replace(labels={**sample.labels, "worker": str(self._worker)})
                for sample in family.samples
            ]
            yield labelled

    @cached_property
    def relayed_requests(self) -> Counter:
        """Counter of requests passed on to another worker, created on first use; a single process has none."""
        return self._counter(
            "relayed_requests",
            "requests that were passed on to the worker that remembers what they are about",
        )
