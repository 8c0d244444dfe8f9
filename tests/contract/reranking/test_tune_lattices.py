"""POST /v1/rerank/tune on lattices: the command's weights, profiles for /v1/lattices, errors."""

import json
import re
from functools import partial

import numpy as np
import pytest

from gramophone_client import Client
from models.lattices.formats import format_slf
from models.lattices.lattice import Arc, build_lattice
from models.reranking.ranking import ProfileStore
from service.operations import tune as operation
from service.schemas.models import ProfileBody
from tests.support import families
from tests.support.services import typed_line

WORDS = families.WORDS
QUICK = {"restarts": 1, "resamples": 4, "bootstrap_samples": 200}


def made_lattices(count=24, seed=0):
    """Lattices of three words at each of five places: a sentence of the corpus has the best scores but one or two."""
    rng, made = np.random.default_rng(seed), []
    for number in range(count):
        right = (np.cumsum(rng.integers(0, 5, 5)) % len(WORDS)).tolist()
        arcs = [
            Arc(place, place + 1, WORDS[word], 5.0 * float(rng.normal(word == one, 1)), float(rng.normal()))
            for place, one in enumerate(right)
            for word in (one, *rng.integers(0, len(WORDS), 2).tolist())
        ]
        lattice = build_lattice(arcs, name=f"u{number:02}", start=0, end=5, times=np.full(6, np.nan))
        made.append({"slf": format_slf(lattice), "reference": " ".join(WORDS[word] for word in right)})
    return made


def without_reference(lattice):
    return {name: value for name, value in lattice.items() if name != "reference"}


@pytest.fixture(scope="module")
def tune(http):
    def ask(lattices, *, status=200, **options):
        response = http.post("/v1/rerank/tune", json={"lattices": lattices, **QUICK, **options}, timeout=120)
        assert response.status_code == status, response.text
        return response.json() if status == 200 else response.json()["error"]

    return ask


@pytest.fixture(scope="module")
def tuned(tune):
    return tune(made_lattices(), model="new")


@pytest.fixture
def command(capsys, monkeypatch, tmp_path, reranking_registry):
    """Run `gramophone tune` on lattices of a request; return its reply."""
    typed = partial(typed_line, capsys, monkeypatch)

    def run(model, lattices, *options):
        for number, one in enumerate(lattices):
            (tmp_path / f"{number:02}.slf").write_text(one["slf"])
        (tmp_path / "refs").write_text("".join(f"{one['reference']}\n" for one in lattices))
        quick = [part for name, value in QUICK.items() for part in (f"--{name.replace('_', '-')}", value)]
        right = ("--references", tmp_path / "refs", "--reference-layout", "lines")
        given = (tmp_path, *right, "--registry", reranking_registry, "--json", *quick, *options)
        code, out, err = typed("tune", model, *given)
        assert code == 0, err
        return json.loads(out)

    return run


def test_weights_are_found_that_search_better(tuned):
    assert (tuned["decision"], tuned["model"], tuned["new_strings"]) == ("tuned", "new@1", 0)
    assert tuned["oracle"] <= tuned["tuned"] < tuned["baseline"]
    assert set(tuned["features"]) == {"am", "old_lm", "lm", "words", "unk"}
    assert (tuned["length_exponent"], tuned["counts"]["lists"]) == (0, 24)
    assert tuned["profile"]["models"] == [{"address": "new@1", "weight": 1.0}]
    assert tuned["profile"]["figures"]["rounds"] == tuned["rounds"]


@pytest.mark.parametrize(
    ("model", "settings"),
    [("new", {}), ("lstm", {"nbest": 5, "beam": 8.0, "recombination_order": 2, "metric": "cer"})],
)
def test_weights_are_those_of_the_command(tune, command, model, settings):
    lattices = made_lattices()
    flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", value)]
    asked, typed = tune(lattices, model=model, **settings), command(model, lattices, *flags)
    for reply in (asked, typed):
        reply["profile"].pop("created")
    assert asked == typed


def test_a_profile_is_used_by_the_search(http, tuned, reranking_registry):
    stored = ProfileBody.model_validate(tuned["profile"]).profile("of-lattices")
    ProfileStore(reranking_registry).write(stored)
    fresh = [{"slf": one["slf"]} for one in made_lattices(seed=1)]
    by_name, by_hand = (
        http.post("/v1/lattices", json={"lattices": fresh, **settings}).json()
        for settings in (
            {"profile": "of-lattices"},
            {"model": "new", "weights": {"lm": 0, **tuned["weights"]}},
        )
    )
    assert [one["text"] for one in by_name["lattices"]] == [one["text"] for one in by_hand["lattices"]]


def test_the_client_tunes_on_lattices(reranking_server, tuned):
    with Client(reranking_server.url) as client:
        reply = client.tune(lattices=made_lattices(), model="new", **QUICK)
    assert reply["weights"] == tuned["weights"]


def test_phrases_get_a_weight(tune):
    lattices = made_lattices(12)
    names = [one["reference"].split()[0] for one in lattices]
    phrases = [{"text": name, "class": "name"} for name in dict.fromkeys(names)]
    reply = tune(lattices, model="new", phrases=phrases, max_p_value=1)
    assert "phrases:name" in reply["features"]


def test_all_forms_of_a_lattice_and_several_references_are_tuned_on(tune):
    place = [{"text": "w1 w2", "logprob": -0.1}, {"text": "w3"}]
    arcs = [{"start": 0, "end": 1, "word": word, "am": am} for word, am in (("w4", 0.0), ("w5", 0.2))]
    lattices = [
        {"confusions": [place], "references": ["w3", "w1"]},
        {"arcs": arcs, "references": ["w4", "w6"]},
    ]
    reply = tune(lattices, model="new", max_p_value=1)
    assert (reply["counts"]["lists"], reply["counts"]["candidates"]) == (2, 4)
    assert reply["signature"].startswith("nrefs:2")


