"""POST /v1/score and POST /v1/quality over HTTP, as a JSON object and as lines."""

import asyncio
import json
import math

import numpy as np
import pytest

from gramophone_client import AsyncClient, Client
from gramophone_client.types import ErrorBody
from models.language_model import BOS, EOS
from tests.support.fake_models import WORDS, FakeModel, fake_vocabulary

MODEL = FakeModel(fake_vocabulary())
IDS = MODEL.vocabulary.ids


def ask(http, **body):
    response = http.post("/v1/score", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def one(http, text, **body):
    return ask(http, texts=[text], **body)["results"][0]


def expected(words, *, before=BOS, eos=True):
    """Return log-probabilities of words from the made-up model's table."""
    ids = [IDS.get(word, 0) for word in words] + [EOS] * eos
    return [float(MODEL.table[a, b]) for a, b in zip([before, *ids], ids, strict=False)]


def test_a_text_is_the_sum_of_its_tokens(http):
    result = one(http, "the cat sat")
    want = expected(["the", "cat", "sat"])
    assert result["logprob"] == pytest.approx(sum(want), abs=1e-12)
    assert result["num_tokens"] == 4
    assert result["perplexity"] == pytest.approx(math.exp(-sum(want) / 4))
    assert result["bits_per_byte"] == pytest.approx(-sum(want) / math.log(2) / len("the cat sat"))


@pytest.mark.parametrize(("bos", "before"), [(True, BOS), (False, -1)])
@pytest.mark.parametrize("eos", [True, False])
def test_sentence_marks_are_optional(http, bos, before, eos):
    result = one(http, "a dog", bos=bos, eos=eos)
    assert result["logprob"] == pytest.approx(sum(expected(["a", "dog"], before=before, eos=eos)))


def test_a_context_is_read_and_not_scored(http):
    whole = expected(["the", "cat", "sat"])
    assert one(http, " sat", context="the cat")["logprob"] == pytest.approx(sum(whole[2:]))


def test_a_token_across_the_border_is_the_texts(http):
    """The context ends inside `cat`, so `cat` is scored and `the` is not."""
    result = one(http, "t sat", context="the ca", detail="token")
    assert [token["text"] for token in result["tokens"]] == ["cat", "sat", "</s>"]


def test_unknown_words_are_counted_and_included(http):
    result = one(http, "the zebra sat", detail="word")
    assert result["num_oov"] == 1
    assert [word["is_oov"] for word in result["words"]] == [False, True, False, False]


def test_tokens_add_up_to_their_text(http):
    result = one(http, "the dog ran", detail="token")
    assert [token["id"] for token in result["tokens"]] == [IDS["the"], IDS["dog"], IDS["ran"], EOS]
    assert sum(token["logprob"] for token in result["tokens"]) == pytest.approx(result["logprob"])


def test_a_model_without_ngrams_reports_no_lengths(http):
    assert one(http, "the dog", ngram_lengths=True) == one(http, "the dog")


def test_words_gather_their_characters(http):
    result = one(http, "a cat", model="chars", detail="word")
    assert [(word["text"], word["num_tokens"]) for word in result["words"]] == [
        ("a", 1),
        ("cat", 4),
        ("</s>", 1),
    ]
    assert sum(word["logprob"] for word in result["words"]) == pytest.approx(result["logprob"])


def test_totals_are_of_all_texts(http):
    texts = ["the cat", "a dog ran of", "zebra"]
    reply = ask(http, texts=texts)
    assert reply["corpus"]["logprob"] == pytest.approx(sum(r["logprob"] for r in reply["results"]))
    assert reply["corpus"]["num_tokens"] == 3 + 5 + 2
    assert reply["corpus"]["num_oov"] == 1
    assert reply["corpus"]["perplexity"] == pytest.approx(math.exp(-reply["corpus"]["logprob"] / 10))


def test_token_ids_are_scored_as_their_text(http):
    by_ids = ask(http, token_ids=[[IDS["the"], IDS["cat"]]])
    assert by_ids == ask(http, texts=["the cat"])


def test_a_batch_is_scored_as_each_alone(http):
    rng = np.random.default_rng(3)
    texts = [" ".join(rng.choice(list(IDS), size=rng.integers(1, 30))) for _ in range(60)]
    assert ask(http, texts=texts)["results"] == [one(http, text) for text in texts]


def lines(http, content, **query):
    response = http.post(
        "/v1/score", content=content, params=query, headers={"content-type": "application/x-ndjson"}
    )
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.removesuffix("\n").split("\n")]


