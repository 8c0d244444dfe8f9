"""POST /v1/lattices: the forms of a lattice, the command's results, posteriors, streams, errors."""

import json
import re

import numpy as np
import pytest

from models.lattices.formats import format_kaldi, format_slf
from models.lattices.graph import PathWeights
from models.lattices.rescoring import nbest_candidates
from models.lattices.token_passing import LatticeSearch
from models.reranking.ranking import Profile, ProfileModel, ProfileStore
from service.local.ask import load_published, rescore_lattices
from tests.reference.lattices import random_lattice
from tests.support import families

WORDS = families.WORDS
ARCS = [
    {"start": 0, "end": 1, "word": WORDS[0], "am": -1.0},
    {"start": 1, "end": 3, "word": WORDS[1], "am": -2.0},
    {"start": 1, "end": 2, "word": WORDS[2], "am": -2.5},
    {"start": 2, "end": 3, "word": WORDS[3], "am": -1.5},
]
CONFUSIONS = [[{"text": WORDS[0]}], [{"text": WORDS[1], "logprob": -0.2}, {"text": "", "logprob": -1.7}]]
LINES = {"content-type": "application/x-ndjson"}
ABOUT = {"metric": "wer", "signature": "", "decision": "tuned", "figures": {}, "created": "2026-01-01"}


def ask(http, lattices, **settings):
    return http.post("/v1/lattices", json={"lattices": lattices, **settings})


def rescore(http, lattices, **settings):
    answer = ask(http, lattices, **settings)
    assert answer.status_code == 200, answer.text
    return answer.json()["lattices"]


def as_arcs(lattice):
    """Arcs of a lattice as a request has them."""
    columns = (lattice.sources, lattice.targets, lattice.labels, lattice.am, lattice.old_lm)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [
        {"start": source, "end": target, "word": lattice.words[label], "am": am, "old_lm": old_lm}
        for source, target, label, am, old_lm in rows
    ]


@pytest.fixture(scope="module")
def lattices():
    rng = np.random.default_rng(4)
    return [random_lattice(rng, words=WORDS[:9], num_nodes=8, num_arcs=14, name=f"u{n}") for n in range(6)]


@pytest.mark.parametrize("model", ["new", "lstm"])
@pytest.mark.parametrize("settings", [{}, {"beam": 2.0, "max_tokens_per_node": 3}])
def test_texts_are_those_of_the_command(http, reranking_registry, lattices, model, settings):
    loaded = load_published(reranking_registry, model, "cpu", "auto")
    search = LatticeSearch(**settings)
    weights = PathWeights(am=0.5, lm=0.8)
    want = [
        [(one.text, one.features) for one in nbest_candidates(rescored, 5).candidates]
        for rescored in rescore_lattices(loaded, lattices, weights=lambda _: weights, search=search)
    ]
    given = [{"arcs": as_arcs(one)} for one in lattices]
    got = rescore(http, given, model=model, weights={"am": 0.5, "lm": 0.8}, nbest=5, **settings)
    assert [[(one["text"], one["features"]) for one in each["nbest"]] for each in got] == want


@pytest.mark.parametrize("weights", [None, {"am": 0.4, "old_lm": 0.1, "lm": 1.1, "words": -0.2, "unk": -1.0}])
def test_all_forms_of_a_lattice_have_one_result(http, lattices, weights):
    forms = [
        {"slf": format_slf(lattices[0])},
        {"kaldi": format_kaldi(lattices[0], None)},
        {"arcs": as_arcs(lattices[0])},
    ]
    if weights is None:
        forms = forms[:1]
        weights = {"am": 1.0, "lm": 2.0, "words": -0.5}  # the scales of the file
        other = rescore(http, [{"arcs": as_arcs(lattices[0])}], weights=weights)[0]
        assert rescore(http, forms)[0]["nbest"] == other["nbest"]
        return
    slf, kaldi, arcs = rescore(http, forms, weights=weights, nbest=3)
    assert slf["id"] == kaldi["id"] == "u0"
    assert arcs["id"] is None
    for one in (kaldi, arcs):
        assert [path["text"] for path in one["nbest"]] == [path["text"] for path in slf["nbest"]]
        assert [path["total"] for path in one["nbest"]] == pytest.approx([p["total"] for p in slf["nbest"]])


