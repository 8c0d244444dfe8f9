"""LanguageTool's API: its own Python client, markup, positions, languages, rules, refusals."""

import itertools
import json
import re

import httpx
import language_tool_python
import pytest

from service.operations import languagetool
from service.operations.languagetool import AnnotatedText, Annotation, LanguageToolRequest, utf16_length
from service.settings import Settings
from tests.support.services import running


@pytest.fixture(scope="module")
def service(registry):
    languages = ("en-US=mixture", "de-DE=chars")
    settings = Settings(
        registry=registry.root, languages=languages, watch_interval_s=0, max_tokens_per_sequence=1000
    )
    with running(settings) as started, httpx.Client(base_url=started.url, timeout=10) as client:
        yield started, client


def check(service, **fields):
    response = service[1].post("/v2/check", data={"language": "en-US"} | fields)
    assert response.status_code == 200, response.text
    return response.json()


def refused(service, **fields):
    response = service[1].post("/v2/check", data={"language": "en-US"} | fields)
    assert response.status_code == 400, response.text
    return response.json()["error"]


def test_its_own_client_finds_and_corrects_a_misspelling(service):
    with language_tool_python.LanguageTool("en-US", remote_server=service[0].url) as tool:
        (match,) = tool.check("\U0001f600 a hosue")
        assert (match.offset, match.error_length) == (4, 5)  # in code points, as Python counts
        assert match.replacements[0] == "house"
        assert (match.rule_id, match.category) == ("MORFOLOGIK_RULE_EN_US", "TYPOS")
        assert match.context == "\U0001f600 a hosue"
        assert tool.correct("a hosue") == "a house"
        tool.disabled_rules = {"MORFOLOGIK_RULE_EN_US"}
        assert tool.check("a hosue") == []


def test_a_reply_is_that_of_v1_check(service):
    text = "the cat sat\na hosue\nteh dog"
    expected = (
        service[1].post("/v1/check", json={"text": text, "model": "mixture", "max_suggestions": 10}).json()
    )
    matches = check(service, text=text)["matches"]
    assert [(m["offset"], m["offset"] + m["length"]) for m in matches] == [
        (issue["start"], issue["end"]) for issue in expected["issues"]
    ]
    assert [[r["value"] for r in m["replacements"]] for m in matches] == [
        [suggestion["text"] for suggestion in issue["suggestions"]] for issue in expected["issues"]
    ]
    assert [m["sentence"] for m in matches if m["rule"]["id"].startswith("MORFOLOGIK")] == [
        "a hosue",
        "teh dog",
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("The cat. A hosue is (here!) the dog", "A hosue is (here!)"),
        ("a hosue\nthe dog", "a hosue"),
        ("the cat?” a hosue", "a hosue"),
        ("猫。hosue！the dog", "hosue！"),  # noqa: RUF001 - full-width
        ("a hosue", "a hosue"),
    ],
)
def test_a_match_has_its_sentence(text, sentence):
    start = text.index("hosue")
    assert languagetool._sentence(text, start, start + 5) == sentence


def test_sentences_that_matches_repeat_are_short(service):
    matches = check(service, text="hosue " * 300)["matches"]
    assert len(matches) == 300
    assert {len(match["sentence"]) for match in matches[80:200]} == {2 * 240 + 5}


def test_positions_count_markup_and_utf16(service):
    annotation = [
        {"markup": "<p>"},
        {"text": "\U0001f600 a "},
        {"markup": "<b>"},
        {"text": "hos"},
        {"markup": "</b>"},
        {"text": "ue"},
        {"markup": "</p>", "interpretAs": "\n"},
        {"text": "teh"},
    ]
    first, second = check(service, data=json.dumps({"annotation": annotation}))["matches"]
    whole = "".join(part.get("text", part.get("markup")) for part in annotation).encode("utf-16-le")
    marked = [
        whole[2 * m["offset"] : 2 * (m["offset"] + m["length"])].decode("utf-16-le") for m in (first, second)
    ]
    assert marked == ["hos</b>ue", "teh"]
    context = first["context"]
    inside = context["text"].encode("utf-16-le")[
        2 * context["offset"] : 2 * (context["offset"] + context["length"])
    ]
    assert inside.decode("utf-16-le") == "hosue"


