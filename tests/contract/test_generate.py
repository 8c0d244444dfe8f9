"""POST /v1/generate over HTTP, in one reply and streamed; failures after the first event."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from service.routes import replies


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
    {"prompt": "the", "n": 3, "seed": 4, "min_tokens": 2, "logprobs": 2},
    {
        "prompt": "the",
        "strategy": "beam",
        "n": 2,
        "num_beams": 6,
        "num_beam_groups": 2,
        "diversity_penalty": 1,
    },
    {
        "prompt": "the cat",
        "seed": 1,
        "typical_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"4": 2, "5": -100},
        "bad_words": ["sat on", "dog"],
        "ignore_eos": True,
        "max_tokens": 12,
    },
]


@pytest.mark.parametrize("body", CASES)
def test_a_stream_adds_up_to_the_whole(http, body):
    whole, told = ask(http, **body), events(http, **body)
    for choice in whole["choices"]:
        parts = [one for event in told for one in event["choices"] if one["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        for name in ("token_ids", "logprobs", "top_logprobs"):
            joined = None if parts[0][name] is None else [item for part in parts for item in part[name]]
            assert joined == choice[name]
        assert (parts[-1]["finish_reason"], parts[-1]["score"]) == (choice["finish_reason"], choice["score"])
        assert all(part["finish_reason"] is None and len(part["token_ids"]) == 1 for part in parts[:-1])
    assert [event["usage"] for event in told] == [None] * (len(told) - 1) + [whole["usage"]]


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


def test_error_before_the_first_event_has_an_error_status(http):
    response = http.post("/v1/generate", json={"prompt": [999], "stream": True})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt[0]"


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


def test_several_choices_differ_and_the_first_is_what_one_would_be(http):
    body = {"model": "chars", "max_tokens": 20, "seed": 3}
    choices = ask(http, **body, n=5)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3, 4]
    assert len({choice["text"] for choice in choices}) == 5
    assert choices[0] == ask(http, **body)["choices"][0]


def test_usage_counts_the_tokens_of_all_choices(http):
    usage = ask(http, prompt="the cat", model="slow", max_tokens=3, n=4)["usage"]
    assert usage == {"prompt_tokens": 2, "completion_tokens": 12, "total_tokens": 14}


def test_the_same_seed_gives_the_same_text_under_load(http, server):
    """Alone, and beside forty other generations."""
    bodies = [{"model": "chars", "max_tokens": 30, "seed": seed, "n": 1 + seed % 3} for seed in range(40)]
    bodies += [{"model": "chars", "strategy": "beam", "max_tokens": 10, "prompt": c} for c in "abcd"]
    alone = [ask(http, **body)["choices"] for body in bodies]
    with ThreadPoolExecutor(16) as pool, httpx.Client(base_url=server.url, timeout=30) as other:
        together = list(pool.map(lambda body: ask(other, **body)["choices"], bodies))
    assert together == alone


def test_the_best_choices_come_first(http):
    body = {"model": "chars", "max_tokens": 10, "seed": 3}
    scores = sorted((choice["score"] for choice in ask(http, **body, n=20)["choices"]), reverse=True)
    assert [choice["score"] for choice in ask(http, **body, n=4, best_of=20)["choices"]] == scores[:4]
    beams = [choice["score"] for choice in ask(http, **body, strategy="beam", n=8)["choices"]]
    assert beams == sorted(beams, reverse=True)


def test_beams_find_what_is_more_probable_than_greedy(http):
    def total(choice):
        return sum(choice["logprobs"])

    body = {"model": "chars", "max_tokens": 6, "logprobs": True}
    greedy = ask(http, **body, strategy="greedy")["choices"][0]
    beam = ask(http, **body, strategy="beam", num_beams=32)["choices"][0]
    assert total(beam) > total(greedy)
    assert beam["score"] == pytest.approx(total(beam) / 6)


def test_alternatives_are_the_next_tokens(http):
    choice = ask(http, prompt="the", model="slow", logprobs=4, max_tokens=1, temperature=9, seed=3)[
        "choices"
    ][0]
    following = http.post("/v1/next-token", json={"context": "the", "model": "slow", "top_k": 4}).json()
    assert choice["top_logprobs"] == [following["results"][0]["candidates"]]


def test_no_alternatives_are_not_no_logprobs(http):
    choice = ask(http, prompt="the", logprobs=0, max_tokens=3, seed=0)["choices"][0]
    assert len(choice["logprobs"]) == len(choice["token_ids"])
    assert choice["top_logprobs"] is None


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"n": 65}, "n", "n is 65; it must be from 1 to 64"),
        ({"best_of": 65}, "best_of", "best_of is 65"),
        ({"strategy": "beam", "num_beams": 65}, "num_beams", "num_beams is 65"),
        ({"num_beams": 3}, "num_beams", "needs strategy 'beam', but strategy is 'sample'"),
        ({"best_of": 2, "stream": True}, "best_of", "cannot be streamed"),
        ({"logprobs": 21}, "logprobs", "less than or equal to 20"),
        ({"logprobs": -1}, "logprobs", "greater than or equal to 0"),
        ({"logit_bias": {"the": 1}}, "logit_bias", "has the key 'the'; keys must be token ids"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "keys must be token ids"),
        ({"logit_bias": {"99": 1}}, "logit_bias.99", "this model's token ids are 0 to 12"),
        ({"logit_bias": {"4": 101}}, "logit_bias.4", "logit_bias.4 is 101.0; it must be from -100 to 100"),
        ({"logit_bias": {str(i): 0 for i in range(1025)}}, "logit_bias", "1025 entries"),
        ({"bad_words": ["x"] * 1025}, "bad_words", "bad_words is 1025 strings"),
        ({"bad_words": [""]}, "bad_words[0]", "0 characters long"),
        ({"phrases": [{"text": "x " * 17}]}, "phrases[0].text", "17 words; a phrase has from 1 to 16"),
        ({"phrases": [{"text": "x", "weight": -1}]}, "phrases[0].weight", "must be above 0 and at most 1000"),
        ({"min_tokens": 65}, "min_tokens", "must be from 0 to max_tokens, which is 64"),
        ({"min_p": 1.5}, "min_p", "min_p is 1.5"),
        ({"typical_p": 0}, "typical_p", "typical_p is 0"),
        ({"presence_penalty": 2.1}, "presence_penalty", "must be from -2 to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "must be above 0"),
        ({"n": 64, "max_tokens": 1000, "logprobs": 20}, "max_tokens", "a reply has at most 131072"),
    ],
)
def test_value_beyond_a_limit_is_refused_with_field_limit_and_value(http, body, param, message):
    response = http.post("/v1/generate", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert message in error["message"]


def test_bad_words_and_biases_hold(http):
    body = {"prompt": "the", "seed": 0, "max_tokens": 200, "ignore_eos": True, "n": 4}
    free = " ".join(choice["text"] for choice in ask(http, **body)["choices"])
    assert "cat" in free
    assert "on mat" in free
    for choice in ask(http, **body, bad_words=["cat", "on mat"], logit_bias={"8": -100})["choices"]:
        assert len(choice["token_ids"]) == 200
        assert "cat" not in choice["text"]
        assert "on mat" not in choice["text"]
        assert 8 not in choice["token_ids"]


@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
def test_phrases_are_favoured_and_unknown_ones_change_nothing(http, strategy):
    body = {
        "prompt": "the",
        "seed": 0,
        "max_tokens": 12,
        "ignore_eos": True,
        "strategy": strategy,
        "logprobs": True,
    }
    favoured = ask(http, **body, phrases=[{"text": "dog sat", "weight": 100}])["choices"][0]
    assert favoured["text"].split().count("dog") >= 3
    assert all(logprob <= 0 for logprob in favoured["logprobs"])
    assert ask(http, **body, phrases=[{"text": "Jaan Tamm"}]) == ask(http, **body)


@pytest.fixture
def frequent_heartbeats(monkeypatch):
    monkeypatch.setattr(replies, "HEARTBEAT_S", 0.02)


@pytest.mark.usefixtures("frequent_heartbeats")
def test_a_silent_stream_shows_that_it_is_alive(http, server, monkeypatch):
    """Before the first event, which beams send only at the end, and between events."""
    model = server.app.state.services.host.resolve("slow").model
    for body in ({"max_tokens": 2}, {"max_tokens": 2, "strategy": "beam"}):
        monkeypatch.setattr(model, "delay_s", 0.15)
        with http.stream("POST", "/v1/generate", json={"model": "slow", "stream": True, **body}) as response:
            text = response.read().decode()
        blocks = text.split("\n\n")
        assert blocks.count(": ") >= 5
        assert [block for block in blocks if block not in {": ", ""}][-1] == "data: [DONE]"


@pytest.mark.usefixtures("frequent_heartbeats")
def test_error_after_a_heartbeat_is_an_event(http, server, monkeypatch):
    model = server.app.state.services.host.resolve("slow").model
    monkeypatch.setattr(model, "delay_s", 0.1)
    threading.Timer(0.25, monkeypatch.setattr, (model, "fails", True)).start()
    body = {"model": "slow", "stream": True, "strategy": "beam", "max_tokens": 50}
    with http.stream("POST", "/v1/generate", json=body) as response:
        assert response.status_code == 200
        lines = [line for line in response.iter_lines() if line]
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "internal_error"


STREAMS = {
    "/v1/generate": {"model": "slow", "stream": True, "max_tokens": 50},
    "/v1/completions": {"model": "slow", "prompt": "the", "max_tokens": 500, "stream": True},
}


@pytest.mark.parametrize("path", STREAMS)
def test_a_failure_after_the_first_event_is_an_event(http, server, path):
    model = server.app.state.services.host.resolve("slow").model
    with http.stream("POST", path, json=STREAMS[path]) as response:
        lines = response.iter_lines()
        next(lines)
        model.fails = True
        try:
            rest = [line for line in lines if line]
        finally:
            model.fails = False
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "internal_error"