def test_a_confusion_network_of_a_list_gives_its_best_text(http):
    """One place with whole texts is a list of candidates."""
    texts = [" ".join(WORDS[i] for i in row) for row in np.random.default_rng(1).integers(0, 9, (12, 5))]
    candidates = [{"text": text, "features": {"am": -0.3 * n}} for n, text in enumerate(texts)]
    weights = {"am": 1.0, "lm": 1.0}
    ranked = http.post("/v1/rerank", json={"lists": [{"candidates": candidates}], "weights": weights}).json()
    place = [{"text": text, "logprob": -0.3 * n} for n, text in enumerate(texts)]
    [found] = rescore(http, [{"confusions": [place]}], weights=weights, nbest=12)
    want = [(one["text"], pytest.approx(one["total"], abs=1e-5)) for one in ranked["lists"][0]["ranking"]]
    assert [(one["text"], one["total"]) for one in found["nbest"]] == want
    posteriors = [one["posterior"] for one in ranked["lists"][0]["ranking"]]
    assert [one["posterior"] for one in found["nbest"]] == pytest.approx(posteriors, abs=1e-6)


def test_words_have_times_posteriors_and_alternatives(http):
    [found] = rescore(http, [{"arcs": ARCS, "times": [0.0, 0.4, 0.7, 1.3]}], alternatives=1)
    assert [word["text"] for word in found["words"]] == found["text"].split()
    assert (found["words"][0]["start"], found["words"][-1]["end"]) == (0.0, 1.3)
    assert found["words"][0] | {"posterior": 1.0} == {
        "text": WORDS[0],
        "start": 0.0,
        "end": 0.4,
        "posterior": 1.0,
        "alternatives": [],
    }
    second = found["words"][1]
    assert second["posterior"] + sum(one["posterior"] for one in second["alternatives"]) == pytest.approx(1)
    [bare] = rescore(http, [{"arcs": ARCS}], alternatives=0)
    assert [(word["start"], word["end"], word["alternatives"]) for word in bare["words"]] == [
        (None, None, [])
    ] * len(bare["words"])


def test_phrases_and_stored_lists_change_the_best_text(http):
    plain = rescore(http, [{"confusions": CONFUSIONS}], weights={"am": 1, "lm": 0.01})[0]
    assert plain["text"] == f"{WORDS[0]} {WORDS[1]}"
    other = [[{"text": WORDS[0]}], [{"text": WORDS[1]}, {"text": WORDS[4], "logprob": -5.0}]]
    phrases = [{"text": WORDS[4], "weight": 2.0}]
    found = rescore(http, [{"confusions": other}], weights={"am": 1, "lm": 0, "phrases": 10}, phrases=phrases)
    assert found[0]["text"] == f"{WORDS[0]} {WORDS[4]}"
    assert found[0]["nbest"][0]["features"]["phrases"] == 2.0


def test_a_profile_gives_model_and_weights(http, reranking_registry):
    profile = Profile(
        name="lattice-weights",
        weights={"am": 3.0, "lm": 0.5},
        models=[ProfileModel(name="", address="lstm@1", weight=1.0)],
        **ABOUT,
    )
    ProfileStore(reranking_registry).write(profile)
    answer = ask(http, [{"arcs": ARCS}], profile="lattice-weights").json()
    assert answer["model"] == "lstm@1"
    features = answer["lattices"][0]["nbest"][0]["features"]
    assert answer["lattices"][0]["nbest"][0]["total"] == pytest.approx(
        3.0 * features["am"] + 0.5 * features["lm"]
    )


def test_a_line_of_a_stream_is_answered_by_itself(http):
    body = b"\n".join(
        json.dumps(one).encode()
        for one in ({"id": "a", "arcs": ARCS}, {"slf": "nothing"}, {"id": "c", "confusions": CONFUSIONS})
    )
    params = {"weights": "am=0.5,lm=1", "nbest": "2"}
    lines = http.post("/v1/lattices", content=body, headers=LINES, params=params).text.splitlines()
    first, wrong, third = map(json.loads, lines)
    assert (wrong["error"]["param"], first["id"], third["id"]) == ("slf", "a", "c")
    whole = rescore(
        http,
        [{"id": "a", "arcs": ARCS}, {"id": "c", "confusions": CONFUSIONS}],
        weights={"am": 0.5, "lm": 1},
        nbest=2,
    )
    assert [first, third] == whole


