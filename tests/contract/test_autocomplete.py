"""POST /v1/autocomplete over HTTP: completions, sessions, independence from other requests."""

import asyncio
import contextlib
import math
import time

import httpx
import numpy as np
import pytest

from gramophone_client import AsyncClient, SupersededError
from models.language_model import BOS
from service.api_keys import KeyScope, create_key
from service.settings import Settings
from tests.support.fake_models import WORDS, FakeModel, fake_vocabulary
from tests.support.services import running

MODEL = FakeModel(fake_vocabulary())
IDS = MODEL.vocabulary.ids


def ask(http, text, **options):
    response = http.post("/v1/autocomplete", json={"text": text, **options})
    assert response.status_code == 200, response.text
    return response.json()


def refused(http, **body):
    response = http.post("/v1/autocomplete", json=body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


def probabilities(last, prefix=""):
    """Return the model's probabilities of words with a prefix, normalised over these words."""
    row = np.exp(MODEL.table[last].astype(np.float64))
    begun = {word: row[IDS[word]] for word in WORDS if word.startswith(prefix)}
    return {word: mass / sum(begun.values()) for word, mass in begun.items()}


def told(reply):
    return {one["text"]: one["probability"] for one in reply["completions"]}


@pytest.mark.parametrize(
    ("text", "last", "prefix", "start"),
    [
        ("the cat o", IDS["cat"], "o", 8),
        ("the cat on", IDS["cat"], "on", 8),
        ("the ", IDS["the"], "", 4),
        ("the", BOS, "the", 0),
        ("", BOS, "", 0),
        ("  \n ", BOS, "", 4),
        ("\U0001f642 o", 0, "o", 2),
        ("the cat o" + "\u0301", IDS["cat"], "o\u0301", 8),
    ],
)
def test_probabilities_are_the_models_own_given_the_prefix(http, text, last, prefix, start):
    reply = ask(http, text, limit=100)
    assert (reply["prefix"], reply["start"], reply["model"]) == (prefix, start, "mixture@1")
    assert told(reply) == pytest.approx(probabilities(last, prefix), rel=1e-5)
    assert reply["unexplored_mass"] == pytest.approx(0, abs=1e-9)


def test_the_best_come_first_and_no_more_than_asked_for(http):
    expected = sorted(probabilities(IDS["the"]).items(), key=lambda item: -item[1])[:3]
    completions = ask(http, "the ", limit=3)["completions"]
    assert [one["text"] for one in completions] == [word for word, _ in expected]


@pytest.mark.parametrize(
    ("text", "word", "suffix"), [("the c", "cat", "at"), ("the ", "cat", "cat"), ("", "cat", "cat")]
)
def test_the_suffix_is_what_to_append(http, text, word, suffix):
    (one,) = [one for one in ask(http, text)["completions"] if one["text"] == word]
    assert (one["suffix"], one["num_words"], one["is_complete_word"], one["source"]) == (
        suffix,
        1,
        True,
        "model",
    )


def test_characters_are_searched_for_words_and_all_mass_is_accounted_for(http):
    reply = ask(http, "a", model="chars", limit=100, max_steps=512)
    total = math.fsum(told(reply).values()) + reply["unexplored_mass"]
    assert 0 < reply["unexplored_mass"] < 1
    assert total <= 1 + 1e-9
    assert all(text.startswith("a") for text in told(reply))


def test_more_steps_leave_less_unexplored(http):
    few, many = (ask(http, "a", model="chars", max_steps=steps)["unexplored_mass"] for steps in (8, 256))
    assert many < few


def test_phrases_are_told_beside_words(http):
    reply = ask(http, "the c", max_words=2, limit=100, max_steps=512)
    one_word = told(reply)["cat"]
    after = probabilities(IDS["cat"])
    (pair,) = [one for one in reply["completions"] if one["text"] == "cat sat"]
    row = np.exp(MODEL.table[IDS["cat"]].astype(np.float64))
    assert pair["probability"] == pytest.approx(one_word * row[IDS["sat"]], rel=1e-5)
    assert pair["num_words"] == 2
    assert set(after) >= {"sat"}


def test_improbable_completions_are_not_told(http):
    expected = {word for word, p in probabilities(IDS["the"]).items() if p >= 0.1}
    assert set(told(ask(http, "the ", min_probability=0.1))) == expected
    assert told(ask(http, "the xyz", min_probability=0.1)) == {}


def test_savings_count_the_characters_that_are_spared(http):
    spared = {word: p * len(word) for word, p in probabilities(IDS["the"]).items()}
    expected = sorted(spared, key=lambda word: -spared[word])[:4]
    assert [one["text"] for one in ask(http, "the ", rank="savings", limit=4)["completions"]] == expected


@pytest.mark.parametrize("typed", ["C", "Ca", "CA", "cA"])
def test_case_is_as_typed_unless_it_is_exact(http, typed):
    assert ask(http, f"the {typed}")["completions"] == []
    (one,) = ask(http, f"the {typed}", casing="ignore")["completions"]
    assert one["text"] == ("CAT" if typed == "CA" else typed + "cat"[len(typed) :])
    assert one["suffix"] == one["text"][len(typed) :]
    assert one["probability"] == pytest.approx(1)


def test_blocked_words_are_not_told_nor_phrases_that_hold_one(http):
    reply = ask(http, "the ", blocklist=["CAT", "mat"], max_words=2, limit=100)
    assert not any({"cat", "mat"} & set(text.split()) for text in told(reply))
    best = ask(http, "the ", limit=1)["completions"][0]["text"]
    assert len(told(ask(http, "the ", blocklist=[best], limit=9))) == 9


def test_mistyped_beginnings_are_looked_past_when_asked_to(http):
    assert ask(http, "the huose")["completions"] == []
    (one, *_) = ask(http, "the huose", fuzzy=1)["completions"]
    assert (one["text"], one["suffix"], one["edits"]) == ("house", None, 1)
    assert one["probability"] > 0.9


def test_words_of_a_dictionary_are_mixed_in(http):
    dictionary = ["catalogue", {"text": "cat", "weight": 3}, "dormouse"]
    reply = ask(http, "the c", dictionary=dictionary, user_weight=0.25)
    model = float(np.exp(MODEL.table[IDS["the"]][IDS["cat"]]))
    live = 0.75 * model + 0.25 * 4 / 5
    assert told(reply) == pytest.approx(
        {"cat": (0.75 * model + 0.25 * 3 / 5) / live, "catalogue": 0.25 * 1 / 5 / live}, rel=1e-5
    )
    assert {one["text"]: one["source"] for one in reply["completions"]}["catalogue"] == "user"


def test_phrases_of_a_dictionary_go_on(http):
    reply = ask(http, "the Ca", dictionary=["Cape Town hall"], max_words=3)
    assert {"Cape", "Cape Town", "Cape Town hall"} <= set(told(reply))
    assert told(reply)["Cape Town hall"] > 0.2


def test_a_beginning_is_told_where_no_word_was_found(http):
    reply = ask(http, "a", model="chars", max_steps=1, limit=5)
    beginnings = [one for one in reply["completions"] if not one["is_complete_word"]]
    assert beginnings
    assert sum(one["probability"] for one in beginnings) <= reply["unexplored_mass"] + 1e-9


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": 3}, "text"),
        ({"text": "a", "limit": 0}, "limit"),
        ({"text": "a", "limit": 101}, "limit"),
        ({"text": "a", "max_words": 9}, "max_words"),
        ({"text": "a", "min_probability": 1.5}, "min_probability"),
        ({"text": "a", "rank": "length"}, "rank"),
        ({"text": "a", "casing": "upper"}, "casing"),
        ({"text": "a", "fuzzy": 3}, "fuzzy"),
        ({"text": "a", "user": "../me"}, "user"),
        ({"text": "a", "user_weight": -0.1}, "user_weight"),
        ({"text": "a", "session": ""}, "session"),
        ({"text": "a", "max_steps": 5000}, "max_steps"),
        ({"text": "a", "dictionary": [" "]}, "dictionary[0]"),
        ({"text": "a", "dictionary": ["b", {"text": "c", "weight": 0}]}, "dictionary[1].weight"),
        ({"text": "a", "dictionary": [1]}, "dictionary[0]"),
        ({"text": "a", "dictionary": ["b"] * 10_001}, "dictionary"),
        ({"text": "a", "blocklist": ["b" * 201]}, "blocklist[0]"),
        ({"text": "a", "words": 3}, "words"),
        ({"text": "a " * 40_000}, "text"),
        ({"text": "a " * 1100}, "text"),
    ],
)
def test_invalid_parameter_is_named(http, body, param):
    assert refused(http, **body)["param"] == param


