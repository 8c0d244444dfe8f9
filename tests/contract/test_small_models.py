"""A vocabulary of eight tokens and tight limits: requests with only required fields are answered."""

import httpx
import pytest

from models.checkpoint.registry import LocalRegistry
from service.routes.operations import router
from service.settings import Settings
from tests.support.services import running, typed_line
from training.publish import run_import_arpa

WORDS = ("rain", "falls", "on", "roofs", "again")
LINES = "\n".join(f"-{0.7 + number / 10:.1f}\t{word}" for number, word in enumerate(("</s>", *WORDS)))
ARPA = f"\\data\\\nngram 1=7\n\n\\1-grams:\n-99\t<s>\n{LINES}\n\n\\end\\\n"
CANDIDATES = [{"text": "rain falls"}]
LISTS = [{"candidates": [{"text": f"{word} again"}, {"text": word}], "reference": word} for word in WORDS]
REQUIRED = [
    ("/v1/next-token", {"context": "rain"}),
    ("/v1/next-token", {"context": ["rain", "rain falls"], "entropy": False}),
    ("/v1/next-token", {"context": "rain", "unit": "word"}),
    ("/v1/score", {"texts": ["rain"]}),
    ("/v1/quality", {"texts": ["rain"]}),
    ("/v1/completions", {"prompt": "rain"}),
    ("/v1/completions", {}),
    ("/v1/completions", {"prompt": "rain", "logprobs": 20, "max_tokens": None}),
    ("/v1/generate", {"prompt": "rain"}),
    ("/v1/generate", {"prompt": "rain", "strategy": "beam"}),
    ("/v1/generate", {"prompt": "rain", "logprobs": 20}),
    ("/tokenize", {"prompt": "rain"}),
    ("/detokenize", {"tokens": [3]}),
    ("/v1/rerank", {"lists": [{"candidates": CANDIDATES}]}),
    ("/v1/rerank", {"query": "rain", "documents": ["falls"]}),
    ("/v1/correct", {"texts": ["rain"]}),
    ("/v1/lattices", {"lattices": [{"confusions": [[{"text": "rain"}]]}]}),
    ("/v1/rerank/tune", {"lists": LISTS}),
    ("/v1/autocomplete", {"text": "ra"}),
    ("/v1/check", {"text": "rain fals"}),
    ("/v1/states", {}),
]
OTHERS = {"/v1/restore", "/v1/states/advance", "/v1/states/next", "/v1/states/free", "/v2/check"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    (folder / "small.arpa").write_text(ARPA)
    registry = LocalRegistry(folder / "registry", create=True)
    run_import_arpa(folder / "small.arpa", name="small", registry=str(registry.root))
    return folder


@pytest.fixture(scope="module", params=[{}, {"max_top_k": 3, "max_new_tokens": 5}], ids=["usual", "tight"])
def small_http(request, folder):
    settings = Settings(registry=folder / "registry", languages=("en-US=small",), **request.param)
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=10) as client:
        yield client


def test_every_endpoint_that_reads_a_body_is_asked():
    paths = {one.path for one in router.endpoints if one.body and one.method == "POST"}
    assert {path for path in paths if "{" not in path} == {path for path, _ in REQUIRED} | OTHERS


@pytest.mark.parametrize(("path", "body"), REQUIRED)
def test_a_request_with_only_required_fields_is_answered(small_http, path, body):
    response = small_http.post(path, json=body)
    assert response.status_code == 200, response.text


def test_states_and_forms_need_no_more_than_required_fields(small_http):
    state = small_http.post("/v1/states", json={}).json()["states"][0]["state"]
    advance = small_http.post("/v1/states/advance", json={"continuations": [{"state": state}]})
    following = small_http.post("/v1/states/next", json={"states": [state]})
    checked = small_http.post("/v2/check", data={"text": "rain", "language": "en-US"})
    assert {advance.status_code, following.status_code, checked.status_code} == {200}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/next-token", {"context": "rain", "top_k": 10}, "top_k"),
        ("/v1/generate", {"prompt": "rain", "max_tokens": 5000}, "max_tokens"),
        ("/v1/completions", {"prompt": "rain", "max_tokens": 5000}, "max_tokens"),
    ],
)
def test_a_given_value_beyond_the_limit_is_an_error(small_http, path, body, param):
    response = small_http.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_as_many_next_tokens_as_there_are(small_http):
    reply = small_http.post("/v1/next-token", json={"context": "rain"}).json()
    assert len(reply["results"][0]["candidates"]) in {8, 3}


def test_the_command_needs_no_number_of_tokens(folder, capsys, monkeypatch):
    arguments = ("next", "small", "rain", "--json", "--registry", str(folder / "registry"))
    code, told, _ = typed_line(capsys, monkeypatch, *arguments)
    assert (code, told.count("logprob")) == (0, 8)