@pytest.mark.parametrize(
    ("lattice", "param", "said"),
    [
        ({}, "lattices[0]", "give one of arcs, confusions, slf and kaldi, not 0"),
        ({"arcs": ARCS, "slf": ""}, "lattices[0]", "give one of arcs, confusions, slf and kaldi, not 2"),
        ({"confusions": CONFUSIONS, "times": [0]}, "lattices[0]", "times are those of the nodes of arcs"),
        ({"arcs": []}, "lattices[0].arcs", "has 0 entries; 1 to 50000 are accepted"),
        ({"arcs": [{"start": 0, "end": 0}]}, "lattices[0].arcs", "node 0 is on a cycle"),
        ({"arcs": [{"start": 0, "end": 1}, {"start": 1, "end": 0}]}, "lattices[0].arcs", "is on a cycle"),
        ({"arcs": [{"start": 0, "end": 7}]}, "lattices[0].arcs", "has the node 7"),
        ({"arcs": [{"start": 1, "end": 2}, {"start": 1, "end": 2}]}, "lattices[0].arcs", "no path leads"),
        ({"arcs": [{"start": 0, "end": 1, "word": "a b"}]}, "lattices[0].arcs", "contains white space"),
        ({"arcs": [{"start": 0, "end": 1, "am": 1e101}]}, "lattices[0].arcs", "a score is 1e+101"),
        ({"arcs": [{"start": -1, "end": 1}]}, "lattices[0].arcs[0].start", "is -1"),
        ({"arcs": ARCS, "times": [0.0, 1.0]}, "lattices[0].arcs", "the nodes 0 to 3, but there are 2 times"),
        (
            {"arcs": [{"start": 0, "end": 1, "word": "a" * 201}]},
            "lattices[0].arcs",
            "a word of 201 characters",
        ),
        ({"arcs": [{"start": 0, "end": 1, "am": "NaN"}]}, "lattices[0].arcs[0].am", "NaN"),
        ({"confusions": [[{"text": "a", "logprob": 0.1}]]}, "lattices[0].confusions[0][0].logprob", "is 0.1"),
        ({"confusions": [[{"text": "a"}]] * 40_000}, "alternatives", "a reply has at most 131072"),
        ({"confusions": []}, "lattices[0].confusions", "places"),
        ({"confusions": [[]]}, "lattices[0].confusions", "has no alternatives at place 0"),
        ({"confusions": [[{"text": "a"}]] * 50_001}, "lattices[0].confusions", "50000"),
        ({"slf": "VERSION=1.1\nN=1 L=0\n"}, "lattices[0].slf", "line"),
        ({"kaldi": "u\n0 1 a 1,2\nx\n"}, "lattices[0].kaldi", "line"),
        ({"kaldi": ""}, "lattices[0].kaldi", "has 0 lattices"),
    ],
)
def test_a_wrong_lattice_is_refused_by_name(http, lattice, param, said):
    answer = ask(http, [lattice])
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert said in error["message"]


