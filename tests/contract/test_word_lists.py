"""Stored word lists: stored, described, exported, replaced, deleted; used like the same entries in the request."""

import json
import threading

import httpx
import pytest

from service.api_keys import KeyScope, create_key
from service.settings import Settings
from tests.support.services import running

ENTRIES = [
    ("zebra", 3.0),
    ("Zoo", 1.0),
    ("zebra crossing", 2.0),
    ("don\u2019t", 1.0),
    ("home", 4.0),
    ("caf\u00e9", 1.0),
]
LINES = "".join(json.dumps({"text": text, "weight": weight}) + "\n" for text, weight in ENTRIES)
STORED = {"wordlist": "terms"}
LIST = {"candidates": [{"text": "a"}]}


@pytest.fixture(scope="module")
def http(registry, tmp_path_factory):
    settings = Settings(
        registry=registry.root,
        models=("mixture", "chars"),
        default_model="mixture",
        languages=("en-US=mixture", "de-DE=mixture"),
        wordlists=tmp_path_factory.mktemp("lists"),
        max_wordlists=5,
        max_wordlist_bytes=200_000,
        max_body_bytes=50_000,
        watch_interval_s=0,
    )
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=10) as client:
        put(client, "terms", LINES)
        yield client


def put(client, name, lines, **query):
    response = client.put(f"/v1/wordlists/{name}", content=lines, params=query)
    assert response.status_code == 200, response.text
    return response.json()


def refused(response, status=400):
    assert response.status_code == status, response.text
    return response.json()["error"]


def answer(client, path, body):
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_list_is_described_listed_exported_and_stored_again(http):
    described = put(http, "names", LINES, language="en", casing="exact")
    size = described.pop("bytes")
    assert size > 500
    assert described == {
        "name": "names", "version": 1, "casing": "exact", "language": "en", "entries": 6, "words": 6,
    }  # fmt: skip
    assert http.get("/v1/wordlists/names").json() == {**described, "bytes": size}
    assert [one["name"] for one in http.get("/v1/wordlists").json()["wordlists"]] == ["names", "terms"]
    exported = http.get("/v1/wordlists/names/entries")
    assert exported.headers["content-type"].startswith("application/x-ndjson")
    found = [json.loads(line) for line in exported.text.splitlines()]
    assert sorted((one["text"], one["weight"]) for one in found) == sorted(ENTRIES)
    again = put(http, "names", exported.content, language="en", casing="exact")
    assert again == {**described, "version": 2, "bytes": size}
    assert http.delete("/v1/wordlists/names").json() == {"name": "names", "deleted": True}
    assert http.delete("/v1/wordlists/names").json() == {"name": "names", "deleted": False}
    for path in ("/v1/wordlists/names", "/v1/wordlists/names/entries"):
        assert refused(http.get(path), 404)["code"] == "unknown_word_list"


@pytest.mark.parametrize("model", ["mixture", "chars"])
@pytest.mark.parametrize("casing", ["exact", "ignore"])
@pytest.mark.parametrize("text", ["the z", "the zebra c", "the ", "", "a Ze", "do", "don't", "a zebar"])
@pytest.mark.parametrize("fuzzy", [0, 1])
def test_a_stored_dictionary_completes_like_the_same_entries(http, model, casing, text, fuzzy):
    body = {"model": model, "text": text, "limit": 20, "max_words": 2, "casing": casing, "fuzzy": fuzzy}
    given = [{"text": text, "weight": weight} for text, weight in ENTRIES]
    stored, inline = (
        answer(http, "/v1/autocomplete", {**body, "dictionary": entries}) for entries in ([STORED], given)
    )
    assert [one["text"] for one in stored["completions"]] == [one["text"] for one in inline["completions"]]
    for one, other in zip(stored["completions"], inline["completions"], strict=True):
        assert one.pop("probability") == pytest.approx(other.pop("probability"), rel=1e-9)
        assert one == other
    parts = [STORED, *given]
    both = answer(http, "/v1/autocomplete", {**body, "dictionary": parts})["completions"]
    assert {one["text"] for one in both} >= {
        one["text"] for one in stored["completions"] if one["source"] == "user"
    }


@pytest.mark.parametrize("text", ["the ", "h", "ho"])
def test_a_stored_blocklist_blocks_like_the_same_entries(http, text):
    body = {"text": text, "limit": 20, "dictionary": ["zebra crossing", "homer", "home"]}
    free = answer(http, "/v1/autocomplete", body)["completions"]
    stored, inline = (
        answer(http, "/v1/autocomplete", {**body, "blocklist": blocked})["completions"]
        for blocked in ([STORED], [text for text, _ in ENTRIES])
    )
    assert [one["text"] for one in stored] == [one["text"] for one in inline]
    assert any(one["text"] == "home" for one in free)
    assert not any(one["text"] == "home" for one in stored)


