"""The columns of the matrix: every family with every tokenizer, in every precision, on every device there is."""

from typing import NamedTuple

from tests.devices import DEVICES
from tests.matrix.texts import TOKENIZERS
from tests.matrix.zoo import BACKWARD, FAMILIES, UNNORMALISED, networks_in

FLOAT32, INT8 = "float32", "int8"

FLOAT32_ONLY = {"attentive-elman", "adaptive", "every-option"}
"""Networks that int8 does not compute."""


class Cell(NamedTuple):
    """A model as it is served somewhere.

    Attributes:
        device: where.
        tokens: the name of its tokenizer.
        family: what it is.
        precision: of its networks.
    """

    device: str
    tokens: str
    family: str
    precision: str

    def __str__(self) -> str:
        return f"{self.device}-{self.model}"

    @property
    def model(self) -> str:
        """Under which name it is published: once in each precision, as that is set by name."""
        return f"{self.tokens}.{self.family}.{self.precision}"

    @property
    def address(self) -> str:
        """What replies call it."""
        return f"{self.model}@1"

    @property
    def reads_backward(self) -> bool:
        """Whether it reads from right to left."""
        return self.family in BACKWARD

    @property
    def partner(self) -> "Cell":
        """An n-gram model that it can be mixed with."""
        family = "backward-ngram" if self.reads_backward else "witten-bell"
        return self._replace(family=family, precision=FLOAT32)

    @property
    def is_exact(self) -> bool:
        """Whether answers are the same to the bit in any company: those of tables, and of sums of integers."""
        return self.device == "cpu" and (self.precision == INT8 or not networks_in(self.family))

    @property
    def tolerance(self) -> float:
        """How far two log-probabilities that ought to be the same may lie apart, in nats."""
        return {"cpu": 2e-5, "cuda": 2e-3}[self.device]

    @property
    def mass_tolerance(self) -> float:
        """How far from one a distribution may sum."""
        if self.family in UNNORMALISED:
            return 0.1
        return {"cpu": 1e-5, "cuda": 1e-4}[self.device]


def precisions_of(device: str, family: str) -> tuple[str, ...]:
    """In what a family computes on a device; sums of integers are the CPU's alone."""
    networks = networks_in(family)
    rounds = device == "cpu" and networks and not networks & FLOAT32_ONLY
    return (FLOAT32, INT8) if rounds else (FLOAT32,)


CELLS = tuple(
    Cell(device, tokens, family, precision)
    for device in DEVICES
    for tokens in TOKENIZERS
    for family in FAMILIES
    for precision in precisions_of(device, family)
)
"""All columns; those of a CUDA device are there where there is one."""
