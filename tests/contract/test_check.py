"""POST /v1/check over HTTP."""

import asyncio
import itertools
import math

import pytest

from gramophone_client import AsyncClient, BadRequestError, Client
from models.checking.error_model import (
    Calibration,
    CalibrationPoint,
    CalibrationStore,
    ErrorTableStore,
    fit_error_table,
)
from models.language_model import BOS, EOS
from service.settings import Settings
from tests.support.fake_models import FakeModel, fake_vocabulary
from tests.support.services import running

MODEL = FakeModel(fake_vocabulary())
IDS = MODEL.vocabulary.ids
MODELS = ("mixture", "chars")
TEXTS = [
    "the cat \x00\x07\x1b[31m sat on \x7f mat",
    "\u202ethe \u05e9\u05dc\u05d5\u05dd \u0627\u0644\u0633\u0644\u0627\u0645 teh cat",
    "\U0001f600 teh \U0001f468\u200d\U0001f469\u200d\U0001f467 dgo \U0001f1e9\U0001f1ea sat",
    "cafe\u0301 tteh e\u0301\u0301\u0301 mat",
    "the cat\r\nteh dog\r\n",
    "\ufeffteh cat \u2028 sat \u0085 on",
]


def ask(http, text, **body):
    response = http.post("/v1/check", json={"text": text, **body})
    assert response.status_code == 200, response.text
    return response.json()


def refused(http, **body):
    response = http.post("/v1/check", json={"text": "the cat sat", **body})
    assert response.status_code == 400, response.text
    return response.json()["error"]


def test_words_have_their_surprisal_and_the_text_its_own(http):
    reply = ask(http, "the cat sat")
    ids = [BOS, IDS["the"], IDS["cat"], IDS["sat"], EOS]
    bits = [-float(MODEL.table[a, b]) / math.log(2) for a, b in itertools.pairwise(ids)]
    assert reply["model"] == "mixture@1"
    assert [word["surprisal_bits"] for word in reply["words"]] == pytest.approx(bits[:3], rel=1e-6)
    assert reply["surprisal_bits"] == pytest.approx(sum(bits), rel=1e-6)
    assert reply["bits_per_word"] == pytest.approx(sum(bits) / 4, rel=1e-6)


def test_surprisals_are_those_of_score(http):
    """For any tokenizer, if spaces separate the words."""
    for model in MODELS:
        words = ask(http, "a cat sat on the mat", model=model)["words"]
        scored = http.post(
            "/v1/score", json={"texts": ["a cat sat on the mat"], "detail": "word", "model": model}
        ).json()["results"][0]["words"]
        expected = [-word["logprob"] / math.log(2) for word in scored[:-1]]
        assert [word["surprisal_bits"] for word in words] == pytest.approx(expected, rel=1e-5)


def test_a_misspelled_word_is_an_issue_with_what_was_meant(http):
    reply = ask(http, "a hosue")
    (issue,) = reply["issues"]
    assert (issue["start"], issue["end"], issue["text"]) == (2, 7, "hosue")
    assert issue["type"] == "unknown_word"
    assert issue["suggestions"][0]["text"] == "house"
    assert issue["suggestions"][0]["edits"] == 1
    assert [word["known"] for word in reply["words"]] == [True, False]


def test_a_real_word_can_be_wrong_too(http):
    reply = ask(http, "the cat sat on a mat", threshold=0.0)
    assert {issue["type"] for issue in reply["issues"]} == {"real_word"}
    assert all(s["text"] in IDS for i in reply["issues"] for s in i["suggestions"])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("text", TEXTS)
def test_offsets_are_code_points_of_the_text_as_given(http, model, text):
    reply = ask(http, text, model=model, threshold=0.0)
    assert reply["words"]
    for found in (*reply["words"], *reply["issues"]):
        assert text[found["start"] : found["end"]] == found["text"]


def test_escaped_surrogates_are_one_code_point(http):
    content = b'{"text": "\\ud83d\\ude00 hosue"}'
    reply = http.post("/v1/check", content=content).json()
    assert [(word["start"], word["end"]) for word in reply["words"]] == [(0, 1), (2, 7)]


@pytest.mark.parametrize("text", ["", " ", " \n\t \u00a0\n"])
def test_a_text_without_words_has_none(http, text):
    reply = ask(http, text)
    assert (reply["words"], reply["issues"]) == ([], [])
    assert (reply["surprisal_bits"], reply["bits_per_word"]) == (0, None)


@pytest.mark.parametrize(("model", "count"), [("mixture", 2300), ("chars", 100)])
def test_a_hundred_thousand_characters_are_checked(http, model, count):
    line = "the cat sat on a hosue of the dog and ran"
    text = f"{line}\n" * count
    words = ask(http, text, model=model, max_suggestions=1)["words"]
    assert len(words) == 11 * count
    assert words[-1]["end"] == len(text) - 1


