"""Texts in another Unicode form than the model's, over HTTP: scores, checks, completions and their positions."""

import unicodedata

import httpx
import pytest

from models.checkpoint.registry import LocalRegistry
from models.language_model import UNK
from service.settings import Settings
from tests.support.services import running
from training.commands import run_train

pytestmark = pytest.mark.usefixtures("no_pictures")

KINDS = ("word", "pattern", "char", "bpe")
LINES = ["le café est fermé", "le bébé préfère le café", "l'été le café était fermé", "un café préféré"] * 40
TEXT = "le bébé préfère le café"
each_kind = pytest.mark.parametrize("kind", KINDS)


def nfd(text):
    return unicodedata.normalize("NFD", text)


@pytest.fixture(scope="module")
def normalised_http(tmp_path_factory):
    """Serve models of composed and decomposed lines, with every kind of tokenizer."""
    folder = tmp_path_factory.mktemp("normalised")
    lines = [nfd(line) if number % 3 else line for number, line in enumerate(LINES)]
    (folder / "text.txt").write_text("\n".join(lines))
    registry = LocalRegistry(folder / "registry", create=True)
    rules = {kind: ["nfc", f"tokenizer.kind={kind}"] for kind in KINDS}
    rules["pattern"] = ["nfc", r"tokenizer.pattern=\w+|[^\w\s]"]
    rules["typographic"] = ["nfkc"]
    for name, (form, *keys) in rules.items():
        run_train(
            "ngram",
            corpus=[folder / "text.txt"],
            name=name,
            registry=str(registry.root),
            assignments=[f"tokenizer.normalise={form}", "ngram.order=4", *keys],
        )
    settings = Settings(registry=registry.root, default_model="word")
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=10) as client:
        yield client


def ask(http, path, **body):
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@each_kind
def test_scores_are_those_of_the_composed_text(normalised_http, kind):
    results = ask(normalised_http, "/v1/score", model=kind, texts=[TEXT, nfd(TEXT)], detail="word")["results"]
    assert results[0]["logprob"] == results[1]["logprob"]
    assert results[0]["words"] == results[1]["words"]
    assert results[1]["num_oov"] == 0
    assert results[1]["bits_per_byte"] * len(nfd(TEXT).encode()) == pytest.approx(
        results[0]["bits_per_byte"] * len(TEXT.encode())
    )


@each_kind
def test_a_context_may_have_another_form_than_the_text(normalised_http, kind):
    plain = {"texts": [" est fermé"], "context": "le café", "model": kind}
    other = {"texts": [nfd(" est fermé")], "context": nfd("le café"), "model": kind}
    assert (
        ask(normalised_http, "/v1/score", **plain)["results"][0]["logprob"]
        == (ask(normalised_http, "/v1/score", **other)["results"][0]["logprob"])
    )


@each_kind
def test_candidates_of_either_form_rank_alike(normalised_http, kind):
    candidates = ("le café", "fermé le")
    for context in ("", "le bébé"):
        lists = [
            {"context": form(context), "candidates": [{"text": form(text)} for text in candidates]}
            for form in (str, nfd)
        ]
        ranked = ask(normalised_http, "/v1/rerank", model=kind, lists=lists)["lists"]
        totals = [[one["total"] for one in answer["ranking"]] for answer in ranked]
        assert totals[0] == totals[1]


def test_words_are_counted_in_the_text_as_given(normalised_http):
    """NFKC makes a space of a part of the last character."""
    for context in ("", "le"):
        lists = [{"context": context, "candidates": [{"text": "le cafe\u00b4"}]}]
        reply = ask(normalised_http, "/v1/rerank", model="typographic", lists=lists)
        features = reply["lists"][0]["ranking"][0]["features"]
        assert (features["words"], features["tokens"]) == (2, 4)


@each_kind
def test_tokens_are_those_of_the_composed_text(normalised_http, kind):
    tokens = [
        ask(normalised_http, "/tokenize", prompt=text, model=kind)["tokens"] for text in (TEXT, nfd(TEXT))
    ]
    assert tokens[0] == tokens[1]
    assert UNK not in tokens[0]


