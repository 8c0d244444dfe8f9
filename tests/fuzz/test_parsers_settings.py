"""Recipes, profiles, calibrations, aliases, keys and word lists with errors: read, or refused by name."""

import contextlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.checking.error_model import CalibrationStore, ErrorTableStore
from models.checking.sentences import one_edit_strings
from models.checkpoint.manifest import is_name
from models.checkpoint.registry import LocalRegistry
from models.errors import DomainError, InputError
from models.reranking.corrections import CorrectionTable, read_table
from models.reranking.ranking import ProfileStore
from service.api_keys import KeyStore, create_key
from service.bench.workloads import load_texts, read_bodies
from service.cli.ask import read_dictionary
from tests.fuzz.damage import any_bytes, damaged, damaged_json
from tests.fuzz.parsing import Parser, ParserProcess, fuzz
from training.recipe import Recipe, load_recipe, recipe_names

RECIPES = [Path("training", "recipes", f"{name}.toml").read_bytes() for name in recipe_names()]
RECIPE_WORDS = [
    *(
        b"[ngram]\n",
        b"[neural]\n",
        b"order = 99",
        b'family = "mixture"',
        b"prune = [0, 1]",
        b"cutoffs = [5, 3]",
    ),
    *(
        b'cell = "gru"',
        b'kind = "static"',
        b'pattern = "("',
        b"seed = 1979-05-27",
        b"x = " + b"[" * 990 + b"]" * 990,
    ),
]
PROFILE = {
    "name": "one",
    "weights": {"rank": 1.0, "lm": 0.5},
    "length_exponent": 0.5,
    "metric": "wer",
    "signature": "",
    "models": [{"name": "", "address": "small@1", "weight": 1.0}],
    "corrections": [{"heard": "d c", "written": "", "log_odds": 2.5, "lists": 3}],
    "decision": "tuned",
    "figures": {"baseline": 15.4},
    "created": "2026-01-01T00:00:00+00:00",
}
CALIBRATION = {
    "model": "small@3",
    "kinds": ["real_word"],
    "words_per_error": 20.0,
    "points": [{"threshold": t, "precision": t, "recall": 1 - t} for t in (0.1, 0.5, 0.9)],
    "corpus_sha256": "0" * 64,
    "created": "2026-01-01T00:00:00+00:00",
}


ERROR_TABLE = {
    "one_edit": 7,
    "two_edits": 2,
    "edits": {"mm>m": 2, "^h>^c": 1, "^ha>^ah": 1, "t>tt": 3},
    "contexts": {"^h": 3, "ha": 3, "at": 2, "am": 1, "mm": 1, "t$": 2, "m$": 1},
    "source_sha256": "0" * 64,
    "created": "2026-01-01T00:00:00+00:00",
}


def read_recipe(path: Path) -> None:
    """Read a recipe; its form in a checkpoint must give it back."""
    recipe = load_recipe(str(path))
    assert Recipe.model_validate(json.loads(recipe.model_dump_json())) == recipe


def read_profile(path: Path) -> None:
    """Read a profile and its weights."""
    profile = ProfileStore(path.parent.parent).read(path.stem)
    assert all(math.isfinite(weight) for weight in profile.weighting().weights.values())
    json.dumps(profile.model_dump(mode="json"), allow_nan=False).encode()


def read_calibration(path: Path) -> None:
    """Read a calibration, and thresholds for precisions."""
    calibration = CalibrationStore(path.parent.parent).read(path.stem)
    assert calibration is not None
    assert 0 <= calibration.points[0].threshold <= 1
    calibration.precision_at(0.3)
    with contextlib.suppress(InputError):
        calibration.threshold_for(0.9)


def read_error_table(path: Path) -> None:
    """Read a table of errors, and probabilities of misspellings by it."""
    table = ErrorTableStore(path.parent.parent).read(f"{path.stem}@3")
    assert table is not None
    strings = one_edit_strings("hamm", "ahmtx")
    one = table.rates.log_probs([(typed, "hamm") for typed in strings], np.ones(len(strings), np.uint8))
    two = table.rates.log_probs([("", "ha"), ("tham", "hat")], np.full(2, 2, np.uint8))
    assert np.exp(one).sum() <= 1
    assert (two <= 0).all()


def read_aliases(path: Path) -> None:
    """Read a model's aliases, as the service lists them."""
    aliases = LocalRegistry(path.parent.parent).aliases(path.parent.name)
    assert all(is_name(alias) and number > 0 for alias, number in aliases.items())


