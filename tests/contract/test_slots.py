"""Members of classes over HTTP: every endpoint that takes them, their errors, and that no other request notices."""

import json
import math

import httpx
import pytest

from models.checkpoint.registry import LocalRegistry
from service.settings import Settings
from tests.support.services import running
from training.commands import run_train

pytestmark = pytest.mark.usefixtures("no_pictures")

CITIES = ["boston", "new york", "salt lake city", "denver"]
FRAMES = ["flights from {} to {}", "show me the flight to {} from {} on monday", "a fare from {} to {}"]
LINES = [f.format(a, b) for f in FRAMES for a in CITIES for b in CITIES if a != b] + [
    "i am reading a book"
] * 9
KINDS = {"word": [], "pieces": ["tokenizer.kind=unigram"]}
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def slots_http(tmp_path_factory):
    """Serve models that know cities as a class, with words and pieces, and one that does not."""
    folder = tmp_path_factory.mktemp("slots")
    (folder / "text.txt").write_text("\n".join(LINES * 3))
    (folder / "cities.txt").write_text("\n".join(CITIES))
    registry = LocalRegistry(folder / "registry", create=True)
    members = f"tokenizer.slots.city={folder / 'cities.txt'}"
    rules = {kind: [*keys, members] for kind, keys in KINDS.items()} | {"plain": []}
    for name, keys in rules.items():
        run_train(
            "ngram",
            corpus=[folder / "text.txt"],
            name=name,
            registry=str(registry.root),
            assignments=["ngram.order=4", *keys],
        )
    settings = Settings(registry=registry.root, default_model="word")
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=10) as client:
        yield client


def ask(http, path, **body):
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def logprobs(http, texts, **body):
    return [result["logprob"] for result in ask(http, "/v1/score", texts=texts, **body)["results"]]


@each_kind
def test_members_of_the_training_text_are_known_without_a_list(slots_http, kind):
    results = ask(slots_http, "/v1/score", model=kind, texts=["flights from salt lake city to boston"])
    assert results["results"][0]["num_oov"] == 0


@each_kind
def test_new_members_share_the_probability_of_the_class(slots_http, kind):
    texts = ["flights from ulm to bad aibling", "flights from bad aibling to ulm"]
    even = logprobs(slots_http, texts, model=kind, slots={"city": ["ulm", "bad aibling"]})
    assert even[0] == pytest.approx(even[1], abs=1e-4)
    before = logprobs(slots_http, texts[:1], model=kind)
    assert even[0] > before[0] + 5
    weighted = logprobs(slots_http, texts[:1], model=kind, slots={"city": {"ulm": 3, "bad aibling": 1}})
    assert weighted[0] == pytest.approx(
        even[0] + math.log(3 / 4) + math.log(1 / 4) - 2 * math.log(1 / 2), abs=1e-4
    )


@each_kind
def test_next_words_are_members(slots_http, kind):
    body = {"model": kind, "context": "flights from", "top_k": 3, "unit": "word"}
    reply = ask(slots_http, "/v1/next-token", **body, slots={"city": {"ulm": 2, "bad aibling": 1}})
    found = {entry["text"]: math.exp(entry["logprob"]) for entry in reply["results"][0]["candidates"]}
    assert list(found)[:2] == ["ulm", "bad aibling"]
    assert found["ulm"] == pytest.approx(2 * found["bad aibling"], rel=1e-3)


def test_next_tokens_sum_to_one(slots_http):
    reply = ask(
        slots_http, "/v1/next-token", context="flights from", top_k=20, slots={"city": ["ulm", "bonn"]}
    )
    found = {entry["text"]: math.exp(entry["logprob"]) for entry in reply["results"][0]["candidates"]}
    assert sum(found.values()) == pytest.approx(1, abs=1e-4)
    assert found.get("$city", 0) < 1e-9