def test_positions_in_a_long_text_are_found_without_reading_it_from_the_start(monkeypatch):
    read = []
    monkeypatch.setattr(
        languagetool, "utf16_length", lambda text: read.append(len(text)) or utf16_length(text)
    )
    text = "\U0001f600 a" * 10_000
    document = AnnotatedText([Annotation(text=text), Annotation(markup="<b>"), Annotation(text="b")])
    read.clear()
    assert [document.offset(position) for position in (9_000, 30_000)] == [12_000, 40_003]
    assert sum(read) <= 2 * 4096


def test_parts_of_a_text_with_markup_are_read_in_steps():
    request = LanguageToolRequest(language="en", data=json.dumps({"annotation": [{"text": "a"}] * 10_000}))
    steps = list(request.document())
    assert len(steps) > 50


def test_interpretation_of_markup_has_the_offsets_of_the_markup():
    marked = AnnotatedText(
        [Annotation(text="a"), Annotation(markup="&eacute;", interpretAs="é"), Annotation(text="b")]
    )
    assert marked.plain == "aéb"
    assert [marked.offset(position) for position in range(3)] == [0, 1, 9]
    assert [marked.offset(position, end=True) for position in (1, 2, 3)] == [1, 9, 10]


def test_positions_are_those_of_the_text_with_markup():
    """Every position, in texts with markup and characters of two code units, against encoded beginnings."""
    parts = ["a", "\U0001f600", "bc\U0001f600d", "", "e"]
    for size in range(1, 4):
        for texts in itertools.product(parts, repeat=size):
            document = [
                one for text in texts for one in (Annotation(text=text), Annotation(markup="<\U0001f600>"))
            ]
            marked = AnnotatedText(document)
            assert marked.plain == "".join(texts)
            place = 0
            for text in texts:
                for index in range(len(text)):
                    position = (
                        len("".join(texts[: texts.index(text)])) + index if texts.count(text) == 1 else None
                    )
                    if position is not None:
                        assert marked.offset(position) == place + utf16_length(text[:index])
                        assert marked.offset(position + 1, end=True) == place + utf16_length(
                            text[: index + 1]
                        )
                place += utf16_length(text) + 4


@pytest.mark.parametrize(
    ("asked", "code"),
    [("en-US", "en-US"), ("en", "en-US"), ("en_GB", "en-US"), ("de", "de-DE"), ("auto", "en-US")],
)
def test_languages(service, asked, code):
    language = check(service, text="the cat sat", language=asked)["language"]
    assert language["detectedLanguage"]["code"] == code
    assert language["code"] == (code if asked == "auto" else asked)


def test_auto_takes_the_language_whose_model_predicts_the_text(service):
    found = check(service, text="zebra quagga okapi zebra quagga", language="auto")["language"][
        "detectedLanguage"
    ]
    assert (found["name"], found["code"]) == ("de-DE", "de-DE")  # its model knows all letters
    assert 0.5 < found["confidence"] <= 1


def test_auto_finds_errors_in_the_languages_of_both_models(service):
    text = "the cat sat on teh mat\nzebra quagga okapi zebra"
    matches = check(service, text=text, language="auto")["matches"]
    found = [text[m["offset"] : m["offset"] + m["length"]] for m in matches]
    assert "teh" in found
    assert "zebra" not in found


SHORT_REFUSALS = {
    "no text": {"language": "en-US"},
    "text and data": {"language": "en-US", "text": "a", "data": "{}"},
    "language": {"language": "fr", "text": "a"},
    "no language": {"text": "a"},
    "level": {"language": "en-US", "text": "a", "level": "hard"},
    "mode": {"language": "en-US", "text": "a", "mode": "sentence"},
    "enabledOnly": {"language": "en-US", "text": "a", "enabledOnly": "maybe"},
    "data": {"language": "en-US", "data": '{"annotation": [{"text": 3}]}'},
    "length": {"language": "en-US", "text": "word " * 2000},
    "rules": {"language": "en-US", "text": "a", **{f"field{number}": "" for number in range(100)}},
}


@pytest.mark.parametrize("fields", SHORT_REFUSALS.values(), ids=SHORT_REFUSALS)
def test_a_query_string_is_refused_as_the_form_is(service, fields):
    asked, form = service[1].get("/v2/check", params=fields), service[1].post("/v2/check", data=fields)
    assert asked.status_code == form.status_code == 400
    assert asked.json() == form.json()