def test_lines_are_answered_in_order_and_bad_ones_do_not_stop_the_others(http):
    asked = [b'{"text":"the cat"}', b'{"text":""}', b"no json", b'{"token_ids":[99]}']
    content = b"\n".join([*asked, '{"text":"a \u2028 dog","context":"the"}'.encode()])
    answers = lines(http, content)
    assert answers[0] == one(http, "the cat")
    assert [a["error"]["param"] for a in answers[1:4]] == ["text", None, "token_ids[0]"]
    assert answers[4]["logprob"] < 0


def test_many_lines_are_scored_as_each_alone(http):
    texts = [f"the {'cat ' * (n % 7)}sat" for n in range(300)]
    content = "\n".join(json.dumps({"text": text}) for text in texts)
    answers = lines(http, content, detail="token", eos="false")
    assert answers == ask(http, texts=texts[:100], detail="token", eos=False)["results"] + answers[100:]
    assert len(answers) == 300


def test_options_of_lines_are_checked(http):
    response = http.post(
        "/v1/score?detail=much", content=b"{}", headers={"content-type": "application/x-ndjson"}
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "detail"


def distinct_texts(count):
    """Return texts of 20 words without common prefixes, so none shares work with another."""
    random = np.random.default_rng(4)
    return [" ".join(random.choice(WORDS, 20)) for _ in range(count)]


def test_a_failure_on_the_way_is_the_last_line(http, server):
    """The request times out after some lines: they are sent, and the last line gives the reason."""
    engine = server.app.state.services.engine
    content = "\n".join(json.dumps({"text": text}) for text in ["the"] * 256 + distinct_texts(600))
    patient, engine.request_timeout_s = engine.request_timeout_s, 0.4
    try:
        answers = lines(http, content.encode(), model="slow")
    finally:
        engine.request_timeout_s = patient
    assert answers[-1]["error"]["code"] == "deadline_exceeded"
    assert 256 < len(answers) < 856


def ask_quality(http, texts, **body):
    response = http.post("/v1/quality", json={"texts": texts, **body})
    assert response.status_code == 200, response.text
    return response.json()


def lines_of_quality(http, content, **query):
    response = http.post(
        "/v1/quality", content=content, params=query, headers={"content-type": "application/x-ndjson"}
    )
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.removesuffix("\n").split("\n")]


def test_figures_are_those_of_score(http):
    text = "the cat sat on the zebra"
    reply = ask_quality(http, [text])
    (result,) = reply["results"]
    scored = http.post("/v1/score", json={"texts": [text]}).json()["results"][0]
    assert (reply["model"], reply["against"]) == ("mixture@1", None)
    assert result["perplexity"] == scored["perplexity"]
    assert result["bits_per_byte"] == scored["bits_per_byte"]
    assert result["bits_per_word"] == pytest.approx(scored["bits_per_byte"] * len(text) / 7)
    assert (result["num_words"], result["num_oov"], result["difference"]) == (6, 1, None)


def test_the_difference_is_that_of_bits_per_word(http):
    """The two models may have different tokens."""
    own = ask_quality(http, ["a cat sat"], model="mixture")["results"][0]
    other = ask_quality(http, ["a cat sat"], model="chars")["results"][0]
    reply = ask_quality(http, ["a cat sat"], model="mixture", against="chars")
    assert reply["against"] == "chars@1"
    assert reply["results"][0]["difference"] == pytest.approx(own["bits_per_word"] - other["bits_per_word"])
    assert ask_quality(http, ["a cat sat"], against="mixture")["results"][0]["difference"] == 0


