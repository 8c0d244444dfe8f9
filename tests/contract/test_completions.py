"""POST /v1/completions over HTTP: every detail of OpenAI's contract."""

import itertools
import json
import re
import urllib.request

import httpx
import numpy as np
import pytest

from service.operations import completions
from service.settings import Settings
from tests.support.services import running

ENTRIES = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def ask(http, **body):
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def error(http, **body):
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


def events(http, **body):
    with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        blocks = response.read().decode().split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


def test_the_shape_of_a_reply(http, server):
    reply = ask(http, model="mixture", prompt="the cat", seed=1, max_tokens=3)
    assert reply.keys() == {"id", "object", "created", "model", "system_fingerprint", "choices", "usage"}
    assert re.fullmatch(r"cmpl-[0-9a-f]{32}", reply["id"])
    assert reply["object"] == "text_completion"
    assert isinstance(reply["created"], int)
    assert reply["model"] == "mixture@1"
    loaded = server.app.state.services.host.resolve("mixture")
    assert reply["system_fingerprint"] == f"mixture@1-{loaded.tokenizer.fingerprint[:12]}"
    (choice,) = reply["choices"]
    assert choice.keys() == {"index", "text", "finish_reason", "logprobs"}
    assert (choice["index"], choice["logprobs"]) == (0, None)
    assert choice["finish_reason"] in {"stop", "length"}
    assert reply["usage"].keys() == {"prompt_tokens", "completion_tokens", "total_tokens"}


LM_EVAL = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}


@pytest.mark.parametrize("model", ["mixture", "chars", "slow"])
def test_request_of_the_evaluation_harness_is_answered(http, model):
    ids = [[1, 5, 4, 12], [3], [1], [7, 8, 9, 2, 1, 4]]
    choices = ask(http, model=model, prompt=ids, **LM_EVAL)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    for prompt, choice in zip(ids, choices, strict=True):
        logprobs = choice["logprobs"]
        assert {len(logprobs[name]) for name in ENTRIES} == {len(prompt) + 1}
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["top_logprobs"][0] is None
        for token, own, top in zip(*(logprobs[name][1:] for name in ENTRIES[:3]), strict=True):
            assert top[token] == own
            assert max(top.values()) >= own
            assert 1 <= len(top) <= 2


def test_token_ids_are_scored_exactly_as_given(http, server):
    model = server.app.state.services.host.resolve("mixture").model
    for ids in ([1, 5, 4, 12], [5, 4, 12], [9, 2, 1, 3, 0]):
        reply = ask(http, model="mixture", prompt=ids, logprobs=0, echo=True, max_tokens=0)
        want = [float(model.table[before, token]) for before, token in itertools.pairwise(ids)]
        want = [-9999.0 if value == float("-inf") else value for value in want]
        assert reply["choices"][0]["logprobs"]["token_logprobs"] == [None, *want]
        assert reply["usage"]["prompt_tokens"] == len(ids)


def test_ids_that_begin_with_the_start_say_what_the_text_does(http):
    options = {"model": "mixture", "logprobs": 2, "max_tokens": 5, "temperature": 0}
    text, with_start, without = (
        ask(http, prompt=prompt, **options)["choices"][0] for prompt in ("the cat", [1, 3, 4], [3, 4])
    )
    assert text == with_start
    assert text == without  # for bigrams only the last word counts
    empty, start = (ask(http, prompt=prompt, **options)["choices"][0] for prompt in ("", [1]))
    assert empty == start


