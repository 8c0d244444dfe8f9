"""POST /v1/next-token with units token and word; POST /tokenize, POST /detokenize, GET /tokenizer_info."""

import math

import numpy as np
import pytest

from models.language_model import BOS, entropy_bits
from tests.support.fake_models import FakeModel, fake_vocabulary

MODEL = FakeModel(fake_vocabulary())
THE, CAT = 3, 4


def ask(http, **body):
    response = http.post("/v1/next-token", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_candidates_are_the_models_own_in_order(http):
    reply = ask(http, context="the cat", top_k=4)
    row = MODEL.table[CAT]
    best = np.argsort(-row, kind="stable")[:4]
    candidates = reply["results"][0]["candidates"]
    assert [c["id"] for c in candidates] == best.tolist()
    assert [c["text"] for c in candidates] == [MODEL.vocabulary[i] for i in best]
    assert [c["logprob"] for c in candidates] == [float(row[i]) for i in best]
    assert reply["model"] == "mixture@1"


def test_entropy_is_of_the_whole_distribution(http):
    reply = ask(http, context="the", top_k=1)
    assert reply["results"][0]["entropy_bits"] == pytest.approx(entropy_bits(MODEL.table[[THE]])[0])


def test_ten_candidates_are_the_default(http):
    assert len(ask(http, context="the")["results"][0]["candidates"]) == 10


@pytest.mark.parametrize("context", ["the cat", [THE, CAT]])
def test_text_and_its_ids_are_answered_alike(http, context):
    assert ask(http, context=context) == ask(http, context="the cat")


@pytest.mark.parametrize(
    "contexts", [["", "the", "the cat sat on", "a dog"], [[], [THE], [THE, CAT, 5, 6], [8, 9]]]
)
def test_a_batch_of_unequal_contexts_is_answered_as_each_alone(http, contexts):
    together = ask(http, context=contexts)["results"]
    assert together == [ask(http, context=one)["results"][0] for one in contexts]


def test_an_empty_context_is_the_start_of_a_sentence(http):
    best = ask(http, context="", top_k=1)["results"][0]["candidates"][0]["id"]
    assert best == int(MODEL.table[BOS].argmax())


def test_impossible_token_has_a_finite_log_probability(http):
    candidates = ask(http, context="the", top_k=13)["results"][0]["candidates"]
    assert candidates[-1] == {"id": BOS, "text": "<s>", "logprob": -9999.0}


def test_whole_distributions_come_as_float32(http):
    response = http.post(
        "/v1/next-token", json={"context": ["the", "the cat"]}, headers={"accept": "application/octet-stream"}
    )
    assert response.headers["x-shape"] == "2,13"
    rows = np.frombuffer(response.content, "<f4").reshape(2, 13)
    assert rows[:, BOS].tolist() == [-9999.0, -9999.0]
    np.testing.assert_array_equal(np.delete(rows, BOS, 1), np.delete(MODEL.table[[THE, CAT]], BOS, 1))
    assert all(math.isclose(np.exp(row, dtype=float).sum(), 1, abs_tol=1e-5) for row in rows)


@pytest.mark.parametrize("address", ["mixture", "mixture@1", "mixture@champion", None])
def test_a_model_has_several_addresses(http, address):
    assert ask(http, context="the", model=address)["model"] == "mixture@1"


def next_words(http, **body):
    response = http.post("/v1/next-token", json={"unit": "word", **body})
    assert response.status_code == 200, response.text
    return response.json()["results"]


def refused(http, **body):
    response = http.post("/v1/next-token", json={"unit": "word", **body})
    assert response.status_code == 400, response.text
    return response.json()["error"]


@pytest.mark.parametrize("context", ["", "the", "the cat", "the cat "])
def test_next_words_equal_next_tokens_of_a_word_tokenizer(http, context):
    tokens = http.post("/v1/next-token", json={"context": context, "top_k": 10}).json()["results"][0]
    told = [c for c in tokens["candidates"] if not c["text"].startswith("<")]
    (words,) = next_words(http, context=context, top_k=5)
    assert [word["text"] for word in words["candidates"]] == [c["text"] for c in told[:5]]
    assert [word["logprob"] for word in words["candidates"]] == pytest.approx(
        [c["logprob"] for c in told[:5]], abs=1e-6
    )
    assert words["unexplored_mass"] == pytest.approx(0, abs=1e-6)


def test_a_batch_is_answered_as_each_alone(http):
    together = next_words(http, context=["the", "a dog", ""], top_k=3)
    assert together == [next_words(http, context=one, top_k=3)[0] for one in ("the", "a dog", "")]


def test_words_are_put_together_from_characters(http):
    (found,) = next_words(http, context="the ", top_k=20, model="chars")
    total = sum(math.exp(word["logprob"]) for word in found["candidates"])
    assert all(word["text"].isalpha() for word in found["candidates"])
    assert 0 < total <= 1
    assert 0 <= found["unexplored_mass"] < 1


def test_token_ids_have_no_word_to_come(http):
    error = refused(http, context=[3, 4])
    assert error["param"] == "context"
    assert "requires a string" in error["message"]


def test_requested_tokens_come_in_the_requests_order(http):
    reply = ask(http, context=["the", "the cat"], token_ids=[5, 2, 5])
    for result, row in zip(reply["results"], MODEL.table[[THE, CAT]], strict=True):
        assert result["candidates"] == [
            {"id": i, "text": MODEL.vocabulary[i], "logprob": float(row[i])} for i in (5, 2, 5)
        ]
        assert result["entropy_bits"] == pytest.approx(entropy_bits(row[None])[0])
    quick = ask(http, context=["the", "the cat"], token_ids=[5, 2, 5], entropy=False)["results"]
    assert [one["candidates"] for one in quick] == [one["candidates"] for one in reply["results"]]
    assert {one["entropy_bits"] for one in quick} == {None}


def test_the_logprob_of_a_text_is_the_sum_of_its_chain(http):
    reply = ask(http, context=["the", "a dog"], candidates=[" cat", " cat sat"])
    for before, result in zip([THE, MODEL.vocabulary.id_of("dog")], reply["results"], strict=True):
        one, two = result["candidates"]
        sat = MODEL.vocabulary.id_of("sat")
        first, second = float(MODEL.table[before, CAT]), float(MODEL.table[CAT, sat])
        assert one == {"text": " cat", "token_ids": [CAT], "logprob": first}
        assert two == {"text": " cat sat", "token_ids": [CAT, sat], "logprob": first + second}
    scores = http.post(
        "/v1/score", json={"texts": [" cat", " cat sat"], "context": "the", "eos": False}
    ).json()
    told = [one["logprob"] for one in reply["results"][0]["candidates"]]
    assert [one["logprob"] for one in scores["results"]] == pytest.approx(told, abs=1e-6)


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"token_ids": []}, "token_ids", "at least 1 item"),
        ({"token_ids": [3, 13]}, "token_ids[1]", "is 13, but this model's token ids are 0 to 12"),
        ({"token_ids": [3] * 14}, "token_ids", "has 14 entries; the model's vocabulary has 13"),
        ({"candidates": []}, "candidates", "at least 1 item"),
        ({"candidates": ["a", ""]}, "candidates[1]", "is '': string should have at least 1 character"),
        ({"candidates": [" "]}, "candidates[0]", "' ' has no token, so it cannot be scored after a context"),
        ({"candidates": [" a"] * 51, "context": ["a", "b"]}, "candidates", "51 entries for 2 contexts"),
        ({"candidates": ["a " * 1001]}, "candidates[0]", "has 1001 tokens; at most 1000"),
        ({"candidates": ["a"], "context": [3, 4]}, "context", "both must be of one kind"),
        ({"candidates": ["a"], "token_ids": [3]}, None, "give one of top_k, candidates and token_ids"),
        ({"candidates": ["a"], "top_k": 3}, None, "give one of top_k, candidates and token_ids"),
        ({"token_ids": [3], "top_k": 3}, None, "give one of top_k, candidates and token_ids"),
        ({"token_ids": [3], "unit": "word"}, None, "unit 'word' accepts only top_k"),
    ],
)
def test_invalid_requests_for_tokens_name_the_field(http, body, param, says):
    response = http.post("/v1/next-token", json={"context": "the", **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


def test_too_many_words_are_refused(http):
    error = refused(http, context="the", top_k=101)
    assert error["param"] == "top_k"
    assert "at most 100" in error["message"]


def tokenize(http, prompt, **body):
    response = http.post("/tokenize", json={"prompt": prompt, "model": "mixture", **body})
    assert response.status_code == 200, response.text
    return response.json()


def test_tokens_and_what_they_are_called(http):
    assert tokenize(http, "the cat zzz", add_special_tokens=False) == {
        "count": 3,
        "max_model_len": 1000,
        "tokens": [3, 4, 0],
        "token_strs": [" the", " cat", "<unk>"],
    }


@pytest.mark.parametrize("special", [{}, {"add_special_tokens": True}, {"add_special_tokens": None}])
def test_the_start_stands_first_unless_refused(http, special):
    assert tokenize(http, "the cat", **special)["tokens"] == [1, 3, 4]
    assert tokenize(http, "", **special)["tokens"] == [1]
    assert tokenize(http, "<s>", **special)["tokens"] == [1]


@pytest.mark.parametrize(("symbol", "token"), [("<unk>", 0), ("<s>", 1), ("</s>", 2)])
def test_a_control_symbol_alone_is_its_id(http, symbol, token):
    assert tokenize(http, symbol, add_special_tokens=False)["tokens"] == [token]
    within = tokenize(http, f"the {symbol}", add_special_tokens=False)["tokens"]
    assert within == [3, 0]


@pytest.mark.parametrize("model", ["mixture", "chars"])
def test_detokenize_reverses_tokenize(http, model):
    text = "the cat sat" if model == "mixture" else "a naïve é."
    tokens = tokenize(http, text, model=model, add_special_tokens=False)["tokens"]
    reply = http.post("/detokenize", json={"tokens": tokens, "model": model})
    back = reply.json()
    assert back == {"prompt": text.replace("ï", "\ufffd")}


def test_control_tokens_spell_nothing(http):
    reply = http.post("/detokenize", json={"tokens": [1, 3, 2], "model": "mixture"})
    assert reply.json() == {"prompt": "the"}


def test_tokenizer_info_describes_the_tokenizer(http, server):
    info = http.get("/tokenizer_info").json()
    assert (info["bos_token"], info["eos_token"], info["unk_token"]) == ("<s>", "</s>", "<unk>")
    assert (info["bos_token_id"], info["eos_token_id"], info["unk_token_id"]) == (1, 2, 0)
    assert (info["model"], info["tokenizer_class"], info["vocab_size"]) == ("mixture@1", "word", 13)
    loaded = server.app.state.services.host.resolve("mixture")
    assert info["fingerprint"] == loaded.tokenizer.fingerprint


def test_another_models_tokenizer_by_its_address(http):
    info = http.get("/tokenizer_info", params={"model": "chars@1"}).json()
    assert (info["model"], info["tokenizer_class"]) == ("chars@1", "char")
    assert http.get("/tokenizer_info", params={"model": "nobody"}).status_code == 404


WRONG = [
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": ["the"]}, "prompt"),
    ("/tokenize", {"prompt": "the " * 1001}, "prompt"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": [3, 99]}, "tokens[1]"),
    ("/detokenize", {"tokens": [3] * 1001}, "tokens"),
    ("/detokenize", {"tokens": "the"}, "tokens"),
]


@pytest.mark.parametrize(("path", "body", "param"), WRONG)
def test_errors_name_the_field(http, path, body, param):
    response = http.post(path, json={"model": "mixture", **body})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_unknown_fields_are_ignored(http):
    assert tokenize(http, "the", add_special_tokens=False, return_token_strs=True)["tokens"] == [3]