def test_texts_may_have_names(http):
    results = ask_quality(http, [{"id": "first", "text": "the cat"}, "the cat"])["results"]
    assert [result.pop("id") for result in results] == ["first", None]
    assert results[0] == results[1]


def test_lines_are_answered_in_order_and_one_bad_line_fails_alone(http):
    asked = [b'{"text":"the cat","id":"1"}', b'{"text":""}', b"no json", b'{"text":"a","x":1}', b""]
    content = b"\n".join([*asked, '{"text":"a \u2028 dog","id":"\u05e9"}'.encode()])
    answers = lines_of_quality(http, content, against="chars")
    assert answers[0] == ask_quality(http, [{"text": "the cat", "id": "1"}], against="chars")["results"][0]
    assert [answer["error"]["param"] for answer in answers[1:5]] == ["text", None, "x", None]
    assert answers[5]["id"] == "\u05e9"
    assert len(answers) == 6


def test_many_lines_are_rated_as_each_alone(http):
    texts = [f"the {'cat ' * (n % 7)}sat" for n in range(700)]
    content = "\n".join(json.dumps({"text": text}) for text in texts)
    answers = lines_of_quality(http, content)
    assert answers[:7] * 100 == answers
    assert answers[:7] == ask_quality(http, texts[:7])["results"]


def test_a_line_that_is_too_long_fails_alone(http):
    content = b'{"text":"' + b"the " * 1001 + b'"}\n{"text":"the cat"}'
    long, fine = lines_of_quality(http, content)
    assert long["error"]["code"] == "context_length_exceeded"
    assert fine["num_words"] == 2


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({}, "texts", "required"),
        ({"texts": []}, "texts", "[]"),
        ({"texts": ["a", ""]}, "texts[1]", "empty"),
        ({"texts": [5]}, "texts[0]", "5"),
        ({"texts": [{"id": "a"}]}, "texts[0].text", "required"),
        ({"texts": ["a"], "against": 5}, "against", "5"),
        ({"texts": ["a"] * 101}, "texts", "101 entries; at most 100"),
    ],
)
def test_a_wrong_value_is_named_with_its_limit(http, body, param, said):
    response = http.post("/v1/quality", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert said in response.json()["error"]["message"]


@pytest.mark.parametrize("body", [{"model": "nobody"}, {"against": "nobody"}])
def test_an_unknown_model_is_not_found(http, body):
    response = http.post("/v1/quality", json={"texts": ["a"], **body})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


def test_options_of_quality_lines_are_checked(http):
    headers = {"content-type": "application/x-ndjson"}
    response = http.post("/v1/quality?detail=word", content=b"{}", headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "detail"


def test_a_failure_is_the_last_line_of_quality(http, server):
    engine = server.app.state.services.engine
    content = "\n".join(json.dumps({"text": text}) for text in ["the"] * 256 + distinct_texts(600))
    patient, engine.request_timeout_s = engine.request_timeout_s, 0.4
    try:
        answers = lines_of_quality(http, content.encode(), model="slow")
    finally:
        engine.request_timeout_s = patient
    assert answers[-1]["error"]["code"] == "deadline_exceeded"
    assert 256 < len(answers) < 856


def test_both_clients_rate_lines_in_order(server):
    items = [{"text": "the cat", "id": "1"}, {"text": ""}, {"text": "a dog"}]

    async def in_async():
        async with AsyncClient(server.url) as client:
            found = [one async for one in client.quality_lines(items, against="chars")]
            return found, await client.quality(["the cat"])

    with Client(server.url) as client:
        outcomes = list(client.quality_lines(items, against="chars"))
        reply = client.quality(["the cat"])
    assert (outcomes, reply) == asyncio.run(in_async())
    assert isinstance(outcomes[1], ErrorBody)
    assert outcomes[0].id == "1"


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/jsonl", "text/plain", None])
def test_only_one_media_type_is_a_stream_of_lines(http, kind):
    headers = {} if kind is None else {"content-type": kind}
    response = http.post("/v1/score", content=b'{"texts": ["the cat"]}', headers=headers)
    assert (response.status_code, len(response.json()["results"])) == (200, 1)
