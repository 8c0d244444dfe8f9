"""Proposals over HTTP: phrases, forms and replacements in /v1/rerank, /v1/correct and /v1/rerank/tune."""

import json
import math
import sys

import pytest

from models.reranking.numbers import number_words
from models.reranking.proposals import MAX_WORDS
from models.reranking.ranking import Profile, ProfileStore

LINES = {"content-type": "application/x-ndjson"}
NAMES = [{"text": "Jaan Tamm"}]
HEARD = {"heard": "w5 w6", "written": "w7"}


@pytest.fixture
def correct(http):
    def post(*texts, **options):
        response = http.post("/v1/correct", json={"texts": texts, **options})
        assert response.status_code == 200, response.text
        return response.json()

    return post


def replaced(text, spans):
    """Replace spans of a text by hand."""
    for span in reversed(spans):
        assert text[span["start"] : span["end"]].split() == span["heard"].split()
        text = text[: span["start"]] + span["written"] + text[span["end"] :]
    return text


@pytest.mark.parametrize("model", ["new", "lstm", "backward", "pieces", "chars"])
def test_a_misspelt_name_is_corrected_and_other_words_keep_their_white_space(correct, model):
    text = "w1  w2 jaantam, w3 "
    (result,) = correct(text, phrases=NAMES, model=model)["results"]
    assert result["text"] == "w1  w2 jaan tamm, w3 "
    (span,) = result["corrections"]
    assert (span["heard"], span["written"], span["proposer"]) == ("jaantam,", "jaan tamm,", "phrases")
    assert 0.5 < span["posterior"] <= 1
    assert replaced(text, result["corrections"]) == result["text"]


def test_a_text_without_proposals_stays_as_it_is(correct):
    reply = correct("w1 w2", "", "w3\tw4", phrases=NAMES, forms="en")
    assert [(one["text"], one["corrections"], one["posterior"]) for one in reply["results"]] == [
        (text, [], 1.0) for text in ("w1 w2", "", "w3\tw4")
    ]


def test_texts_have_the_same_results_alone_together_and_as_lines(http, correct):
    texts = [f"w{i} w5 w6 jaantam w{i + 1} $3.50" for i in range(20)]
    options = {"phrases": NAMES, "corrections": [HEARD], "forms": "en"}
    together = correct(*texts, **options)["results"]
    assert together == [correct(text, **options)["results"][0] for text in texts]
    body = "".join(json.dumps({"text": text, "id": str(i)}) + "\n" for i, text in enumerate(texts))
    query = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    lines = http.post("/v1/correct", params=query, content=body, headers=LINES).text.splitlines()
    assert [json.loads(line) | {"id": None} for line in lines] == together
    assert [json.loads(line)["id"] for line in lines] == [str(i) for i in range(20)]


def test_corrected_texts_are_those_of_reranked_lists_of_one(http, correct):
    text, options = "w1 w5 w6 jaantam", {"phrases": NAMES, "corrections": [HEARD]}
    (result,) = correct(text, **options)["results"]
    lists = [{"candidates": [{"text": text}]}]
    reply = http.post("/v1/rerank", json={"lists": lists, "propose": True, **options}).json()
    best = reply["lists"][0]["ranking"][0]
    assert (best["text"], best["posterior"], best["corrections"]) == (
        result["text"],
        result["posterior"],
        result["corrections"],
    )
    assert best["index"] == 0
    assert reply["weights"] == {
        "lm": 1.0,
        "phrases": 10.0,
        "correction": 1.0,
        "distance": 10.0,
        "doubt": 5.0,
    }


def test_the_log_probability_of_a_replacement_decides_where_the_model_does_not(correct):
    def written(logprob):
        given = [{"heard": "w5", "written": "w6", "logprob": logprob}]
        return correct("w1 w5 w2", corrections=given)["results"][0]["text"]

    assert [written(logprob) for logprob in (-90, 90)] == ["w1 w5 w2", "w1 w6 w2"]


def test_words_may_be_removed(correct):
    given = [{"heard": "uh", "written": "", "logprob": 50}]
    (result,) = correct("w1 uh w2", corrections=given)["results"]
    assert result["text"].split() == ["w1", "w2"]


def test_replacements_in_a_circle_are_made_once(correct):
    given = [{"heard": a, "written": b, "logprob": 50} for a, b in (("w5", "w6"), ("w6", "w5"))]
    assert correct("w5 w6", corrections=given)["results"][0]["text"] == "w6 w5"