@pytest.mark.parametrize("text", ["the zebar and the Zoo", "ZEBRA", "a cafe\u0301 don't", "zoos zebras"])
def test_a_stored_dictionary_accepts_words_like_the_same_entries(http, text):
    given = [text for text, _ in ENTRIES]
    stored, inline = (
        answer(http, "/v1/check", {"text": text, "dictionary": entries}) for entries in ([STORED], given)
    )
    assert stored == inline


def test_stored_phrases_count_like_the_same_phrases(http):
    lists = [{"candidates": [{"text": "the zebra crossing"}, {"text": "the zoo home"}]}]
    given = [{"text": text, "weight": weight} for text, weight in ENTRIES]
    for name in ({}, {"class": "street"}):
        stored, inline = (
            answer(http, "/v1/rerank", {"lists": lists, "phrases": phrases})
            for phrases in ([STORED | name], [one | name for one in given])
        )
        assert stored == inline
        more = answer(http, "/v1/rerank", {"lists": lists, "phrases": [STORED | name, {"text": "the zoo"}]})
        assert more["lists"] != stored["lists"]
    body = {"prompt": "the", "max_tokens": 5, "strategy": "greedy"}
    texts = [
        answer(http, "/v1/generate", {**body, "phrases": phrases})["choices"][0]["text"]
        for phrases in ([STORED], given)
    ]
    assert texts[0] == texts[1]
    for phrases in ([STORED], given):
        (opened,) = answer(http, "/v1/states", {"context": "the", "phrases": phrases})["states"]
        (one,) = answer(
            http, "/v1/states/advance", {"continuations": [{"state": opened["state"], "text": " home"}]}
        )["results"]
        texts.append({name: value for name, value in one.items() if name != "state"})
    assert texts[2] == texts[3]


def test_a_list_of_any_case_and_weight_counts_as_phrases_and_errors_have_places_of_the_request(http):
    lines = [
        {"text": "Jaan Tamm", "weight": 5000},
        {"text": "jaan tamm", "weight": 2},
        {"text": "the zoo", "weight": 3},
    ]
    put(http, "people", "\n".join(map(json.dumps, lines)))
    body = {"lists": [{"candidates": [{"text": "jaan tamm"}, {"text": "the zoo"}]}]}
    people = {"wordlist": "people"}
    for phrases, expected in (
        ([people], [1000.0, 3.0]),
        ([{"text": "the zoo", "weight": 7}, people], [1000.0, 7.0]),
        ([people, STORED, {"text": "The Zoo", "weight": 8}], [1000.0, 8.0]),
    ):
        (ranked,) = answer(http, "/v1/rerank", {**body, "phrases": phrases})["lists"]
        found = {one["index"]: one["features"]["phrases"] for one in ranked["ranking"]}
        assert [found[0], found[1]] == expected
    error = refused(
        http.post("/v1/rerank", json={**body, "phrases": [people, {"text": "a"}, STORED, {"text": "A"}]})
    )
    assert (error["param"], "phrases[1].text" in error["message"]) == ("phrases[3].text", True)
    put(http, "people", json.dumps(" ".join("abcdefghijklmnopq")))
    error = refused(http.post("/v1/rerank", json={**body, "phrases": [{"text": "a"}, people]}))
    assert error["param"] == "phrases[1].wordlist"
    assert error["message"].startswith("phrases[1].wordlist has an entry that is 'a b c")
    assert "17 words" in error["message"]
    http.delete("/v1/wordlists/people")


def test_an_export_of_large_sums_can_be_stored_again(http):
    line = json.dumps({"text": "sum", "weight": 1e9}) + "\n"
    put(http, "sums", line * 3)
    exported = http.get("/v1/wordlists/sums/entries").text
    assert json.loads(exported) == {"text": "sum", "weight": 1e9}
    assert put(http, "sums", exported)["entries"] == 1
    http.delete("/v1/wordlists/sums")


def test_phrases_of_a_query_string_may_be_a_list(http):
    line = json.dumps({"candidates": [{"text": "a zebra"}, {"text": "a horse"}]}) + "\n"
    reply = http.post(
        "/v1/rerank",
        content=line,
        params={"phrases": json.dumps([STORED])},
        headers={"content-type": "application/x-ndjson"},
    )
    assert [one["features"]["phrases"] for one in reply.json()["ranking"]] == [3.0, 0.0]


