"""POST /tokenize, POST /detokenize and GET /tokenizer_info, as lm-evaluation-harness asks for them."""

import pytest


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
def test_what_was_tokenised_comes_back(http, model):
    text = "the cat sat" if model == "mixture" else "a naïve é."
    tokens = tokenize(http, text, model=model, add_special_tokens=False)["tokens"]
    reply = http.post("/detokenize", json={"tokens": tokens, "model": model})
    back = reply.json()
    assert back == {"prompt": text.replace("ï", "\ufffd")}


def test_control_tokens_spell_nothing(http):
    reply = http.post("/detokenize", json={"tokens": [1, 3, 2], "model": "mixture"})
    assert reply.json() == {"prompt": "the"}


def test_what_there_is_to_know_of_a_tokenizer(http, server):
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


@pytest.mark.parametrize(("path", "body", "parameter"), WRONG)
def test_errors_name_the_field(http, path, body, parameter):
    response = http.post(path, json={"model": "mixture", **body})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == parameter


def test_unknown_fields_are_ignored(http):
    assert tokenize(http, "the", add_special_tokens=False, return_token_strs=True)["tokens"] == [3]
