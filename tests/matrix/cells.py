"""Columns (family, tokenizer, precision, device) and rows (endpoints) of the matrix, and the refused cells."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest

from tests.matrix.zoo import BACKWARD, FAMILIES, PARTS, TOKENIZERS, UNNORMALISED, networks_in
from tests.support.families import DEVICES

FLOAT32, INT8 = "float32", "int8"


class Cell(NamedTuple):
    """A model on a device.

    Attributes:
        device: name of the device.
        tokens: name of the tokenizer.
        family: family of the model.
        precision: precision of its networks.
    """

    device: str
    tokens: str
    family: str
    precision: str

    def __str__(self) -> str:
        return f"{self.device}-{self.model}"

    @property
    def model(self) -> str:
        """Published name: one per precision, since precision is set by name."""
        return f"{self.tokens}.{self.family}.{self.precision}"

    @property
    def address(self) -> str:
        """Address in replies."""
        return f"{self.model}@1"

    @property
    def reads_backward(self) -> bool:
        """True if it reads from right to left."""
        return self.family in BACKWARD

    @property
    def partner(self) -> "Cell":
        """N-gram model that it can be mixed with."""
        family = "backward-ngram" if self.reads_backward else "witten-bell"
        return self._replace(family=family, precision=FLOAT32)

    @property
    def is_exact(self) -> bool:
        """True if replies are bit-identical in any batch: those of tables, and of integer sums."""
        return self.device == "cpu" and (self.precision == INT8 or not networks_in(self.family))

    @property
    def tolerance(self) -> float:
        """Maximum difference in nats between two log-probabilities that should be equal."""
        return {"cpu": 2e-5, "cuda": 2e-3}[self.device]

    @property
    def mass_tolerance(self) -> float:
        """Maximum deviation of a distribution's sum from one."""
        if self.family in UNNORMALISED:
            return 0.1
        return {"cpu": 1e-5, "cuda": 1e-4}[self.device]


def precisions_of(device: str, family: str) -> tuple[str, ...]:
    """Return the precisions of a family on a device; only the CPU computes in int8."""
    return (FLOAT32, INT8) if device == "cpu" and networks_in(family) else (FLOAT32,)


def kind_of(family: str) -> str:
    """Return the kind of a family: families of a kind share computation and composition."""
    if family in BACKWARD:
        return "backward"
    if family in PARTS:
        return "cache" if "cache" in family else "mixture"
    return "network" if networks_in(family) else "n-gram"


