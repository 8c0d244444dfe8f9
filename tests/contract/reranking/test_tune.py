"""Tuning over HTTP."""

import pytest

from tests.support.nbest_lists import made_lists, misheard, without_references

QUICK = {"restarts": 1, "resamples": 4, "bootstrap_samples": 200}


@pytest.fixture(scope="module")
def tune(http):
    def ask(lists, *, status=200, **options):
        response = http.post("/v1/rerank/tune", json={"lists": lists, **QUICK, **options})
        assert response.status_code == status, response.text
        return response.json() if status == 200 else response.json()["error"]

    return ask


@pytest.fixture(scope="module")
def tuned(tune):
    return tune(made_lists(), model="new", models=[{"model": "old", "name": "old"}])


def test_tuning_tells_weights_and_what_they_are_worth(tuned):
    assert (tuned["decision"], tuned["model"], tuned["models"]) == ("tuned", "new@1", {"old": "old@1"})
    assert tuned["weights"]["good"] == 1.0
    assert tuned["oracle"] <= tuned["tuned"] < tuned["baseline"] < tuned["worst"]
    assert tuned["significance"]["difference"] == pytest.approx(tuned["tuned"] - tuned["baseline"])
    assert sum(fold["num_lists"] for fold in tuned["folds"]) == tuned["counts"]["lists"] == 40
    assert {"rank", "good", "lm", "lm:old", "unk", "words"} <= set(tuned["features"])


def test_equal_requests_have_equal_replies(tune, tuned):
    again = tune(made_lists(), model="new", models=[{"model": "old", "name": "old"}])
    for reply in (again, tuned):
        reply["profile"].pop("created", None)
    assert again == tuned


def test_noise_keeps_the_first_pass_and_its_profile_asks_no_model(tune):
    lists = made_lists()
    for one in lists:
        one["candidates"].sort(key=lambda c: -c["features"]["good"])
        for candidate in one["candidates"]:
            candidate["features"] = {}
    reply = tune(lists, model="chars", features=["rank", "words", "unk"])
    assert (reply["decision"], reply["weights"]) == ("first_pass", {"rank": 1.0})
    assert (reply["tuned"], reply["profile"]["models"]) == (reply["baseline"], [])


def test_given_features_are_tuned_without_a_model(tune):
    reply = tune(made_lists(), given_only=True)
    assert (reply["model"], reply["decision"]) == (None, "tuned")
    assert set(reply["features"]) <= {"rank", "rank:log", "good", "good*words", "good*characters", "words"}


def test_phrases_get_a_weight_and_are_stored_in_the_profile(tune):
    lists = made_lists()
    for one in lists:
        for candidate in one["candidates"]:
            is_right = candidate["text"] == one["reference"]
            candidate["text"] += " jaan tamm" if is_right else " john tam"
        one["reference"] += " jaan tamm"
    phrases = [{"text": "Jaan Tamm", "class": "name"}]
    reply = tune(lists, model="new", features=["rank", "phrases:name"], phrases=phrases)
    assert reply["weights"]["phrases:name"] > 0
    assert reply["tuned"] == reply["oracle"]
    assert reply["profile"]["phrases"] == [{"text": "Jaan Tamm", "weight": 1.0, "class": "name"}]
    assert "phrases:name" in tune(lists, model="new", phrases=phrases)["features"]


@pytest.mark.parametrize("metric", ["cer", "bleu", "chrf"])
def test_other_metrics_are_tuned_for(tune, metric):
    reply = tune(made_lists(), given_only=True, metric=metric)
    assert (reply["metric"], reply["decision"]) == (metric, "tuned")
    better = reply["tuned"] > reply["baseline"]
    assert better == (metric != "cer")


def test_several_references_count_as_the_nearest(tune):
    lists = made_lists()
    for one in lists:
        one["references"] = ["w0", one.pop("reference")]
    assert tune(lists, given_only=True)["signature"].startswith("nrefs:2")


def test_corrections_write_what_no_candidate_has(tune):
    lists = misheard(made_lists(80))
    plain, corrected = (
        tune(lists, given_only=True, corrections=corrections) for corrections in (False, True)
    )
    assert corrected["tuned"] < plain["oracle"] < plain["baseline"] == corrected["baseline"]
    assert corrected["weights"]["correction"] > 0
    assert "corrections" not in plain["profile"]
    assert ("wone", "w1") in {(one["heard"], one["written"]) for one in corrected["profile"]["corrections"]}


def test_corrections_that_do_not_help_are_not_in_the_profile(tune):
    lists = [{"candidates": [{"text": "w1 w2"}], "reference": f"w1 w2 w{number}"} for number in range(3, 9)]
    reply = tune(lists, given_only=True, corrections=True)
    assert reply["decision"] == "first_pass"
    assert "corrections" not in reply["profile"]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"folds": 1}, "folds"),
        ({"folds": 20}, "folds"),
        ({"restarts": 1000, "folds": 20}, "restarts"),
        ({"metric": "ter"}, "metric"),
        ({"normaliser": "x"}, "normaliser"),
        ({"features": ["nosuch"]}, "lists[0].candidates[0].features"),
        ({"features": ["rank:cube"]}, None),
        ({"given_only": True, "model": "new"}, "given_only"),
        ({"model": "new", "mixture": [{"model": "new", "weight": 1.0}]}, "mixture"),
        ({"save": "x"}, "save"),
    ],
)
def test_invalid_tuning_options_are_named(tune, options, param):
    error = tune(
        made_lists(10), status=400, **{"model": "new", **options} if "given_only" not in options else options
    )
    assert param is None or error["param"] == param


def test_lists_without_references_are_refused(tune):
    assert "reference" in tune(without_references(made_lists(4)), status=400)["message"]


def test_a_feature_of_the_service_cannot_be_given(tune):
    lists = made_lists(4)
    lists[2]["candidates"][1]["features"]["rank"] = 1.0
    assert tune(lists, status=400)["param"] == "lists[2].candidates[1].features.rank"


def test_more_candidates_than_one_request_may_have_are_refused(tune):
    candidate = {"text": "w1"}
    error = tune([{"candidates": [candidate] * 65_537, "reference": "w1"}], status=400)
    assert "65537 entries; at most 65536" in error["message"]
