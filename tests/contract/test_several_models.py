"""Requests with several models: mixed by words, with weights that follow the text."""

import math

import pytest

from gramophone_client import BadRequestError, Client

BOTH = [{"model": "mixture"}, {"model": "chars"}]
TYPED = [
    "",
    "the cat ",
    "the cat o",
    "zebra quagga ",
    "on the m",
    'she said: "th',
    "the cat sat on the dog a",
]


def post(http, path, **body):
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def complete(http, text, **options):
    return post(http, "/v1/autocomplete", text=text, limit=100, max_steps=4096, **options)


def told(reply):
    return {one["text"]: one["probability"] for one in reply["completions"] if one["is_complete_word"]}


@pytest.mark.parametrize("text", ["", "the cat ", "zebra quagga ", "the cat sat\non the "])
def test_probabilities_are_the_mean_of_the_models_by_their_weights(http, text):
    reply = complete(http, text, models=BOTH)
    alone = {name: complete(http, text, model=name) for name in ("mixture", "chars")}
    assert reply["weights"].keys() == {"mixture@1", "chars@1"}
    assert sum(reply["weights"].values()) == pytest.approx(1)
    expected = {}
    for name, single in alone.items():
        for word, probability in told(single).items():
            expected[word] = expected.get(word, 0) + reply["weights"][f"{name}@1"] * probability
    shown = told(reply)
    for word, probability in shown.items():
        # a model may not have shown a word that it has found
        assert probability >= expected.get(word, 0) * (1 - 1e-5)
    best = sorted(expected, key=expected.get, reverse=True)[:10]
    assert [shown[word] for word in best] == pytest.approx([expected[word] for word in best], rel=0.05)


@pytest.mark.parametrize("text", TYPED)
def test_a_model_named_twice_is_itself(http, text):
    for name in ("mixture", "chars"):
        twice = complete(http, text, models=[{"model": name}, {"model": f"{name}@1", "weight": 3}])
        once = complete(http, text, model=name)
        assert twice["weights"] == {f"{name}@1": pytest.approx(1)}
        assert (twice["prefix"], twice["start"], twice["model"]) == (
            once["prefix"],
            once["start"],
            once["model"],
        )
        assert told(twice) == pytest.approx(told(once), rel=1e-6)
        assert twice["unexplored_mass"] == pytest.approx(once["unexplored_mass"], abs=1e-9)


@pytest.mark.parametrize("text", TYPED)
def test_completions_and_unexplored_mass_sum_to_one(http, text):
    reply = complete(http, text, models=BOTH)
    total = sum(told(reply).values()) + reply["unexplored_mass"]
    assert total <= 1 + 1e-6
    if len(reply["completions"]) < 100:
        assert total >= 1 - 1e-6


@pytest.mark.parametrize(
    ("text", "best"), [("the cat sat on the ", "mixture@1"), ("zebra quagga okapi ", "chars@1")]
)
def test_weights_follow_the_text(http, text, best):
    reply = complete(http, text, models=BOTH)
    assert reply["model"] == best
    assert reply["weights"][best] > 0.8
    opposed = [{"model": one["model"], "weight": 1e-6 if f"{one['model']}@1" == best else 1} for one in BOTH]
    assert complete(http, text, models=opposed)["weights"][best] < reply["weights"][best]


def test_completions_start_where_the_first_model_s_word_does(http):
    reply = complete(http, 'she said: "th', models=BOTH)
    for one in reply["completions"]:
        assert one["start"] == reply["start"]
        assert ('she said: "th'[: one["start"]] + one["text"]).startswith('she said: "th')


def test_the_users_words_are_offered_too(http):
    reply = complete(http, "the gnu", models=BOTH, dictionary=["gnuplot"])
    assert told(reply)["gnuplot"] > 0.01
    assert {one["source"] for one in reply["completions"] if one["text"] == "gnuplot"} == {"user"}