def test_a_query_string_that_is_not_utf8_or_too_long_is_refused(service):
    garbled = service[1].get("/v2/check?language=en-US&text=%ff")
    assert (garbled.status_code, "in UTF-8" in garbled.json()["error"]["message"]) == (400, True)
    long = service[1].get("/v2/check", params={"language": "en-US", "text": "a " * 20_000})
    assert (long.status_code, "32768 bytes" in long.json()["error"]["message"]) == (431, True)


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "a hosue"},
        {"text": "\U0001f600 a & b+c = 100% hosue"},
        {"text": "a hosue\nteh dog"},
        {"text": ""},
        {"data": json.dumps({"annotation": [{"markup": "<p>"}, {"text": "a hosue"}]})},
        {"text": "a hosue", "language": "auto"},
        {"text": "a hosue", "level": "picky", "motherTongue": "fr", "preferredVariants": "en-GB"},
        {"text": "a hosue", "enabledOnly": "yes", "enabledRules": "MORFOLOGIK_RULE_EN_US"},
    ],
)
def test_a_query_string_has_the_reply_of_the_form(service, fields):
    asked = service[1].get("/v2/check", params={"language": "en-US"} | fields)
    assert asked.status_code == 200, asked.text
    assert asked.json() == check(service, **fields)


VERSIONS = {"2.9.5": "GET", "3.3.0": "GET", "3.4.0": "POST"}
"""Methods with which versions of `language_tool_python` send texts to `v2/check`, as recorded."""


@pytest.mark.parametrize("base", ["", "/"])
@pytest.mark.parametrize(("version", "method"), VERSIONS.items(), ids=VERSIONS)
def test_its_client_of_every_version_is_answered(service, version, method, base):
    url = f"{service[0].url}/{base}v2/"
    headers = {"User-Agent": "python-requests/2.32.5", "Accept": "*/*", "Accept-Encoding": "gzip, deflate"}
    rules = {"disabledRules": "CONFUSION_RULE", "enabledCategories": "TYPOS", "level": "picky"}
    fields = {"language": "en-US", "text": "\U0001f600 a hosue", "motherTongue": "en-US", **rules}
    listed = httpx.get(f"{url}languages", headers=headers).json()
    assert {"code": "en", "longCode": "en-US", "name": "en-US"} in listed
    sent = {"params": fields} if method == "GET" else {"data": fields}
    (match,) = httpx.request(method, f"{url}check", headers=headers, **sent).json()["matches"]
    assert (match["offset"], match["length"], match["replacements"][0]["value"]) == (5, 5, "house")
    assert (match["rule"]["id"], match["rule"]["issueType"]) == ("MORFOLOGIK_RULE_EN_US", "misspelling")


@pytest.mark.parametrize("path", ["//v2/check", "/v2//check", "//v2//check", "///v2/check"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_base_url_may_end_in_a_slash(service, path, method):
    fields = {"language": "en-US", "text": "a hosue"}
    sent = {"params": fields} if method == "GET" else {"data": fields}
    reply = httpx.request(method, f"{service[0].url}{path}", **sent)
    assert (reply.status_code, len(reply.json()["matches"])) == (200, 1)


@pytest.mark.parametrize("path", ["//v1/models", "/v1//models", "//v2/languages", "//v2/healthcheck"])
def test_the_base_url_of_any_client_may_end_in_a_slash(service, path):
    assert httpx.get(f"{service[0].url}{path}").status_code == 200


@pytest.mark.parametrize("path", ["//metrics", "//admin/models", "/x//v2/check", "/v2/check//", "//"])
def test_other_paths_are_as_they_are_given(service, path):
    assert httpx.get(f"{service[0].url}{path}").status_code == 404


@pytest.mark.parametrize("language", ["en-US", "auto"])
@pytest.mark.parametrize(
    ("mode", "num_matches"), [("all", 1), ("allButTextLevelOnly", 1), ("batch", 1), ("textLevelOnly", 0)]
)
def test_there_are_no_rules_about_whole_texts(service, mode, num_matches, language):
    reply = check(service, text="a hosue", mode=mode, language=language)
    assert len(reply["matches"]) == num_matches
    assert reply["language"]["detectedLanguage"]["code"] == "en-US"


def test_its_health_check_says_ok(service):
    reply = service[1].get("/v2/healthcheck")
    assert (reply.status_code, reply.text, reply.headers["content-type"]) == (
        200,
        "OK",
        "text/plain; charset=utf-8",
    )


def test_languages_are_listed_for_clients(service):
    listed = service[1].get("/v2/languages").json()
    assert listed == [
        {"name": "en-US", "code": "en", "longCode": "en-US"},
        {"name": "de-DE", "code": "de", "longCode": "de-DE"},
    ]


def test_without_the_setting_the_default_model_is_english(http):
    assert [language["longCode"] for language in http.get("/v2/languages").json()] == ["en-US"]
    assert http.post("/v2/check", data={"language": "en-US", "text": "a hosue"}).json()["matches"]


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({}, [True, True]),
        ({"disabledRules": "CONFUSION_RULE,OTHER"}, [True, False]),
        ({"disabledCategories": "TYPOS"}, [False, True]),
        ({"enabledOnly": "true", "enabledCategories": "CONFUSED_WORDS"}, [False, True]),
        ({"enabledOnly": "true", "enabledRules": "MORFOLOGIK_RULE_EN_US"}, [True, False]),
        ({"enabledOnly": "true"}, [False, False]),
        ({"enabledOnly": "yes", "enabledRules": "CONFUSION_RULE"}, [False, True]),
        ({"enabledOnly": "yes"}, [False, False]),
        ({"enabledOnly": "no", "enabledRules": "CONFUSION_RULE"}, [True, True]),
        ({"mode": "textLevelOnly"}, [False, False]),
        ({"mode": "allButTextLevelOnly"}, [True, True]),
    ],
)
def test_rules_and_categories_can_be_left_out(fields, allowed):
    request = LanguageToolRequest(language="en-US", text="", **fields)
    rules = [("MORFOLOGIK_RULE_EN_US", "TYPOS"), ("CONFUSION_RULE", "CONFUSED_WORDS")]
    assert [request.allows(*rule) for rule in rules] == allowed


