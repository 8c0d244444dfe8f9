"""Byte-order marks in input files; `gramophone keys create`."""

import io
import json

import pytest
from typer.testing import CliRunner

from models.errors import InputError
from models.lattices.files import read_lattices, read_symbol_file
from models.reranking.formats.reader import read_lists
from service.api_keys import KeyStore, create_key, find_key, parse_key
from service.bench.workloads import load_texts, read_bodies
from service.cli.ask import read_dictionary
from service.cli.main import app
from service.operations.next_token import NextTokenRequest
from service.schemas.wire import parse_json
from service.settings import read_settings
from training.recipe import recipe_table

MARK = "\ufeff"
KEY = create_key("app", ["infer"])
SLF = "VERSION=1.1\nN=2 L=1\nI=0\nI=1\nJ=0 S=0 E=1 W=hi a=-1 l=-2\n"


def lattice_words(path):
    (lattice,) = read_lattices(path, "slf", name=str(path), symbols=None, no_words=())
    return lattice.words


FILES = {
    "keys": (lambda path: KeyStore(file=path).find(KEY.secret.encode()).name, f"{KEY.key.line}\n"),
    "recipe.toml": (lambda path: recipe_table(str(path)), 'family = "ngram"\n'),
    "dictionary": (read_dictionary, "word\t2\n"),
    "bodies": (read_bodies, '{"a": 1}\n{"a": 2}\n'),
    "texts": (load_texts, "a sentence\n"),
    "lists": (lambda path: list(read_lists(path)), '{"id": "a", "candidates": [{"text": "b"}]}\n'),
    "lattice": (lattice_words, SLF),
    "words.txt": (read_symbol_file, "<eps> 0\nhello 1\n"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_without_it(tmp_path, name):
    read, text = FILES[name]
    path = tmp_path / name
    told = []
    for mark in ("", MARK):
        path.write_text(mark + text, encoding="utf-8")
        told.append(repr(read(path)))
    assert told[0] == told[1]


def test_keys_of_the_settings_are_read_without_it(monkeypatch):
    monkeypatch.setenv("GRAMOPHONE_API_KEYS", MARK + KEY.key.line)
    assert KeyStore(entries=read_settings().api_keys).find(KEY.secret.encode()).name == "app"


def test_standard_input_is_read_without_it(typed):
    text = io.TextIOWrapper(io.BytesIO((MARK + "text").encode()), encoding="utf-8")
    typed("--version", stdin=text)  # every command sets up standard input first
    assert text.read() == "text"


def test_json_that_begins_with_it_is_refused_by_its_name():
    with pytest.raises(InputError, match=r"begins with a byte-order mark \(U\+FEFF\)"):
        parse_json(NextTokenRequest, (MARK + '{"context": "a"}').encode())


def create(*arguments):
    return CliRunner().invoke(app, ["keys", "create", *arguments], catch_exceptions=False)


def test_the_line_goes_to_the_file_and_the_key_to_the_screen():
    done = create("--name", "app", "--scopes", "infer,metrics")
    key = parse_key(done.stdout.strip())
    secret = done.stderr.split()[-1]
    assert find_key([key], secret.encode()) is key
    assert secret not in done.stdout
    assert sorted(key.scopes) == ["infer", "metrics"]


def test_programs_read_both():
    made = json.loads(create("--name", "app", "--json").stdout)
    assert find_key([parse_key(made["line"])], made["key"].encode()).name == "app"


@pytest.mark.parametrize("wrong", [["--name", "a b"], ["--name", "a", "--scopes", "root"]])
def test_a_wrong_name_or_scope_is_refused(wrong):
    with pytest.raises(InputError):
        create(*wrong)
