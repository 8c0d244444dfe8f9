"""`gramophone wordlists` against a real service."""

import json
from functools import partial

import pytest
from structlog.testing import capture_logs

from service.settings import Settings
from tests.support.services import free_port, running, typed_line


@pytest.fixture(scope="module")
def server(registry, tmp_path_factory):
    settings = Settings(
        registry=registry.root,
        models=("mixture",),
        wordlists=tmp_path_factory.mktemp("lists"),
        max_wordlists=2,
    )
    with capture_logs(), running(settings) as started:  # it would log to the commands' output
        yield started


@pytest.fixture
def typed(capsys, monkeypatch, server):
    """Run `gramophone wordlists …` as from a shell; return exit code, standard output, standard error."""

    def run(*argv):
        return partial(typed_line, capsys, monkeypatch, "wordlists")(*argv, "--url", server.url)

    return run


def test_a_list_is_stored_shown_exported_and_deleted(typed, tmp_path):
    (tmp_path / "words.txt").write_text("zebra\t3\nNew York\n\ncaf\u00e9\n", encoding="utf-8")
    code, out, err = typed("put", "terms", str(tmp_path / "words.txt"), "--language", "en", "--json")
    assert code == 0, err
    put = json.loads(out)
    assert (put["entries"], put["casing"], put["language"]) == (3, "ignore", "en")
    assert json.loads(typed("show", "terms", "--json")[1]) == put
    assert json.loads(typed("list", "--json")[1]) == {"wordlists": [put]}
    for command in (("list",), ("show", "terms")):
        code, out, _ = typed(*command)
        assert code == 0
        assert "terms" in out
    code, out, _ = typed("export", "terms")
    assert {one["text"]: one["weight"] for one in map(json.loads, out.splitlines())} == {
        "caf\u00e9": 1.0,
        "New York": 1.0,
        "zebra": 3.0,
    }
    (tmp_path / "words.jsonl").write_text(out, encoding="utf-8")
    code, out, _ = typed("put", "terms", str(tmp_path / "words.jsonl"), "--casing", "exact", "--json")
    assert json.loads(out)["version"] == 2
    assert json.loads(typed("delete", "terms", "--json")[1]) == {"name": "terms", "deleted": True}
    code, _, err = typed("delete", "terms")
    assert (code, "there is no word list" in err) == (2, True)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("show", "none"), "this key has no word list of that name"),
        (("put", "a b", "FILE"), "name is 'a b'; it must be"),
        (("put", "a", "MISSING"), "cannot be read"),
        (("put", "a", "FILE", "--language", "x"), "language is 'x'"),
        (("put", "a", "WEIGHTS"), "the weight is 'heavy'"),
        (("put", "a", "WRONG.jsonl"), "line 2: is 5"),
        (("put", "a", "EMPTY"), "has no entries"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(typed, tmp_path, argv, message):
    for name, text in (
        ("FILE", "a\n"),
        ("WEIGHTS", "a\theavy\n"),
        ("WRONG.jsonl", '"a"\n5\n'),
        ("EMPTY", "\n"),
    ):
        (tmp_path / name).write_text(text)
    code, _, err = typed(*(str(tmp_path / one) if one.isupper() or "." in one else one for one in argv))
    assert code == 2
    assert message in err
    assert err.startswith("gramophone: ")
    assert err.count("\n") == 1


def test_a_service_that_does_not_answer_is_named(capsys, monkeypatch):
    url = f"http://127.0.0.1:{free_port()}"
    code, _, err = typed_line(capsys, monkeypatch, "wordlists", "list", "--url", url)
    assert code == 1
    assert url in err