def test_languagetool_accepts_the_words_of_a_list_of_the_language(http):
    def unknown(language):
        reply = http.post("/v2/check", data={"text": "a hosue", "language": language}).json()
        return [match["context"]["text"] for match in reply["matches"]]

    assert unknown("en-US")
    put(http, "own", '"hosue"\n', language="en")
    assert not unknown("en-US")
    assert not unknown("en_gb")
    assert unknown("de-DE")
    http.delete("/v1/wordlists/own")
    assert unknown("en-US")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/autocomplete", {"text": "z", "dictionary": ["a", {"wordlist": "none"}]}, "dictionary[1].wordlist"),
        ("/v1/autocomplete", {"text": "z", "blocklist": [{"wordlist": "none"}]}, "blocklist[0].wordlist"),
        ("/v1/check", {"text": "z", "dictionary": [{"wordlist": "none"}]}, "dictionary[0].wordlist"),
        ("/v1/rerank", {"lists": [LIST], "phrases": [{"wordlist": "none"}]}, "phrases[0].wordlist"),
        ("/v1/generate", {"prompt": "z", "phrases": [{"wordlist": "none"}]}, "phrases[0].wordlist"),
        ("/v1/states", {"context": "z", "phrases": [{"wordlist": "none"}]}, "phrases[0].wordlist"),
    ],
)  # fmt: skip
def test_an_unknown_list_is_named(http, path, body, param):
    error = refused(http.post(path, json=body), 404)
    assert (error["code"], error["param"]) == ("unknown_word_list", param)
    wrong = json.loads(json.dumps(body).replace("none", "no/ne"))
    assert refused(http.post(path, json=wrong))["param"] == param


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (b"", "has no entries"),
        (b"\n\n", "has no entries"),
        (b'"a"\n5\n', "line 2: is 5"),
        (b'"a"\n\n{"text": "b", "weight": 0}\n', "line 3: weight is 0"),
        (b'{"text": "b", "weight": 1e10}', "line 1: weight is 10000000000"),
        (b'{"text": "b", "weight": NaN}', "line 1: weight"),
        (b'{"text": "b", "count": 1}', "line 1: unknown parameter 'count'"),
        (b'{"weight": 1}', "line 1: text is required"),
        (b'"  "', "line 1: is '  '"),
        (b'""', "line 1: is ''"),
        (b'"a", "b"', "line 1: has 2 values"),
        (b'"a"\n]["b"\n', "line 2: not JSON"),
        (b'"a\nb"\n"c","d"\n', "line 1: not JSON"),
        (b'{"text":"a"\n"weight":2}\n"c","d"\n', "line 1: not JSON"),
        (b'"\xff"', "line 1: not JSON in UTF-8"),
        (b'"' + b"a" * 201 + b'"', "at most 200 characters"),
        (b'"' + b"a" * 5000 + b'"', "line 1: has at least 5002 bytes; at most 4096"),
        (b'"a"\n' * 500 + b'"b\n', "line 501: not JSON"),
        (b'"\\u001c"\n', "line 1: is '\\x1c', white space only"),
        (b'"a"\n"a\\u0000b"\n', "line 2: has the character U+0000"),
        (b'"' + "\u0958".encode() * 150 + b'"', "line 1: has 300 characters in the form NFC"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_changes(http, lines, problem):
    before = http.get("/v1/wordlists").json()
    error = refused(http.put("/v1/wordlists/terms", content=lines))
    assert problem in error["message"]
    assert error["param"] == "body"
    assert http.get("/v1/wordlists").json() == before


@pytest.mark.parametrize(
    ("name", "query", "param"),
    [
        (".a", {}, "name"),
        ("a b", {}, "name"),
        ("x" * 65, {}, "name"),
        ("a", {"casing": "any"}, "casing"),
        ("a", {"language": "x"}, "language"),
        ("a", {"language": "en_US"}, "language"),
        ("a", {"lang": "en"}, "lang"),
    ],
)
def test_a_wrong_name_or_property_is_named(http, name, query, param):
    assert refused(http.put(f"/v1/wordlists/{name}", content='"a"', params=query))["param"] == param


def test_a_list_may_be_longer_than_other_bodies_up_to_its_own_limit(http):
    def lines(count):
        return (f'"word{number}"\n' for number in range(count))

    assert put(http, "long", "".join(lines(10_000)))["entries"] == 10_000
    error = refused(http.put("/v1/wordlists/long", content="".join(lines(20_000))), 413)
    assert "200000" in error["message"]
    chunks = (line.encode() for line in lines(3000))
    assert put(http, "long", chunks)["entries"] == 3000
    chunks = (line.encode() for line in lines(20_000))
    assert refused(http.put("/v1/wordlists/long", content=chunks), 413)
    assert http.get("/v1/wordlists/long").json()["version"] == 2
    for number, most in ((10_000, 10_000), (1_001, 1_000)):
        put(http, "long", "".join(lines(number + (most == 10_000))))
        path, body = {
            10_000: ("/v1/rerank", {"lists": [LIST]}),
            1_000: ("/v1/generate", {"prompt": "a"}),
        }[most]
        error = refused(http.post(path, json={**body, "phrases": [{"wordlist": "long"}]}))
        assert (error["param"], f"at most {most}" in error["message"]) == ("phrases[0].wordlist", True)
    http.delete("/v1/wordlists/long")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/autocomplete", {"text": "z"}, "dictionary"),
        ("/v1/autocomplete", {"text": "z"}, "blocklist"),
        ("/v1/check", {"text": "z"}, "dictionary"),
        ("/v1/rerank", {"lists": [LIST]}, "phrases"),
        ("/v1/generate", {"prompt": "z", "max_tokens": 1}, "phrases"),
        ("/v1/states", {"context": "z"}, "phrases"),
    ],
)
def test_a_field_names_a_few_lists(http, path, body, field):
    assert http.post(path, json={**body, field: [STORED] * 8}).status_code == 200
    error = refused(http.post(path, json={**body, field: [STORED] * 9}))
    assert (error["param"], "names 9 word lists; at most 8" in error["message"]) == (field, True)