@pytest.mark.parametrize("model", ["mixture", "chars"])
@pytest.mark.parametrize(
    "text",
    [
        "\x00\x07 a",
        "שלום עו",
        "a\u202eb",
        "\U0001f469\u200d\U0001f469 \U0001f642",
        "e\u0301",
        "(",
        "«",
        "a\ta",
        "\ufeff",
    ],
)
def test_any_text_is_answered(http, text, model):
    reply = ask(http, text, model=model, fuzzy=1, max_words=2, casing="ignore", max_steps=32)
    assert text[reply["start"] :] == reply["prefix"]


def test_tokens_are_sorted_before_anybody_types(server):
    loaded = server.app.state.services.host.resolve("broken")
    assert "folded" in vars(vars(loaded)["token_trie"])


def test_a_key_in_the_middle_of_a_word_waits_for_no_model(server, http):
    slow = server.app.state.services.host.resolve("slow").model
    ask(http, "the dog o", model="slow")
    slow.fails = True
    try:
        assert set(told(ask(http, "the dog o", model="slow"))) == {"on", "of"}
    finally:
        slow.fails = False


def test_a_dictionary_of_long_phrases_is_bounded(http):
    entries = [" ".join("abcdefgh" * 12)] * 420
    response = http.post("/v1/autocomplete", json={"text": "the ", "dictionary": entries})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "dictionary")
    assert "40032 words in its first 417 entries; at most 40000" in error["message"]


