"""What some models are refused, and why: the cells of the matrix that have no answer."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.matrix.cells import CELLS, Cell

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
