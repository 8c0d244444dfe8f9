"""N-best lists: public lists, artificial tuning problems with known weights, lists for requests."""

import json
import lzma
from pathlib import Path
from typing import NamedTuple

import numpy as np

from models.reranking.candidates import Candidate, CandidateList
from models.reranking.features import NUM_WORDS, ListFeatures
from models.reranking.metrics import make_metric
from models.reranking.tuning.cross_fitting import CountsResult, TuningData
from models.reranking.tuning.mert import TuningProblem, standardise_features

RECOGNISED = ("common-voice", "librispeech-clean")


class Listed(NamedTuple):
    texts: list[str]
    reference: str


def recognised(data_dir: Path, name: str) -> list[Listed]:
    """Five hypotheses of a recogniser for each utterance; short lists are padded with copies."""
    entries = json.loads((data_dir / "nbest" / f"{name}.json").read_text())
    return [Listed(entry["input"], entry["output"]) for entry in entries]


def translated(data_dir: Path) -> list[Listed]:
    """Nine systems' translations of each segment."""
    with lzma.open(data_dir / "nbest" / "mt-de-en.jsonl.xz", "rt") as lines:
        entries = [json.loads(line) for line in lines]
    return [Listed([one["text"] for one in entry["candidates"]], entry["reference"]) for entry in entries]


WORDS_A_LIST = 10


def problem(errors, features, sizes=None, names=None):
    """Tuning problem of candidates with word errors out of ten, in lists of the given sizes or one list."""
    errors = np.asarray(errors)
    features = np.asarray(features, dtype=float).reshape(len(errors), -1)
    offsets = np.concatenate(([0], np.cumsum(sizes or [len(errors)])))
    statistics = np.stack([errors, np.full_like(errors, WORDS_A_LIST)], axis=1)
    names = names or tuple("abcdefgh"[: features.shape[1]])
    return TuningProblem(tuple(names), features, statistics, offsets, make_metric("wer"))


def informative(num_lists=60, size=5, seed=0, noise=0.5):
    """Problem in which `rank` is weakly informative, `good` predicts errors and `useless` is noise."""
    rng = np.random.default_rng(seed)
    errors = rng.integers(0, 6, num_lists * size)
    good = -errors + noise * rng.standard_normal(len(errors))
    rank = -np.tile(np.arange(size), num_lists)
    features = np.stack([rank, good, rng.standard_normal(len(errors))], axis=1)
    return problem(errors, features, [size] * num_lists, ("rank", "good", "useless"))


def uninformative(num_lists=60, size=5, seed=0):
    """Problem in which first candidates are best on average, and the other features are noise."""
    rng = np.random.default_rng(seed)
    rank = np.tile(np.arange(size), num_lists)
    errors = np.minimum(rank, 2) + rng.integers(0, 4, len(rank))
    features = np.column_stack([-rank, rng.standard_normal((len(rank), 3))])
    return problem(errors, features, [size] * num_lists, ("rank", "x", "y", "z"))


def data_of(one):
    """Tuning data of a problem, without texts."""
    return TuningData((), (one,), np.zeros(0, dtype=np.int64), CountsResult(0, 0, 0, 0, 0), ())


def scaled(one):
    """Problem with standardised features."""
    return standardise_features(one)[0]


def candidate_list(*texts, reference="a b c", name=None, features=None):
    """A list of candidates, with features by candidate."""
    given = features or [{} for _ in texts]
    candidates = tuple(Candidate(t, f) for t, f in zip(texts, given, strict=True))
    return CandidateList(name, "", candidates, () if reference is None else (reference,))


def words_alone(lists):
    """Features that need no model scores: the number of words."""
    counts = [float(len(c.text.split())) for one in lists for c in one.candidates]
    offsets = np.concatenate(([0], np.cumsum([len(one.candidates) for one in lists])))
    return ListFeatures((NUM_WORDS,), np.array(counts)[:, None], offsets)


def words_in_steps(lists):
    """The same as an operation."""
    yield None
    return words_alone(lists)


def made_lists(count=40, seed=0):
    """Lists of three candidates with the reference at any position; the feature `good` predicts errors."""
    rng = np.random.default_rng(seed)
    lists = []
    for number in range(count):
        right = [f"w{i}" for i in rng.integers(0, 37, 6)]
        texts, wrong = [], rng.permutation([0, 1, 3])
        for errors in wrong:
            words = list(right)
            for place in rng.permutation(6)[:errors]:
                words[place] = f"w{rng.integers(0, 37)}"
            texts.append(" ".join(words))
        candidates = [
            {"text": text, "features": {"good": float(-errors + 0.2 * rng.standard_normal())}}
            for text, errors in zip(texts, wrong, strict=True)
        ]
        lists.append({"id": f"u{number}", "candidates": candidates, "reference": " ".join(right)})
    return lists


def misheard(lists):
    """The same lists by a recogniser that writes `wone` for w1, and w2 in two words."""
    for one in lists:
        for candidate in one["candidates"]:
            heard = {"w1": "wone", "w2": "double u2"}
            candidate["text"] = " ".join(heard.get(word, word) for word in candidate["text"].split())
    return lists


def without_references(lists):
    return [{key: value for key, value in one.items() if key != "reference"} for one in lists]