def chosen_cells(device: str) -> list[Cell]:
    """Return the columns of a device: each family in each precision, and each tokenizer with each kind and precision.

    The choice is pairwise, since a tokenizer interacts only with the common code of a kind's families: the families
    take the tokenizers in turn.
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
"""All columns; those of CUDA only if a device exists."""


RIGHT_TO_LEFT = "reads from right to left"
NEIGHBOURS = "depend on neighbouring words"
_CANDIDATES = [{"text": "the mat"}, {"text": "a dog"}]


class Refusal(NamedTuple):
    """A request that some models refuse.

    Attributes:
        endpoint: a path that takes POST.
        who: predicate of the refusing models.
        body: body of the request, without the model.
        param: field that the error names.
        says: part of the error message.
        always: True if the models refuse every request to the endpoint, and so have no other row for it.
    """

    endpoint: str
    who: Callable[[Cell], bool]
    body: Mapping[str, Any]
    param: str
    says: str
    always: bool = False

    @property
    def cells(self) -> list[Cell]:
        """Cells of the refusing models."""
        return [cell for cell in CELLS if self.who(cell)]


def backward(cell):
    return cell.reads_backward


def forward(cell):
    return not cell.reads_backward


def by_letters(cell):
    return cell.tokens == "char" and not cell.reads_backward


def self_normalised(cell):
    return cell.family == "self-normalised"


def normalised_only(cell):
    return cell.family != "self-normalised"


_NETWORK = {"confusions": [_CANDIDATES]}
_LIST = {"candidates": _CANDIDATES}
_AFTER_A_CONTEXT = {"lists": [{**_LIST, "context": "A"}]}
_IN_A_SESSION = {"lists": [{**_LIST, "commit": "A"}]}
_UNNORMALISED = {"lists": [_LIST], "score_mode": "unnormalised"}
_PRECISE = {"text": "the", "precision": 0.9}

_NOT_TRAINED = "was not trained for unnormalised scores"
_NOT_MEASURED = "was not calibrated"

REFUSALS = (
    # a model that cannot predict the next token cannot continue, complete, correct or open states
    Refusal("/v1/next-token", backward, {"context": "the"}, "model", RIGHT_TO_LEFT, always=True),
    Refusal("/v1/generate", backward, {"prompt": "the"}, "model", RIGHT_TO_LEFT, always=True),
    Refusal("/v1/completions", backward, {"prompt": "the"}, "model", RIGHT_TO_LEFT, always=True),
    Refusal("/v1/autocomplete", backward, {"text": "the"}, "model", RIGHT_TO_LEFT, always=True),
    Refusal("/v1/check", backward, {"text": "the"}, "model", RIGHT_TO_LEFT, always=True),
    Refusal("/v1/states", backward, {"context": "the"}, "model", RIGHT_TO_LEFT, always=True),
    # … nor search from left to right, word by word
    Refusal("/v1/lattices", backward, {"lattices": [_NETWORK]}, "model", RIGHT_TO_LEFT, always=True),
    Refusal("/v1/restore", backward, {"texts": ["the mat"]}, "model", RIGHT_TO_LEFT, always=True),
    Refusal("/v1/lattices", by_letters, {"lattices": [_NETWORK]}, "model", NEIGHBOURS, always=True),
    Refusal("/v1/restore", by_letters, {"texts": ["the mat"]}, "model", NEIGHBOURS, always=True),
    # … and its scores take no context
    Refusal("/v1/score", backward, {"texts": ["mat"], "context": "the "}, "context", RIGHT_TO_LEFT),
    Refusal("/v1/rerank", backward, _AFTER_A_CONTEXT, "context", RIGHT_TO_LEFT),
    Refusal("/v1/rerank", backward, _IN_A_SESSION, "model", RIGHT_TO_LEFT),
    # logits are log-probabilities only if training normalised them
    Refusal("/v1/rerank", normalised_only, _UNNORMALISED, "score_mode", _NOT_TRAINED),
    # precision can be set only for a calibrated model
    Refusal("/v1/check", forward, _PRECISE, "precision", _NOT_MEASURED),
)
"""All refusals. Each is answered 400, with the code `unsupported_parameter`."""


def is_refused(endpoint: str, cell: Cell) -> bool:
    """True if a model refuses every request to an endpoint."""
    return any(one.always and one.endpoint == endpoint and one.who(cell) for one in REFUSALS)


WITHOUT_A_MODEL = {
    "GET /": "the playground's page",
    "GET /docs": "the API page",
    "GET /static/{name}": "what they are made of",
    "GET /openapi.json": "what can be asked of any model",
    "GET /health/live": "the process",
    "GET /health/ready": "the process",
    "GET /v2/healthcheck": "the process",
    "GET /metrics": "the process",
    "GET /admin/profiles": "weights by name; those that are used are asked for with /v1/rerank",
    "GET /admin/profiles/{name}": "the same",
    "PUT /admin/profiles/{name}": "the same",
    "DELETE /admin/profiles/{name}": "the same",
    "GET /v1/autocomplete/users/{user}": "words of a user; what models make of them is asked with /v1/autocomplete",
    "PUT /v1/autocomplete/users/{user}": "the same",
    "DELETE /v1/autocomplete/users/{user}": "the same",
    "DELETE /v1/autocomplete/users/{user}/words/{word:path}": "the same",
    "PUT /v1/wordlists/{name}": "words without a model; requests that name a list have the same entries",
    "GET /v1/wordlists": "the same",
    "GET /v1/wordlists/{name}": "the same",
    "GET /v1/wordlists/{name}/entries": "the same",
    "DELETE /v1/wordlists/{name}": "the same",
    "GET /v2/languages": "settings",
    "GET /v2/check": "the same as POST",
    "POST /v2/check": "LanguageTool's form of /v1/check, with the models that settings name",
}
"""Endpoints without a row, and their subject instead of a model."""


def row(*endpoints):
    """Mark a test that calls endpoints, such as `POST /v1/score`, with every model that does not refuse the first.

    The test takes a fixture `model`, or a `cell`.
    """

    def with_cells(test):
        path = endpoints[0].split(" ")[1]
        cells = [cell for cell in CELLS if not is_refused(path, cell)]
        test.endpoints = endpoints
        return pytest.mark.parametrize("cell", cells, ids=str)(test)

    return with_cells