@pytest.mark.parametrize(
    ("settings", "param", "said"),
    [
        ({"weights": {"pitch": 1}}, "weights.pitch", "is not a feature of a path"),
        ({"weights": {"am": 1e9}}, "weights.am", "is 1000000000.0"),
        ({"nbest": 0}, "nbest", "is 0"),
        ({"max_tokens_per_node": 257}, "max_tokens_per_node", "is 257"),
        ({"nbest": 101}, "nbest", "is 101"),
        ({"beam": -1}, "beam", "is -1"),
        ({"posterior_scale": -1}, "posterior_scale", "is -1"),
        ({"profile": "none"}, "profile", "none"),
        ({"model": "backward"}, "model", "reads from right to left"),
        ({"model": "nobody"}, None, "nobody"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(http, settings, param, said):
    answer = ask(http, [{"arcs": ARCS}], **settings)
    error = answer.json()["error"]
    assert answer.status_code in {400, 404}, error
    assert (error["param"], said in error["message"]) == (param, True), error


def test_a_large_lattice_is_searched_with_fewer_tokens_a_node(http):
    many = {"confusions": [[{"text": f"w{k}"} for k in range(50)]] * 500}
    error = ask(http, [many], max_tokens_per_node=200).json()["error"]
    assert error["param"] == "max_tokens_per_node"
    assert error["message"].endswith("is 200; it must be at most 167 for a lattice of 25000 arcs")
    assert ask(http, [many], max_tokens_per_node=2).status_code == 200


def test_a_long_line_is_refused_and_others_are_answered(http):
    lines = [{"arcs": ARCS}, {"confusions": [[{"text": "a"}]] * 10_001}, {"slf": "a" * (1 << 20)}]
    body = "\n".join(map(json.dumps, lines))
    answer = http.post("/v1/lattices", content=body, headers={"content-type": "application/x-ndjson"})
    found = [json.loads(line) for line in answer.text.splitlines()]
    assert "nbest" in found[0]
    assert "10000" in found[1]["error"]["message"]
    assert "at most 1048576 are accepted" in found[2]["error"]["message"]


def test_a_long_lattice_is_answered_in_time_in_proportion(http):
    """Words beside the best ones are found without looking through all edges for each."""
    places = [[{"text": f"a{n}"}, {"text": f"b{n}"}] for n in range(10_000)]
    [found] = ask(http, [{"confusions": places}], alternatives=1).json()["lattices"]
    assert len(found["words"]) == 10_000
    assert all(len(word["alternatives"]) == 1 for word in found["words"])


MISHEARD = [[{"text": WORDS[0]}], [{"text": "gramofone"}, {"text": WORDS[1], "logprob": -3.0}]]
PHRASES = [{"text": "gramophone"}]


def test_phrases_are_proposed_for_words_spelled_nearly_alike(http):
    (plain,) = rescore(http, [{"confusions": MISHEARD}], phrases=PHRASES, nbest=5)
    assert "proposals" not in plain["nbest"][0]
    (found,) = rescore(http, [{"confusions": MISHEARD}], phrases=PHRASES, propose=True, nbest=5)
    assert found["text"] == f"{WORDS[0]} gramophone"
    best = found["nbest"][0]
    assert best["proposals"] == [{"heard": "gramofone", "written": "gramophone", "proposer": "phrases"}]
    assert best["features"]["distance"] > 0
    others = {one["text"] for one in found["words"][1]["alternatives"]}
    assert "gramofone" in others
    assert {one["text"] for one in plain["nbest"]} < {one["text"] for one in found["nbest"]}


def test_a_text_alone_becomes_what_re_ranking_makes_of_it(http):
    text = f"{WORDS[0]} gramofone 1986 {WORDS[2]}"
    settings = {
        "phrases": PHRASES,
        "propose": True,
        "forms": "en",
        "corrections": [{"heard": WORDS[2], "written": f"{WORDS[3]} {WORDS[4]}", "logprob": 6.0}],
        "weights": {"lm": 0.3, "phrases": 2.0, "spoken": 5.0},
    }
    lists = [{"candidates": [{"text": text}]}]
    reply = http.post("/v1/rerank", json={"lists": lists, "model": "new", **settings}).json()["lists"][0]
    settings["weights"]["am"] = 0.0
    (found,) = rescore(http, [{"confusions": [[{"text": text}]]}], model="new", nbest=30, **settings)
    best = reply["ranking"][0]
    assert re.fullmatch(rf"{WORDS[0]} gramophone [a-z ]*eighty[ -]six {WORDS[3]} {WORDS[4]}", best["text"])
    made = [{name: one[name] for name in ("heard", "written", "proposer")} for one in best["corrections"]]
    same = next(one for one in found["nbest"] if one["text"] == best["text"])
    assert same["proposals"] == made
    assert same["total"] == found["nbest"][0]["total"] == pytest.approx(best["total"], abs=1e-3)


def test_lines_propose_what_a_body_does(http):
    settings = {"phrases": PHRASES, "corrections": [{"heard": WORDS[0], "written": WORDS[5]}]}
    body = rescore(http, [{"confusions": MISHEARD}] * 2, propose=True, nbest=3, **settings)
    params = {name: json.dumps(value) for name, value in settings.items()}
    lines = "\n".join([json.dumps({"confusions": MISHEARD})] * 2)
    answer = http.post(
        "/v1/lattices", params={"propose": True, "nbest": 3, **params}, content=lines, headers=LINES
    )
    assert [json.loads(line) for line in answer.text.splitlines()] == body


def test_a_profile_proposes_unless_the_request_says_otherwise(http, reranking_registry):
    profile = Profile(
        name="proposing",
        models=[ProfileModel(name="", address="new@1", weight=1.0)],
        weights={"lm": 1.0, "phrases": 10.0, "distance": 8.0},
        phrases=[{"text": "gramophone"}],
        propose=True,
        **ABOUT,
    )
    ProfileStore(reranking_registry).write(profile)
    (found,) = rescore(http, [{"confusions": MISHEARD}], profile="proposing")
    assert found["text"].endswith("gramophone")
    (plain,) = rescore(http, [{"confusions": MISHEARD}], profile="proposing", propose=False)
    assert "gramophone" not in plain["text"]


@pytest.mark.parametrize(
    ("settings", "param", "said"),
    [
        ({"forms": "xx"}, "forms", "xx"),
        ({"corrections": [{"heard": "", "written": "a"}]}, "corrections[0].heard", "0 words"),
        (
            {"corrections": [{"heard": "a", "written": "b", "logprob": 101}]},
            "corrections[0].logprob",
            "is 101",
        ),
        ({"propose": "maybe"}, "propose", "'maybe'"),
        ({"weights": {"distance": 1.0}}, "weights.distance", "is not a feature of a path"),
    ],
)
def test_wrong_proposals_are_refused_by_name(http, settings, param, said):
    answer = ask(http, [{"confusions": MISHEARD}], **settings)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], said in error["message"]) == (400, param, True), error