def read_keys(path: Path) -> None:
    """Read a file of keys."""
    assert KeyStore(file=path).find(b"gm_guessed") is None


def read_weighted_words(path: Path) -> None:
    """Read a user's dictionary."""
    for entry in read_dictionary(path):
        assert isinstance(entry["weight"], float)
        assert entry["text"].encode()


def read_corrections(path: Path) -> None:
    """Read a table of corrections."""
    for proposal in CorrectionTable(read_table(path)).propose(["at", "dc", "now"]):
        assert proposal.written.encode(errors="strict") is not None


def read_bench_texts(path: Path) -> None:
    """Read sentences for a load test."""
    assert all(text.encode().strip() for text in load_texts(path))


def read_bench_bodies(path: Path) -> None:
    """Read requests for a load test."""
    assert all(request.body for request in read_bodies(path))


def as_json(value):
    """Return the content of a JSON file."""
    return json.dumps(value).encode()


KEYS = "\n".join(create_key(name, ["infer", "admin"]).key.line for name in ("a", "b")).encode()
FILES = {
    "read_profile": (".profiles/one.json", as_json(PROFILE)),
    "read_calibration": (".calibrations/small@3.json", as_json(CALIBRATION)),
    "read_error_table": (".errors/small.json", as_json(ERROR_TABLE)),
    "read_aliases": ("small/aliases.json", as_json({"champion": 3, "canary": 12})),
    "read_keys": ("keys.txt", b"# ours\n" + KEYS + b"\n"),
    "read_weighted_words": ("words.tsv", "Zürich\t2.5\nword\n\nx\t1e3\n".encode()),
    "read_corrections": ("table.tsv", b"heard\twritten\tlog_odds\tlists\ndc\td c\t2.5\t3\nuh\t\t1\t0\n"),
    "read_recipe": ("mine.toml", RECIPES[0]),
    "read_bench_texts": ("texts.txt", "a line\n\nanother … one\n".encode()),
    "read_bench_bodies": ("bodies.jsonl", b'{"model": "a"}\n{"model": "b", "n": 2}\n'),
}
"""Input of each function of this module: the path, and a valid file."""


@pytest.fixture(scope="module")
def process():
    with ParserProcess(__name__) as asked:
        yield asked


@pytest.fixture(scope="module", params=FILES)
def small_file(request, process, tmp_path_factory):
    place, good = FILES[request.param]
    path = tmp_path_factory.mktemp("settings") / place
    path.parent.mkdir(exist_ok=True)
    return Parser(process, request.param, path, good)


@fuzz
@given(st.data())
def test_small_files(small_file, data):
    is_recipe = small_file.path.suffix == ".toml"
    good = st.sampled_from(RECIPES) if is_recipe else st.just(small_file.good)
    ways = [damaged(good, RECIPE_WORDS if is_recipe else ()), any_bytes()]
    if small_file.path.suffix == ".json":
        ways.append(damaged_json(good.map(json.loads), values=["champion", "a b", 3, 0.5]))
    small_file.ask(data.draw(st.one_of(ways), label="content"))


DEEP = b"[" * 990 + b"]" * 990
REFUSED = [
    ("read_error_table", as_json(ERROR_TABLE | {"edits": {">a>b": 1}})),
    ("read_error_table", as_json(ERROR_TABLE | {"edits": {"x" * 100_000: 1}})),
    ("read_aliases", b'{"../x": 1}'),
    ("read_aliases", b'{"\\ud800": 1}'),
    ("read_aliases", b'{"champion": -3}'),
    ("read_aliases", b'{"champion": 1%s}' % (b"0" * 5000)),
    ("read_bench_bodies", DEEP * 2),
    ("read_recipe", b'family = "ngram"\nx = ' + DEEP),
    ("read_recipe", b'family = "ngram"\n[tokenizer]\nkind = "word"\npattern = "a{99999999999}"'),
    ("read_recipe", b'family = "ngram"\nseed = "' + b"x" * 100_000 + b'"'),
]


@pytest.mark.parametrize(("function", "content"), REFUSED)
def test_content_that_once_gave_an_unclear_error_is_refused(tmp_path, function, content):
    path = tmp_path / FILES[function][0]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(DomainError, match=path.name) as raised:
        globals()[function](path)
    assert len(str(raised.value)) < 4000