def test_long_lines_and_many_lines_are_told_alike(http):
    line = "of hosue of the dog"
    (first,) = ask(http, line)["issues"]
    issues = ask(http, f"{line}\n" * 200)["issues"]
    assert [i["start"] for i in issues] == [first["start"] + k * (len(line) + 1) for k in range(200)]
    assert {i["suggestions"][0]["text"] for i in issues} == {"house"}


def test_a_line_over_the_limit_of_tokens_is_refused(http):
    error = refused(http, text="the " * 1001)
    assert (error["param"], error["code"]) == ("text", "context_length_exceeded")
    assert "1001 tokens; at most 1000" in error["message"]


def span(start, end, *suggestions):
    return {"start": start, "end": end, "suggestions": list(suggestions)}


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"text": None}, "text", "None"),
        ({"threshold": 1.5}, "threshold", "1.5"),
        ({"threshold": -0.1}, "threshold", "-0.1"),
        ({"threshold": 0.5, "precision": 0.9}, None, "either threshold or precision"),
        ({"precision": 0.9}, "precision", "was not calibrated"),
        ({"max_suggestions": 21}, "max_suggestions", "21"),
        ({"max_suggestions": -1}, "max_suggestions", "-1"),
        ({"error_rate": 0}, "error_rate", "0"),
        ({"error_rate": 1.0}, "error_rate", "1"),
        ({"max_edits": 3}, "max_edits", "3"),
        ({"max_edits": 0}, "max_edits", "0"),
        ({"dictionary": [""]}, "dictionary[0]", "''"),
        ({"dictionary": ["a"] * 10_001}, "dictionary", "10000"),
        ({"candidates": [span(0, 3)]}, "candidates[0].suggestions", "[]"),
        ({"candidates": [span(0, 3, "a\nb")]}, "candidates[0].suggestions[0]", "pattern"),
        (
            {"candidates": [span(0, 3, {"text": "a", "logprob": 0.5})]},
            "candidates[0].suggestions[0].logprob",
            "0.5",
        ),
        ({"candidates": [span(0, 3, 5)]}, "candidates[0].suggestions[0]", "5"),
        ({"candidates": [span(3, 3, "a")]}, "candidates[0]", "greater than start"),
        ({"candidates": [span(-1, 3, "a")]}, "candidates[0].start", "-1"),
        ({"candidates": [span(0, 12, "a")]}, "candidates[0].end", "has 11 characters"),
        ({"candidates": [span(0, 3, "a"), span(2, 5, "b")]}, "candidates[1].start", "must not overlap"),
        ({"candidates": [span(4, 7, "a"), span(0, 5, "b")]}, "candidates[0].start", "must not overlap"),
        ({"text": "the\ncat", "candidates": [span(0, 7, "a")]}, "candidates[0]", "within one line"),
        ({"text": "the\n \ncat", "candidates": [span(4, 5, "a")]}, "candidates[0]", "within one line"),
        (
            {"candidates": [span(0, 3, *["a"] * 60), span(4, 7, *["a"] * 60)]},
            "candidates[].suggestions",
            "120",
        ),
        ({"nonsense": 1}, "nonsense", "nonsense"),
    ],
)
def test_a_wrong_value_is_named_with_its_limit(http, body, param, said):
    error = refused(http, **body)
    assert error["param"] == param
    assert said in error["message"]


def test_a_callers_suggestion_with_an_error_model_of_its_own_wins(http):
    candidates = [span(4, 7, {"text": "dog", "logprob": -0.001}, {"text": "cat", "logprob": -40.0})]
    (issue,) = ask(http, "the cat sat", candidates=candidates)["issues"]
    assert (issue["start"], issue["suggestions"][0]["text"]) == (4, "dog")


def test_dictionary_words_are_known_and_no_issues(http):
    reply = ask(http, "a hosue", dictionary=["Hosue"])
    assert reply["issues"] == []
    assert all(word["known"] for word in reply["words"])


@pytest.fixture
def calibrated(registry):
    points = [(0.2, 0.5, 0.9), (0.6, 0.8, 0.7), (0.95, 0.99, 0.4)]
    calibration = Calibration(
        model="mixture@1",
        kinds=["real_word"],
        words_per_error=20.0,
        points=[CalibrationPoint(threshold=t, precision=p, recall=r) for t, p, r in points],
        corpus_sha256="",
        created="",
    )
    path = CalibrationStore(registry.root).write(calibration)
    yield
    path.unlink()