def test_picky_reports_less_probable_errors(service):
    text = "the dog sat on a house\n" * 5
    assert len(check(service, text=text, level="picky")["matches"]) >= len(
        check(service, text=text)["matches"]
    )


def test_other_fields_of_languagetool_are_ignored(service):
    fields = {
        "motherTongue": "fr",
        "preferredVariants": "en-GB",
        "allowIncompleteResults": "true",
        "useragent": "x",
    }
    assert len(check(service, text="a hosue", **fields)["matches"]) == 1


def test_a_text_in_json_as_the_browser_add_on_sends_it(service):
    (match,) = check(service, data=json.dumps({"text": "a hosue", "metaData": {"EmailToAddress": ""}}))[
        "matches"
    ]
    assert (match["offset"], match["length"]) == (2, 5)
    parts = [{"text": "a hosue", "offset": {"start": 0, "end": 7}}]
    assert check(service, data=json.dumps({"annotation": parts}))["matches"] == [match]


def test_an_empty_text_has_no_errors(service):
    assert check(service, text="")["matches"] == []
    assert check(service, data='{"annotation": []}')["matches"] == []


@pytest.mark.parametrize(
    ("fields", "said", "param"),
    [
        ({}, "give either text or data", None),
        ({"text": "a", "data": "{}"}, "give either text or data", None),
        ({"text": "a", "language": "fr"}, "language is 'fr'; this service checks en-US, de-DE", "language"),
        ({"data": "no"}, "data: not JSON", "data"),
        ({"data": '{"annotation": [{"text": "a", "markup": "b"}]}'}, "give either text or markup", "data"),
        ({"data": '{"annotation": [{"offset": 3}]}'}, "give either text or markup", "data"),
        ({"data": '{"annotation": [{"text": 3}]}'}, r"annotation\[0\]: text", "data"),
        ({"data": '{"metaData": {}}'}, "data: give either text or annotation", "data"),
        ({"text": "a", "level": "hard"}, "level is 'hard'", "level"),
        ({"text": "a", "disabledRules": "," * 65_537}, "disabledRules .*65536 characters", "disabledRules"),
        ({"data": json.dumps({"annotation": [{"text": ""}] * 65_537})}, "annotation .*65536 items", "data"),
        ({"text": "word " * 2000}, "text", "text"),
    ],
)
def test_bad_input_is_refused_by_name(service, fields, said, param):
    error = refused(service, **fields)
    assert re.search(said, error["message"]), error
    assert error["param"] == param


def test_a_body_that_is_not_utf8_is_refused(service):
    response = service[1].post("/v2/check", content=b"language=en-US&text=%ff")
    assert response.status_code == 400
    assert "not form fields in UTF-8" in response.json()["error"]["message"]


@pytest.mark.parametrize("value", ["en-US", "novels", "en-US=", "EN=novels", "en-US=a b"])
def test_a_setting_that_names_no_language_and_model_is_refused(value):
    with pytest.raises(ValueError, match="use CODE=MODEL"):
        Settings(languages=value)