@pytest.mark.parametrize("as_lines", [False, True])
def test_words_of_which_the_recogniser_is_sure_stay(http, correct, as_lines):
    text, phrases = "w1 jaanedam w2", [{"text": "Jaan Tamm"}]

    def written(confidence):
        options = {"phrases": phrases, "weights": {"distance": 1.0, "doubt": 10.0, "words": -5.0}}
        confidences = [0.9, confidence, 0.9]
        if not as_lines:
            return correct(text, confidences=[confidences], **options)["results"][0]["text"]
        query = {"phrases": json.dumps(phrases), "weights": "distance=1,doubt=10,words=-5"}
        line = json.dumps({"text": text, "confidences": confidences})
        return json.loads(http.post("/v1/correct", params=query, content=line, headers=LINES).text)["text"]

    assert [written(confidence) for confidence in (1.0, 0.1)] == [text, "w1 jaan tamm w2"]


def test_confidences_of_candidates_are_a_feature_of_what_replaces_their_words(rerank):
    candidates = {"candidates": [{"text": "w1 jaantam", "confidences": [1, 0.25]}, {"text": "w1 w2"}]}
    ranking = rerank(candidates, phrases=NAMES, propose=True)["lists"][0]["ranking"]
    made = next(one for one in ranking if "corrections" in one)
    assert made["features"]["doubt"] == pytest.approx(math.log(3))
    assert {one["features"]["doubt"] for one in ranking if "corrections" not in one} == {0.0}


@pytest.mark.parametrize(
    ("confidences", "field", "message"),
    [
        ([0.5], "", "has 1 numbers, but the text has 2 words"),
        ([0.5] * 3, "", "has 3 numbers"),
        ([0.5, 1.5], "[1]", "is 1.5"),
        ([-0.5, 1], "[0]", "is -0.5"),
        (["0.5", 1], "[0]", "number"),
        (0.5, "", "array"),
    ],
)
def test_confidences_that_do_not_fit_the_words_are_refused_by_name(http, confidences, field, message):
    candidate = {"text": "w1 w2", "confidences": confidences}
    bodies = {
        "/v1/rerank": ({"lists": [{"candidates": [candidate]}]}, "lists[0].candidates[0].confidences"),
        "/v1/correct": ({"texts": ["w1 w2"], "confidences": [confidences]}, "confidences[0]"),
    }
    for path, (body, place) in bodies.items():
        response = http.post(path, json=body)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, place + field)
        assert message in error["message"]
    line = http.post("/v1/correct", content=json.dumps(candidate), headers=LINES)
    assert json.loads(line.text)["error"]["param"] == "confidences" + field


def test_a_weight_of_doubt_leaves_the_other_defaults_of_phrases(correct):
    reply = correct("w1 jaantam", phrases=NAMES, weights={"lm": 1.0, "doubt": 2.0})
    assert reply["weights"] == {"lm": 1.0, "doubt": 2.0, "distance": 10.0}
    assert correct("w1", phrases=NAMES, weights={"lm": 1.0, "distance": 2.0})["weights"] == {
        "lm": 1.0,
        "distance": 2.0,
    }


def test_the_posterior_of_a_replacement_is_that_of_its_place(rerank):
    candidates = {"candidates": [{"text": "w1 jaantam w2 jaantam", "confidences": [1, 0.6, 1, 0.01]}]}
    weights = {"lm": 0.0, "distance": 0.3, "doubt": 0.4}
    (one,) = rerank(candidates, phrases=NAMES, propose=True, weights=weights)["lists"]
    by_place = {}
    for ranked in one["ranking"]:
        for span in ranked.get("corrections", ()):
            by_place[span["start"]] = by_place.get(span["start"], 0) + ranked["posterior"]
    told = {
        span["start"]: span["posterior"]
        for ranked in one["ranking"]
        for span in ranked.get("corrections", ())
    }
    assert told == pytest.approx(by_place)
    assert len(set(told.values())) == 2


def test_there_are_confidences_for_each_text_or_none(http, correct):
    response = http.post("/v1/correct", json={"texts": ["w1", "w2"], "confidences": [[0.5]]})
    assert response.json()["error"]["param"] == "confidences"
    assert "1 entries" in response.json()["error"]["message"]
    assert correct("w1", "w2 w3", confidences=[[], [1, 0]])["results"]


def test_forms_are_proposed_in_lists_with_their_features(rerank, texts):
    reply = rerank(texts("w1 1986 w2"), forms="en", weights={"lm": 0.0, "spoken": 5.0, "written": 0.0})
    best = reply["lists"][0]["ranking"][0]
    assert best["corrections"][0]["proposer"] == "forms"
    assert best["text"].split()[:2] == ["w1", "one"]
    assert best["features"]["spoken"] == len(best["text"].split()) - 3
    assert reply["weights"] == {"lm": 0.0, "spoken": 5.0, "written": 0.0}


def test_nothing_is_proposed_unless_asked(rerank, texts):
    (ranked,) = rerank(texts("jaantam $3.50"), phrases=NAMES)["lists"]
    assert [one["text"] for one in ranked["ranking"]] == ["jaantam $3.50"]


