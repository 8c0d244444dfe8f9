"""Text accepted by users of autocomplete: learnt, mixed in, listed, replaced and deleted."""

import httpx
import pytest

from gramophone_client import BadRequestError, Client, NotFoundError
from gramophone_client.types import UserCorrection, UserPair, UserWord
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


def test_a_word_is_forgotten(client):
    client.users.accept("flo", SENTENCE)
    client.users.accept("flo", "zebra", typed="zbera")
    reply = client.users.forget_word("flo", "zebra")
    assert (reply.user, reply.num_words, reply.num_pairs) == ("flo", 4, 2)
    exported = client.users.export("flo")
    assert {word.text for word in exported.words} == {"The", "ran", "home", "sat"}
    assert {(pair.previous, pair.text) for pair in exported.pairs} == {
        ("", "The"),
        ("ran", "home"),
    }
    assert exported.corrections == []
    assert told(client.autocomplete("the ze", user="flo")) == {}
    for user, word, code, param in (
        ("flo", "zebra", "unknown_word", "word"),
        ("flo", "", "not_found", None),
        ("flo", "..", "unknown_word", "word"),
        ("nobody", "zebra", "unknown_user", "user"),
    ):
        with pytest.raises(NotFoundError) as caught:
            client.users.forget_word(user, word)
        assert (caught.value.code, caught.value.param) == (code, param)
    assert client.users.export("flo") == exported
    with pytest.raises(BadRequestError, match="letters, digits"):
        client.users.forget_word("a b", "zebra")


@pytest.mark.parametrize(
    "word",
    ["a/b", "a/", "/", "..", ".", "50%", "%2F", "?", "#", "čaj", "🙂", "a+b", "\\"],
)
def test_a_word_of_any_characters_is_forgotten(client, word):
    client.users.restore("fox", [UserWord(text=word, count=1), UserWord(text="rest", count=1)])
    assert client.users.forget_word("fox", word).num_words == 1
    assert [one.text for one in client.users.export("fox").words] == ["rest"]


@pytest.mark.parametrize("fuzzy", [0, 1])
def test_a_misspelling_is_completed_from_its_second_correction_on(client, fuzzy):
    user, text = f"gil{fuzzy}", "the zbera"
    found = []
    for _ in range(3):
        reply = client.autocomplete(text, user=user, fuzzy=fuzzy)
        found.append(
            [(one.text, one.suffix, one.source, one.edits, one.start) for one in reply.completions][:1]
        )
        client.users.accept(user, "zebra", context="the ", typed="zbera")
    expected = [("zebra", None, "user", 1, 4)]
    assert found == [
        [],
        expected if fuzzy else [],
        expected,
    ]  # with `fuzzy` as soon as it is a word of the user
    assert told(client.autocomplete("the zber", user=user)) == {"zebra": (None, "user")}
    assert told(client.autocomplete("the zb", user=user)) == {}
    assert told(client.autocomplete("the zberas", user=user)) == {}
    assert told(client.autocomplete("the zbera", user="bob")) == {}


def test_phrases_begin_with_a_corrected_word(client):
    for _ in range(2):
        client.users.accept("gus", "zebra crossing", typed="zbera")
    assert set(told(client.autocomplete("the zbera", user="gus", max_words=2))) == {
        "zebra",
        "zebra crossing",
    }


def of_user(client, text, words, corrections, **options):
    """Return the probabilities of completions by a user's words alone."""
    client.users.restore(
        "hob",
        [UserWord(text=text, count=count) for text, count in words.items()],
        corrections=[UserCorrection(typed=typed, text=to, count=n) for (typed, to), n in corrections.items()],
    )
    reply = client.autocomplete(text, user="hob", user_weight=1.0, **options)
    return {one.text: pytest.approx(one.probability) for one in reply.completions}


@pytest.mark.parametrize("fuzzy", [0, 1])
def test_a_misspelling_means_what_it_was_corrected_to_or_kept_as(client, fuzzy):
    """Words are as probable as their counts among what was meant by the spelling, if it stands alone."""
    words, spelling = (
        {"zebra": 20.0, "zbera": 6.0, "zoo": 9.0, "zerba": 4.0},
        "Look: zbera",
    )
    assert of_user(client, spelling, words, {("zbera", "zebra"): 4.0}) == {
        "zebra": 4 / 10,
        "zbera": 6 / 10,
    }
    two = {("zbera", "zebra"): 3.0, ("zbera", "zoo"): 2.0}
    assert of_user(client, spelling, words, two) == {
        "zebra": 3 / 11,
        "zoo": 2 / 11,
        "zbera": 6 / 11,
    }
    assert of_user(client, spelling, words, {("zbera", "zebra"): 1.0}) == {"zbera": 1}
    more = {("zbera", "zebra"): 6.5, ("zbera", "zoo"): 1.0}
    assert of_user(client, spelling, words, more) == {"zebra": 1}
    assert of_user(client, "Look: zbe", words, more) == {"zebra": 1}
    assert of_user(client, "Look: zb", words, more) == {}
    assert of_user(client, "Look: ZBERA", words, more, casing="ignore") == {"ZEBRA": 1}