@each_kind
def test_words_and_issues_are_where_they_are_in_the_text_as_given(normalised_http, kind):
    text = "le bébé prefére\u0301 le café"
    expected = ask(
        normalised_http, "/v1/check", model=kind, text=unicodedata.normalize("NFC", text), threshold=0
    )
    reply = ask(normalised_http, "/v1/check", model=kind, text=nfd(text), threshold=0)
    for key in ("words", "issues"):
        found = [nfd(text)[one["start"] : one["end"]] for one in reply[key]]
        assert found == [one["text"] for one in reply[key]] == [nfd(one["text"]) for one in expected[key]]
    assert reply["surprisal_bits"] == pytest.approx(expected["surprisal_bits"])
    assert [word["known"] for word in reply["words"]] == [word["known"] for word in expected["words"]]
    assert any(s["text"] == "préféré" for issue in reply["issues"] for s in issue["suggestions"])


@each_kind
@pytest.mark.parametrize("text", ["le caf", "le café", "le bébé pré", "le café ", "l'é"])
def test_completions_are_those_of_the_composed_text(normalised_http, kind, text):
    expected = ask(normalised_http, "/v1/autocomplete", model=kind, text=text)
    reply = ask(normalised_http, "/v1/autocomplete", model=kind, text=nfd(text))
    assert reply["prefix"] == nfd(expected["prefix"]) == nfd(text)[reply["start"] :]
    same = [(one["text"], one["probability"]) for one in expected["completions"]]
    assert [(one["text"], one["probability"]) for one in reply["completions"]] == same
    assert same
    for one in reply["completions"]:
        assert one["start"] == reply["start"]
        assert one["suffix"] is None or nfd(text) + one["suffix"] == nfd(text)[: one["start"]] + one["text"]
        changes = not one["text"].startswith(nfd(expected["prefix"]))
        assert (one["suffix"] is None) is changes


def test_typing_errors_dictionaries_and_blocklists_may_have_any_form(normalised_http):
    asked = {"text": nfd("le pré"), "model": "word"}
    texts = [one["text"] for one in ask(normalised_http, "/v1/autocomplete", **asked)["completions"]]
    assert set(texts) == {"préfère", "préféré"}
    blocked = ask(normalised_http, "/v1/autocomplete", **asked, blocklist=[nfd("préfère")])["completions"]
    assert [one["text"] for one in blocked] == ["préféré"]
    more = ask(normalised_http, "/v1/autocomplete", **asked, dictionary=[nfd("préfixé")])["completions"]
    assert {one["text"] for one in more} == {*texts, "préfixé"}
    fuzzy = ask(normalised_http, "/v1/autocomplete", model="word", text=nfd("le préef"), fuzzy=1)[
        "completions"
    ]
    assert {one["text"] for one in fuzzy} >= {"préfère", "préféré"}


@each_kind
def test_prompts_are_continued_like_the_composed_text(normalised_http, kind):
    asked = {"model": kind, "max_tokens": 4, "temperature": 0, "logprobs": 1}
    texts = [
        ask(normalised_http, "/v1/completions", prompt=form("le bébé"), **asked)["choices"][0]["text"]
        for form in (str, nfd)
    ]
    assert texts[0] == texts[1]
    healed = [
        ask(
            normalised_http,
            "/v1/generate",
            prompt=form("le bébé pré"),
            token_healing=True,
            model=kind,
            temperature=0,
            max_tokens=4,
        )
        for form in (str, nfd)
    ]
    assert healed[0]["choices"][0]["text"] == healed[1]["choices"][0]["text"]


@each_kind
@pytest.mark.parametrize("strategy", ["greedy", "beam"])
def test_stop_strings_may_have_any_form(normalised_http, kind, strategy):
    asked = {"prompt": "le bébé préfère", "model": kind, "strategy": strategy, "max_tokens": 12}
    texts = []
    for stop in ([], ["é"], [nfd("é")]):
        reply = ask(normalised_http, "/v1/generate", **asked, stop=stop)
        texts.append(reply["choices"][0]["text"])
    assert ["é" in text for text in texts] == [True, False, False]
    assert texts[1] == texts[2]


def test_a_long_run_of_marks_delays_nobody(normalised_http):
    reply = ask(normalised_http, "/v1/score", model="char", texts=["e" + "\u0301\u0316" * 7000])
    assert reply["results"][0]["num_oov"] > 0
