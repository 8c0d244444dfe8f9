"""Listing, loading and unloading of every model; refused cells; every endpoint has a row."""

import importlib
from pathlib import Path

import pytest

from service.app import create_app
from service.settings import Settings
from tests.matrix.asking import CARD, publish_all
from tests.matrix.cells import REFUSALS, WITHOUT_A_MODEL, row
from tests.matrix.zoo import TEXTS, UNNORMALISED


@row("GET /v1/models", "GET /v1/models/{address:path}")
def test_models_are_listed_as_they_are(model):
    listed = {one["id"]: one for one in model.send("GET /v1/models").json()["data"]}
    told = model.send("GET /v1/models/{address:path}", address=model.cell.model).json()
    assert told == listed[model.cell.address]
    assert (told["state"], told["precision"]) == ("loaded", model.cell.precision)
    assert (told["vocab_size"], told["normalised"]) == (
        model.vocab_size,
        model.cell.family not in UNNORMALISED,
    )


@row(
    "GET /v1/models/{address}/card",
    "GET /v1/models/{address}/files",
    "GET /v1/models/{address}/files/{name:path}",
)
def test_published_card_and_files_are_served(model):
    address = model.cell.model
    card = model.send("GET /v1/models/{address}/card", address=address).text
    files = model.send("GET /v1/models/{address}/files", address=address).json()["data"]
    assert CARD in [file["name"] for file in files]
    assert card == f"# {address}\n"
    for file in files:
        told = model.send("GET /v1/models/{address}/files/{name:path}", address=address, name=file["name"])
        assert len(told.content) == file["bytes"]


@row("POST /admin/models/unload", "POST /admin/models/load", "GET /admin/models")
def test_a_model_that_was_unloaded_says_the_same_when_it_is_back(model):
    before = model.score(TEXTS)
    admin = {"model": model.cell.model}
    assert model.post("/admin/models/unload", admin).json()["state"] == "published"
    assert not model.post("/v1/score", {**admin, "texts": ["a"]}).is_success
    loaded = model.post("/admin/models/load", {**admin, "wait": True}).json()
    assert (loaded["state"], loaded["precision"]) == ("loaded", model.cell.precision)
    assert model.score(TEXTS) == before
    told = {one["id"]: one for one in model.send("GET /admin/models").json()["data"]}
    assert told[model.cell.address]["memory"] == loaded["memory"]


@row("PUT /admin/models/{name}/aliases/{alias}", "DELETE /admin/models/{name}/aliases/{alias}")
def test_an_alias_leads_to_its_model(model):
    name = model.cell.model
    put = model.send(
        "PUT /admin/models/{name}/aliases/{alias}",
        content=b'{"version": 1, "wait": true}',
        name=name,
        alias="best",
    ).json()
    assert (put["version"], put["previous"]) == (1, None)
    reply = model.post("/v1/score", {"model": f"{name}@best", "texts": ["a"]}).json()
    assert reply["model"] == model.cell.address
    gone = model.send("DELETE /admin/models/{name}/aliases/{alias}", name=name, alias="best").json()
    assert (gone["version"], gone["previous"]) == (None, 1)


CASES = [(refusal, cell) for refusal in REFUSALS for cell in refusal.cells]


@pytest.mark.parametrize(
    ("refusal", "cell"), CASES, ids=lambda case: getattr(case, "endpoint", None) or str(case)
)
def test_a_model_says_why_it_refuses(model, refusal):
    answer = model.post(refusal.endpoint, {"model": model.cell.model, **refusal.body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", refusal.param)
    assert refusal.says in error["message"]
    assert model.cell.address in error["message"]


@pytest.mark.parametrize("cell", [CASES[0][1]], ids=str)
def test_every_refusal_is_documented(model):
    document = model.send("GET /openapi.json").json()
    for refusal in REFUSALS:
        answers = document["paths"][refusal.endpoint]["post"]["responses"]
        examples = answers["4XX"]["content"]["application/json"]["examples"]
        assert "unsupported_parameter" in examples


def served(routes):
    """Yield method and path of every route, including nested routers."""
    for route in routes:
        if getattr(route, "path", None) is None:
            yield from served(route.original_router.routes)
        else:
            yield from (f"{method} {route.path}" for method in route.methods - {"HEAD"})


def in_rows():
    """Return the endpoints that tests of this folder call with every model."""
    names = [f"tests.matrix.{path.stem}" for path in Path(__file__).parent.glob("test_*.py")]
    tests = [test for name in names for test in vars(importlib.import_module(name)).values()]
    return {endpoint for test in tests for endpoint in getattr(test, "endpoints", ())}


def test_every_endpoint_has_a_row_or_is_about_no_model(tmp_path):
    registry = publish_all(tmp_path / "registry", [])
    found = set(served(create_app(Settings(registry=registry.root)).routes))
    rows = in_rows()
    assert found - rows == set(WITHOUT_A_MODEL)
    assert rows <= found