def test_candidates_after_the_first_five_get_no_proposals(rerank, texts):
    candidates = texts(*(f"w{i} jaantam" for i in range(9)))
    ranking = rerank(candidates, phrases=NAMES, propose=True)["lists"][0]["ranking"]
    assert sorted(one["index"] for one in ranking if "corrections" in one) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "param", "message"),
    [
        ({"forms": "xx"}, "forms", "numbers can be written out in"),
        ({"forms": "english"}, "forms", "pattern"),
        ({"texts": ["w " * (MAX_WORDS + 1)]}, "texts[0]", f"at most {MAX_WORDS}"),
        ({"corrections": [{"heard": "", "written": "a"}]}, "corrections[0].heard", "from 1 to 4"),
        ({"corrections": [{"heard": "a", "written": "a"}]}, "corrections[0].written", "the same as heard"),
        ({"corrections": [HEARD, HEARD]}, "corrections[1]", "as an earlier one"),
        ({"corrections": [{**HEARD, "logprob": 101}]}, "corrections[0].logprob", "100"),
        ({"corrections": [{**HEARD, "other": 1}]}, "corrections[0].other", "unknown"),
        ({"phrases": [{"text": ""}]}, "phrases[0].text", "word"),
        ({"wordlist": "nowhere"}, "phrases[0].wordlist", "nowhere"),
        ({"profile": "nowhere"}, "profile", "no profile"),
        ({"texts": []}, "texts", "at least 1"),
        ({"slots": {"nowhere": ["a"]}}, "slots.nowhere", "nowhere"),
    ],
)
def test_an_invalid_option_is_refused_by_name(http, options, param, message):
    response = http.post("/v1/correct", json={"texts": ["w1"], **options})
    error = response.json()["error"]
    assert (response.status_code in {400, 404}, error["param"]) == (True, param)
    assert message in error["message"]


def test_an_invalid_line_fails_alone(http):
    body = '{"text": "w1"}\n{"text": 5}\n{"text": "' + "w " * 300 + '"}\n{"text": "w2"}\n'
    lines = http.post("/v1/correct", content=body, headers=LINES).text.splitlines()
    assert [json.loads(line).get("text") for line in lines] == ["w1", None, None, "w2"]
    assert "200" in json.loads(lines[2])["error"]["message"]


def test_forms_without_their_library_are_refused_with_the_extra(http, monkeypatch):
    number_words.cache_clear()
    monkeypatch.setitem(sys.modules, "num2words", None)
    response = http.post("/v1/correct", json={"texts": ["w1"], "forms": "en"})
    number_words.cache_clear()
    assert response.status_code == 400
    assert "gramophone-lm[speech]" in response.json()["error"]["message"]


def test_tuned_forms_are_in_the_profile_and_are_proposed_where_it_is_named(http, reranking_registry):
    numbers = [
        "twenty one",
        "thirty five",
        "sixty six",
        "nineteen",
        "forty",
        "seventy two",
        "eighty",
        "ninety",
    ]
    digits = ["21", "35", "66", "19", "40", "72", "80", "90"]
    lists = [
        {"candidates": [{"text": f"w{i} {digits[i]} w{j}"}], "reference": f"w{i} {numbers[i]} w{j}"}
        for i in range(8)
        for j in range(4)
    ]
    asked = {
        "lists": lists,
        "forms": "en",
        "features": ["lm", "unk", "words", "spoken"],
        "length_exponents": [0],
    }
    reply = http.post("/v1/rerank/tune", json={**asked, "restarts": 2, "resamples": 3}, timeout=60).json()
    assert (reply["decision"], reply["tuned"] < reply["baseline"] / 2) == ("tuned", True)
    assert reply["profile"]["forms"] == "en"
    ProfileStore(reranking_registry).write(Profile(name="forms", **reply["profile"]))
    told = http.post("/v1/correct", json={"texts": ["w3 57 w4"], "profile": "forms"}).json()
    assert told["results"][0]["text"] == "w3 fifty seven w4"
    assert told["weights"] == reply["weights"]


def test_tuning_proposes_phrases(http):
    names = ["jaan tamm", "mari kask", "peeter lepp", "liis saar"]
    wrong = ["jaantam", "marri kask", "peeter leb", "lisssaar"]
    lists = [
        {"candidates": [{"text": f"w{j} {heard} w{i}"}], "reference": f"w{j} {name} w{i}"}
        for i, (heard, name) in enumerate(zip(wrong, names, strict=True))
        for j in range(8)
    ]
    asked = {
        "lists": lists,
        "phrases": [{"text": name} for name in names],
        "propose": True,
        "length_exponents": [0],
    }
    reply = http.post("/v1/rerank/tune", json={**asked, "restarts": 2, "resamples": 3}, timeout=60).json()
    assert (reply["decision"], reply["tuned"] < reply["baseline"] / 2) == ("tuned", True)
    assert "distance" in reply["features"]