@each_kind
@pytest.mark.parametrize(
    ("text", "suffix"),
    [("flights from b", "ad aibling"), ("flights from bad a", "ibling"), ("flights from bad ", "aibling")],
)
def test_members_of_several_words_are_completed(slots_http, kind, text, suffix):
    slots = {"city": ["ulm", "bad aibling"]}
    reply = ask(slots_http, "/v1/autocomplete", model=kind, text=text, slots=slots)
    best = reply["completions"][0]
    assert (best["text"], best["suffix"], best["num_words"]) == ("bad aibling", suffix, 1)
    assert text[: best["start"]] + best["text"] == text + best["suffix"]
    total = sum(c["probability"] for c in reply["completions"] if c["is_complete_word"])
    assert total + reply["unexplored_mass"] <= 1 + 1e-6


@each_kind
def test_members_begun_with_earlier_words_replace_them(slots_http, kind):
    """Their start, case, saved letters and suffix are those of all their words."""
    slots = {
        "city": {
            "new ulm": 3,
            "new new york": 2,
            "st. gallen": 1,
            "l'aquila": 1,
            "winston-salem": 1,
            "sankt\u2013x\u30fby": 1,
        }
    }

    def completions(text, **options):
        reply = ask(slots_http, "/v1/autocomplete", model=kind, text=text, slots=slots, **options)
        begun = [c for c in reply["completions"] if c["start"] == len("flights from ")]
        return [(c["text"], c["suffix"]) for c in begun]

    assert completions("flights from new ") == [("new ulm", "ulm"), ("new new york", "new york")]
    assert completions("flights from new ", rank="savings")[0] == ("new new york", "new york")
    assert ("New New york", "ew york") in completions("flights from New N", casing="ignore")
    assert ("st. gallen", " gallen") in completions("flights from st.")
    assert ("l'aquila", "aquila") in completions("flights from l'")
    assert ("winston-salem", "alem") in completions("flights from winston-s")
    assert ("sankt\u2013x\u30fby", "\u30fby") in completions("flights from sankt\u2013x")


def test_words_of_a_user_do_not_count_for_members_begun_earlier(slots_http):
    reply = ask(
        slots_http,
        "/v1/autocomplete",
        text="flights from new u",
        slots={"city": ["new ulm", "new town"]},
        dictionary=["new new ulm"],
        user_weight=0.9,
    )
    assert sum(c["probability"] for c in reply["completions"]) <= 1 + 1e-6


@each_kind
def test_candidates_with_members_are_ranked_first(slots_http, kind):
    candidates = [{"text": f"flights from {city} to boston"} for city in ("olm", "bad aibling", "ulm")]
    body = {"model": kind, "lists": [{"candidates": candidates}]}
    slots = {"city": ["ulm", "bad aibling", "boston"]}
    ranking = ask(slots_http, "/v1/rerank", **body, slots=slots)["lists"][0]["ranking"]
    assert [entry["text"].split()[2] for entry in ranking][2] == "olm"
    assert ranking[0]["total"] == pytest.approx(ranking[1]["total"], abs=1e-4)
    alone = logprobs(slots_http, [candidates[1]["text"]], model=kind, slots=slots)
    assert next(e["total"] for e in ranking if "aibling" in e["text"]) == pytest.approx(alone[0], abs=1e-4)


def test_lines_take_members_from_the_query_string(slots_http):
    slots = {"city": ["ulm", "bonn"]}
    text = "flights from ulm to bonn"
    lines = slots_http.post(
        "/v1/score",
        params={"model": "word", "slots": json.dumps(slots)},
        content=json.dumps({"text": text}),
        headers={"content-type": "application/x-ndjson"},
    )
    assert lines.status_code == 200, lines.text
    expected = logprobs(slots_http, [text], model="word", slots=slots)
    assert json.loads(lines.text)["logprob"] == pytest.approx(expected[0])


@pytest.mark.parametrize("slots", ['{"city": ["\\ud800"]}', "[" * 9999, '{"city": ["ulm"'])
def test_members_in_the_query_string_must_be_json(slots_http, slots):
    lines = slots_http.post(
        "/v1/score",
        params={"slots": slots},
        content=json.dumps({"text": "a"}),
        headers={"content-type": "application/x-ndjson"},
    )
    assert lines.status_code == 400
    assert lines.json()["error"]["param"] == "slots"


