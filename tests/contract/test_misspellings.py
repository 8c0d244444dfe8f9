"""Misspellings of the training text over HTTP: scored, but offered by no completion and no suggestion."""

import json

import httpx
import numpy as np
import pytest

from models.checkpoint.load import load_checkpoint, load_tokenizer
from models.checkpoint.registry import LocalRegistry
from service.settings import Settings
from tests.support.services import running
from training.commands import run_train

pytestmark = pytest.mark.usefixtures("no_pictures")

LINES = [
    "please open an order in HelioDesk now",
    "the order in HelioDesk is late",
    "an older order is open in the desk",
    "odd words are rare",
] * 120 + [
    "please open an odrer in HeliDoesk now",
    "the oder in Helioesk is late",
    "an order in HelioDesk: oder later",
]
GERMAN = ["tee oder kaffee oder wasser", "eins oder zwei order"] * 120
MISSPELT = {"odrer": "order", "helidoesk": "heliodesk", "helioesk": "heliodesk"}
WORDS = r"tokenizer.pattern=\w+|[^\w\s]"
MODELS = {
    "words": [WORDS],
    "pieces": ["tokenizer.kind=unigram"],
    "german": [WORDS],
}
each_model = pytest.mark.parametrize("model", ["words", "pieces"])


@pytest.fixture(scope="module")
def helpdesk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("helpdesk")
    (folder / "english.txt").write_text("\n".join(LINES))
    (folder / "german.txt").write_text("\n".join(GERMAN))
    registry = LocalRegistry(folder / "registry", create=True)
    for name, keys in MODELS.items():
        text = folder / ("german.txt" if name == "german" else "english.txt")
        files = {
            "corpus": [text],
            "valid": [text],
            "test": [text],
        }  # none of its lines is held out
        run_train("ngram", **files, name=name, registry=str(registry.root), assignments=keys)
    return registry


@pytest.fixture(scope="module")
def desk_http(helpdesk):
    settings = Settings(registry=helpdesk.root, default_model="words")
    with (
        running(settings) as server,
        httpx.Client(base_url=server.url, timeout=10) as client,
    ):
        yield client


def ask(http, path, **body):
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def completed(http, text, **options):
    reply = ask(
        http,
        "/v1/autocomplete",
        text=text,
        **{"limit": 20, "max_steps": 1024} | options,
    )
    return [one["text"] for one in reply["completions"]]


@each_model
def test_they_are_learnt_and_told_in_the_card(helpdesk, model):
    version = helpdesk.resolve(model)
    learnt = load_tokenizer(helpdesk.fetch(version)).misspellings
    assert (learnt.words, learnt.doubtful) == (MISSPELT, {"oder": ["order", "older"]})
    told = json.loads(helpdesk.read_file(version, "metrics.json"))["misspellings"]
    assert told == {"forms": 3, "examples": MISSPELT}
    assert b"are not offered, such as *" in helpdesk.read_file(version, "MODEL_CARD.md")


def test_a_text_without_any_has_no_file(helpdesk):
    path = helpdesk.fetch(helpdesk.resolve("german"))
    assert not (path / "misspellings.txt").exists()
    assert "misspellings" not in json.loads((path / "metrics.json").read_bytes())


@each_model
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"casing": "ignore"},
        {"fuzzy": 1},
        {"rank": "savings"},
        {"blocklist": ["nothing"]},
        {"max_words": 2},
        {"open_vocabulary": True},
        {"dictionary": ["Heliograph"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("prefix", ["", "H", "Heli", "HeliD", "Helioe", "o", "od", "odr"])
def test_none_is_offered(desk_http, model, options, prefix):
    offered = completed(desk_http, f"the {prefix}", model=model, **options)
    assert not [text for text in offered if {*text.lower().split()} & MISSPELT.keys()]
    if prefix in {"H", "Heli"}:
        assert "HelioDesk" in {text.split()[0] for text in offered}


@each_model
def test_others_are_offered_in_their_place(desk_http, model):
    assert completed(desk_http, "the o", model=model, limit=3)[0] == "order"
    assert len(completed(desk_http, "the o", model=model, limit=3)) == 3


def test_all_other_words_keep_their_probabilities(helpdesk, desk_http):
    reply = ask(desk_http, "/v1/autocomplete", text="please open an o", model="words", limit=50)
    told = {one["text"]: one["probability"] for one in reply["completions"]}
    read = load_checkpoint(helpdesk.fetch(helpdesk.resolve("words")), device="cpu", precision="float32")
    model, ids = read.model, read.tokenizer.vocabulary.ids
    state = model.initial_state(1)
    for token in read.tokenizer.encode("please open an"):
        state = model.advance(state, np.array([token]))
    row = np.exp(np.asarray(model.next_log_probs(state)[0], np.float64))
    begun = {word: row[i] for word, i in ids.items() if word.startswith("o")}
    assert "odrer" in begun
    total = sum(begun.values())
    assert told == pytest.approx({w: p / total for w, p in begun.items() if w != "odrer"}, rel=1e-4)


def test_what_the_user_has_written_and_listed_is_offered(desk_http):
    assert completed(desk_http, "the odr", dictionary=["odrer"]) == ["odrer"]
    accepted = {"text": "the Helioesk", "context": ""}
    assert desk_http.post("/v1/autocomplete/users/ann/accepted", json=accepted).status_code == 200
    assert "Helioesk" in completed(desk_http, "the Helioe", user="ann")
    assert completed(desk_http, "the Helioe", user="bob") == []


@each_model
@pytest.mark.parametrize("blocked", ["order", "ORDER", "Order"])
def test_a_blocked_word_is_not_answered_by_its_misspellings(desk_http, model, blocked):
    offered = completed(desk_http, "the o", model=model, blocklist=[blocked])
    assert not {"order", "odrer", "oder"} & set(offered)
    assert {"older", "open"} <= set(offered)
    listed = completed(
        desk_http,
        "the od",
        model=model,
        blocklist=[blocked],
        dictionary=["odrer", "odd"],
    )
    assert "odd" in listed
    assert "odrer" not in listed


def test_a_word_that_is_frequent_in_another_model_is_not_blocked(desk_http):
    assert "oder" in completed(desk_http, "tee o", model="german", blocklist=["order"])
    both = [{"model": "words"}, {"model": "german"}]
    assert "oder" in completed(desk_http, "tee o", models=both, blocklist=["order"])
    assert "odrer" not in completed(desk_http, "tee od", models=both)


@each_model
@pytest.mark.parametrize("text", ["please open an odrerr now", "the odrr in the desk is late"])
def test_none_is_suggested_by_a_check(desk_http, model, text):
    reply = ask(
        desk_http,
        "/v1/check",
        model=model,
        text=text,
        threshold=0.0,
        max_suggestions=20,
    )
    suggested = {one["text"].lower() for issue in reply["issues"] for one in issue["suggestions"]}
    assert suggested
    assert not suggested & MISSPELT.keys()


def test_a_check_suggests_what_the_dictionary_has(desk_http):
    reply = ask(
        desk_http,
        "/v1/check",
        text="the odrerr is late",
        dictionary=["odrer"],
        threshold=0.0,
        max_suggestions=20,
    )
    assert "odrer" in {one["text"] for issue in reply["issues"] for one in issue["suggestions"]}
