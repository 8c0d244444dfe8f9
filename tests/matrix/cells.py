"""Columns (family, tokenizer, precision, device) and rows (endpoints) of the matrix, and the cells that are refused."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest

from tests.matrix.zoo import BACKWARD, FAMILIES, PARTS, TOKENIZERS, UNNORMALISED, networks_in
from tests.support.families import DEVICES

FLOAT32, INT8 = "float32", "int8"


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
    return (FLOAT32, INT8) if device == "cpu" and networks_in(family) else (FLOAT32,)


def kind_of(family: str) -> str:
    """What makes a family another case than others of its tokenizer: how it is computed, and what it is made of."""
    if family in BACKWARD:
        return "backward"
    if family in PARTS:
        return "cache" if "cache" in family else "mixture"
    return "network" if networks_in(family) else "n-gram"


def chosen_cells(device: str) -> list[Cell]:
    """The columns of a device: every family in each precision, and every tokenizer with each kind in each precision.

    Chosen pairwise, as a tokenizer meets only what a kind's families have in common: the families take tokenizers in
    turn.
    """
    members: dict[tuple[str, str], list[str]] = {}
    for family in FAMILIES:
        for precision in precisions_of(device, family):
            members.setdefault((kind_of(family), precision), []).append(family)
    tokenizers, cells = list(TOKENIZERS), {}
    for start, ((_, precision), families) in enumerate(members.items()):
        for turn in range(max(len(families), len(tokenizers))):
            tokens = tokenizers[(start + turn) % len(tokenizers)]
            cells[Cell(device, tokens, families[turn % len(families)], precision)] = None
    return list(cells)


CELLS = tuple(cell for device in DEVICES for cell in chosen_cells(device))
"""All columns; those of a CUDA device are there where there is one."""


RIGHT_TO_LEFT = "reads from right to left"
_CANDIDATES = [{"text": "the mat"}, {"text": "a dog"}]


class Refusal(NamedTuple):
    """A request that some models refuse.

    Attributes:
        endpoint: a path that takes POST.
        who: of which models.
        body: what is asked, the model aside.
        parameter: the field that the error names.
        says: what is in its message.
        always: whether the endpoint is refused whatever is asked; then the models have no other row of it.
    """

    endpoint: str
    who: Callable[[Cell], bool]
    body: Mapping[str, Any]
    parameter: str
    says: str
    always: bool = False

    @property
    def cells(self) -> list[Cell]:
        """The models that refuse."""
        return [cell for cell in CELLS if self.who(cell)]


def backward(cell):
    return cell.reads_backward


def forward(cell):
    return not cell.reads_backward


def self_normalised(cell):
    return cell.family == "self-normalised"


def normalised_only(cell):
    return cell.family != "self-normalised"


_LIST = {"candidates": _CANDIDATES}
_AFTER_A_CONTEXT = {"lists": [{**_LIST, "context": "A"}]}
_IN_A_SESSION = {"lists": [{**_LIST, "commit": "A"}]}
_UNNORMALISED = {"lists": [_LIST], "score_mode": "unnormalised"}
_PRECISE = {"text": "the", "precision": 0.9}

_NOT_TRAINED = "was not trained for unnormalised scores"
_NOT_MEASURED = "was not calibrated"

REFUSALS = (
    # who cannot tell what comes next has nothing to continue, complete, correct or keep
    Refusal("/v1/next-token", backward, {"context": "the"}, "model", RIGHT_TO_LEFT, always=True),
    Refusal("/v1/generate", backward, {"prompt": "the"}, "model", RIGHT_TO_LEFT, always=True),
    Refusal("/v1/completions", backward, {"prompt": "the"}, "model", RIGHT_TO_LEFT, always=True),
    Refusal("/v1/autocomplete", backward, {"text": "the"}, "model", RIGHT_TO_LEFT, always=True),
    Refusal("/v1/check", backward, {"text": "the"}, "model", RIGHT_TO_LEFT, always=True),
    Refusal("/v1/states", backward, {"context": "the"}, "model", RIGHT_TO_LEFT, always=True),
    # … and what it scores has nothing before it
    Refusal("/v1/score", backward, {"texts": ["mat"], "context": "the "}, "context", RIGHT_TO_LEFT),
    Refusal("/v1/rerank", backward, _AFTER_A_CONTEXT, "context", RIGHT_TO_LEFT),
    Refusal("/v1/rerank", backward, _IN_A_SESSION, "model", RIGHT_TO_LEFT),
    # logits are no log-probabilities but where training made them so
    Refusal("/v1/rerank", normalised_only, _UNNORMALISED, "score_mode", _NOT_TRAINED),
    # a share of right alarms is promised where it was measured
    Refusal("/v1/check", forward, _PRECISE, "precision", _NOT_MEASURED),
)
"""All of them. Each is answered 400, with the code `unsupported_parameter`."""


def is_refused(endpoint: str, cell: Cell) -> bool:
    """Whether a model refuses an endpoint whatever is asked."""
    return any(one.always and one.endpoint == endpoint and one.who(cell) for one in REFUSALS)


WITHOUT_A_MODEL = {
    "GET /": "the playground's page",
    "GET /docs": "the API page",
    "GET /static/{name}": "what they are made of",
    "GET /openapi.json": "what can be asked of any model",
    "GET /health/live": "the process",
    "GET /health/ready": "the process",
    "GET /metrics": "the process",
    "GET /admin/profiles": "weights by name; those that are used are asked for with /v1/rerank",
    "GET /admin/profiles/{name}": "the same",
    "PUT /admin/profiles/{name}": "the same",
    "DELETE /admin/profiles/{name}": "the same",
    "GET /v1/autocomplete/users/{user}": "words of a user; what models make of them is asked with /v1/autocomplete",
    "PUT /v1/autocomplete/users/{user}": "the same",
    "DELETE /v1/autocomplete/users/{user}": "the same",
}
"""Endpoints that have no row, and what they are about instead of a model."""


def row(*endpoints):
    """A test that asks endpoints, such as `POST /v1/score`, of every model that does not refuse the first one.

    The test takes a fixture `model`, or a `cell`.
    """

    def with_cells(test):
        path = endpoints[0].split(" ")[1]
        cells = [cell for cell in CELLS if not is_refused(path, cell)]
        test.endpoints = endpoints
        return pytest.mark.parametrize("cell", cells, ids=str)(test)

    return with_cells
