"""The cells that have no answer: each says why, as the document has it."""

import pytest

from tests.matrix.refusals import REFUSALS

CASES = [(refusal, cell) for refusal in REFUSALS for cell in refusal.cells]


@pytest.mark.parametrize(
    ("refusal", "cell"), CASES, ids=lambda case: getattr(case, "endpoint", None) or str(case)
)
def test_a_model_says_why_it_refuses(model, refusal):
    answer = model.post(refusal.endpoint, {"model": model.cell.model, **refusal.body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", refusal.parameter)
    assert refusal.says in error["message"]
    assert model.cell.address in error["message"]


@pytest.mark.parametrize("cell", [CASES[0][1]], ids=str)
def test_every_refusal_is_documented(model):
    document = model.send("GET /openapi.json").json()
    for refusal in REFUSALS:
        answers = document["paths"][refusal.endpoint]["post"]["responses"]
        examples = answers["4XX"]["content"]["application/json"]["examples"]
        assert "unsupported_parameter" in examples
