"""Proposals in lattices: against all combinations of them, and invariants beside the alternatives of a first pass."""

import itertools

import numpy as np
import pytest

from models.calls import run_to_completion
from models.lattices.graph import NO_PROPOSALS, PathWeights, tuned_weights
from models.lattices.lattice import Arc, Scales, build_lattice
from models.lattices.proposals import rescore_with_proposals
from models.lattices.rescoring import features_of, nbest_candidates, nbest_paths
from models.lattices.token_passing import LatticeSearch
from models.reranking.proposals import (
    CORRECTION,
    DISTANCE,
    DOUBT,
    Proposal,
    ProposedCandidate,
)
from models.text_model import TextModel
from tests.reference.lattices import random_lattice
from tests.support import families

WORDS = [*families.WORDS[:6], "unheard"]
EVERYTHING = LatticeSearch(max_tokens_per_node=100_000, recombination_order=None)
UNTUNED = {DISTANCE: 2.0, CORRECTION: 0.7}


class FixedProposals:
    """Proposals for known runs of words."""

    def __init__(self, replaced):
        self.replaced = replaced

    def propose(self, words):
        for heard, written, feature, value in self.replaced:
            size = len(heard.split())
            for begin in range(len(words) - size + 1):
                if words[begin : begin + size] == heard.split():
                    yield Proposal(begin, begin + size, written, feature, value, 0.0)
            yield None


PROPOSER = FixedProposals(
    [
        (WORDS[0], WORDS[3], DISTANCE, -0.5),
        (f"{WORDS[0]} {WORDS[1]}", f"{WORDS[4]} unseen {WORDS[2]}", DISTANCE, 1.5),
        (WORDS[1], "", CORRECTION, 0.3),
        (WORDS[2], f"{WORDS[5]} {WORDS[0]}", CORRECTION, -1.0),
    ]
)


@pytest.fixture(scope="module", params=["ngram", "lstm"])
def loaded(request):
    return TextModel(f"{request.param}@1", families.model(request.param), families.tokenizer())


def rescored(loaded, lattices, proposers=(PROPOSER,), proposals=UNTUNED, **weights):
    given = {"am": 0.3, "lm": 1.0, "words": -0.4, "unk": -1.5, **weights}
    work = rescore_with_proposals(
        lattices,
        loaded,
        weights=lambda scales: PathWeights.of(given, scales, proposals=proposals),
        search=EVERYTHING,
        proposers=proposers,
    )
    return run_to_completion(work)


def chain(words, name="u"):
    arcs = [Arc(place, place + 1, word, -0.1 * place, -1.0) for place, word in enumerate(words)]
    return build_lattice(arcs, name=name, start=0, end=len(words), times=np.arange(len(words) + 1.0))


def texts_of(words):
    """Each text of a combination of proposals, with the best sum of their weighted values."""
    proposals = [one for one in PROPOSER.propose(words) if one is not None]
    best = {}
    for count in range(len(proposals) + 1):
        for some in itertools.combinations(sorted(proposals), count):
            if any(a.end > b.begin for a, b in itertools.pairwise(some)):
                continue
            replaced = [*words]
            for one in reversed(some):
                replaced[one.begin : one.end] = [one.written]
            text = " ".join(filter(None, replaced))
            value = sum(UNTUNED[one.feature] * one.value for one in some)
            best[text] = max(value, best.get(text, -np.inf))
    return best


@pytest.mark.parametrize("numbers", [[0, 1, 2], [2, 0, 1, 0], [1, 1, 0, 1, 2, 3], [5, 6]])
def test_the_texts_of_a_single_path_are_all_combinations(loaded, numbers):
    words = [WORDS[number] for number in numbers]
    given = chain(words)
    (found,) = rescored(loaded, [given])
    paths = nbest_paths(found, 10_000)
    want = texts_of(words)
    assert {path.text for path in paths} == want.keys()
    plain = [chain(path.text.split() or [""]) for path in paths]
    alone = [nbest_paths(one, 1)[0].total for one in rescored(loaded, plain, proposers=(), am=0.0)]
    for path, total in zip(paths, alone, strict=True):
        assert path.total == pytest.approx(total + 0.3 * given.am.sum() + want[path.text], abs=1e-4)


def test_features_of_a_text_are_those_of_its_proposals(loaded):
    (found,) = rescored(loaded, [chain(WORDS[:3])])
    for path, features in zip(paths := nbest_paths(found, 100), features_of(found, paths), strict=True):
        replaced = found.proposals(path)
        for name in UNTUNED:
            values = [one.value for one in replaced if one.feature == name]
            assert features[name] == pytest.approx(sum(values))
        weighted = found.weights.by_feature()
        assert path.total == pytest.approx(
            sum(weighted[name] * features[name] for name in weighted), abs=1e-9
        )
        heard = WORDS[:3]
        assert all(one.heard == " ".join(heard[one.begin : one.end]) for one in replaced)