@pytest.mark.usefixtures("calibrated")
def test_a_precision_is_made_a_threshold_where_it_was_measured(http):
    reply = ask(http, "a hosue", precision=0.75)
    assert (reply["threshold"], reply["precision"]) == (0.6, 0.8)
    assert ask(http, "a hosue")["precision"] == 0.5
    assert ask(http, "a hosue", threshold=0.1)["precision"] is None
    assert "at most 0.990" in refused(http, precision=0.995)["message"]


def test_a_damaged_calibration_is_told_without_its_folder(http, registry):
    path = registry.root / ".calibrations" / "chars@1.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text("{")
    try:
        without = http.post("/v1/check", json={"text": "a cat", "model": "chars"})
        response = http.post("/v1/check", json={"text": "a cat", "model": "chars", "precision": 0.9})
    finally:
        path.unlink()
    assert (without.status_code, without.json()["precision"]) == (200, None)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "document_damaged")
    assert str(registry.root) not in response.text


def test_a_table_of_errors_is_used_unless_it_is_damaged(http, registry):
    """Both of the service's APIs and, by `ask.check`, the command line and editors read it for each check."""
    path = registry.root / ".errors" / "mixture.json"
    before = ask(http, "a hosue", threshold=0.0)
    ErrorTableStore(registry.root).write("mixture", fit_error_table({"house": ["hosue"] * 500}, ""))
    try:
        fitted = ask(http, "a hosue", threshold=0.0)
        path.write_text("{")
        assert ask(http, "a hosue", threshold=0.0) == before
        assert http.post("/v2/check", data={"text": "a hosue", "language": "en-US"}).status_code == 200
    finally:
        path.unlink()
    assert fitted["words"] == before["words"]
    assert fitted["issues"] != before["issues"]


def test_both_clients_give_the_same_typed_reply(server):
    async def in_async():
        async with AsyncClient(server.url) as client:
            return await client.check("a hosue", max_suggestions=2)

    with Client(server.url) as client:
        reply = client.check("a hosue", max_suggestions=2)
        with pytest.raises(BadRequestError, match="threshold is 2"):
            client.check("a", threshold=2.0)
    assert reply == asyncio.run(in_async())
    assert reply.issues[0].suggestions[0].text == "house"


def test_answers_under_load_are_those_of_an_idle_service(server):
    texts = [f"the cat {'sat on a hosue ' * (k % 5)}teh dgo\n" * (1 + k % 3) for k in range(10)]

    async def main():
        async with AsyncClient(server.url) as client:
            ask_all = [(text, model) for text in texts for model in MODELS]
            alone = [await client.check(text, model=model) for text, model in ask_all]
            others = [client.generate("the", seed=k, max_tokens=20) for k in range(6)]
            *together, _ = await asyncio.gather(
                *(client.check(text, model=model) for text, model in ask_all), asyncio.gather(*others)
            )
            return alone, together

    alone, together = asyncio.run(main())
    assert alone == together


def test_a_failing_model_is_an_internal_error(http):
    response = http.post("/v1/check", json={"text": "the cat", "model": "broken"})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"


def test_a_request_out_of_time_is_answered_so(http):
    response = http.post("/v1/check", json={"text": "the cat " * 300, "model": "slow", "timeout_ms": 40})
    assert response.status_code == 504


@pytest.mark.parametrize("word", ["a" * 65_000, "a-" * 32_500])
def test_a_word_of_any_length_holds_nobody_up(http, word):
    reply = ask(http, f"the {word} cat", timeout_ms=1000)
    assert [(w["end"] - w["start"], w["known"]) for w in reply["words"]] == [
        (3, True),
        (len(word), False),
        (3, True),
    ]


@pytest.mark.parametrize("model", MODELS)
def test_empty_lines_are_stepped_over(http, model):
    reply = ask(http, "the\n" + "\n" * 40_000 + "cat", model=model)
    assert [word["start"] for word in reply["words"]] == [0, 40_004]


def test_probabilities_sum_to_one_however_improbable_a_suggestion_is(http):
    given = [{"text": text, "logprob": -1e308} for text in ("cat", "dog", "house")]
    (issue,) = ask(http, "the cat sat", threshold=0.0, candidates=[span(4, 7, *given)])["issues"][:1]
    assert sum(one["probability"] for one in issue["suggestions"]) <= 1 + 1e-9


def test_more_lines_than_are_accepted_are_refused(registry):
    settings = Settings(registry=registry.root, models=("mixture",))
    with running(settings) as server, Client(server.url) as client:
        with pytest.raises(BadRequestError, match="text has 131073 lines; at most 131072") as caught:
            client.check("\n" * 131_072)
        assert caught.value.param == "text"
        assert client.check("\n" * 131_071).words == []