def test_corrections_are_exported_and_restored(client):
    for _ in range(2):
        client.users.accept("ivy", "zebra", typed="zbera")
    exported = client.users.export("ivy")
    assert [(one.typed, one.text) for one in exported.corrections] == [("zbera", "zebra")]
    assert 1.9 < exported.corrections[0].count < 2
    client.users.restore("iva", exported.words, exported.pairs, exported.corrections)
    assert client.users.export("iva").corrections == exported.corrections
    client.users.restore("iva", exported.words, exported.pairs)
    assert client.users.export("iva").corrections == []


@pytest.mark.parametrize("typed", ["", "a b", "x" * 65, "a\x1d"])
def test_a_misspelling_is_a_word(client, typed):
    with pytest.raises(BadRequestError) as caught:
        client.users.accept("jan", "zebra", typed=typed)
    assert caught.value.param == "typed"


@pytest.mark.parametrize(
    ("corrections", "param"),
    [
        ([("a b", "a", 1)], "corrections[0].typed"),
        ([("a" * 65, "a", 1)], "corrections[0].typed"),
        ([("b", "c", 1)], "corrections[0].text"),
        ([("b", "a", 0)], "corrections[0].count"),
        ([("b", "a", 1)] * 2, "corrections[1]"),
    ],
)
def test_an_invalid_correction_of_a_restore_is_named(client, corrections, param):
    rows = [UserCorrection(typed=typed, text=text, count=count) for typed, text, count in corrections]
    with pytest.raises(BadRequestError) as caught:
        client.users.restore("kim", [UserWord(text="a", count=1)], corrections=rows)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("words", "pairs", "param"),
    [
        ([UserWord(text="a b", count=1)], [], "words[0].text"),
        ([UserWord(text="\x1c", count=1)], [], "words[0].text"),
        ([UserWord(text="a\x1fb", count=1)], [], "words[0].text"),
        (
            [UserWord(text="a", count=1)],
            [UserPair(previous="b\x1d", text="a", count=1)],
            "pairs[0].previous",
        ),
        ([UserWord(text="a", count=0)], [], "words[0].count"),
        ([UserWord(text="a", count=1), UserWord(text="a", count=2)], [], "words[1]"),
        ([UserWord(text="a" * 65, count=1)], [], "words[0].text"),
        ([UserWord(text=f"w{n}", count=1) for n in range(1001)], [], "words"),
        (
            [UserWord(text="a", count=1)],
            [UserPair(previous="", text="b", count=1)],
            "pairs[0].text",
        ),
        (
            [UserWord(text="a", count=1)],
            [UserPair(previous="b" * 65, text="a", count=1)],
            "pairs[0].previous",
        ),
        (
            [UserWord(text="a", count=1)],
            [UserPair(previous="", text="a", count=1)] * 2,
            "pairs[1]",
        ),
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
        corrections = [UserCorrection(typed=f"t{n}", text="one", count=1) for n in range(13)]
        with pytest.raises(BadRequestError, match="has 13 entries; at most 12 are stored per user") as caught:
            client.users.restore("a", [UserWord(text="one", count=1)], corrections=corrections)
        assert caught.value.param == "corrections"
        metrics = httpx.get(f"{server.url}/metrics").text
        assert "gramophone_autocomplete_users 2.0" in metrics


def test_users_of_one_key_are_unknown_to_another(registry):
    keys = [create_key(name, [KeyScope.INFER]) for name in ("one", "other")]
    settings = Settings(
        registry=registry.root,
        models=("mixture",),
        api_keys=tuple(key.key.line for key in keys),
    )
    with running(settings) as server:
        clients = [Client(server.url, api_key=key.secret) for key in keys]
        clients[0].users.accept("ann", SENTENCE)
        found = [told(client.autocomplete("ze", user="ann")) for client in clients]
        assert [bool(words) for words in found] == [True, False]
        assert not clients[1].users.forget("ann")
        with pytest.raises(NotFoundError) as caught:
            clients[1].users.forget_word("ann", "zebra")
        assert caught.value.code == "unknown_user"
        assert clients[0].users.forget_word("ann", "zebra").num_words == 4
        for client in clients:
            client.close()
