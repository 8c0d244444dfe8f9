"""`gramophone tune` on lattices, and `gramophone lattice` with the profiles that it saves."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from models.calls import run_to_completion
from models.lattices.formats import format_kaldi, format_slf
from models.lattices.graph import PATH_FEATURES, tuned_weights
from models.lattices.lattice import Arc, build_lattice
from models.lattices.rescoring import nbest_candidates
from models.lattices.token_passing import LatticeSearch
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.metrics import make_metric
from models.reranking.ranking import ProfileStore
from models.reranking.tuning.fitting import assign_folds
from service.local.ask import UNLIMITED, load_published, rescore_lattices
from service.local.tune import prepare_tuning, tune_lists
from service.operations.tune import tune_on_lattices
from training.commands import run_train

pytestmark = pytest.mark.usefixtures("logs_as_before")

SLOTS = (
    ["the", "a", "my"],
    ["cat", "dog", "owl"],
    ["sat", "ran", "saw"],
    ["there", "here", "home"],
)
QUICK = {"restarts": 1, "resamples": 4, "bootstrap_samples": 200}
FLAGS = [part for name, value in QUICK.items() for part in (f"--{name.replace('_', '-')}", value)]
SEARCH = LatticeSearch()


def sentences(count, seed):
    """Sentences in which each word decides the next."""
    rng = np.random.default_rng(seed)
    starts = rng.integers(3, size=count)
    return [" ".join(slot[(start + i) % 3] for i, slot in enumerate(SLOTS)) for start in starts]


def confused_lattice(rng, reference, name):
    """A lattice of three words in each slot; acoustic scores are noisy, and on a scale of their own."""
    right = reference.split()
    arcs = [
        Arc(i, i + 1, word, 10.0 * float(rng.normal(1.5 * (word == right[i]), 1)), float(rng.normal()))
        for i, slot in enumerate(SLOTS)
        for word in slot
    ]
    return build_lattice(arcs, name=name, start=0, end=len(SLOTS), times=np.full(len(SLOTS) + 1, np.nan))


@pytest.fixture(scope="module")
def referred():
    """Lattices with references."""
    rng = np.random.default_rng(3)
    return [
        replace(confused_lattice(rng, text, f"utt{number:02}"), references=(text,))
        for number, text in enumerate(sentences(40, seed=1))
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, referred):
    folder = tmp_path_factory.mktemp("tune")
    (folder / "corpus").write_text("\n".join(sentences(60, seed=2)))
    for name in ("small", "other"):
        run_train(
            "ngram",
            name=name,
            registry=folder / "reg",
            corpus=[folder / "corpus"],
            assignments=["ngram.order=2"],
        )
    (folder / "lattices").mkdir()
    (folder / "lattices" / "utt00.wav").write_bytes(b"RIFF")
    for lattice in referred:
        (folder / "lattices" / f"{lattice.name}.slf").write_text(format_slf(lattice))
    (folder / "refs").write_text("".join(f"{lattice.references[0]}\n" for lattice in referred))
    (folder / "text").write_text(
        "".join(f"{lattice.name} {lattice.references[0]}\n" for lattice in referred[::-1])
    )
    return folder


@pytest.fixture
def tune(typed, folder):
    def run(*options, model="small", files=("lattices",), references="refs"):
        given = ["--references", folder / references] if references else []
        paths = [folder / file for file in files]
        return typed("tune", model, *paths, *given, "--registry", folder / "reg", *FLAGS, *options)

    return run


@pytest.fixture
def rescored_wer(typed, folder):
    """Run `gramophone lattice`: the word error rate that it prints."""

    def run(*options):
        command = ["lattice", "small", folder / "lattices", "--references", folder / "text"]
        code, _, err = typed(*command, "--registry", folder / "reg", *options)
        assert code == 0, err
        return float(re.search(r"rescored ([\d.]+) %", err)[1])

    return run


def job(folder, **options):
    return prepare_tuning(
        {**QUICK, **options},
        model="small",
        fold_models=(),
        load=lambda address: load_published(folder / "reg", address, "cpu", "auto"),
        for_lattices="features" not in options,
    )


def tune_lattices(folder, lattices, **settings):
    return run_to_completion(tune_on_lattices(job(folder), lattices, SEARCH, UNLIMITED, **settings))


def watch_nothing(_what, _done, _total):
    pass


def best_texts(loaded, lattices, weights):
    return [
        nbest_candidates(one, 1).candidates[0].text
        for one in rescore_lattices(loaded, lattices, weights=weights, search=SEARCH)
    ]


def wer(texts, lattices):
    metric = make_metric("wer")
    counts = [metric.statistics([text], one.references)[0] for text, one in zip(texts, lattices, strict=True)]
    return float(metric.score(np.sum(counts, axis=0)))


def test_weights_are_found_saved_and_used(tune, rescored_wer):
    code, out, err = tune("--save", "mine")
    assert (code, "saved as profile mine: gramophone lattice … --profile mine" in out) == (0, True)
    assert re.search(r"rounds: \d+; new strings with the last weights: 0", err)
    assert rescored_wer("--profile", "mine") < rescored_wer() / 2


def test_phrases_are_tuned_and_a_profile_has_them(tune, typed, rescored_wer, folder):
    (folder / "names").write_text("the dog saw\na owl sat\t2\nmy cat ran\t\tanimal\nAda Lovelace\n")
    code, out, err = tune("--phrases", folder / "names", "--json", "--save", "named")
    assert code == 0, err
    assert set(json.loads(out)["features"]) == {*PATH_FEATURES, "phrases", "phrases:animal"}
    saved = ProfileStore(folder / "reg").read("named")
    assert saved.weights["phrases"] > 0
    assert [(one.text, one.weight) for one in saved.phrases[:2]] == [("the dog saw", 1), ("a owl sat", 2)]
    assert rescored_wer("--profile", "named") < rescored_wer() / 2

    def found(*options):
        command = ["lattice", "small", folder / "lattices" / "utt00.slf", "--registry", folder / "reg"]
        code, out, err = typed(*command, "--nbest", 100, "--profile", "named", *options)
        assert code == 0, err
        return {c["text"]: c["features"] for c in json.loads(out)["candidates"]}

    stored = found()
    for text, values in (
        ("a owl sat here", (2, 0)),
        ("my cat ran home", (0, 1)),
        ("my cat sat here", (0, 0)),
    ):
        assert (stored[text]["phrases"], stored[text]["phrases:animal"]) == values
    ranked = [sum(saved.weights.get(name, 0) * f for name, f in one.items()) for one in stored.values()]
    assert ranked == pytest.approx(sorted(ranked, reverse=True))
    (folder / "others").write_text("cat\n")
    assert found("--phrases", folder / "others")["my cat ran home"]["phrases"] == 1
    (folder / "streets").write_text("cat\t\tstreet\n")
    assert found("--phrases", folder / "streets")["my cat ran home"]["phrases:street"] == 1


def test_the_held_out_score_is_that_of_searching_the_held_out_lattices(folder, referred):
    _, reply = tune_lattices(folder, referred, nbest=5)
    loaded = load_published(folder / "reg", "small", "cpu", "auto")
    assert (reply.new_strings, reply.rounds > 1, reply.decision) == (0, True, "tuned")
    lists = [CandidateList(one.name, "", (), one.references) for one in referred]
    folds = assign_folds(lists, folds=2, seed=0)
    for number, fold in enumerate(reply.folds):
        own = [referred[i] for i in np.flatnonzero(folds == number)]
        assert wer(best_texts(loaded, own, tuned_weights(fold.weights)), own) == pytest.approx(fold.tuned)
    first = best_texts(loaded, referred, tuned_weights({"rank": 1.0}))
    assert wer(first, referred) == pytest.approx(reply.baseline)


def test_a_search_that_finds_every_string_is_tuning_on_complete_lists(folder, referred):
    _, found = tune_lattices(folder, referred, nbest=100, max_rounds=1)
    loaded = load_published(folder / "reg", "small", "cpu", "auto")
    lists = []
    for one in rescore_lattices(loaded, referred, weights=tuned_weights({"rank": 1.0}), search=SEARCH):
        complete = nbest_candidates(one, 100)
        given = (
            Candidate(c.text, {name: c.features[name] for name in ("am", "old_lm")})
            for c in complete.candidates
        )
        lists.append(CandidateList(complete.name, "", tuple(given), complete.references))
    listed = job(folder, features=",".join(PATH_FEATURES), length_exponents="0")
    _, reply = tune_lists(listed, lists, watch_nothing)
    assert (found.new_strings, found.counts.candidates) == (0, 40 * 3**4)
    assert found.tried == pytest.approx(reply.tried)
    assert found.weights == pytest.approx(reply.weights, rel=1e-4)


def test_rounds_are_bounded(folder, referred):
    _, reply = tune_lattices(folder, referred, nbest=2, max_rounds=1)
    assert (reply.rounds, reply.new_strings > 0) == (1, True)
    assert reply.profile["figures"]["new_strings"] == reply.new_strings


def test_lattices_are_files_too_and_references_may_have_ids(tune, folder):
    names = [path.relative_to(folder) for path in sorted((folder / "lattices").glob("*.slf"))]
    by_id = json.loads(tune("--json", files=names, references="text")[1])
    in_order = json.loads(tune("--json")[1])
    assert by_id["weights"] == in_order["weights"]
    assert (by_id["model"], set(by_id["features"])) == ("small@1", set(PATH_FEATURES))


def test_lattices_of_kaldi_are_in_one_file(tune, folder, referred):
    with (folder / "lat.txt").open("w") as file:
        for lattice in referred:
            file.write(format_kaldi(lattice))
    kaldi, slf = (json.loads(tune("--json", files=[name])[1]) for name in ("lat.txt", "lattices"))
    assert kaldi["weights"] == pytest.approx(slf["weights"])


def test_models_by_fold_score_the_lattices_of_their_folds(tune):
    plain, same = (json.loads(tune("--json", *more)[1]) for more in ((), ("--fold-models", "other,other")))
    assert same["weights"] == pytest.approx(plain["weights"])  # both models were trained on one text
    assert (same["model"], plain["model"]) == ("small@1", "small@1")


def test_the_candidates_of_lattices_are_lists_for_tune_and_rerank(typed, folder, rescored_wer):
    """Regression: `features.lm` of `lattice --nbest` was refused."""
    lists, registry = folder / "lists.jsonl", ("--registry", folder / "reg")
    rescored_wer("--nbest", 20, "--output", lists)
    code, _, err = typed("tune", "small", lists, *registry, *FLAGS, "--save", "listed")
    assert (code, err.count("features that are computed again: lm, unk, words")) == (0, 1)
    code, out, _ = typed("rerank", "small", lists, *registry, "--weights", "lm=1", "--output-format", "jsonl")
    before = {
        c["text"]: c["features"]["lm"] for c in json.loads(lists.read_text().splitlines()[0])["candidates"]
    }
    after = {c["text"]: c["features"]["lm"] for c in json.loads(out.splitlines()[0])["ranking"]}
    assert (code, after) == (0, pytest.approx(before, rel=1e-5))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"references": None}, "references is missing"),
        ({"model": "-"}, "given_only is True; lattices are tuned on with one model"),
        ({"model": "small=0.5,other=0.5"}, "lattices are tuned on with one model"),
        ({"options": ("--models", "old=other")}, "lattices are tuned on with one model"),
        ({"options": ("--features", "am,rank")}, "features is ['am', 'rank']; lattices are tuned on with"),
        ({"options": ("--length-exponents", "0,1")}, "length_exponents is [0.0, 1.0]; lattices are tuned on with"),
        ({"options": ("--features", "am,phrases")}, "features is ['am', 'phrases']; lattices are tuned on with"),
        ({"options": ("--beam-size", 3)}, "beam_size, scores and corrections are for n-best lists only"),
        ({"options": ("--corrections",)}, "beam_size, scores and corrections are for n-best lists only"),
        ({"options": ("--max-tokens-per-node", 0)}, "max_tokens_per_node is 0"),
        ({"options": ("--metric", "bleu", "--normaliser", "lower")}, "normaliser is 'lower'"),
        ({"options": ("--folds", 20)}, "folds is 20, but 40 lists have 3 distinct references"),
        ({"options": ("--fold-models", "other")}, "--fold-models names 1 models; 2 folds"),
        ({"files": ("refs", "text"), "options": ("--format", "moses")}, "has no lattices; several files"),
        ({"files": ("refs",), "options": ("--format", "moses", "--nbest", 5)}, "several files, nbest, words, no_word,"),
    ],
)  # fmt: skip
def test_wrong_options_are_told_before_a_lattice_is_searched(tune, monkeypatch, options, problem):
    monkeypatch.setattr("models.lattices.rescoring.rescore_in_steps", None)
    code, out, err = tune(*options.pop("options", ()), **options)
    assert (code, out, problem in err) == (2, "", True), err


@pytest.mark.parametrize("command", ["tune", "lattice"])
@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("{name} {text}\n", "has no line with the id of list 40, 'utt39'"),
        ("{text}\n", "has 39 references, so there is none for list 40 (utt39)"),
        ("utt-{number} {text}\n", "has no line with the id of list 1, 'utt00'"),
    ],
)
def test_ids_are_checked_before_a_lattice_is_searched(
    typed, folder, referred, monkeypatch, command, lines, problem, tmp_path
):
    monkeypatch.setattr("models.lattices.rescoring.rescore_in_steps", None)
    (tmp_path / "refs").write_text(
        "".join(
            lines.format(name=one.name, text=one.references[0], number=i)
            for i, one in enumerate(referred[:-1])
        )
    )
    code, _, err = typed(
        command,
        "small",
        folder / "lattices",
        "--references",
        tmp_path / "refs",
        "--registry",
        folder / "reg",
    )
    assert (code, problem in err) == (2, True), err
