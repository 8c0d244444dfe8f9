"""POST /v1/rerank over HTTP, with normalised and unnormalised scores."""

import math

import httpx
import pytest
import torch

from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.language_model import EOS, SCORES, pad_sequences
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from service.settings import Settings
from tests.support import families
from tests.support.services import running


def ask(http, lists, **options):
    response = http.post("/v1/rerank", json={"lists": lists, **options})
    assert response.status_code == 200, response.text
    return response.json()["lists"]


def texts(*candidates, **rest):
    return {"candidates": [{"text": text} for text in candidates], **rest}


def whole(http, text, context=""):
    body = {"texts": [text], "context": context}
    return http.post("/v1/score", json=body).json()["results"][0]


def test_the_lm_feature_is_the_whole_sentences_score(http):
    (ranked,) = ask(http, [texts("the cat sat", "a dog ran")])
    for candidate in ranked["ranking"]:
        score = whole(http, candidate["text"])
        assert candidate["features"]["lm"] == pytest.approx(score["logprob"])
        assert candidate["features"]["tokens"] == score["num_tokens"]
        assert candidate["total"] == pytest.approx(score["logprob"])


def test_totals_can_be_rebuilt_from_the_features(http):
    candidates = [
        {"text": "the cat", "features": {"am": -2.0}},
        {"text": "a dog ran", "features": {"am": -9.5}},
    ]
    weights = {"lm": 0.7, "am": -0.3, "words": 1.5}
    (ranked,) = ask(http, [{"candidates": candidates}], weights=weights, length_exponent=0.5)
    for c in ranked["ranking"]:
        f = c["features"]
        assert c["total"] == pytest.approx(0.7 * f["lm"] - 0.3 * f["am"] + 1.5 * f["words"])
        assert f["lm"] == pytest.approx(f["lm_sum"] / math.sqrt(f["tokens"]))
        assert f["am"] == candidates[c["index"]]["features"]["am"]


def test_order_posteriors_and_ids_of_several_lists(http):
    lists = ask(http, [texts("the cat", "cat the", id="u1"), texts("a dog", context="the cat")])
    assert [one["id"] for one in lists] == ["u1", None]
    for one in lists:
        totals = [c["total"] for c in one["ranking"]]
        assert totals == sorted(totals, reverse=True)
        assert sum(c["posterior"] for c in one["ranking"]) == pytest.approx(1)
        assert one["unchanged"] == (one["ranking"][0]["index"] == 0)


def test_ties_keep_first_pass_order(http):
    (ranked,) = ask(http, [texts("the cat", "a dog", "the cat")], weights={})
    assert [c["index"] for c in ranked["ranking"]] == [0, 1, 2]
    assert ranked["unchanged"]


def test_candidates_of_the_same_text_are_scored_once(http, server):
    def scored():
        return server.app.state.services.host.resolve("mixture").model.num_advances

    ask(http, [texts("the dog ran")])
    before = scored()
    ask(http, [texts("the dog ran")])
    single = scored() - before
    ask(http, [texts(*["the dog ran"] * 50)])
    assert scored() - before == 2 * single


@pytest.mark.parametrize(("context", "text"), [("the", "cat"), ("the ", "cat"), ("the", " cat")])
def test_one_space_stands_between_context_and_candidate(http, context, text):
    (ranked,) = ask(http, [texts(text, context=context)])
    want = whole(http, " cat", context="the")
    assert ranked["ranking"][0]["features"]["lm"] == pytest.approx(want["logprob"])


def test_a_missing_feature_is_named(http):
    body = {"lists": [texts("the")], "weights": {"am": 1.0}}
    error = http.post("/v1/rerank", json=body).json()["error"]
    assert error["param"] == "lists[0].candidates[0].features"
    assert "'am'" in error["message"]


TEXTS = ["w3 w5 w9", "w1", "w20 w21"]
LISTS = [{"candidates": [{"text": text} for text in TEXTS]}]


def small_model(*, self_normalised):
    torch.manual_seed(3)
    config = NetworkConfig(embedding_size=13, hidden_size=17, self_normalised=self_normalised)
    vocabulary = families.tokenizer().vocabulary
    return NeuralModel(Network(config, len(vocabulary)), vocabulary)


@pytest.fixture(scope="module")
def score_mode_http(tmp_path_factory):
    """Serve a self-normalised model and an ordinary one."""
    registry = LocalRegistry(tmp_path_factory.mktemp("modes"), create=True)
    about = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {})
    for name in ("pulled", "free"):
        model = small_model(self_normalised=name == "pulled")
        registry.publish(
            name,
            lambda folder, model=model: write_checkpoint(folder, model, families.tokenizer(), about),
        )
    with (
        running(Settings(registry=registry.root)) as server,
        httpx.Client(base_url=server.url, timeout=10) as client,
    ):
        yield client


def told(http, mode, model="pulled"):
    response = http.post("/v1/rerank", json={"lists": LISTS, "model": model, "score_mode": mode})
    assert response.status_code == 200, response.text
    ranking = response.json()["lists"][0]["ranking"]
    return [c["features"]["lm"] for c in sorted(ranking, key=lambda c: c["index"])]


def test_unnormalised_scores_are_sums_of_logits(score_mode_http):
    model = small_model(self_normalised=True)
    ids = [[*map(model.vocabulary.id_of, text.split()), EOS] for text in TEXTS]
    unnormalised = SCORES._replace(normalised=False)
    want = model.read(model.initial_state(3), *pad_sequences(ids), unnormalised).log_probs.sum(1)
    assert told(score_mode_http, "unnormalised") == pytest.approx(want.tolist(), rel=0.02)
    assert told(score_mode_http, "normalised") != pytest.approx(want.tolist(), rel=0.02)


