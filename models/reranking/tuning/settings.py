"""How weights are sought and judged."""

from dataclasses import dataclass

from models.errors import InvalidInputError
from models.reranking.log_linear import MAX_LENGTH_EXPONENT
from models.reranking.metrics.significance import MAX_SAMPLES

MAX_FOLDS = 20
MAX_RESTARTS = 1000
MAX_RESAMPLES = 1000
MAX_EXPONENTS = 5
MAX_SEED = 2**63 - 1
MIN_SAMPLES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSettings:
    """How weights are sought and judged.

    Attributes:
        folds: parts of the lists, each of which is held out once.
        seed: of folds, random starts and resamples: equal seeds give equal results.
        restarts: random starts of a search, beside those from each feature alone.
        resamples: of the lists, of whose best weights the mean is taken.
        length_exponents: of the language models, to choose from; the first is the simplest.
        max_p_value: how probable by chance a gain on lists held out may be at most, either way, to be believed; 1 takes
            what is better at all. The default believes in a gain that is none once in ten times; stricter
            ones forgo more of small gains than they spare.
        bootstrap_samples: that this probability is told from.
        window: radians to either side over which the loss along a line is averaged.

    Raises:
        InvalidInputError: one is outside its limits.
    """

    folds: int = 2
    seed: int = 0
    restarts: int = 8
    resamples: int = 12
    length_exponents: tuple[float, ...] = (0.0, 1.0)
    max_p_value: float = 0.2
    bootstrap_samples: int = 1000
    window: float = 0.05

    def __post_init__(self) -> None:
        _check_range("folds", self.folds, 2, MAX_FOLDS)
        _check_range("seed", self.seed, 0, MAX_SEED)
        _check_range("restarts", self.restarts, 0, MAX_RESTARTS)
        _check_range("resamples", self.resamples, 1, MAX_RESAMPLES)
        _check_range("max_p_value", self.max_p_value, 0, 1)
        _check_range("bootstrap_samples", self.bootstrap_samples, MIN_SAMPLES, MAX_SAMPLES)
        _check_range("length_exponents", len(self.length_exponents), 1, MAX_EXPONENTS, " values")
        for place, exponent in enumerate(self.length_exponents):
            _check_range(f"length_exponents[{place}]", exponent, 0, MAX_LENGTH_EXPONENT)

    @property
    def num_resamples(self) -> int:
        """Resamples of all folds, and of all lists, under each exponent."""
        return (self.folds + 1) * len(self.length_exponents) * self.resamples


def _check_range(parameter: str, value: float, least: float, most: float, what: str = "") -> None:
    if not least <= value <= most:
        raise InvalidInputError(
            f"{parameter} is {value}{what}; it must be from {least} to {most}", parameter=parameter
        )
