"""How a continuation is to be chosen: one frozen value whose existence proves that it is valid."""

from dataclasses import dataclass

from models.errors import InvalidInputError

GREEDY, SAMPLE = "greedy", "sample"
STRATEGIES = (GREEDY, SAMPLE)
MAX_TEMPERATURE = 100.0
MAX_STOPS = 16
MAX_STOP_LENGTH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingParameters:
    """The choices a request makes about its continuation.

    Attributes:
        max_tokens: at most so many tokens; at least 1.
        strategy: `greedy` takes the most probable token, `sample` draws one.
        temperature: log-probabilities are divided by it before drawing; 0 means greedy.
        top_k: draw among the k most probable tokens; None for all.
        top_p: draw among the fewest tokens that together have this probability; 1 for all.
        seed: of the request's own random numbers; None lets the caller choose one.
        stop: the text ends before the first of these strings.

    Raises:
        InvalidInputError: a value is outside its limits; the message names both.
    """

    max_tokens: int
    strategy: str = SAMPLE
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise _wrong("strategy", self.strategy, f"must be {' or '.join(STRATEGIES)}")
        if self.max_tokens < 1:
            raise _wrong("max_tokens", self.max_tokens, "must be at least 1")
        if not 0 <= self.temperature <= MAX_TEMPERATURE:
            raise _wrong("temperature", self.temperature, f"must be from 0 to {MAX_TEMPERATURE:g}")
        if self.top_k is not None and self.top_k < 1:
            raise _wrong("top_k", self.top_k, "must be at least 1")
        if not 0 < self.top_p <= 1:
            raise _wrong("top_p", self.top_p, "must be above 0 and at most 1")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise _wrong("seed", self.seed, "must be from 0 to 2^64 - 1")
        if len(self.stop) > MAX_STOPS:
            raise _wrong("stop", f"{len(self.stop)} strings", f"must be at most {MAX_STOPS} strings")
        for place, stop in enumerate(self.stop):
            if not 1 <= len(stop) <= MAX_STOP_LENGTH:
                raise _wrong(
                    f"stop[{place}]",
                    f"{len(stop)} characters long",
                    f"must have 1 to {MAX_STOP_LENGTH} characters",
                )

    @property
    def greedy(self) -> bool:
        """Whether no random number is drawn."""
        return self.strategy == GREEDY or self.temperature == 0


def _wrong(parameter: str, value: object, limit: str) -> InvalidInputError:
    return InvalidInputError(f"{parameter} is {value}; it {limit}", parameter=parameter)