def test_words_after_a_word_count_in_full_however_many_there_are(http):
    lines = [(f"coffee x{number}", 1 + number % 7) for number in range(440)]
    lines += [("coffee zebra", 1), ("big zebu", 5), ("Coffee zigzag", 2)]
    entries = [{"text": text, "weight": weight} for text, weight in lines]
    put(http, "pairs", "\n".join(map(json.dumps, entries)))
    for text, casing, fuzzy in (
        ("coffee zeb", "exact", 0),
        ("coffee zeb", "ignore", 1),
        ("coffee z", "exact", 0),
        ("Coffee Z", "ignore", 0),
    ):
        body = {"text": text, "user_weight": 1, "casing": casing, "fuzzy": fuzzy, "limit": 10}
        stored, inline = (
            answer(http, "/v1/autocomplete", {**body, "dictionary": given})["completions"]
            for given in ([{"wordlist": "pairs"}], entries)
        )
        assert [one["text"] for one in stored] == [one["text"] for one in inline]
        for one, other in zip(stored, inline, strict=True):
            assert one["probability"] == pytest.approx(other["probability"], rel=1e-9), (text, one)
    http.delete("/v1/wordlists/pairs")


def test_lists_block_words_in_any_case_or_in_their_own(http):
    own = [{"text": "stra\u00dfe", "weight": 5}, "STRASSE", "New1", "New2", "Newz", "don\u00b4t"]
    body = {"user_weight": 1, "dictionary": own, "limit": 3}

    def completed(text, **query):
        put(http, "blocks", '"STRASSE"\n"New1"\n"New2"\n"don\u00b4t"', **query)
        found = answer(
            http, "/v1/autocomplete", {**body, "text": text, "blocklist": [{"wordlist": "blocks"}]}
        )
        return [one["text"] for one in found["completions"] if one["source"] == "user"]

    assert completed("stra") == []
    assert completed("stra", casing="exact") == ["stra\u00dfe"]
    assert completed("New") == completed("New", casing="exact") == ["Newz"]
    assert completed("don") == []
    http.delete("/v1/wordlists/blocks")


def test_sums_of_words_are_not_cut(http):
    entries = [{"text": text, "weight": 1e9} for text in ("coffee mill", "coffee pot", "coffee cup", "coral")]
    put(http, "large", "\n".join(map(json.dumps, [*entries, {"text": "cozy", "weight": 1e-7}])))
    body = {"text": "co", "user_weight": 1, "dictionary": [{"wordlist": "large"}], "limit": 5}
    found = {one["text"]: one["probability"] for one in answer(http, "/v1/autocomplete", body)["completions"]}
    assert (found["coffee"], found["coral"]) == (pytest.approx(0.75), pytest.approx(0.25))
    body["text"] = "coz"
    (cozy,) = [
        one for one in answer(http, "/v1/autocomplete", body)["completions"] if one["source"] == "user"
    ]
    assert cozy["probability"] == pytest.approx(1, rel=1e-9)
    http.delete("/v1/wordlists/large")