@contextlib.contextmanager
def taking(server, delay_s):
    """Delay each step of the slow model."""
    model = server.app.state.services.host.resolve("slow").model
    before, model.delay_s = model.delay_s, delay_s
    try:
        yield
    finally:
        model.delay_s = before


async def post(client, **body):
    sent = time.monotonic()
    response = await client.post(
        "/v1/autocomplete", json={"model": "slow", "max_words": 2, "max_steps": 4, **body}
    )
    return response, time.monotonic() - sent


def in_order(server, bodies, pause_s=0.05):
    """Send requests at intervals without waiting; return each reply and its duration."""

    async def main():
        async with httpx.AsyncClient(base_url=server.url, timeout=10) as client:
            tasks = []
            for body in bodies:
                tasks.append(asyncio.create_task(post(client, **body)))
                await asyncio.sleep(pause_s)
            return await asyncio.gather(*tasks)

    return asyncio.run(main())


def left(server):
    """Return the number of sessions and jobs, once no job is pending."""
    services = server.app.state.services
    until = time.monotonic() + 5
    while len(services.engine.scheduler) and time.monotonic() < until:
        time.sleep(0.01)
    return len(services.sessions._newest), len(services.engine.scheduler)


def test_a_newer_request_of_the_session_takes_the_place_of_the_older(server):
    with taking(server, 0.3):
        (old, old_s), (new, _) = in_order(
            server, [{"text": "the c", "session": "s1"}, {"text": "the ca", "session": "s1"}]
        )
    error = old.json()["error"]
    assert (old.status_code, error["code"], error["type"]) == (409, "superseded", "conflict_error")
    assert old_s < 0.3  # sooner than the model's first step
    assert new.status_code == 200
    assert left(server) == (0, 0)


