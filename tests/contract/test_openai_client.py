"""The official `openai` client against the service: every field, errors, streams, retries."""

import asyncio
import json

import openai
import pytest

from models.errors import OverloadedError


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=10) as client:
        yield client


FIELDS = {
    "best_of": 2,
    "echo": True,
    "frequency_penalty": 0.5,
    "logit_bias": {"5": -100, "6": 1},
    "logprobs": 2,
    "max_tokens": 4,
    "n": 2,
    "presence_penalty": -0.5,
    "seed": 3,
    "stop": ["x", "y"],
    "temperature": 0.8,
    "top_p": 0.9,
    "user": "someone",
}
EXTENSIONS = {
    "top_k": 5,
    "min_p": 0.01,
    "repetition_penalty": 1.1,
    "ignore_eos": True,
    "min_tokens": 2,
    "return_tokens_as_token_ids": True,
    "timeout_ms": 5000,
    "unheard_of": {"a": 1},
}


def test_every_field_of_a_request_and_of_the_reply(client):
    done = client.completions.create(model="slow", prompt="the cat", **FIELDS, extra_body=EXTENSIONS)
    assert type(done) is openai.types.Completion
    assert done.id.startswith("cmpl-")
    assert (done.object, done.model) == ("text_completion", "slow@1")
    assert isinstance(done.created, int)
    assert done.system_fingerprint.startswith("slow@1-")
    assert [choice.index for choice in done.choices] == [0, 1]
    for choice in done.choices:
        assert choice.text.startswith("the cat")
        assert choice.finish_reason == "length"
        logprobs = choice.logprobs
        lists = (logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, logprobs.text_offset)
        assert {len(one) for one in lists} == {2 + 4}
        assert logprobs.token_logprobs[0] is None
        assert logprobs.top_logprobs[0] is None
        assert logprobs.tokens[:2] == ["token_id:3", "token_id:4"]
        assert "token_id:5" not in logprobs.tokens[2:]
        assert logprobs.text_offset[:2] == [0, 3]
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (2, 8, 10)
    assert done._request_id


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_alone(client, field):
    value = 1 if field == "best_of" else FIELDS[field]
    done = client.completions.create(model="slow", prompt="the", **{"max_tokens": 2, field: value})
    assert len(done.choices) == (2 if field == "n" else 1)


@pytest.mark.parametrize(
    ("prompt", "count"), [("the", 1), (["the", "a dog"], 2), ([3, 4], 1), ([[3, 4], [5]], 2), (None, 1)]
)
def test_every_kind_of_prompt(client, prompt, count):
    done = client.completions.create(model="slow", prompt=prompt, max_tokens=1)
    assert [choice.index for choice in done.choices] == list(range(count))


def test_a_stream_ends_with_its_usage(client):
    body = {"model": "slow", "prompt": "the cat", "max_tokens": 4, "seed": 2, "logprobs": 1}
    whole = client.completions.create(**body)
    *parts, last = client.completions.create(**body, stream=True, stream_options={"include_usage": True})
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    assert [part.choices[0].finish_reason for part in parts] == [None, None, None, "length"]
    assert all(part.usage is None and part.id == last.id for part in parts)
    assert (last.choices, last.usage) == ([], whole.usage)
    offsets = [offset for part in parts for offset in part.choices[0].logprobs.text_offset]
    assert offsets == whole.choices[0].logprobs.text_offset


def test_the_asynchronous_client_and_streams_left_early(server):
    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=10) as client:
            body = {"model": "slow", "prompt": "the", "seed": 4}
            several = await asyncio.gather(
                *(client.completions.create(**body, max_tokens=3) for _ in range(5))
            )
            assert len({done.choices[0].text for done in several}) == 1
            async with await client.completions.create(**body, max_tokens=900, stream=True) as stream:
                first = await anext(aiter(stream))
            assert several[0].choices[0].text.startswith(first.choices[0].text)

    asyncio.run(ask())
    scheduler = server.app.state.services.engine.scheduler
    for _ in range(200):
        if not len(scheduler):
            break
        asyncio.run(asyncio.sleep(0.01))
    assert len(scheduler) == 0


ERRORS = [
    (openai.BadRequestError, {"model": "slow", "prompt": "the", "logprobs": 99}, "logprobs", "invalid_value"),
    (openai.BadRequestError, {"model": "slow", "prompt": [99]}, "prompt[0]", "invalid_value"),
    (
        openai.BadRequestError,
        {"model": "slow", "prompt": "the", "suffix": "a", "max_tokens": 0, "echo": True},
        "suffix",
        "invalid_value",
    ),
    (openai.BadRequestError, {"model": "slow", "prompt": "the " * 1001}, "prompt", "context_length_exceeded"),
    (openai.NotFoundError, {"model": "nobody", "prompt": "the"}, None, "model_not_found"),
    (openai.InternalServerError, {"model": "broken", "prompt": "the"}, None, "internal_error"),
]


@pytest.mark.parametrize(("kind", "body", "param", "code"), ERRORS)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_their_classes(client, kind, body, param, code, stream):
    with pytest.raises(kind) as caught:
        client.completions.create(**body, stream=stream)
    error = caught.value
    assert (error.param, error.code) == (param, code)
    assert isinstance(error.type, str)
    assert error.body["message"] in error.message
    assert error.request_id


def test_a_body_too_large_is_an_error_with_a_message(client):
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(model="slow", prompt="x" * 200_000)
    assert caught.value.status_code == 413
    assert "100000" in caught.value.body["message"]


def test_an_error_within_a_stream_is_raised(client, server):
    model = server.app.state.services.host.resolve("slow").model
    stream = client.completions.create(model="slow", prompt="the", max_tokens=500, stream=True)
    next(stream)
    model.fails = True
    try:
        with pytest.raises(openai.APIError) as caught:
            list(stream)
    finally:
        model.fails = False
    assert caught.value.code == "internal_error"


@pytest.fixture
def overloaded_once(server, monkeypatch):
    """Make the service refuse the next request as overloaded."""
    scheduler = server.app.state.services.engine.scheduler
    submit, refused = scheduler.submit, []

    def refuse_once(job):
        if not refused:
            refused.append(job)
            raise OverloadedError("full", retry_after_s=0.01)
        submit(job)

    monkeypatch.setattr(scheduler, "submit", refuse_once)
    return refused


def test_an_overload_is_a_rate_limit_that_says_when_to_come_back(client, overloaded_once):
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(model="slow", prompt="the", max_tokens=1)
    assert caught.value.response.headers["retry-after"] == "1"
    assert caught.value.code == "overloaded"


def test_the_client_tries_again_after_that_time(client, overloaded_once):
    done = client.with_options(max_retries=1).completions.create(model="slow", prompt="the", max_tokens=1)
    assert len(overloaded_once) == 1
    assert done.choices[0].finish_reason == "length"


def test_models_are_listed_and_found_by_every_address(client):
    models = client.models.list()
    assert models.object == "list"
    ids = [model.id for model in models]
    assert {"mixture@1", "slow@1", "chars@1"} <= set(ids)
    for address in ("mixture", "mixture@1", "mixture@champion"):
        model = client.models.retrieve(address)
        assert (model.id, model.object, model.owned_by) == ("mixture@1", "model", "gramophone")
        assert isinstance(model.created, int)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("mixture@9")


def test_the_raw_reply_is_json(client):
    raw = client.completions.with_raw_response.create(model="slow", prompt="the", max_tokens=1)
    assert raw.headers["content-type"] == "application/json"
    assert json.loads(raw.content)["object"] == "text_completion"