def test_a_key_has_a_number_of_lists(http):
    for number in range(4):
        put(http, f"list{number}", '"a"')
    error = refused(http.put("/v1/wordlists/list4", content='"a"'))
    assert "has 5, the maximum" in error["message"]
    assert put(http, "list3", '"b"')["version"] == 2
    for number in range(4):
        http.delete(f"/v1/wordlists/list{number}")


def test_equal_entries_in_any_form_add_up_their_weights(http):
    reply = put(
        http,
        "forms",
        '"caf\u00e9"\n"cafe\\u0301"\n{"text":" caf\u00e9 ","weight":2}\n"CAF\u00c9"\n"a  b"\n',
    )
    assert reply["entries"] == 3
    found = [json.loads(line) for line in http.get("/v1/wordlists/forms/entries").text.splitlines()]
    assert {one["text"]: one["weight"] for one in found} == {"caf\u00e9": 4.0, "CAF\u00c9": 1.0, "a b": 1.0}
    http.delete("/v1/wordlists/forms")


def test_requests_read_the_old_list_or_the_new_one_while_it_is_replaced(http):
    versions = [["zap", "zip"], ["zapp", "zipp"]]
    put(http, "changing", "\n".join(map(json.dumps, versions[0])))
    stop = threading.Event()

    def replace():
        number = 0
        with httpx.Client(base_url=http.base_url) as client:
            while not stop.is_set():
                number += 1
                put(client, "changing", "\n".join(map(json.dumps, versions[number % 2])))

    thread = threading.Thread(target=replace)
    thread.start()
    seen = set()
    try:
        for _ in range(150):
            body = {"text": "z", "dictionary": [{"wordlist": "changing"}], "limit": 10}
            found = answer(http, "/v1/autocomplete", body)["completions"]
            own = sorted(one["text"] for one in found if one["source"] == "user")
            assert own in versions
            seen.add(own[0])
    finally:
        stop.set()
        thread.join()
    assert seen == {"zap", "zapp"}


def test_lists_of_one_key_are_unknown_to_another(registry, tmp_path):
    keys = [create_key(name, [KeyScope.INFER]) for name in ("one", "other")]
    settings = Settings(
        registry=registry.root,
        models=("mixture",),
        wordlists=tmp_path / "lists",
        api_keys=tuple(key.key.line for key in keys),
    )
    with running(settings) as server:
        one, other = (
            httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key.secret}"})
            for key in keys
        )
        put(one, "terms", LINES)
        assert other.get("/v1/wordlists").json() == {"wordlists": []}
        body = {"text": "z", "dictionary": [STORED]}
        assert refused(other.post("/v1/autocomplete", json=body), 404)["code"] == "unknown_word_list"
        assert other.delete("/v1/wordlists/terms").json()["deleted"] is False
        assert put(other, "terms", '"b"')["entries"] == 1
        assert one.get("/v1/wordlists/terms").json()["entries"] == 6
        assert httpx.put(f"{server.url}/v1/wordlists/a", content='"a"').status_code == 401
        one.close()
        other.close()
    assert all(path.is_relative_to(tmp_path / "lists") for path in tmp_path.rglob("*.words"))


def test_lists_survive_a_restart_and_a_damaged_one_is_reported(registry, tmp_path):
    settings = Settings(registry=registry.root, models=("mixture",), wordlists=tmp_path)
    with running(settings) as server, httpx.Client(base_url=server.url) as client:
        put(client, "terms", LINES)
    (file,) = tmp_path.rglob("*.words")
    with running(settings) as server, httpx.Client(base_url=server.url) as client:
        assert client.get("/v1/wordlists/terms").json()["entries"] == 6
        assert "gramophone_wordlists 1.0" in client.get("/metrics").text
        damaged = file.with_name("damaged")
        damaged.write_bytes(file.read_bytes()[:300])
        damaged.replace(file)
        error = refused(client.post("/v1/autocomplete", json={"text": "z", "dictionary": [STORED]}), 503)
        assert error["code"] == "word_list_unavailable"
        assert client.get("/v1/wordlists").json() == {"wordlists": []}
        assert put(client, "terms", LINES)["entries"] == 6
        assert answer(client, "/v1/autocomplete", {"text": "z", "dictionary": [STORED]})
