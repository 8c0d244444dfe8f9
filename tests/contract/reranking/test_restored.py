"""Capitals and punctuation of the best texts: `restore` in /v1/rerank and /v1/correct."""

import json

import httpx
import pytest

from models.checkpoint.registry import LocalRegistry
from models.reranking.ranking import Profile, ProfileModel, ProfileStore
from service.settings import Settings
from tests.support.services import running, typed_line
from training.commands import run_train

pytestmark = pytest.mark.usefixtures("no_pictures")

LINES = {"content-type": "application/x-ndjson"}
TEXT = ["Anna lives in Ulm, near the Danube.", "Is the list in Ulm?", "She keeps the list."]
MODELS = {"cased": TEXT, "german": [line.replace("list", "List") for line in TEXT]}
MODELS["lower"] = [line.lower().translate(str.maketrans("", "", ".,?")) for line in TEXT]
MARKED = r"tokenizer.pattern=\w+(?:['\u2019-]\w+)*|[,;:.?!]"
HEARD = ["anna lives in ulm near the danube", "she keeps  the list is the list in ulm", ""]


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("restored")
    registry = LocalRegistry(folder / "registry", create=True)
    for name, lines in MODELS.items():
        corpus = folder / f"{name}.txt"
        corpus.write_text("\n".join(lines * 20))
        options = {"corpus": [corpus], "name": name, "registry": str(registry.root)}
        run_train("ngram", **options, assignments=["ngram.order=3", MARKED])
    about = {"metric": "wer", "signature": "x", "decision": "tuned", "figures": {}, "created": "2026-01-01"}
    store = ProfileStore(registry.root)
    models = [ProfileModel(name="further", address="lower@1"), ProfileModel(name="", address="german@1")]
    store.write(Profile(name="tuned", weights={"lm": 1.0, "lm:further": 0.1}, models=models, **about))
    store.write(Profile(name="first-pass", weights={"rank": 1.0}, models=[], **about))
    return registry.root


@pytest.fixture(scope="module")
def http(registry):
    settings = Settings(registry=registry, default_model="cased")
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=20) as client:
        yield client


def post(http, path, **body):
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def restored(http, texts, model="cased"):
    """The answers of /v1/restore."""
    results = post(http, "/v1/restore", texts=texts, model=model)["results"]
    return [result["text"] for result in results]


def lists(texts):
    return [{"candidates": [{"text": "danube anna is"}, {"text": text}]} for text in texts]


BOTTOM = {"weights": {"rank": -1.0}}
"""Settings by which the last candidate is the best."""


@pytest.mark.parametrize(("restore", "model"), [(True, "cased"), ("german", "german"), ("cased@1", "cased")])
def test_best_texts_are_restored_as_by_the_restoring_endpoint(http, restore, model):
    ranked = post(http, "/v1/rerank", lists=lists(HEARD), restore=restore, **BOTTOM)["lists"]
    assert [one["ranking"][0]["text"] for one in ranked] == HEARD
    want = restored(http, HEARD, model)
    assert want[0] == "Anna lives in Ulm, near the Danube."
    assert [one["restored"] for one in ranked] == want


def test_lines_are_restored_like_lists(http):
    body = "\n".join(map(json.dumps, lists(HEARD)))
    for restore, model in (("true", "cased"), ("german", "german")):
        query = {"weights": "rank=-1", "restore": restore}
        lines = http.post("/v1/rerank", params=query, content=body, headers=LINES).text.splitlines()
        assert [json.loads(line)["restored"] for line in lines] == restored(http, HEARD, model)
    lines = http.post("/v1/rerank", params={"restore": "false"}, content=body, headers=LINES).text
    assert "restored" not in lines


@pytest.mark.parametrize(("restore", "model"), [("true", "cased"), ("german", "german")])
def test_the_command_restores_like_the_service(http, registry, tmp_path, capsys, monkeypatch, restore, model):
    file = tmp_path / "lists.jsonl"
    file.write_text("\n".join(map(json.dumps, lists(HEARD))))
    command = ["rerank", "cased", file, "--weights", "rank=-1", "--restore", restore, "--registry", registry]
    code, told, _ = typed_line(capsys, monkeypatch, *command)
    assert code == 0
    assert [json.loads(line)["restored"] for line in told.splitlines()] == restored(http, HEARD, model)


def test_corrected_texts_are_restored(http):
    corrections = [{"heard": "mist", "written": "list", "logprob": 50}]
    texts = ["she keeps  the mist", "is the list in ulm", ""]
    results = post(http, "/v1/correct", texts=texts, corrections=corrections, restore=True)["results"]
    corrected = [one["text"] for one in results]
    assert corrected == [text.replace("mist", "list") for text in texts]
    assert [one["restored"] for one in results] == restored(http, corrected)
    assert results[0]["restored"] == "She keeps  the list."
    query = {"corrections": json.dumps(corrections), "restore": "german"}
    body = "\n".join(json.dumps({"text": text}) for text in texts)
    lines = http.post("/v1/correct", params=query, content=body, headers=LINES).text.splitlines()
    assert [json.loads(line)["restored"] for line in lines] == restored(http, corrected, "german")


def test_the_main_model_of_a_profile_restores(http):
    for path, body in (("/v1/rerank", {"lists": lists(HEARD)}), ("/v1/correct", {"texts": HEARD})):
        reply = post(http, path, profile="tuned", restore=True, **body)
        results = reply.get("lists") or reply["results"]
        best = [one["ranking"][0]["text"] if "ranking" in one else one["text"] for one in results]
        assert [one["restored"] for one in results] == restored(http, best, "german")


@pytest.mark.parametrize("path", ["/v1/rerank", "/v1/correct"])
@pytest.mark.parametrize(
    ("settings", "status", "code", "message"),
    [
        ({"restore": "nosuch"}, 404, "model_not_found", "nosuch"),
        ({"restore": "lower"}, 400, "unsupported_parameter", "restore needs another model: lower@1 was"),
        ({"restore": True, "model": "lower"}, 400, "unsupported_parameter", "restore needs another model"),
        ({"restore": True, "profile": "first-pass"}, 400, "invalid_value", "no model scores"),
        ({"restore": 1}, 400, "invalid_value", "restore is 1: input should be true, false or a model"),
    ],
)
def test_models_that_cannot_restore_are_refused_by_name(http, path, settings, status, code, message):
    body = {"lists": lists(HEARD)} if path == "/v1/rerank" else {"texts": HEARD}
    answer = http.post(path, json={**body, **settings})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert message in error["message"]
    assert status == 404 or error["param"] == "restore"


def test_a_list_ranked_by_its_first_pass_is_restored_by_a_named_model(http):
    (ranked,) = post(http, "/v1/rerank", lists=lists(HEARD[:1]), profile="first-pass", restore="cased")[
        "lists"
    ]
    assert ranked["restored"] == restored(http, ["danube anna is"])[0]


@pytest.mark.parametrize("settings", [{}, {"restore": False}])
def test_nothing_is_restored_unless_asked(http, settings):
    plain = post(http, "/v1/rerank", lists=lists(HEARD), **settings)
    assert not any("restored" in one for one in plain["lists"])
    with_restored = post(http, "/v1/rerank", lists=lists(HEARD), restore=True)
    for one in with_restored["lists"]:
        del one["restored"]
    assert plain == with_restored
    assert not any("restored" in one for one in post(http, "/v1/correct", texts=HEARD, **settings)["results"])