def test_normalised_is_the_default(score_mode_http):
    ranking = score_mode_http.post("/v1/rerank", json={"lists": LISTS, "model": "pulled"}).json()["lists"][0][
        "ranking"
    ]
    assert {c["features"]["lm"] for c in ranking} == set(told(score_mode_http, "normalised"))


def test_a_model_that_was_not_trained_for_it_refuses(score_mode_http):
    response = score_mode_http.post(
        "/v1/rerank", json={"lists": LISTS, "model": "free", "score_mode": "unnormalised"}
    )
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["code"], error["param"]) == ("unsupported_parameter", "score_mode")
    assert "model free@1 was not trained for unnormalised scores" in error["message"]


def test_another_mode_is_refused(score_mode_http):
    response = score_mode_http.post("/v1/rerank", json={"lists": LISTS, "score_mode": "fast"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "score_mode"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/score", {"texts": ["w1"]}),
        ("/v1/next-token", {"context": "w1"}),
        ("/v1/generate", {"prompt": "w1"}),
    ],
)
def test_endpoints_that_report_probabilities_do_not_offer_it(score_mode_http, path, body):
    response = score_mode_http.post(path, json={"model": "pulled", "score_mode": "unnormalised", **body})
    assert response.status_code == 400
    assert "score_mode" in response.text


QUERY, DOCUMENTS = "the cat", ["a dog ran", "the cat sat", {"text": "on the mat"}, ""]


def rank(http, **body):
    response = http.post("/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS, **body})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("model", ["mixture", "chars"])
def test_documents_are_ranked_by_the_probability_of_the_query_after_each(http, model):
    reply = rank(http, model=model)
    texts_given = [given if isinstance(given, str) else given["text"] for given in DOCUMENTS]
    expected = []
    for text in texts_given:
        before, after = (text + " ", QUERY) if text else ("", QUERY)
        body = {"texts": [after], "context": before, "eos": False, "model": model}
        expected.append(http.post("/v1/score", json=body).json()["results"][0]["logprob"])
    mass = sum(map(math.exp, expected))
    assert [one["index"] for one in reply["results"]] == sorted(range(4), key=lambda i: -expected[i])
    for one in reply["results"]:
        assert one["logprob"] == pytest.approx(expected[one["index"]], abs=1e-6)
        assert one["relevance_score"] == pytest.approx(math.exp(expected[one["index"]]) / mass, abs=1e-6)
        assert one["document"] == {"text": texts_given[one["index"]]}
    assert (reply["object"], reply["model"]) == ("list", f"{model}@1")
    assert reply["usage"]["total_tokens"] == reply["usage"]["prompt_tokens"] > 0


def test_documents_score_as_the_query_as_a_continuation(http):
    documents = ["a dog ran", "the cat sat", "on the mat"]
    listed = {"candidates": [{"text": text} for text in documents], "continuation": QUERY}
    (ranked,) = ask(http, [listed], eos=False)
    told = rank(http, documents=documents)["results"]
    assert [one["index"] for one in told] == [one["index"] for one in ranked["ranking"]]
    assert [one["logprob"] for one in told] == pytest.approx([one["total"] for one in ranked["ranking"]])
    assert [one["relevance_score"] for one in told] == pytest.approx(
        [one["posterior"] for one in ranked["ranking"]]
    )


def test_the_best_documents_keep_the_scores_of_all(http):
    whole_reply, best = rank(http), rank(http, top_n=2, return_documents=False)
    assert best["results"] == [{**one, "document": None} for one in whole_reply["results"][:2]]
    assert rank(http, top_n=9)["results"] == whole_reply["results"]


def test_nulls_of_stock_clients_are_defaults(http):
    nulls = ("model", "top_n", "rank_fields", "return_documents", "max_chunks_per_doc", "max_tokens_per_doc")
    assert rank(http, **dict.fromkeys(nulls))["results"] == rank(http)["results"]


def test_names_of_fields_in_texts_change_no_body(http):
    assert len(rank(http, query='"lists": [', documents=['"documents": 1'])["results"]) == 1
    named = {"text": "the cat", "features": {"documents": 1.0}}
    assert ask(http, [{"candidates": [named]}], weights={"documents": 1.0})[0]["ranking"][0]["total"] == 1.0


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"query": ""}, "query", "at least 1 character"),
        ({"query": None}, "query", "is required"),
        ({"query": " "}, "documents[0]", "has no token"),
        ({"documents": []}, "documents", "documents is []: list should have at least 1 item, not 0"),
        ({"documents": ["a", 3]}, "documents[1]", "is 3: input should be a string, or an object with text"),
        ({"documents": [{"title": "a"}]}, "documents[0].text", "is required"),
        ({"documents": ["a"] * 101}, "documents", "has 101 entries; at most 100"),
        ({"documents": ["a", "the " * 1001]}, "documents[1]", "at most 1000 are accepted"),
        ({"top_n": 0}, "top_n", "greater than or equal to 1"),
        ({"rank_fields": ["text"]}, "rank_fields", "unknown parameter"),
    ],
)
def test_invalid_documents_are_named(http, body, param, says):
    response = http.post("/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS, **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize("given", [{"query": QUERY}, {"documents": DOCUMENTS}])
def test_a_missing_part_of_query_and_documents_is_named(http, given):
    (missing,) = {"query", "documents"} - given.keys()
    error = http.post("/v1/rerank", json=given).json()["error"]
    assert (error["param"], error["message"]) == (missing, f"{missing} is required")