def test_one_that_waits_in_the_queue_ends_at_once_too(server):
    with taking(server, 0.3):
        bodies = [{"text": "on a m"}, {"text": "a d", "session": "s2"}, {"text": "a do", "session": "s2"}]
        (first, _), (old, old_s), (new, _) = in_order(server, bodies)
    assert [first.status_code, old.status_code, new.status_code] == [200, 409, 200]
    assert old_s < 0.2
    assert left(server) == (0, 0)


def test_other_sessions_and_none_are_left_alone(server):
    bodies = [
        {"text": "the h", "session": "s3"},
        {"text": "the h", "session": "s4"},
        {"text": "the h"},
        {"text": "a h"},
    ]
    answers = in_order(server, bodies, pause_s=0.01)
    assert [answer.status_code for answer, _ in answers] == [200] * 4


def test_requests_of_a_session_that_come_one_after_the_other_are_all_answered(server, http):
    for text in ("r", "ra", "ran", "ran "):
        reply = http.post("/v1/autocomplete", json={"text": text, "session": "s5"})
        assert reply.status_code == 200
    assert left(server) == (0, 0)


def test_a_client_that_hangs_up_leaves_no_session(server):
    with taking(server, 0.2):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{server.url}/v1/autocomplete",
                json={"text": "gone", "model": "slow", "max_words": 2, "session": "s6"},
                timeout=0.1,
            )
        assert left(server) == (0, 0)


def test_the_client_says_what_became_of_it(server):
    async def main():
        async with AsyncClient(server.url) as client:
            old = asyncio.create_task(client.autocomplete("of t", model="slow", max_words=2, session="s7"))
            await asyncio.sleep(0.1)
            return old, await client.autocomplete("of th", model="slow", max_words=2, session="s7")

    with taking(server, 0.1):
        old, new = asyncio.run(main())
    assert isinstance(old.exception(), SupersededError)
    assert new.prefix == "th"


def test_answers_under_load_are_those_of_an_idle_service(server):
    texts = ["the c", "a d", "on the m", "of ", "r", ""] * 4
    options = [{"model": "chars", "max_steps": 40}, {"model": "mixture", "max_words": 3}, {"fuzzy": 1}]
    bodies = [{"text": text, "max_steps": 64, **options[n % 3]} for n, text in enumerate(texts)]

    async def main(at_once):
        places = asyncio.Semaphore(at_once)
        async with httpx.AsyncClient(base_url=server.url, timeout=10) as client:

            async def one(body):
                async with places:
                    return (await client.post("/v1/autocomplete", json=body)).content

            return await asyncio.gather(*map(one, bodies))

    assert asyncio.run(main(1)) == asyncio.run(main(len(bodies)))


@pytest.mark.parametrize(
    ("body", "bulk"),
    [
        ({}, False),
        ({"max_words": 3, "limit": 20, "fuzzy": 2}, False),
        ({"max_words": 3, "dictionary": [f"word{n}" for n in range(500)]}, False),
        ({"max_steps": 4096, "max_words": 8, "limit": 100}, True),
        ({"max_steps": 2048}, True),
        ({"models": [{"model": "chars"}] * 8, "max_words": 8}, True),
        ({"dictionary": [f"word{n}" for n in range(5000)]}, True),
        ({"blocklist": [f"word{n}" for n in range(5000)]}, True),
    ],
)
def test_only_a_request_for_much_more_than_a_keystroke_is_bulk(http, server, monkeypatch, body, bulk):
    engine, options = server.app.state.services.engine, []
    run = engine.run
    monkeypatch.setattr(engine, "run", lambda work, given: [options.append(given), run(work, given)][1])
    ask(http, "a", **({} if "models" in body else {"model": "chars"}), **body)
    assert [one.bulk for one in options] == [bulk]


def offered(http, text, session, **options):
    options = {"limit": 1, "no_repeats": True, "session": session, **options}
    return [one["text"] for one in ask(http, text, **options)["completions"]]