def test_the_end_of_a_sentence_is_an_entry_without_text(http, server):
    model = server.app.state.services.host.resolve("mixture").model
    before = int(model.table[3:, 2].argmax()) + 3  # the word with the most probable end
    choice = ask(
        http, model="mixture", prompt=[before], logprobs=0, max_tokens=5, logit_bias={"2": 100}, temperature=0
    )["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    assert choice["logprobs"]["tokens"] == ["</s>"]
    assert choice["logprobs"]["token_logprobs"] == [float(model.table[before, 2])]


def test_the_continuations_before_a_suffix_are_those_that_it_follows_best(http, server):
    model = server.app.state.services.host.resolve("mixture").model
    options = {"model": "mixture", "max_tokens": 1, "seed": 3, "n": 2, "best_of": 12}
    every = ask(http, prompt=["the", "a"], **{**options, "n": 12})["choices"]
    found = ask(http, prompt=["the", "a"], suffix=" sat on the mat", **options)["choices"]
    assert [choice["index"] for choice in found] == [0, 1, 2, 3]
    ids = model.vocabulary.ids
    for number, prompt in enumerate(("the", "a")):
        texts = [choice["text"] for choice in every[12 * number : 12 * (number + 1)]]
        last = {text: ids.get(f"{prompt}{text}".split()[-1], 0) for text in texts}
        after = {text: float(model.table[word, ids["sat"]]) for text, word in last.items()}
        best = sorted((after[text] for text in texts), reverse=True)[:2]
        assert [after[choice["text"]] for choice in found[2 * number : 2 * number + 2]] == best
        assert best[0] > min(after.values())


def test_a_suffix_without_best_of_chooses_among_eight(http):
    options = {"model": "mixture", "prompt": "the", "max_tokens": 2, "seed": 5, "suffix": " sat"}
    assert ask(http, **options)["choices"] == ask(http, best_of=8, **options)["choices"]
    greedy = {**options, "temperature": 0}
    plain = {name: value for name, value in greedy.items() if name != "suffix"}
    assert ask(http, **greedy)["choices"] == ask(http, **plain)["choices"]


def test_the_end_counts_as_a_token(http):
    reply = ask(http, model="mixture", prompt="the", max_tokens=5, logit_bias={"2": 100}, temperature=0)
    assert reply["usage"] == {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def test_the_first_generated_token_of_an_empty_prompt_has_its_logprob(http):
    logprobs = ask(http, model="slow", prompt="", echo=True, logprobs=0, max_tokens=2)["choices"][0][
        "logprobs"
    ]
    assert len(logprobs["tokens"]) == 2
    assert None not in logprobs["token_logprobs"]


def test_echo_says_the_prompt_as_it_was_given(http):
    prompt = "the  CAT sat"  # the tokenizer keeps neither the two spaces nor the unknown word
    choice = ask(http, model="mixture", prompt=prompt, echo=True, max_tokens=2, seed=1, logprobs=1)[
        "choices"
    ][0]
    assert choice["text"].startswith(prompt)
    without = ask(http, model="mixture", prompt=prompt, max_tokens=2, seed=1)["choices"][0]
    assert choice["text"] == prompt + without["text"]
    assert choice["logprobs"]["text_offset"][3] == len(prompt)


def test_offsets_point_at_tokens(http):
    choice = ask(http, model="slow", prompt="the cat sat", echo=True, max_tokens=6, seed=3, logprobs=0)[
        "choices"
    ][0]
    logprobs, text = choice["logprobs"], choice["text"]
    ends = [*logprobs["text_offset"][1:], len(text)]
    for token, start, end in zip(logprobs["tokens"], logprobs["text_offset"], ends, strict=True):
        assert text[start:end].strip() == token.strip()


@pytest.mark.parametrize("logprobs", [0, 1, 5, 20])
def test_so_many_alternatives_and_the_token_itself(http, logprobs):
    choice = ask(http, model="slow", prompt="the", logprobs=logprobs, max_tokens=8, seed=2, temperature=2.0)[
        "choices"
    ][0]
    entries = choice["logprobs"]
    for token, own, top in zip(*(entries[name] for name in ENTRIES[:3]), strict=True):
        assert top[token] == own
        assert min(logprobs, 13) <= len(top) <= min(logprobs + 1, 13)
        assert all(value >= -9999.0 for value in top.values())


@pytest.mark.parametrize("logprobs", [0, 5])
def test_requested_tokens_replace_the_most_probable_ones(http, server, logprobs):
    model = server.app.state.services.host.resolve("mixture").model
    ids, names = [7, 2, 1, 7], [f"token_id:{i}" for i in (7, 2, 1)]
    body = {
        "prompt": [1, 3, 4],
        "max_tokens": 3,
        "temperature": 0,
        "ignore_eos": True,
        "echo": True,
        "logprobs": logprobs,
        "return_tokens_as_token_ids": True,
    }
    (choice,) = ask(http, model="mixture", **body, logprob_token_ids=ids)["choices"]
    (ranked,) = ask(http, model="mixture", **body)["choices"]
    told, usual = choice["logprobs"], ranked["logprobs"]
    assert {**told, "top_logprobs": None} == {**usual, "top_logprobs": None}
    assert told["top_logprobs"][:3] == usual["top_logprobs"][:3]  # those of the prompt
    tokens = [int(name.removeprefix("token_id:")) for name in told["tokens"]]
    for position in (3, 4, 5):
        row = np.maximum(model.table[tokens[position - 1]], np.float32(-9999))
        own = told["tokens"][position]
        assert list(told["top_logprobs"][position]) == [*names, *([own] if own not in names else [])]
        assert told["top_logprobs"][position] == {
            name: float(row[int(name.removeprefix("token_id:"))]) for name in told["top_logprobs"][position]
        }


def test_an_empty_list_of_requested_tokens_is_none(http):
    body = {"prompt": "the", "max_tokens": 2, "seed": 1, "logprobs": 2}
    assert ask(http, **body, logprob_token_ids=[])["choices"] == ask(http, **body)["choices"]


def test_a_probability_of_zero_is_a_number(http):
    choice = ask(http, model="slow", prompt=[4, 1, 5], logprobs=20, echo=True, max_tokens=1)["choices"][0]
    assert choice["logprobs"]["token_logprobs"][1] == -9999.0  # `<s>` is never predicted
    assert choice["logprobs"]["top_logprobs"][2]["<s>"] == -9999.0


def test_tokens_may_be_called_by_their_ids(http):
    logprobs = ask(
        http,
        model="slow",
        prompt=[3, 4],
        logprobs=2,
        echo=True,
        max_tokens=1,
        return_tokens_as_token_ids=True,
    )["choices"][0]["logprobs"]
    assert logprobs["tokens"][:2] == ["token_id:3", "token_id:4"]
    assert all(name.startswith("token_id:") for top in logprobs["top_logprobs"][1:] for name in top)


PROMPTS = {
    "text": ("the cat", 1, 2),
    "texts": (["the cat", "a dog ran", ""], 3, 5),
    "ids": ([3, 4], 1, 2),
    "id lists": ([[3, 4], [5]], 2, 3),
    "null": (None, 1, 0),
}


@pytest.mark.parametrize("kind", PROMPTS)
def test_every_kind_of_prompt(http, kind):
    prompt, count, tokens = PROMPTS[kind]
    reply = ask(http, model="slow", prompt=prompt, max_tokens=2, n=2, seed=0)
    assert [choice["index"] for choice in reply["choices"]] == list(range(2 * count))
    assert reply["usage"]["prompt_tokens"] == tokens
    assert reply["usage"]["completion_tokens"] == 2 * 2 * count


def test_nulls_mean_defaults(http):
    fields = (
        "best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream"
    )
    nulls = dict.fromkeys(
        [*fields.split(), "stream_options", "suffix", "temperature", "top_p", "user", "prompt"]
    )
    reply = ask(http, model="slow", **nulls)
    assert reply["usage"] == {"prompt_tokens": 0, "completion_tokens": 16, "total_tokens": 16}


def test_unknown_fields_are_ignored(http):
    body = {"model": "slow", "prompt": "the", "seed": 1, "max_tokens": 3}
    plain = ask(http, **body)["choices"]
    assert (
        ask(http, **body, guided_json={"a": [1]}, priority=3, truncate_prompt_tokens=None)["choices"] == plain
    )


def test_unknown_fields_are_logged_by_name_only(http, monkeypatch):
    lines = []
    monkeypatch.setattr(
        completions._log, "debug", lambda event, **facts: lines.append((event, facts)), raising=False
    )
    ask(http, model="slow", prompt="the", max_tokens=1, guided_json="secret", x="y" * 99)
    assert [(event, facts["fields"]) for event, facts in lines] == [("fields ignored", ["guided_json", "x"])]


@pytest.mark.parametrize("body", [{"n": 3}, {"best_of": 4, "n": 2}, {"n": 2, "echo": True, "logprobs": 1}])
def test_choices_differ_and_a_seed_repeats_them(http, body):
    body = {"model": "chars", "prompt": ["ab", "b"], "max_tokens": 12, "seed": 7, **body}
    choices = ask(http, **body)["choices"]
    assert len({choice["text"] for choice in choices}) == len(choices) == 2 * body["n"]
    assert ask(http, **body)["choices"] == choices
    assert ask(http, **{**body, "seed": -7})["choices"] != choices


def test_more_than_four_stops_and_none(http):
    body = {"model": "chars", "prompt": "a", "max_tokens": 60, "seed": 3}
    whole = ask(http, **body, stop=[])["choices"][0]["text"]
    stops = [whole[place : place + 2] for place in (50, 40, 30, 20, 10, 25)]
    cut = ask(http, **body, stop=stops)["choices"][0]
    assert cut["text"] == whole[: min(whole.find(stop) for stop in stops)]
    assert cut["finish_reason"] == "stop"
    assert not any(stop in cut["text"] for stop in stops)


CASES = [
    {"model": "slow", "prompt": "the cat", "max_tokens": 4},
    {"model": "mixture", "prompt": ["the", "the cat", ""], "n": 2, "logprobs": 2, "echo": True},
    {"model": "chars", "prompt": "c", "max_tokens": 40, "stop": ["a", "ee", "o."], "logprobs": 0},
    {"model": "chars", "prompt": [[4, 5], [6]], "max_tokens": 12, "n": 3, "temperature": 1.7, "top_k": 9},
    {"model": "mixture", "prompt": [1, 4], "max_tokens": 0, "echo": True, "logprobs": 1, "n": 2},
    {"model": "mixture", "prompt": "the", "logit_bias": {"2": 100}, "logprobs": 1},
    {"model": "mixture", "prompt": "the", "logprobs": 1, "logprob_token_ids": [5, 2], "n": 2},
]


@pytest.mark.parametrize("body", CASES)
def test_a_stream_adds_up_to_the_whole(http, body):
    body = {**body, "seed": 5}
    whole = ask(http, **body)
    parts = events(http, **body)
    assert all(part["usage"] is None for part in parts)
    assert len({part["id"] for part in parts}) == 1
    for want in whole["choices"]:
        mine = [c for part in parts for c in part["choices"] if c["index"] == want["index"]]
        assert "".join(part["text"] for part in mine) == want["text"]
        assert [part["finish_reason"] for part in mine] == [None] * (len(mine) - 1) + [want["finish_reason"]]
        for name in ENTRIES if want["logprobs"] else ():
            assert [entry for part in mine for entry in part["logprobs"][name]] == want["logprobs"][name]


def test_a_stream_has_one_event_a_token_and_none_without(http):
    parts = events(http, model="slow", prompt="the", max_tokens=5, seed=1)
    assert len(parts) == 5
    parts = events(
        http, model="mixture", prompt="the", max_tokens=5, temperature=0, logit_bias={"2": 100}, logprobs=0
    )
    assert [part["choices"][0]["logprobs"]["tokens"] for part in parts] == [["</s>"]]


def test_usage_comes_last_where_it_is_asked_for(http):
    body = {"model": "slow", "prompt": "the cat", "max_tokens": 3}
    *parts, last = events(http, **body, stream_options={"include_usage": True, "include_obfuscation": False})
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert all(part["usage"] is None and part["choices"] for part in parts)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("echo", [True, False])
def test_usage_so_far_is_in_each_event_where_it_is_asked_for(http, n, echo):
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": "slow", "prompt": "the cat", "max_tokens": 3, "n": n, "echo": echo}
    parts = events(http, **body, stream_options=options)
    counts = [part["usage"]["completion_tokens"] for part in parts]
    assert counts == sorted(counts)
    assert counts[-1] == 3 * n
    assert all(part["usage"]["prompt_tokens"] == 2 for part in parts)
    assert all(sum(list(part["usage"].values())[:2]) == part["usage"]["total_tokens"] for part in parts)
    assert [part["usage"] for part in events(http, **body)] == [None] * (len(parts) - 1)


@pytest.mark.parametrize("count", [1, 17, 24, 32])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/generate"])
def test_as_many_stop_strings_as_editors_send(http, path, count):
    stops = [f"s{number}" for number in range(count)]
    response = http.post(path, json={"model": "slow", "prompt": "the", "max_tokens": 2, "stop": stops})
    assert response.status_code == 200


def test_an_error_before_the_first_event_has_a_status(http):
    response = http.post("/v1/completions", json={"model": "broken", "prompt": "the", "stream": True})
    assert response.status_code == 500


WRONG = [
    ({"prompt": {}}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[3], []]}, "prompt[1]"),
    ({"prompt": [[3], [99]]}, "prompt[1][0]"),
    ({"prompt": [3, "the"]}, "prompt[1]"),
    ({"prompt": ["the"] * 101}, "prompt"),
    ({"prompt": ["the"] * 50, "n": 3}, "n"),
    ({"prompt": [3] * 1001}, "prompt"),
    ({"prompt": "the", "max_tokens": -1}, "max_tokens"),
    ({"prompt": "the", "logprob_token_ids": [3]}, "logprob_token_ids"),
    ({"prompt": "the", "logprobs": 1, "logprob_token_ids": [3] * 129}, "logprob_token_ids"),
    ({"prompt": "the", "logprobs": 1, "logprob_token_ids": [3, 13]}, "logprob_token_ids[1]"),
    (
        {"prompt": "the", "logprobs": 1, "logprob_token_ids": [3], "echo": True, "max_tokens": 0},
        "logprob_token_ids",
    ),
    ({"prompt": "the", "max_tokens": 0}, "max_tokens"),
    ({"prompt": "the", "max_tokens": 1001}, "max_tokens"),
    ({"prompt": "the", "logprobs": 21}, "logprobs"),
    ({"prompt": "the", "logprobs": -1}, "logprobs"),
    ({"prompt": "the", "logprobs": True}, "logprobs"),
    ({"prompt": "the", "n": 0}, "n"),
    ({"prompt": "the", "n": 65}, "n"),
    ({"prompt": "the", "n": 3, "best_of": 2}, "best_of"),
    ({"prompt": "the", "n": 1, "best_of": 2, "stream": True}, "best_of"),
    ({"prompt": "the", "suffix": "mat", "stream": True}, "suffix"),
    ({"prompt": "the", "suffix": "mat", "max_tokens": 0, "echo": True}, "suffix"),
    ({"prompt": "the", "stream_options": {"include_usage": True}}, "stream_options"),
    ({"prompt": "the", "temperature": -0.1}, "temperature"),
    ({"prompt": "the", "temperature": "hot"}, "temperature"),
    ({"prompt": "the", "top_p": 1.1}, "top_p"),
    ({"prompt": "the", "frequency_penalty": 2.1}, "frequency_penalty"),
    ({"prompt": "the", "presence_penalty": -2.1}, "presence_penalty"),
    ({"prompt": "the", "logit_bias": {"the": 1}}, "logit_bias"),
    ({"prompt": "the", "logit_bias": {"3": 101}}, "logit_bias.3"),
    ({"prompt": "the", "logit_bias": {"99": 1}}, "logit_bias.99"),
    ({"prompt": "the", "stop": ["x"] * 33}, "stop"),
    ({"prompt": "the", "stop": [""]}, "stop[0]"),
    ({"prompt": "the", "seed": 2**64}, "seed"),
    ({"prompt": "the", "echo": 1}, "echo"),
    ({"prompt": "the", "user": 5}, "user"),
]


