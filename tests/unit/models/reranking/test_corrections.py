"""Corrections of phrases: limits, corrected texts and candidates, tables in files."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from models.calls import run_to_completion
from models.errors import FormatError, InputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.corrections import (
    MAX_CORRECTIONS,
    CorrectionTable,
    PhraseCorrection,
    read_table,
    write_table,
)
from models.reranking.features import derive
from models.reranking.proposals import (
    MAX_SOURCES,
    MAX_VARIANTS,
    MAX_WORDS,
    origins_of,
    proposals_of,
    replacements_of,
    variants,
)
from models.reranking.ranking import LogLinearModel
from models.scoring.candidate_features import ScoringModels
from models.scoring.proposed_candidates import propose_candidates
from models.text_model import Limits
from tests.support.nbest_lists import candidate_list

UNLIMITED = 1 << 30


def correction(heard, written, log_odds=1.0, lists=0):
    return PhraseCorrection(heard=heard, written=written, log_odds=log_odds, lists=lists)


def table(*pairs):
    return CorrectionTable([correction(*pair) for pair in pairs])


def variants_of(text, *pairs):
    proposals = run_to_completion(proposals_of(text.split(), [table(*pairs)]))
    return variants(text.split(), proposals, [one.prior for one in proposals])


def corrected(text, *pairs):
    return [result for result, _ in variants_of(text, *pairs)]


def with_proposals(given, proposers, max_tokens):
    """Append corrected candidates without a model, by log-odds alone."""
    limits = Limits(max_texts=1, max_tokens_per_sequence=max_tokens, max_new_tokens=1)
    weighting = LogLinearModel(weights={"correction": 1.0})
    work = propose_candidates(ScoringModels((), ()), [given], proposers, weighting, limits)
    return run_to_completion(work)[0]


def test_phrases_are_replaced_split_joined_and_removed():
    assert corrected("at dc now", ("dc", "d c")) == ["at d c now"]
    assert corrected("a non stop flight", ("non stop", "nonstop")) == ["a nonstop flight"]
    assert corrected("uh show me", ("uh", "")) == ["show me"]


def test_the_greatest_log_odds_come_first():
    pairs = (("a", "x", 1.0), ("a", "y", 2.0), ("b", "z", -0.5))
    assert corrected("a b", *pairs) == ["y b", "y z", "x b"]


def test_corrections_do_not_apply_to_corrected_words():
    assert corrected("a", ("a", "a a", 1.0)) == ["a a"]
    assert corrected("a", ("a", "b"), ("b", "a")) == ["b"]


def test_a_text_without_a_phrase_and_a_text_that_would_be_empty_have_no_corrections():
    assert corrected("show me", ("uh", "")) == []
    assert corrected("uh", ("uh", "")) == []


def brute_force(words, pairs):
    """All texts by corrections that do not overlap, with the greatest sum of log-odds of each."""
    places = [
        (begin, begin + len(heard.split()), written, log_odds)
        for heard, written, log_odds in pairs
        for begin in range(len(words))
        if words[begin : begin + len(heard.split())] == heard.split()
    ]
    best = {}
    for count in range(1, len(places) + 1):
        for chosen in combinations(sorted(places), count):
            if any(a[1] > b[0] for a, b in pairwise(chosen)):
                continue
            result, total = list(words), 0.0
            for begin, end, written, log_odds in reversed(chosen):
                result[begin:end] = written.split()
                total += log_odds
            text = " ".join(result)
            best[text] = max(total, best.get(text, -np.inf))
    return best


@pytest.mark.parametrize("seed", range(30))
def test_the_best_corrected_texts_are_those_of_all_combinations(seed):
    rng = np.random.default_rng(seed)
    words = [str(word) for word in rng.choice(list("abc"), 4)]
    pairs = {
        " ".join(rng.choice(list("abc"), rng.integers(1, 3))): (f"x{i}", float(rng.normal()))
        for i in range(4)
    }
    pairs = [(heard, *rest) for heard, rest in pairs.items()]
    expected = brute_force(words, pairs)
    told = variants_of(" ".join(words), *pairs)
    assert len(told) == min(MAX_VARIANTS, len(expected))
    sums = [sum(one.value for one in replacements) for _, replacements in told]
    assert sums == pytest.approx(sorted(expected.values(), reverse=True)[: len(told)])
    assert [expected[text] for text, _ in told] == pytest.approx(sums)


def test_long_texts_and_many_matches_are_bounded():
    pairs = [("a", f"x{i}", i / 100) for i in range(1000)]
    assert len(corrected("a " * MAX_WORDS, *pairs)) == MAX_VARIANTS
    assert corrected("a " * (MAX_WORDS + 1), *pairs) == []


def test_corrected_candidates_follow_with_the_features_and_the_rank_of_their_origin():
    given = candidate_list("at b c", "at dc", features=[{"am": -1.0}, {"am": -2.0}])
    candidates = with_proposals(given, [table(("dc", "d c", 1.5))], UNLIMITED).candidates
    assert [candidate.text for candidate in candidates] == ["at b c", "at dc", "at d c"]
    assert candidates[2].features == {"am": -2.0}
    assert origins_of(candidates).tolist() == [0, 1, 1]
    assert run_to_completion(derive("rank", candidates, lambda _: np.zeros(3))).tolist() == [0, -1, -1]
    assert run_to_completion(derive("correction", candidates, lambda _: np.zeros(3))).tolist() == [0, 0, 1.5]


def test_a_later_text_of_the_list_is_also_made_of_an_earlier_one_with_its_rank():
    given = candidate_list("at dc", "at d c")
    candidates = with_proposals(given, [table(("dc", "d c"))], UNLIMITED).candidates
    assert [candidate.text for candidate in candidates] == ["at dc", "at d c", "at d c"]
    assert origins_of(candidates).tolist() == [0, 1, 0]


def test_an_earlier_text_of_the_list_is_no_corrected_candidate():
    given = candidate_list("at d c", "at dc")
    assert with_proposals(given, [table(("dc", "d c"))], UNLIMITED) is given


def test_only_the_first_candidates_are_corrected():
    given = candidate_list(*(f"a {number}" for number in range(50)))
    candidates = with_proposals(given, [table(("a", "b"))], UNLIMITED).candidates
    assert [c.text for c in candidates[50:]] == [f"b {number}" for number in range(MAX_SOURCES)]


def test_corrected_texts_that_may_have_too_many_tokens_are_left_out():
    given = candidate_list("at dc")
    assert len(with_proposals(given, [table(("dc", "d c"))], 9).candidates) == 2
    assert with_proposals(given, [table(("dc", "d c"))], 8) is given


def test_contexts_of_a_continuation_are_not_corrected():
    given = CandidateList(None, "", (Candidate("at dc"),), continuation="now")
    assert with_proposals(given, [table(("dc", "d c"))], UNLIMITED) is given


@pytest.mark.parametrize(
    ("wrong", "field", "message"),
    [
        (correction("", "a"), "heard", "has 0 words and 0 characters; it must have from 1 to 4 words"),
        (correction("a b c d e", "a"), "heard", "has 5 words and 9 characters; it must have from 1 to 4"),
        (correction("a", "a b c d e"), "written", "has 5 words and 9 characters; it must have from 0 to 4"),
        (
            correction("a" * 257, "b"),
            "heard",
            "has 1 words and 257 characters; it must have .*, and at most 256 characters",
        ),
        (correction("a", "a"), "written", "is 'a', the same as heard"),
        (correction("a", "b", 101.0), "log_odds", "is 101.0; it must be from -100 to 100"),
    ],
)
def test_corrections_outside_the_limits_are_refused(wrong, field, message):
    with pytest.raises(InputError, match=message) as error:
        CorrectionTable([correction("x", "y"), wrong])
    assert error.value.param == f"corrections[1].{field}"
    assert str(error.value).startswith(f"corrections[1].{field} ")


def test_words_are_separated_by_single_spaces():
    assert correction(" a \n b ", "").heard == "a b"


def test_a_pair_given_twice_and_too_many_corrections_are_refused():
    with pytest.raises(InputError, match=r"corrections\[1\] replaces 'a' by 'b', as an earlier one"):
        table(("a", "b", 1.0), ("a", "b", 2.0))
    many = [correction(f"a{number}", "b") for number in range(MAX_CORRECTIONS + 1)]
    with pytest.raises(InputError, match="corrections has 5001 entries; at most 5000"):
        CorrectionTable(many)


def test_a_table_is_written_and_read(tmp_path):
    both = [correction("dc", "d c", -1.25, 7), correction('uh "', "", 3.0)]
    (tmp_path / "table.tsv").write_text(write_table(both))
    assert read_table(tmp_path / "table.tsv") == both
    assert write_table(both).splitlines()[:2] == ["heard\twritten\tlog_odds\tlists", "dc\td c\t-1.25\t7"]


HEADER = b"heard\twritten\tlog_odds\tlists\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"", "line 1 is ''; it must be heard, written, log_odds, lists"),
        (b"heard,written\n", "line 1 is 'heard,written'"),
        (HEADER + b"a\tb\n", r"line 2 is 'a\\tb'; it must be two phrases and two numbers"),
        (HEADER + b"a\tb\t1\t0\na\tc\tnan\t0\n", "line 3 is"),
        (HEADER + b"a\tb\tx\t0\n", "line 2 is"),
        (HEADER + b"a\tb\t1\t0\nb\tb\t1\t0\n", r"corrections\[1\]\.written is 'b', the same as heard"),
        (HEADER + b"\xff\tb\t1\t0\n", "cannot be read: it is not UTF-8"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "table.tsv").write_bytes(content)
    with pytest.raises(FormatError, match=message):
        read_table(tmp_path / "table.tsv")


def test_candidates_of_the_first_pass_have_no_corrections():
    assert replacements_of(Candidate("a")) == ()
