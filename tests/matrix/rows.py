"""The rows of the matrix: endpoints, each asked of every model; and those that no model answers."""

import pytest

from tests.matrix.cells import CELLS
from tests.matrix.refusals import is_refused

WITHOUT_A_MODEL = {
    "GET /": "the playground's page",
    "GET /docs": "the same",
    "GET /static/{name}": "what it is made of",
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
