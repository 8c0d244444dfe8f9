"""Corrections learnt from lists with references."""

import math
from dataclasses import replace

import numpy as np
import pytest

from models.calls import run_to_completion
from models.reranking.corrections import CorrectionTable
from models.reranking.proposals import Proposal, proposals_of, variants
from models.reranking.tuning.correction_estimation import (
    count_corrections,
    learn_corrections,
    with_closest_forms,
)
from models.scoring.candidate_features import ScoringModels
from models.text_model import Limits
from service.operations.tune import TuneSettings, propose_by_fold
from tests.support.nbest_lists import candidate_list

NAMES = ("oak", "elm", "fir", "yew", "ash", "bay", "fig", "nut")


def learnt(lists):
    counts = run_to_completion(count_corrections(lists, np.zeros(len(lists), dtype=np.int64)))
    return {(one.heard, one.written): one for one in run_to_completion(learn_corrections(counts))}


def corrected_by_fold(lists, folds):
    """Lists with candidates corrected by what was learnt from the other folds, without a model."""
    counts = run_to_completion(count_corrections(lists, folds))
    limits = Limits(max_texts=1, max_tokens_per_sequence=1000, max_new_tokens=1)
    given = TuneSettings(), lists, folds, counts, lambda _: ScoringModels((), ()), limits
    return [*run_to_completion(propose_by_fold(*given))]


def spoken(pairs, count=8):
    """Lists of one hypothesis and its reference around a different word each."""
    return [
        candidate_list(f"show {name} {heard} today please", reference=f"show {name} {written} today please")
        for name in NAMES[:count]
        for heard, written in pairs
    ]


@pytest.mark.parametrize(
    ("heard", "written"),
    [
        ("dc", "d c"),
        ("non stop", "nonstop"),
        ("onest", "first"),
        ("uh", ""),
        ("seven pm", "seven p m"),
    ],
)
def test_errors_that_recur_are_learnt_once(heard, written):
    found = learnt(spoken([(heard, written)]))
    words = f"show us {heard} today".split()
    proposals = run_to_completion(proposals_of(words, [CorrectionTable(list(found.values()))]))
    assert variants(words, proposals, [one.prior for one in proposals])[0][0] == " ".join(
        f"show us {written} today".split()
    )
    assert len(found) == 1


def test_two_errors_side_by_side_are_two_corrections():
    assert {("onest", "first"), ("dc", "d c")} <= set(learnt(spoken([("onest dc", "first d c")])))


def test_inserted_words_belong_to_the_word_before():
    found = learnt(spoken([("$one thousand", "one thousand dollars")]))
    assert set(found) == {("$one", "one"), ("thousand", "thousand dollars")}


def test_the_log_odds_are_those_of_counts_with_a_prior_for_keeping():
    kept = [candidate_list(text, reference=text) for text in ("at dc now", "to dc now", "dc now")]
    found = learnt([*spoken([("dc", "d c")]), *kept])
    assert found["dc", "d c"].log_odds == pytest.approx(math.log(8 / (3 + 2)), abs=1e-4)
    assert found["dc", "d c"].lists == 8


def test_hypotheses_of_a_list_share_its_weight():
    texts = [f"show dc {name} today please" for name in NAMES]
    lists = [candidate_list(*texts, reference=f"show d c {one} today please") for one in ("oak", "elm")]
    lists += [candidate_list(text, reference=text) for text in ("at dc now please", "to dc now please")]
    assert learnt(lists)["dc", "d c"].log_odds == pytest.approx(math.log(2 / (2 + 2)), abs=1e-4)


def test_lists_of_a_reference_share_its_weight():
    lists = [candidate_list("at dc now", reference="at d c now")] * 8
    assert learnt(lists)["dc", "d c"].log_odds == pytest.approx(math.log(1 / 2), abs=1e-4)
    assert learnt(lists)["dc", "d c"].lists == 8


def test_rare_or_mostly_wrong_corrections_are_not_learnt():
    texts = [f"show {name} {number} dc today please" for name in NAMES for number in range(10)]
    kept = [candidate_list(text, reference=text) for text in texts]
    assert learnt([*spoken([("dc", "d c")], 2), *kept]) == {}
    assert learnt(spoken([("dc", "d c")], 1)) == {}


def test_context_decides_where_it_changes_the_odds():
    lists = [
        *spoken([("to fight on", "to flight on")]),
        *(
            candidate_list(f"{name} they fight at sea", reference=f"{name} they fight at sea")
            for name in NAMES
        ),
    ]
    found = learnt(lists)
    longer = [pair for pair in found if "fight" in pair[0] and pair[0] != "fight"]
    assert longer
    assert all(found[pair].log_odds > found["fight", "flight"].log_odds + 0.5 for pair in longer)


def test_hypotheses_with_too_many_errors_are_not_aligned():
    lists = [candidate_list(f"{name} b c d", reference="x y z d") for name in NAMES]
    assert learnt(lists) == {}


def test_the_closest_of_several_references_is_aligned():
    lists = [
        replace(one, references=("an entirely different text", *one.references))
        for one in spoken([("dc", "d c")])
    ]
    assert set(learnt(lists)) == {("dc", "d c")}


def test_a_fold_is_corrected_by_the_other_folds_alone():
    lists = [*spoken([("dc", "d c")], 4), *spoken([("pm", "p m")], 4)]
    folds = np.array([0] * 4 + [1] * 4)
    told = corrected_by_fold(lists, folds)
    assert told == lists  # each error occurs in one fold only
    mixed = np.array([0, 1] * 4)
    told = corrected_by_fold(lists, mixed)
    assert [one.candidates[1].text for one in told] == [one.references[0] for one in lists]


def test_references_of_a_fold_do_not_change_its_candidates():
    folds = np.array([0, 1] * 8)
    lists = spoken([("dc", "d c"), ("pm", "p m")])
    other = [
        one if fold else candidate_list(one.candidates[0].text, reference=one.candidates[0].text)
        for one, fold in zip(lists, folds, strict=True)
    ]
    told = [
        [
            [candidate.text for candidate in one.candidates]
            for one, fold in zip(corrected_by_fold(some, folds), folds, strict=True)
            if not fold
        ]
        for some in (lists, other)
    ]
    assert told[0] == told[1]


def test_the_order_of_lists_does_not_matter():
    lists = spoken([("dc", "d c"), ("pm", "p m"), ("onest", "first")])
    assert learnt(lists) == learnt(lists[::-1])


class Proposing:
    """Proposer of fixed replacements: first word, word after the last, and the words instead."""

    def __init__(self, *spans):
        self.spans = spans

    def propose(self, _words):
        yield None
        for begin, end, written in self.spans:
            yield Proposal(begin, end, written, "spoken", 0.0, 0.0)


def closest(text, reference, *spans):
    lists = [candidate_list(text, reference=reference)]
    (found,) = run_to_completion(with_closest_forms(lists, Proposing(*spans)))
    return found.candidates[0].text


def test_each_form_closest_to_the_reference_replaces_its_words():
    spans = (1, 2, "b two"), (1, 2, "b"), (2, 3, "c")
    assert closest("a 2 3 d", "a b c d", *spans) == "a b c d"
    assert closest("a 2 3 d", "a 2 three d", *spans) == "a 2 3 d"


def test_a_form_across_replaced_words_is_left_out():
    # "q c d e" for the second word moves the places after it: "x" for both must not leave "c d e"
    assert closest("a 2", "x c d e", (0, 2, "x"), (1, 2, "q c d e")) == "a q c d e"
