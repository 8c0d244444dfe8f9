"""Text accepted by users of autocomplete: learnt, mixed in, listed, replaced and deleted."""

import httpx
import pytest

from gramophone_client import BadRequestError, Client, NotFoundError
from gramophone_client.types import UserPair, UserWord
from service.api_keys import KeyScope, create_key
from service.settings import Settings
from tests.support.services import running

SENTENCE = "The zebra ran home. The zebra sat!"


@pytest.fixture(scope="module")
def client(server):
    with Client(server.url) as client:
        yield client


def told(reply):
    return {one.text: (one.suffix, one.source) for one in reply.completions}


def test_accepted_words_are_offered_though_the_model_does_not_know_them(client):
    client.users.accept("ann", SENTENCE)
    assert told(client.autocomplete("the ze", user="ann")) == {"zebra": ("bra", "user")}
    assert told(client.autocomplete("the ze", user="bob")) == {}
    assert told(client.autocomplete("the ze")) == {}


def test_accepted_word_pairs_raise_the_probability_of_the_second_word(client):
    client.users.accept("cid", SENTENCE)
    after_zebra, elsewhere = (
        {one.text: one.probability for one in client.autocomplete(text, user="cid", limit=100).completions}[
            "home"
        ]
        for text in ("zebra ran ", "zebra house ")
    )
    assert after_zebra > elsewhere


def test_accepted_context_raises_the_probability_after_its_last_word(client):
    client.users.accept("cor", "zebra", context="see the ")
    client.users.accept("cor", "zoo", context="")
    client.users.accept("cor", "zoom")
    after = {one.text: one.probability for one in client.autocomplete("at the z", user="cor").completions}
    assert after["zebra"] > 2 * max(after["zoo"], after["zoom"])
    pairs = {(pair.previous, pair.text) for pair in client.users.export("cor").pairs}
    assert pairs == {("the", "zebra"), ("", "zoo")}


def test_phrases_are_offered_as_they_were_accepted(client):
    client.users.accept("dan", SENTENCE)
    reply = client.autocomplete("Look: ze", user="dan", max_words=3)
    assert {"zebra", "zebra ran", "zebra ran home", "zebra sat"} <= set(told(reply))


def test_an_export_restores_what_was_known(client):
    client.users.accept("eve", SENTENCE)
    exported = client.users.export("eve")
    assert {word.text: round(word.count, 2) for word in exported.words}["zebra"] == 2.0
    reply = client.users.restore("eva", exported.words, exported.pairs)
    assert (reply.user, reply.num_words, reply.num_pairs) == ("eva", 5, 5)
    before, after = (client.autocomplete("the ze", user=user) for user in ("eve", "eva"))
    assert before == after
    assert client.users.export("eva").model_copy(update={"user": "eve"}) == exported


def test_a_user_is_forgotten(client):
    client.users.accept("fay", SENTENCE)
    assert client.users.forget("fay")
    assert not client.users.forget("fay")
    assert told(client.autocomplete("the ze", user="fay")) == {}
    with pytest.raises(NotFoundError) as caught:
        client.users.export("fay")
    assert (caught.value.code, caught.value.param) == ("unknown_user", "user")


@pytest.mark.parametrize(
    ("words", "pairs", "param"),
    [
        ([UserWord(text="a b", count=1)], [], "words[0].text"),
        ([UserWord(text="\x1c", count=1)], [], "words[0].text"),
        ([UserWord(text="a\x1fb", count=1)], [], "words[0].text"),
        ([UserWord(text="a", count=1)], [UserPair(previous="b\x1d", text="a", count=1)], "pairs[0].previous"),
        ([UserWord(text="a", count=0)], [], "words[0].count"),
        ([UserWord(text="a", count=1), UserWord(text="a", count=2)], [], "words[1]"),
        ([UserWord(text="a" * 65, count=1)], [], "words[0].text"),
        ([UserWord(text=f"w{n}", count=1) for n in range(1001)], [], "words"),
        ([UserWord(text="a", count=1)], [UserPair(previous="", text="b", count=1)], "pairs[0].text"),
        (
            [UserWord(text="a", count=1)],
            [UserPair(previous="b" * 65, text="a", count=1)],
            "pairs[0].previous",
        ),
        ([UserWord(text="a", count=1)], [UserPair(previous="", text="a", count=1)] * 2, "pairs[1]"),
    ],
)
def test_invalid_word_or_pair_of_a_restore_is_named(client, words, pairs, param):
    with pytest.raises(BadRequestError) as caught:
        client.users.restore("gus", words, pairs)
    assert caught.value.param == param


@pytest.mark.parametrize("user", ["a b", ".hidden", "é", "x" * 129])
def test_names_that_no_path_can_have_are_refused(client, user):
    with pytest.raises(BadRequestError, match="letters, digits") as caught:
        client.users.accept(user, "hello")
    assert caught.value.param == "user"


@pytest.mark.parametrize("text", ["", "x" * 10_001])
def test_accepted_texts_have_a_length(client, text):
    with pytest.raises(BadRequestError) as caught:
        client.users.accept("hal", text)
    assert caught.value.param == "text"


def test_least_recent_user_is_evicted_and_words_are_bounded(registry):
    settings = Settings(registry=registry.root, models=("mixture",), max_users=2, max_user_words=3)
    with running(settings) as server, Client(server.url) as client:
        for user in ("a", "b", "a", "c"):
            reply = client.users.accept(user, "one two three four five")
        assert reply.num_words == 3
        assert len(client.users.export("a").words) == 3
        with pytest.raises(NotFoundError):
            client.users.export("b")
        metrics = httpx.get(f"{server.url}/metrics").text
        assert "gramophone_autocomplete_users 2.0" in metrics


def test_users_of_one_key_are_unknown_to_another(registry):
    keys = [create_key(name, [KeyScope.INFER]) for name in ("one", "other")]
    settings = Settings(
        registry=registry.root, models=("mixture",), api_keys=tuple(key.key.line for key in keys)
    )
    with running(settings) as server:
        clients = [Client(server.url, api_key=key.secret) for key in keys]
        clients[0].users.accept("ann", SENTENCE)
        found = [told(client.autocomplete("ze", user="ann")) for client in clients]
        assert [bool(words) for words in found] == [True, False]
        assert not clients[1].users.forget("ann")
        for client in clients:
            client.close()
