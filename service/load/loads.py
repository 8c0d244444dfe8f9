"""The two kinds of load, and on what terms they are put on."""

from dataclasses import dataclass

from models.errors import InvalidInputError
from service.load.arrivals import Arrivals

_MAX_RATE_PER_S = 1e6


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests at a rate that does not depend on the answers: how a service is for those who use it.

    Raises:
        InvalidInputError: the rate is no rate.
    """

    rate_per_s: float
    arrivals: Arrivals = "poisson"
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.rate_per_s <= _MAX_RATE_PER_S:
            raise InvalidInputError(
                f"rate is {self.rate_per_s:g}; it must be above 0 and at most {_MAX_RATE_PER_S:g} a second",
                parameter="rate",
            )


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Clients who each ask again when they are answered: how much a service can do.

    Raises:
        InvalidInputError: there are none.
    """

    clients: int

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise InvalidInputError(f"clients is {self.clients}; it must be at least 1", parameter="clients")


Load = OpenLoop | ClosedLoop


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """How long a load is put on, and with what.

    Attributes:
        duration_s: of what is measured; or
        num_requests: that are measured.
        warmup_s: before that, under the same load.
        max_connections: of an open loop; a closed loop has one a client.
        timeout_s: after which a request is given up.

    Raises:
        InvalidInputError: neither or both of the first two are given, or a value is out of range.
    """

    duration_s: float | None = None
    num_requests: int | None = None
    warmup_s: float = 0.0
    max_connections: int = 512
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if (self.duration_s is None) == (self.num_requests is None):
            raise InvalidInputError("give either a duration or a number of requests", parameter="duration")
        for name in ("duration_s", "num_requests", "max_connections", "timeout_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidInputError(f"{name} is {value:g}; it must be above 0", parameter=name)