def test_rounds_end_when_strings_are_many(tune, monkeypatch):
    monkeypatch.setattr(operation, "MAX_CANDIDATES", 100)
    reply = tune(made_lattices(), model="new", nbest=2)
    assert (reply["rounds"], reply["new_strings"] > 0) == (1, True)


LATTICE = made_lattices(1)[0]
LOOP = [{"start": 0, "end": 1}, {"start": 1, "end": 0}]


@pytest.mark.parametrize(
    ("lattice", "param", "said"),
    [
        (without_reference(LATTICE), "lattices[1]", "give either reference or references"),
        ({**LATTICE, "references": ["w1"]}, "lattices[1]", "give either reference or references"),
        ({"reference": "w1"}, "lattices[1]", "give one of arcs, confusions, slf and kaldi, not 0"),
        ({"arcs": LOOP, "reference": "w1"}, "lattices[1].arcs", "is on a cycle"),
        ({"arcs": [LOOP[0]] * 50_001, "reference": "w1"}, "lattices[1].arcs", "1 to 50000 are accepted"),
        ({**LATTICE, "slf": re.sub(" l=.*", " l=nan", LATTICE["slf"])}, "lattices[1].slf", "nan"),
        ({**LATTICE, "candidates": []}, "lattices[1].candidates", "unknown parameter"),
    ],
)
def test_a_wrong_lattice_is_refused_by_name(tune, lattice, param, said):
    error = tune([LATTICE, lattice], status=400)
    assert (error["param"], said in error["message"]) == (param, True), error


@pytest.mark.parametrize(
    ("options", "param", "said"),
    [
        ({"lists": [{"candidates": [{"text": "w1"}], "reference": "w1"}]}, None, "give either lists or lattices"),
        ({"lattices": None}, None, "give either lists or lattices"),
        ({"lattices": []}, "lattices", "at least 1 item"),
        ({"nbest": 1}, "nbest", "is 1"),
        ({"nbest": 101}, "nbest", "is 101"),
        ({"beam": -1}, "beam", "is -1"),
        ({"folds": 5}, "folds", "is 5, but 4 lists have 4 distinct references"),
        ({"restarts": 1000, "folds": 4}, "restarts", "at most 4096"),
        ({"features": ["am", "rank"]}, "features", "is ['am', 'rank']; lattices are tuned on with one model"),
        ({"length_exponents": [0, 1]}, "length_exponents", "is [0.0, 1.0]; lattices are tuned on"),
        ({"given_only": True}, "given_only", "is True; lattices are tuned on with one model"),
        ({"mixture": [{"model": "new", "weight": 1.0}]}, "mixture", "lattices are tuned on with one model"),
        ({"models": [{"model": "old", "name": "old"}]}, "models", "lattices are tuned on with one model"),
        ({"corrections": True}, "corrections", "is True; lattices are tuned on with one model"),
        ({"model": "backward"}, "model", "reads from right to left"),
        ({"model": "chars"}, "model", "use a model with a word or SentencePiece tokenizer"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_by_name(tune, options, param, said):
    error = tune(status=400, **{"lattices": made_lattices(4), **options})
    assert (error["param"], said in error["message"]) == (param, True), error


def test_more_strings_than_a_request_may_have_are_refused(tune):
    error = tune([{"confusions": [[{"text": "w1"}]], "reference": "w1"}] * 329, nbest=100, status=400)
    assert error["param"] == "nbest"
    assert "is 32900; at most 32768 are accepted" in error["message"]
    error = tune([{"confusions": [[{"text": "w1"}]], "reference": "w1"}] * 501, status=400)
    assert (error["param"], "at most 500" in error["message"]) == ("lattices", True)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_refused(http, number):
    lattice = {"confusions": [[{"text": "w1", "logprob": "?"}]], "reference": "w1"}
    body = json.dumps({"lattices": [lattice]}).replace('"?"', number)
    answer = http.post("/v1/rerank/tune", content=body, headers={"content-type": "application/json"})
    param = "lattices[0].confusions[0][0].logprob"
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_weights_of_proposals_are_tuned_and_used(http, tune, command, reranking_registry):
    rng, given = np.random.default_rng(2), []
    for number in range(24):
        right = [WORDS[word] for word in (np.cumsum(rng.integers(0, 5, 4)) % len(WORDS))]
        heard = [
            "gramofone" if place == number % 4 and number % 3 else word for place, word in enumerate(right)
        ]
        arcs = [Arc(place, place + 1, word, 0.0, 0.0) for place, word in enumerate(heard)]
        lattice = build_lattice(arcs, name=f"u{number:02}", start=0, end=4, times=np.full(5, np.nan))
        reference = " ".join(word.replace("gramofone", "gramophone") for word in heard)
        given.append({"slf": format_slf(lattice), "reference": reference})
    settings = {"phrases": [{"text": "gramophone"}], "propose": True}
    reply = tune(given, model="new", **settings)
    assert reply["decision"] == "tuned", reply["reason"]
    assert (reply["tuned"], reply["baseline"] > 0, reply["profile"]["propose"]) == (0.0, True, True)
    ProfileStore(reranking_registry).write(ProfileBody.model_validate(reply["profile"]).profile("of-names"))
    bare = [without_reference(one) for one in given]
    found = http.post("/v1/lattices", json={"lattices": bare, "profile": "of-names"}).json()["lattices"]
    assert [one["text"] for one in found] == [one["reference"] for one in given]
