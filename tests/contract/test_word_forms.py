"""Words as people write them, by every way to check a text: cases, Unicode forms, addresses, listed words."""

import io
import json
import unicodedata

import httpx
import pytest

from models.checkpoint.registry import LocalRegistry
from service.settings import Settings
from tests.support.services import running, typed_line
from training.commands import run_train

pytestmark = pytest.mark.usefixtures("no_pictures")

LINES = [
    "we don't see the office in the file",
    "the caf\u00e9 is in the office",
    "a file of the slices is in the caf\u00e9",
] * 60
MODELS = {
    "words": [r"tokenizer.pattern=\w+(?:-\w+)*|[^\w\s]"],
    "spaced": ["tokenizer.kind=word"],
    "pieces": ["tokenizer.kind=bpe"],
}
RIGHT = {
    "capital": "Slices in the file",
    "capitals": "THE SLICES OF THE FILE",
    "after a mark": "the file ! Slices in the file",
    "decomposed": unicodedata.normalize("NFD", "the caf\u00e9 is in the file"),
    "ligature": "the o\ufb03ce in the \ufb01le",
    "wide": "the \uff46\uff49\uff4c\uff45 is in the office",
    "soft hyphen": "the of\u00adfice is in the fi\u00adle",
    "word joiner": "the of\u2060fice is in the file",
    "joiner": "the of\u200dfice is in the fi\u200cle",
    "apostrophe": "we don\u2019t see the file",
    "address": "the file https://exmaple.com/offcie/teh.html is in the office",
    "mail": "the file of jonh@exmaple.com is in the office",
    "path": "the file docs/offcie/teh.py is in the office",
    "option": "the file --offcie-teh is in the office",
}  # fmt: skip
WRONG = {
    "capital": ("Slcies in the file", "Slcies", "Slices"),
    "capitals": ("the OFFCIE is in the file", "OFFCIE", "OFFICE"),
    "decomposed": (unicodedata.normalize("NFD", "the c\u00e9fa is in the file"), "ce\u0301fa", "caf\u00e9"),
    "soft hyphen": ("the offc\u00adie is in the file", "offc\u00adie", "office"),
    "slash": ("the offcie/file is in the file", "offcie", "office"),
}


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forms")
    (folder / "text.txt").write_text("\n".join(LINES))
    registry = LocalRegistry(folder / "registry", create=True)
    for name, keys in MODELS.items():
        options = {"corpus": [folder / "text.txt"], "name": name, "registry": str(registry.root)}
        run_train("ngram", **options, assignments=["ngram.order=3", *keys])
    settings = Settings(
        registry=registry.root, default_model="words", languages=("en=words", "fr=spaced", "de=pieces")
    )
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=10) as client:
        yield client, registry.root


def by_v1(started, model, text):
    reply = started[0].post("/v1/check", json={"model": model, "text": text})
    return [(i["text"], i["suggestions"][0]["text"]) for i in reply.json()["issues"]]


def by_v2(started, model, text):
    language = {"words": "en", "spaced": "fr", "pieces": "de"}[model]
    matches = started[0].post("/v2/check", data={"language": language, "text": text}).json()["matches"]
    return [(text[m["offset"] : m["offset"] + m["length"]], m["replacements"][0]["value"]) for m in matches]


each_way = pytest.mark.parametrize("found_by", [by_v1, by_v2])
each_model = pytest.mark.parametrize("model", MODELS)


@each_way
@each_model
@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_a_known_word_in_another_form_is_right(started, found_by, model, text):
    assert found_by(started, model, text) == []


@each_way
@pytest.mark.parametrize(("text", "typed", "meant"), WRONG.values(), ids=WRONG)
def test_a_misspelling_is_marked_as_a_whole_and_corrected_as_it_is_typed(
    started, found_by, text, typed, meant
):
    assert found_by(started, "words", text) == [(typed, meant)]


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_the_command_line_finds_the_same(started, text, capsys, monkeypatch, logs_as_before):
    command = ("check", "words", "-", "--json", "--registry", started[1])
    given = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
    _, told, _ = typed_line(capsys, monkeypatch, *command, stdin=given)
    assert json.loads(told)["issues"] == []


@pytest.mark.parametrize("word", ["aujourd'hui", "node.js", "R&D", "C++", "offcie"])
@pytest.mark.parametrize("around", ["{}", "the {}, the file", "({})"])
def test_a_listed_word_is_right_with_its_marks(started, word, around):
    text = around.format(word.capitalize() if word.isalpha() else word)
    reply = started[0].post("/v1/check", json={"text": text, "dictionary": [word]}).json()
    assert reply["issues"] == []
    assert all(one["known"] for one in reply["words"] if one["text"] in word)