def test_first_passes_keep_their_texts_and_totals(loaded):
    rng = np.random.default_rng(3)
    some = [random_lattice(rng, words=WORDS, num_nodes=7, num_arcs=12, name=f"u{n}") for n in range(8)]
    gained = 0
    for plain, found in zip(rescored(loaded, some, proposers=()), rescored(loaded, some), strict=True):
        before = {path.text: path.total for path in nbest_paths(plain, 10_000)}
        after = {path.text: path for path in nbest_paths(found, 100_000)}
        assert before.keys() <= after.keys()
        for text, total in before.items():
            assert after[text].total >= total - 1e-4
            if not found.proposals(after[text]):
                assert after[text].total == pytest.approx(total, abs=1e-4)
        gained += len(after) > len(before)
    assert gained > 4


def test_lattices_do_not_depend_on_the_batch(loaded):
    rng = np.random.default_rng(5)
    some = [random_lattice(rng, words=WORDS, num_nodes=7, num_arcs=12, name=f"u{n}") for n in range(5)]
    for one, together in zip(some, rescored(loaded, some), strict=True):
        (alone,) = rescored(loaded, [one])
        assert nbest_candidates(alone, 20) == nbest_candidates(together, 20)


def test_candidates_have_their_replacements(loaded):
    (found,) = rescored(loaded, [chain(WORDS[:2])])
    candidates = nbest_candidates(found, 100).candidates
    made = [one for one in candidates if isinstance(one, ProposedCandidate)]
    assert 0 < len(made) < len(candidates)
    for one in candidates:
        assert one.features.keys() == {"am", "old_lm", "lm", "words", "unk"}


def test_the_lattice_with_proposals_has_the_same_totals(loaded):
    (found,) = rescored(loaded, [chain(WORDS[:3])])
    written = found.as_lattice()
    again = rescored(
        loaded,
        [written],
        proposers=(),
        am=written.scales.am,
        lm=0.0,
        old_lm=written.scales.lm,
        unk=0.0,
    )
    want = [(path.text, path.total) for path in nbest_paths(found, 50)]
    got = [(path.text, path.total) for path in nbest_paths(again[0], 50)]
    assert [text for text, _ in got] == [text for text, _ in want]
    assert [total for _, total in got] == pytest.approx([total for _, total in want], abs=1e-6)


def test_nodes_between_the_words_of_a_proposal_lie_between_them_in_time(loaded):
    (found,) = rescored(loaded, [chain([WORDS[2], WORDS[3]])])
    assert sorted(found.lattice.times.tolist()) == [0.0, 0.5, 1.0, 2.0]


def test_doubt_is_the_share_of_texts_without_the_word():
    loaded = TextModel("ngram@1", families.model("ngram"), families.tokenizer())
    arcs = [
        Arc(0, 1, WORDS[0], 0.0, 0.0),
        Arc(0, 1, WORDS[4], 0.0, 0.0),
        Arc(1, 2, WORDS[2], 0.0, 0.0),
    ]
    given = build_lattice(arcs, name="u", start=0, end=2, times=np.full(3, np.nan))
    (found,) = rescored(loaded, [given], proposals={**UNTUNED, DOUBT: 1.0})
    doubts = {one.heard: one.doubt for one in found.lattice.proposals.values()}
    assert doubts[WORDS[0]] == pytest.approx(0.0)  # in one text of two
    assert doubts[WORDS[2]] == pytest.approx(np.log(0.5 / 2.5))  # in both


def test_weights_of_proposals_are_relative_to_the_model_s():
    weights = PathWeights.of({"lm": 4.0}, Scales(), proposals=UNTUNED)
    assert weights.proposals == {DISTANCE: 8.0, CORRECTION: 2.8}
    assert PathWeights.of({"lm": 4.0, DISTANCE: 1.0}, Scales(), proposals=UNTUNED).proposals[DISTANCE] == 1.0
    assert PathWeights.of({}, Scales(lm=3.0), proposals={"unk": -2.0}).unk == -6.0
    tuned = tuned_weights({"lm": 2.0, DISTANCE: 5.0, CORRECTION: 1.0}, proposals={DISTANCE: 0.0})
    assert tuned(Scales()).proposals == {DISTANCE: 5.0}
    assert tuned_weights({"rank": 1.0}, proposals=NO_PROPOSALS)(Scales(lm=3.0)).old_lm == 3.0


def test_words_that_the_lattice_has_there_are_not_proposed():
    loaded = TextModel("ngram@1", families.model("ngram"), families.tokenizer())
    arcs = [Arc(0, 1, WORDS[0], 0.0, 0.0), Arc(0, 1, WORDS[3], -1.0, 0.0)]
    (found,) = rescored(
        loaded,
        [build_lattice(arcs, name="u", start=0, end=1, times=np.full(2, np.nan))],
    )
    assert not found.lattice.proposals