@pytest.mark.parametrize(("body", "param"), WRONG, ids=lambda v: v if isinstance(v, str) else "")
def test_errors_name_the_field(http, body, param):
    told = error(http, model="mixture", **body)
    assert told["param"] == param
    assert told["type"] == "invalid_request_error"
    assert isinstance(told["code"], str)


def test_a_reply_may_not_be_too_long(http):
    told = error(http, model="mixture", prompt=[[3] * 900] * 10, echo=True, logprobs=20, max_tokens=0)
    assert told["param"] == "logprobs"
    assert "131072" in told["message"]


def test_an_unknown_model_is_not_found(http):
    response = http.post("/v1/completions", json={"model": "gpt-3.5-turbo-instruct", "prompt": "the"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


def test_a_request_may_bound_its_time(http):
    body = {"model": "slow", "prompt": "the", "max_tokens": 900, "timeout_ms": 60}
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 504


def test_an_empty_key_is_no_key(server):
    request = urllib.request.Request(  # noqa: S310 - httpx refuses to send it
        f"{server.url}/v1/completions",
        data=json.dumps({"model": "slow", "max_tokens": 1}).encode(),
        headers={"Authorization": "Bearer "},
    )
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
        assert response.status == 200


def test_prompts_of_a_whole_document_are_scored(registry):
    settings = Settings(registry=registry.root, models=("mixture",))
    ids = [1, *([3, 4, 5, 6] * 8_000)]
    with running(settings) as started, httpx.Client(base_url=started.url, timeout=60) as client:
        logprobs = ask(client, model="mixture", prompt=[ids], **LM_EVAL)["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == len(ids) + 1