@each_kind
def test_members_are_known_words_of_a_check(slots_http, kind):
    body = {"model": kind, "text": "flights from bad aibling to blm", "threshold": 0.1}
    reply = ask(slots_http, "/v1/check", **body, slots={"city": ["ulm", "bad aibling"]})
    assert [issue["text"] for issue in reply["issues"]] == ["blm"]
    spans = [body["text"][word["start"] : word["end"]] for word in reply["words"]]
    assert " ".join(spans) == body["text"]


def test_generated_texts_name_members_only(slots_http):
    body = {"prompt": "flights from", "n": 8, "seed": 1, "max_tokens": 4, "temperature": 0.5}
    for path, choices in (("/v1/generate", "choices"), ("/v1/completions", "choices")):
        reply = ask(slots_http, path, model="word", **body, slots={"city": ["bad aibling"]})
        assert all(choice["text"].startswith(" bad aibling") for choice in reply[choices])


def test_a_member_that_is_a_word_keeps_its_own_probability(slots_http):
    """Reading is a city and a verb; the history decides."""
    texts = ["i am reading a book", "flights from reading to boston"]
    verb, city = logprobs(slots_http, texts, model="word", slots={"city": ["reading", "boston"]})
    assert verb == pytest.approx(logprobs(slots_http, texts, model="word")[0], abs=0.1)
    others = ["i am boston a book", "flights from boston to boston"]
    not_verb, same_city = logprobs(slots_http, others, model="word", slots={"city": ["ulm", "boston"]})
    assert verb > not_verb + 3
    assert city == pytest.approx(same_city, abs=0.01)


def test_ids_of_a_reply_are_accepted_with_the_same_members(slots_http):
    slots = {"city": ["ulm", "bonn"]}
    reply = ask(slots_http, "/v1/score", texts=["flights from ulm to bonn"], detail="token", slots=slots)
    ids = [token["id"] for token in reply["results"][0]["tokens"]][:-1]
    again = ask(slots_http, "/v1/score", token_ids=[ids], slots=slots)
    assert again["results"][0]["logprob"] == pytest.approx(reply["results"][0]["logprob"])
    refused = slots_http.post("/v1/score", json={"token_ids": [ids], "slots": {"city": ["ulm"]}})
    assert refused.status_code == 400


@pytest.mark.parametrize(
    ("slots", "param", "message"),
    [
        ({"town": ["a"]}, "slots.town", "the model has no class '$town'; its classes: $city"),
        ({"city": ["$city"]}, "slots.city", "contains the mark of a class"),
        ({"city": ["w " * 99]}, "slots.city", "has 99 words; at most 16"),
        ({"city": {"ulm": -1}}, "slots.city", "weights must be above 0"),
        ({"city": "ulm"}, "slots.city", "a list of strings, or an object of weights"),
        ({"city": [1]}, "slots.city[0]", "string"),
    ],
)
def test_invalid_members_are_refused(slots_http, slots, param, message):
    before = logprobs(slots_http, ["flights from boston"], model="word")
    response = slots_http.post("/v1/score", json={"texts": ["a"], "model": "word", "slots": slots})
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == param
    assert message in error["message"]
    assert logprobs(slots_http, ["flights from boston"], model="word") == before


def test_a_model_without_classes_refuses_members(slots_http):
    response = slots_http.post("/v1/score", json={"texts": ["a"], "model": "plain", "slots": {"city": ["a"]}})
    assert "its classes: none" in response.json()["error"]["message"]


def test_other_requests_do_not_notice_members(slots_http):
    texts = ["flights from boston to new york"]
    before = logprobs(slots_http, texts, model="word")
    for number in range(20):  # more than are kept
        ask(slots_http, "/v1/score", texts=texts, model="word", slots={"city": ["boston", f"town {number}"]})
    assert logprobs(slots_http, texts, model="word") == before
