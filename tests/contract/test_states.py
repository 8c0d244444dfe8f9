"""/v1/states over HTTP: stepwise scores equal full-text scores for every family; concurrent use of one state."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from gramophone_client import AsyncClient, Client
from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from service.settings import Settings
from tests.contract.conftest import publish
from tests.support import families
from tests.support.services import running

PARTS = {"ngram": (), "lstm": (), "mixture": ("ngram", "lstm"), "cache": ("lstm",)}
ABOUT = CheckpointDescription("2026-01-01T00:00:00+00:00", {"int8": {"cost": 0.0}}, {}, [[3, 4]], {})
WORDS = ["w3", "w5", "w9", "w10", "w3", "unheard-of", "w7"]
V = len(families.WORDS) + 3


@pytest.fixture(scope="module")
def states_registry(tmp_path_factory):
    registry, made = LocalRegistry(tmp_path_factory.mktemp("states"), create=True), {}
    for name, parts in PARTS.items():

        def write(folder, name=name, parts=parts):
            model, tokenizer = families.model(name), families.tokenizer()
            write_checkpoint(folder, model, tokenizer, ABOUT, parts=[made[part] for part in parts])

        made[name] = registry.publish(name, write).path
    return registry


@pytest.fixture(scope="module", params=["float32", "auto"])
def states_http(states_registry, request):
    """Run a service in single precision, or in int8 as the models recommend."""
    settings = Settings(registry=states_registry.root, precision=request.param)
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def ask(http, path, **body):
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def opened(http, **body):
    return [one["state"] for one in ask(http, "/v1/states", **body)["states"]]


def advanced(http, continuations, **body):
    return ask(http, "/v1/states/advance", continuations=continuations, **body)["results"]


def whole(http, model, words, **options):
    """Return the score of a text from /v1/score."""
    return ask(http, "/v1/score", texts=[" ".join(words)], model=model, detail="token", **options)["results"][
        0
    ]


def gauge(http, name):
    lines = http.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"gramophone_{name} "))


@pytest.mark.parametrize("model", PARTS)
def test_word_by_word_is_the_same_as_the_whole(states_http, model):
    (state,), logprobs, oov = opened(states_http, model=model), [], 0
    for word in WORDS:
        (result,) = advanced(states_http, [{"state": state, "text": word, "eos": True}])
        state = result["state"]
        logprobs += result["logprobs"]
        oov += result["num_oov"]
    scored = whole(states_http, model, WORDS)
    assert [*logprobs, result["eos_logprob"]] == pytest.approx(
        [token["logprob"] for token in scored["tokens"]], abs=1e-5
    )
    assert oov == scored["num_oov"] == 1


@pytest.mark.parametrize("model", PARTS)
def test_many_continuations_of_many_states_are_each_as_alone(states_http, model):
    """Different lengths, forks, with and without the end; and ten continuations of one state, which share its row."""
    contexts = ["", "w3 w5", "w9"]
    states = opened(states_http, context=contexts, model=model)
    asked = [
        {"state": state, "text": text, "eos": place % 2 == 0}
        for place, state in enumerate(states)
        for text in ["", "w1", "w2 w2 w2", *(f"w{i} w{i + 1}" for i in range(10))]
    ]
    together = advanced(states_http, asked)
    for one, result in zip(asked, together, strict=True):
        context = contexts[states.index(one["state"])]
        text = f"{context} {one['text']}".split()
        if one["text"]:
            expected = whole(states_http, model, text, eos=one["eos"])["logprob"]
            expected -= whole(states_http, model, context.split(), eos=False)["logprob"] if context else 0
            assert result["logprob"] + (result["eos_logprob"] or 0) == pytest.approx(expected, abs=1e-4)
        assert (result["eos_logprob"] is not None) == one["eos"]
        assert len(result["token_ids"]) == result["num_tokens"] == len(one["text"].split())
    scored = advanced(states_http, [{**one, "keep": False} for one in asked])
    assert [one["logprob"] for one in scored] == pytest.approx([r["logprob"] for r in together], abs=1e-5)
    assert {one["state"] for one in scored} == {None}


FAVOURED = [{"text": "w3 w5 w9", "weight": 3.0}, {"text": "w9 w2", "weight": 1.0, "class": "pair"}]
FIRST_FIELDS = [
    "state",
    "logprob",
    "num_tokens",
    "num_oov",
    "token_ids",
    "logprobs",
    "eos_logprob",
    "next_logprobs",
]


@pytest.mark.parametrize(
    ("context", "texts", "values", "ended"),
    [
        ("", ["w3", "w5", "w9"], [1.0, 1.0, 1.0], 0.0),
        ("w7", ["w3 w5", "w7", "w9"], [2.0, -2.0, 0.5], -0.5),
        ("w3", ["w5", "", "w9 w2"], [1.0, 0.0, 1.0], 0.0),  # w2 begins no phrase: w9 belongs to the first
        ("w3 w5", ["w2", "w9 w2 w3"], [-2.0, 2.0], -1.0),
        ("w3", ["unheard-of"], [-1.0], 0.0),
    ],
)
def test_continuations_tell_the_value_of_phrases_and_what_the_end_takes_back(
    states_http, context, texts, values, ended
):
    (state,) = opened(states_http, context=context, model="ngram", phrases=FAVOURED)
    told = []
    for text in texts:
        asked = [{"state": state, "text": text}, {"state": state, "text": text, "eos": True, "keep": False}]
        result, last = advanced(states_http, asked)
        assert last.get("phrase_value") == result.get("phrase_value")
        assert "eos_phrase_value" not in result
        assert result.get("phrase_value") != 0
        told.append(result.get("phrase_value", 0.0))
        state = result["state"]
    assert told == pytest.approx(values)
    assert last.get("eos_phrase_value", 0.0) == pytest.approx(ended)


def test_tokens_of_phrases_count_as_their_text_does_and_scores_stay_the_same(states_http):
    ids = advanced(states_http, [{"state": opened(states_http)[0], "text": "w3 w5"}])[0]["token_ids"]
    (plain,), (favoured,) = (opened(states_http, phrases=given) for given in ([], FAVOURED))
    by_text, by_ids, without = advanced(
        states_http,
        [
            {"state": favoured, "text": "w3 w5"},
            {"state": favoured, "token_ids": ids},
            {"state": plain, "text": "w3 w5", "eos": True},
        ],
    )
    assert by_text["phrase_value"] == by_ids["phrase_value"] == pytest.approx(2.0)
    assert list(without) == FIRST_FIELDS
    assert by_text["logprobs"] == by_ids["logprobs"] == pytest.approx(without["logprobs"])


@pytest.mark.parametrize("model", PARTS)
def test_forks_go_their_own_ways(states_http, model):
    (state,) = opened(states_http, context="w3", model=model)
    (fork,) = advanced(states_http, [{"state": state}])
    assert (fork["logprob"], fork["num_tokens"], fork["logprobs"]) == (0.0, 0, [])
    before = advanced(states_http, [{"state": state, "text": "w7"}])
    for _ in range(3):
        (fork,) = advanced(states_http, [{"state": fork["state"], "text": "w5"}])
    ask(states_http, "/v1/states/free", states=[fork["state"]])
    after = advanced(states_http, [{"state": state, "text": "w7"}])
    assert after[0]["logprobs"] == before[0]["logprobs"]
    assert after[0]["state"] != before[0]["state"]


@pytest.mark.parametrize("model", PARTS)
def test_next_of_states_equals_next_token(states_http, model):
    contexts, ids = ["w3 w5", "w9", ""], [2, 9, 5, 0]
    states = opened(states_http, context=contexts, model=model)
    binary = {"accept": "application/octet-stream"}
    rows = states_http.post("/v1/states/next", json={"states": states}, headers=binary)
    assert (rows.headers["x-shape"], rows.headers["x-model"]) == (f"3,{V}", f"{model}@1")
    rows = np.frombuffer(rows.content, "<f4").reshape(3, V)
    expected = states_http.post(
        "/v1/next-token", json={"context": contexts, "model": model}, headers=binary
    ).content
    np.testing.assert_allclose(rows, np.frombuffer(expected, "<f4").reshape(3, V), atol=1e-5)
    some = ask(states_http, "/v1/states/next", states=states, token_ids=ids)
    np.testing.assert_allclose(some["logprobs"], rows[:, ids], atol=1e-5)
    after = advanced(states_http, [{"state": state, "keep": False} for state in states], next_token_ids=ids)
    np.testing.assert_allclose([one["next_logprobs"] for one in after], rows[:, ids], atol=1e-5)
    assert np.isfinite(rows).all()


@pytest.mark.parametrize("model", PARTS)
def test_ids_do_what_their_words_do(states_http, model):
    (state,) = opened(states_http, context=[5, 9], model=model)
    by_text, by_ids = advanced(
        states_http, [{"state": state, "text": "w4 w0"}, {"state": state, "token_ids": [7, 3]}]
    )
    assert by_text["token_ids"] == by_ids["token_ids"] == [7, 3]
    assert by_text["logprobs"] == by_ids["logprobs"]


def test_without_bos_a_state_begins_with_nothing(states_http):
    bare, after = (opened(states_http, model="ngram", bos=bos)[0] for bos in (False, True))
    one, other = advanced(states_http, [{"state": bare, "text": "w1"}, {"state": after, "text": "w1"}])
    assert one["logprob"] == pytest.approx(
        whole(states_http, "ngram", ["w1"], bos=False, eos=False)["logprob"], abs=1e-5
    )
    assert one["logprob"] != other["logprob"]


@pytest.mark.parametrize("model", PARTS)
def test_memory_is_back_once_all_is_freed(states_http, model):
    states = opened(states_http, context=["w1"] * 5, model=model)
    results = advanced(states_http, [{"state": state, "text": "w2 w4"} for state in states], free=states)
    assert gauge(states_http, "states_bytes") > 0
    assert (
        ask(states_http, "/v1/states/free", states=[*states, *(one["state"] for one in results)])["freed"]
        == 5
    )
    left = gauge(states_http, "states")
    states_http.post("/v1/states/free", json={"states": states})
    assert gauge(states_http, "states") == left


def test_a_cache_counts_what_it_remembers(states_http):
    before = gauge(states_http, "states_bytes")
    (short,) = opened(states_http, context="w1", model="cache")
    middle = gauge(states_http, "states_bytes")
    opened(states_http, context="w1 w2 w3 w4 w5", model="cache")
    assert gauge(states_http, "states_bytes") - middle > middle - before
    ask(states_http, "/v1/states/free", states=[short])


def test_both_clients_give_the_same_typed_replies(states_http):
    contexts, words = ["w1", "w2"], [{"text": "w3", "eos": True}, {"token_ids": [4, 5], "keep": False}]

    async def told(client, wait):
        opened = await wait(client.states.open(contexts, model="lstm", bos=False))
        states = [one.state for one in opened.states]
        asked = [{"state": state, **word} for state, word in zip(states, words, strict=True)]
        results = (await wait(client.states.advance(asked, next_token_ids=[7], free=states[1:]))).results
        kept = [states[0], results[0].state]
        following = await wait(client.states.next(kept, token_ids=[3, 4]))
        rows = await wait(client.states.log_probs(kept))
        freed = await wait(client.states.free([*kept, states[1]]))
        values = [(r.logprob, r.eos_logprob, r.token_ids, r.next_logprobs) for r in results]
        return opened.model, values, following, rows.shape, rows.tolist(), freed

    async def at_once(value):
        return value

    async def later(value):
        return await value

    async def of_async_client():
        async with AsyncClient(str(states_http.base_url)) as client:
            return await told(client, later)

    with Client(str(states_http.base_url)) as client:
        mine = asyncio.run(told(client, at_once))
    assert mine == asyncio.run(of_async_client())
    assert mine[3:] == ((2, V), mine[4], 2)


CLIENTS, ROUNDS = 8, 10


@pytest.fixture(scope="module")
def states_server(tmp_path_factory):
    registry = LocalRegistry(tmp_path_factory.mktemp("races"))
    publish(registry, "lstm", families.model("lstm"), families.tokenizer())
    with running(Settings(registry=registry.root)) as server:
        yield server


@pytest.fixture
def post_states(states_server):
    """Post JSON; return the reply of any status."""
    with httpx.Client(base_url=states_server.url, timeout=30) as client:
        yield lambda path, body: client.post(f"/v1/states{path}", json=body)


@pytest.fixture
def kept(states_server):
    """Return the number of stored states, and their bytes."""
    store = states_server.app.state.services.states
    return lambda: (len(store), store.num_bytes)


def at_once(work):
    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(work, range(CLIENTS)))


def test_a_state_that_many_free_is_freed_once(post_states, kept):
    states = [one["state"] for one in post_states("", {"context": ["w1"] * 200}).json()["states"]]
    freed = at_once(lambda _: post_states("/free", {"states": states}).json()["freed"])
    assert (sum(freed), kept()) == (200, (0, 0))


def test_a_state_that_is_freed_meanwhile_is_continued_rightly_or_not_found(post_states, kept):
    def race(number):
        told = []
        for _ in range(ROUNDS):
            state = post_states("", {"context": "w1 w2"}).json()["states"][0]["state"]
            bodies = [{"continuations": [{"state": state, "text": "w3"}], "free": [state]}] * 2
            with ThreadPoolExecutor(2) as pool:
                told += pool.map(lambda body: post_states("/advance", body), bodies)
        return told

    replies = [one for told in at_once(race) for one in told]
    assert {one.status_code for one in replies} <= {200, 404}
    results = [one.json()["results"][0] for one in replies if one.status_code == 200]
    assert len(results) >= CLIENTS * ROUNDS  # of each two, at least one precedes the other's free
    assert max(r["logprob"] for r in results) == pytest.approx(min(r["logprob"] for r in results), abs=1e-5)
    post_states("/free", {"states": [r["state"] for r in results]})
    assert kept() == (0, 0)
