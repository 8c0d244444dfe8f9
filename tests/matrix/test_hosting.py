"""What is told of every model, and that it comes and goes without a trace."""

from tests.matrix.publishing import CARD
from tests.matrix.rows import row
from tests.matrix.texts import TEXTS
from tests.matrix.zoo import UNNORMALISED


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
def test_what_was_published_beside_a_model_is_told(model):
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
