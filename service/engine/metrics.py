"""What is counted and timed; names follow those of other model servers, with our prefix."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

# model requests take from half a millisecond: the usual buckets would hold them all in the first
_SECONDS = (
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


class Metrics:
    """One application's instruments, in a collector registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.http_requests = self._counter(
            "http_requests", "HTTP requests answered", ("handler", "method", "status")
        )
        self.latency = self._histogram(
            "e2e_request_latency_seconds", "from a request's head to its reply's last byte", ("handler",)
        )
        self.queue_time = self._histogram(
            "request_queue_time_seconds", "from submission to the model thread's first step"
        )
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "from submission to the first generated token", ("model_name",)
        )
        self.inter_token = self._histogram(
            "inter_token_latency_seconds", "between generated tokens", ("model_name",)
        )
        self.prompt_tokens = self._counter("prompt_tokens", "tokens read as context", ("model_name",))
        self.scored_tokens = self._counter("scored_tokens", "tokens scored", ("model_name",))
        self.generation_tokens = self._counter("generation_tokens", "tokens generated", ("model_name",))
        self.generated = self._counter(
            "request_success", "generations that ended well", ("model_name", "finished_reason")
        )

    def watch(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Add a gauge that is read when it is asked for."""
        gauge = Gauge(name, description, namespace="gramophone", registry=self._registry)
        gauge.set_function(read)

    def exposition(self) -> bytes:
        """All values in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, description: str, labels: tuple[str, ...]) -> Counter:
        return Counter(name, description, labels, namespace="gramophone", registry=self._registry)

    def _histogram(self, name: str, description: str, labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(
            name, description, labels, namespace="gramophone", registry=self._registry, buckets=_SECONDS
        )