def ranked(last, prefix):
    mass = probabilities(last, prefix)
    return sorted(mass, key=mass.get, reverse=True)


def test_what_is_offered_once_is_not_offered_again_within_a_word(http):
    of_o = probabilities(IDS["the"], "o")
    first, second = sorted(of_o, key=of_o.get, reverse=True)
    assert offered(http, "the o", "r1") == [first]
    assert offered(http, "the o", "r1") == [first]  # the same text gets the same reply
    assert offered(http, f"the {first}", "r1") == []
    assert offered(http, "the ", "r2", limit=1) == ranked(IDS["the"], "")[:1]
    for text, word in (("the ", ranked(IDS["the"], "")[0]), ("the o", first)):
        assert offered(http, text, "r2") == [word]
    reply = ask(http, f"the {second[:2]}", limit=1, no_repeats=True, session="r2")
    assert told(reply) == pytest.approx({second: 1.0}, rel=1e-5)


def test_others_take_their_places_with_their_probabilities(http):
    best = ranked(IDS["the"], "")
    assert offered(http, "the", "r8", limit=1) == ["the"]
    assert offered(http, "the ", "r8", limit=2) == best[:2]
    of_m = probabilities(IDS["the"], "o")
    reply = ask(http, "the o", limit=1, no_repeats=True, session="r8")
    left = [word for word in ranked(IDS["the"], "o") if word not in best[:2]]
    assert told(reply) == pytest.approx({left[0]: of_m[left[0]]}, rel=1e-5)
    assert reply["unexplored_mass"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "last", "prefix"), [("the ", "the", ""), ("the cat c", "cat", "c"), ("a c", "a", "c")]
)
def test_a_deletion_or_another_word_begins_anew(http, text, last, prefix):
    session = f"anew-{last}-{prefix}"
    assert offered(http, "the ", session, limit=10) == ranked(IDS["the"], "")
    assert offered(http, "the c", session) == []  # all were shown
    assert offered(http, text, session) == ranked(IDS[last], prefix)[:1]


def test_other_sessions_and_those_who_do_not_ask_are_offered_all(http):
    assert offered(http, "the c", "r6") == ["cat"]
    assert offered(http, "the ca", "r7") == offered(http, "the ca", "r6", no_repeats=False) == ["cat"]
    assert offered(http, "the ca", "r6") == []


def test_replies_that_do_not_ask_are_not_remembered(http):
    assert offered(http, "the c", "r3", no_repeats=False) == ["cat"]
    assert offered(http, "the ca", "r3") == ["cat"]
    assert offered(http, "the cat", "r3") == []


def test_no_repeats_requires_a_session(http):
    error = refused(http, text="the ", no_repeats=True)
    assert error["param"] == "no_repeats"
    assert error["message"] == "no_repeats is true, which requires session"


def test_a_superseded_request_has_shown_nothing(server, http):
    session = {"session": "r4", "no_repeats": True, "max_words": 1}
    with taking(server, 0.3):
        (old, _), (new, _) = in_order(server, [{"text": "a", **session}, {"text": "a d", **session}])
    assert (old.status_code, new.status_code) == (409, 200)
    with taking(server, 0.3):
        (old, _), (new, _) = in_order(server, [{"text": "dog c", **session}, {"text": "dog ca", **session}])
    assert (old.status_code, new.status_code) == (409, 200)
    assert [one["text"] for one in new.json()["completions"]] == ["cat"]


def test_a_session_is_that_of_its_api_key(registry):
    keys = [create_key(name, [KeyScope.INFER]) for name in ("one", "other")]
    settings = Settings(
        registry=registry.root, models=("mixture",), api_keys=tuple(key.key.line for key in keys)
    )
    with running(settings) as server:
        one, other = (
            httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key.secret}"})
            for key in keys
        )
        with one, other:
            assert offered(one, "the c", "r5") == ["cat"]
            assert offered(other, "the ca", "r5") == ["cat"]
            assert offered(one, "the ca", "r5") == []
