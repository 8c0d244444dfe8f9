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

# model requests take 0.25 ms and more; most would fall into the first of the default buckets
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
    """Collector of the metrics that a function yields at each scrape."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        return self._read()


class Metrics:
    """Metrics of one application, in a separate collector registry.

    Args:
        worker: index of this worker process, a label of every sample; None for a single process, without the label.
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
            "e2e_request_latency_seconds",
            "Seconds from the arrival of a request's headers to the last byte of its reply",
            ("handler",),
        )
        self.queue_time = histogram(
            "request_queue_time_seconds", "Seconds from the submission of a request to its first step"
        )
        self.first_token = histogram(
            "time_to_first_token_seconds", "Seconds from submission to first generated token", ("model_name",)
        )
        self.inter_token = histogram(
            "inter_token_latency_seconds", "Seconds between generated tokens", ("model_name",)
        )
        self.prompt_tokens = counter("prompt_tokens", "Tokens read as prompts or contexts", ("model_name",))
        self.scored_tokens = counter("scored_tokens", "Tokens scored", ("model_name",))
        self.generation_tokens = counter("generation_tokens", "Tokens generated", ("model_name",))
        self.generated = counter(
            "request_success", "Generated choices of successful requests", ("model_name", "finished_reason")
        )
        self.model_loads = counter("model_loads", "Attempts to load a model", ("outcome",))
        self.load_seconds = histogram(
            "model_load_seconds", "Duration of model loads in seconds, failed loads included"
        )
        self.auth_failures = counter("auth_failures", "Requests rejected by access control", ("reason",))
        self.rejected_requests = counter("rejections", "Requests that were not admitted", ("reason",))
        self.ended_jobs = counter("jobs_ended", "Scheduler jobs that have ended", ("how",))
        self.batch_rows = histogram(
            "batch_rows",
            "Rows of model calls of one kind in one slice",
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
        """Record the number of rows of one kind of call computed in one slice."""
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
        """Add a gauge with one sample per hosted model, read at each scrape."""

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
        Info("build", "Version of the service", namespace="gramophone", registry=self._registry).info(facts)

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
        """Counter of requests forwarded to another worker, created on first use; a single process has none."""
        return self._counter(
            "relayed_requests", "Requests forwarded to the worker that stores their state, session or user"
        )
