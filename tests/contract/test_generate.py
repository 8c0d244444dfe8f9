"""POST /v1/generate over HTTP, whole and streamed."""

import json
import time

import httpx
import pytest


def ask(http, **body):
    response = http.post("/v1/generate", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def events(http, **body):
    with http.stream("POST", "/v1/generate", json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        blocks = response.read().decode().split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


CASES = [
    {"prompt": "the", "model": "slow", "max_tokens": 6, "seed": 5},
    {"prompt": "the cat", "seed": 11},
    {"prompt": "c", "model": "chars", "seed": 1, "max_tokens": 40, "stop": ["a", "ee", "o."]},
    {
        "prompt": "c",
        "model": "chars",
        "seed": 2,
        "max_tokens": 40,
        "temperature": 1.7,
        "top_k": 9,
        "top_p": 0.9,
    },
    {"prompt": [3], "strategy": "greedy", "max_tokens": 5, "logprobs": True},
]


@pytest.mark.parametrize("body", CASES)
def test_a_stream_adds_up_to_the_whole(http, body):
    whole = ask(http, **body)
    parts = [event["choices"][0] for event in events(http, **body)]
    choice = whole["choices"][0]
    assert "".join(part["text"] for part in parts) == choice["text"]
    assert [i for part in parts for i in part["token_ids"]] == choice["token_ids"]
    assert parts[-1]["finish_reason"] == choice["finish_reason"]
    assert all(part["finish_reason"] is None and len(part["token_ids"]) == 1 for part in parts[:-1])


def test_usage_counts_prompt_and_tokens_and_comes_last(http):
    body = {"prompt": "the cat", "model": "slow", "max_tokens": 3, "seed": 0}
    want = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert ask(http, **body)["usage"] == want
    assert [event["usage"] for event in events(http, **body)] == [None] * 3 + [want]


def test_the_same_seed_gives_the_same_text_and_another_gives_another(http):
    body = {"model": "chars", "max_tokens": 60, "seed": 42}
    assert ask(http, **body) == ask(http, **body)
    assert ask(http, **body) != ask(http, **{**body, "seed": 43})


def test_temperature_zero_is_greedy_whatever_the_seed(http):
    greedy = ask(http, model="chars", strategy="greedy", max_tokens=20)
    assert ask(http, model="chars", temperature=0, seed=9, max_tokens=20) == greedy


def test_logprobs_are_the_models_own_whatever_the_temperature(http):
    choice = ask(http, prompt="the", model="slow", temperature=5.0, seed=1, max_tokens=4, logprobs=True)[
        "choices"
    ][0]
    ids = choice["token_ids"]
    scored = http.post(
        "/v1/score",
        json={"token_ids": [ids], "context": [3], "model": "slow", "eos": False, "detail": "token"},
    ).json()
    assert choice["logprobs"] == [token["logprob"] for token in scored["results"][0]["tokens"]]


def test_unknown_words_are_never_generated(http):
    for seed in range(5):
        choice = ask(http, prompt="the", model="chars", seed=seed, max_tokens=200)["choices"][0]
        assert 0 not in choice["token_ids"]
        assert "\ufffd" not in choice["text"]


@pytest.mark.parametrize("seed", range(8))
def test_stop_strings_end_the_text_and_are_never_in_it(http, seed):
    body = {"model": "chars", "seed": seed, "max_tokens": 80}
    free = ask(http, **body)["choices"][0]["text"]
    stopped = ask(http, **body, stop=["ab", free[5:8]])["choices"][0]
    assert free[5:8] not in stopped["text"]
    assert free.startswith(stopped["text"])
    assert stopped["finish_reason"] == "stop"


def test_the_end_of_the_sentence_and_the_limit_are_told_apart(http):
    reasons = {
        ask(http, prompt="the", seed=seed, max_tokens=3)["choices"][0]["finish_reason"] for seed in range(20)
    }
    assert reasons == {"stop", "length"}
    assert ask(http, model="chars", max_tokens=3)["choices"][0]["finish_reason"] == "length"


def test_what_is_wrong_before_the_first_event_has_its_status(http):
    response = http.post("/v1/generate", json={"prompt": [999], "stream": True})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt[0]"


def test_a_failure_after_the_first_event_is_an_event(http, server):
    model = server.app.state.services.host.resolve("slow").model
    with http.stream(
        "POST", "/v1/generate", json={"model": "slow", "stream": True, "max_tokens": 50}
    ) as response:
        lines = response.iter_lines()
        next(lines)
        model.fails = True
        try:
            rest = [line for line in lines if line]
        finally:
            model.fails = False
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "internal_error"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_its_work(http, server, stream):
    engine = server.app.state.services.engine
    body = {"model": "slow", "max_tokens": 1000, "stream": stream}
    with httpx.Client(base_url=server.url, timeout=0.1) as impatient:
        if stream:
            with impatient.stream("POST", "/v1/generate", json=body) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                impatient.post("/v1/generate", json=body)
    for _ in range(100):
        if len(engine.scheduler) == 0:
            break
        time.sleep(0.01)
    assert len(engine.scheduler) == 0