def test_the_weights_include_the_typed_prefix(http):
    before, after = (complete(http, text, models=BOTH)["weights"] for text in ("the cat ", "the cat xq"))
    assert after["chars@1"] > before["chars@1"]  # the other model has no such word
    assert "weights" not in complete(http, "the cat xq", model="chars")


@pytest.mark.parametrize("text", ["the cat sat\nteh dog", "a hosue", "", "\n \n", "the cat, sat on teh mat."])
def test_a_model_named_twice_checks_as_itself(http, text):
    for name in ("mixture", "chars"):
        models = [{"model": name}, {"model": name}]
        twice = post(http, "/v1/check", text=text, models=models, threshold=0.3)
        once = post(http, "/v1/check", text=text, model=name, threshold=0.3)
        spans = [
            [(issue["start"], issue["end"], issue["type"]) for issue in r["issues"]] for r in (twice, once)
        ]
        assert spans[0] == spans[1]
        for one, other in zip(twice["issues"], once["issues"], strict=True):
            assert one["probability"] == pytest.approx(other["probability"], rel=1e-6)
            assert one["suggestions"] == [
                pytest.approx(suggestion, rel=1e-6) if isinstance(suggestion, float) else suggestion
                for suggestion in other["suggestions"]
            ]
        assert [word["text"] for word in twice["words"]] == [word["text"] for word in once["words"]]
        if all(word["known"] for word in once["words"]):
            assert twice["surprisal_bits"] == pytest.approx(once["surprisal_bits"], rel=1e-6)
            for one, other in zip(twice["words"], once["words"], strict=True):
                assert one["surprisal_bits"] == pytest.approx(other["surprisal_bits"], rel=0.5)


def test_a_word_that_either_model_knows_is_known(http):
    reply = post(http, "/v1/check", text="the cat sat zebra", models=BOTH)
    assert all(word["known"] for word in reply["words"])
    assert sum(reply["weights"].values()) == pytest.approx(1)
    assert all(word["surprisal_bits"] >= 0 for word in reply["words"])


def test_an_error_in_the_text_of_one_model_is_found(http):
    reply = post(http, "/v1/check", text="the cat sat on teh mat", models=BOTH)
    assert [issue["text"] for issue in reply["issues"]] == ["teh"]
    assert reply["issues"][0]["suggestions"][0]["text"] == "the"
    assert reply["surprisal_bits"] == pytest.approx(
        reply["bits_per_word"] * 7, rel=1e-6
    )  # six words and the end
    assert math.isfinite(reply["surprisal_bits"])


@pytest.mark.parametrize("path", ["/v1/autocomplete", "/v1/check"])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "mixture", "models": BOTH}, "give either model or models"),
        ({"models": [{"model": "mixture"}] * 9}, "models is"),
        ({"models": [{"model": "mixture", "weight": 0}]}, "models[0].weight is 0"),
        ({"models": [{"model": "mixture", "weight": -1}]}, "models[0].weight is -1"),
        ({"models": [{"weight": 1}]}, "models[0].model is required"),
        ({"models": ["mixture"]}, "models[0] is 'mixture'"),
        ({"models": [{"model": "backward"}, {"model": "mixture"}]}, "backward"),
    ],
)
def test_invalid_models_are_refused(http, path, fields, message):
    response = http.post(path, json={"text": "the cat"} | fields)
    assert response.status_code in {400, 404}, response.text
    assert message in response.json()["error"]["message"]


def test_a_precision_needs_one_model(http):
    response = http.post("/v1/check", json={"text": "the cat", "models": BOTH, "precision": 0.9})
    assert response.status_code == 400
    assert "several models" in response.json()["error"]["message"]


def test_the_client_has_them(server):
    with Client(server.url) as client:
        assert client.autocomplete("the c", models=BOTH).weights is not None
        assert client.check("the cat", models=BOTH).weights is not None
        with pytest.raises(BadRequestError):
            client.autocomplete("the c", model="mixture", models=BOTH)
