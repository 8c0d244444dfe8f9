"""Hunspell dictionaries of the service: right words, suggestions, LanguageTool's languages, damaged files."""

import httpx
import pytest

from models.errors import InputError
from service.app import create_app
from service.settings import Settings
from tests.support.services import running


@pytest.fixture(scope="module")
def service(registry, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dictionaries")
    (folder / "en.aff").write_text("SET UTF-8\nSFX S Y 1\nSFX S 0 s .\n", encoding="utf-8")
    (folder / "en.dic").write_text("4\nhosue/S\ncat\nsat\nzebra/S\n", encoding="utf-8")
    (folder / "de.aff").write_text("SET UTF-8\n", encoding="utf-8")
    (folder / "de.dic").write_bytes("2\nHaus\nB\u00e4r\n".encode("latin-1"))
    settings = Settings(
        registry=registry.root,
        languages=("en-US=mixture", "de-DE=chars"),
        dictionaries=(f"en_US={folder}/en.dic", f"de_DE={folder}/de.dic", f"fr={folder}/fr.dic"),
        watch_interval_s=0,
    )
    with running(settings) as started, httpx.Client(base_url=started.url, timeout=10) as client:
        yield client


def ask(service, text, **body):
    response = service.post("/v1/check", json={"text": text, "model": "mixture", **body})
    assert response.status_code == 200, response.text
    return response.json()


def test_unknown_words_of_a_dictionary_are_right(service):
    before = ask(service, "a hosue")
    after = ask(service, "a hosue", dictionaries=["en_US"])
    assert [issue["text"] for issue in before["issues"]] == ["hosue"]
    assert [word["known"] for word in before["words"]] == [True, False]
    assert after["issues"] == []
    assert [word["known"] for word in after["words"]] == [True, True]
    assert [word["known"] for word in ask(service, "hosues zebrs", dictionaries=["en_US"])["words"]] == [
        True,
        False,
    ]


def test_known_words_of_a_dictionary_are_checked_in_their_context(service):
    issues = ask(service, "the cat sat", threshold=0.0, dictionaries=["en_US"])["issues"]
    assert "sat" in [issue["text"] for issue in issues]


def test_words_of_a_dictionary_are_suggested(service):
    (issue,) = ask(service, "zebrs", threshold=0.0, dictionaries=["en_US"], max_suggestions=20)["issues"]
    assert {"zebra", "zebras"} <= {suggestion["text"] for suggestion in issue["suggestions"]}
    (issue,) = ask(service, "zebrs", threshold=0.0, max_suggestions=20)["issues"]
    assert not {"zebra", "zebras"} & {suggestion["text"] for suggestion in issue["suggestions"]}


def test_models_without_words_use_a_dictionary_too(service):
    reply = ask(service, "the zebras sat", model="chars", threshold=0.0, dictionaries=["en_US"])
    assert all(word["known"] for word in reply["words"])


@pytest.mark.parametrize(
    ("names", "status", "said"),
    [
        (["en_US", "xx"], 400, "dictionaries[1] is 'xx'; this service has en_US, de_DE, fr"),
        (["de_DE"], 500, "de.dic: line 3: byte 0xe4 is not UTF-8, the encoding of de.aff"),
        (["fr"], 500, "fr.dic: cannot be read: No such file or directory"),
    ],
)
def test_unusable_dictionaries_are_named_and_the_service_goes_on(service, names, status, said):
    for _ in range(2):
        response = service.post("/v1/check", json={"text": "a cat", "dictionaries": names})
        assert response.status_code == status
        assert response.json()["error"]["message"].startswith(said)
    assert ask(service, "a hosue", dictionaries=["en_US"])["issues"] == []


@pytest.mark.parametrize(("language", "num_matches"), [("en-US", 0), ("en-us", 0), ("en-GB", 0), ("auto", 0)])
def test_languagetool_uses_the_dictionary_of_the_language(service, language, num_matches):
    response = service.post("/v2/check", data={"language": language, "text": "a hosue"})
    assert response.status_code == 200, response.text
    assert len(response.json()["matches"]) == num_matches


def test_a_damaged_dictionary_of_a_language_is_left_out(service):
    assert service.post("/v2/check", data={"language": "de-DE", "text": "ein Haus"}).status_code == 200


def test_a_service_without_dictionaries_says_how_to_name_them(http):
    response = http.post("/v1/check", json={"text": "a", "dictionaries": ["en_US"]})
    assert response.status_code == 400
    assert "GRAMOPHONE_DICTIONARIES names them" in response.json()["error"]["message"]


@pytest.mark.parametrize("value", [("en_US",), ("en_US=a.txt",), ("=a.dic",), ("a b=a.dic",)])
def test_a_setting_that_names_no_file_is_refused(value):
    with pytest.raises(ValueError, match=r"is not a dictionary; use NAME=FILE\.dic"):
        Settings(dictionaries=value)


def test_entries_that_are_too_long_are_left_out(registry, tmp_path):
    (tmp_path / "en.aff").write_text("SET UTF-8\n", encoding="utf-8")
    (tmp_path / "en.dic").write_text(f"3\nhosue\n{'a' * 256}\nteh\n", encoding="utf-8")
    settings = Settings(registry=registry.root, dictionaries=(f"en={tmp_path}/en.dic",), watch_interval_s=0)
    with running(settings) as started:
        reply = httpx.post(
            f"{started.url}/v1/check", json={"text": "a hosue teh", "dictionaries": ["en"]}
        ).json()
    assert all(word["known"] for word in reply["words"])


def test_without_the_extra_a_service_with_dictionaries_does_not_start(monkeypatch, registry):
    monkeypatch.setattr("models.errors.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"the dictionary en\.dic needs .*gramophone-lm\[dictionary\]"):
        create_app(Settings(registry=registry.root, dictionaries=("en=en.dic",)))
