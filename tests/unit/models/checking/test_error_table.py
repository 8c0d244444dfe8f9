"""Tables of edits: counts, probabilities against a computation by hand, effect on checks."""

import math
from itertools import pairwise

import numpy as np
import pytest
from rapidfuzz.distance import OSA

from models.checking.error_model import CandidateSettings, ErrorTable, fit_error_table
from models.checking.sentences import one_edit_strings
from models.errors import InputError
from tests.support.text_models import check, trigram

LISTED = {
    "receive": ["recieve", "receve", "Recieve", "receeve", "riceve"],
    "Hat": ["ha", "hhat", "hatt", "hat", "aht", "hate", "cat"],
    "matter": ["mater", "mattter", "matterings", "mat ter"],
}


def table(**changes):
    return fit_error_table(LISTED, "abc").model_copy(update=changes)


def log_probs(found, pairs):
    edits = np.array([OSA.distance(*pair) for pair in pairs], dtype=np.uint8)
    return found.rates.log_probs(pairs, edits)


def test_edits_are_counted_after_the_letter_before():
    found = table()
    assert (found.one_edit, found.two_edits) == (12, 1)
    assert found.edits["cei>cie"] == 2
    assert found.edits["ei>e"] == found.edits["tt>t"] == found.edits["t>tt"] - 1 == 1
    assert found.edits["^h>^c"] == found.edits["^ha>^ah"] == 1
    assert found.contexts["^h"] == 6
    assert found.edits["at>a"] == 1
    assert sum(found.edits.values()) == found.one_edit


def slow_rates(found):
    """The rate of each edit of a word, by the definition of the smoothing."""
    prior = 100
    letters = {pair[1] for pair in found.contexts} - {"$"}
    places = found.contexts.get
    after = {a: sum(n for pair, n in found.contexts.items() if pair[0] == a) for a in letters | {"^"}}
    before = {a: sum(n for pair, n in found.contexts.items() if pair[1] == a) for a in letters}
    named = {}
    for edit, n in found.edits.items():
        meant, typed = edit.split(">")
        named[meant, typed] = n

    def total(meant, typed):
        return sum(n for (a, b), n in named.items() if (len(a), len(b)) == (meant, typed))

    def rate(prev, x, y):
        if len(x) == len(y) == 2:
            inner = sum(n for pair, n in found.contexts.items() if "^" not in pair and "$" not in pair)
            count = sum(n for (a, b), n in named.items() if (a[1:], b[1:]) == (x, y))
            base = (total(3, 3) + 1) / (inner + 1)
            return (count + prior * base) / (places(x, 0) + prior)
        spread = len(letters) if not x else len(letters) - 1 if y else 1
        sum_places = sum(after.values()) if not x else sum(before.values())
        base = (total(1 + len(x), 1 + len(y)) + 1) / (sum_places + 1) / spread
        count = sum(n for (a, b), n in named.items() if (a[1:], b[1:]) == (x, y))
        middle = (count + prior * base) / ((sum_places if not x else before[x]) + prior)
        own = named.get((prev + x, prev + y), 0)
        return (own + prior * middle) / ((after[prev] if not x else places(prev + x, 0)) + prior)

    return rate, sorted(letters)


def slow_edits(rate, letters, word):
    """Each edit of a word and its rate, among equal results the one of the latest letters."""
    out = []
    for at, (prev, x) in enumerate(pairwise("^" + word + "$")):
        out += [(word[:at] + y + word[at:], rate(prev, "", y)) for y in letters]
        out.append((None, rate(prev, "", "?")))  # all other letters
        if x == "$":
            continue
        out.append((word[:at] + word[at + 1 :], rate(prev, x, "")))
        out += [(word[:at] + y + word[at + 1 :], rate(prev, x, y)) for y in letters if y != x]
        out.append((None, rate(prev, x, "?")))
        if at + 1 < len(word) and word[at + 1] != x:
            two = word[at + 1] + x
            out.append((word[:at] + two + word[at + 2 :], rate(prev, x + word[at + 1], two)))
    return out


@pytest.mark.parametrize("word", ["hat", "matter", "receive", "ham"])
def test_probabilities_of_one_edit_are_those_of_the_definition(word):
    found = table()
    rate, letters = slow_rates(found)
    edits = slow_edits(rate, letters, word)
    strings = one_edit_strings(word, "".join(letters))
    total = sum(value for _, value in edits)
    share = 1 - (1 + 2) / (13 + 10)
    expected = [math.log(share * _last(edits, string) / total) for string in strings]
    got = log_probs(found, [(string, word) for string in strings])
    np.testing.assert_allclose(got, expected, rtol=1e-9)
    assert np.exp(got).sum() < share


def _last(edits, string):
    return [value for result, value in edits if result == string][-1]


def test_two_edits_have_the_product_of_the_best_two():
    found = table()
    rate, letters = slow_rates(found)
    total = sum(value for _, value in slow_edits(rate, letters, "matter"))
    cases = {
        "amtte": rate("^", "ma", "am") * rate("e", "r", ""),
        "meter": max(rate("m", "a", "e") * rate("t", "t", ""), 0),
        "maatterr": rate("a", "", "a") * rate("r", "", "r"),
        "tmtter": rate("^", "m", "t") * rate("m", "a", "m"),
        "tter": rate("^", "m", "") * rate("m", "a", ""),
    }
    got = log_probs(found, [(typed, "matter") for typed in cases])
    share = 3 / 23
    for typed, one, product in zip(cases, got, cases.values(), strict=True):
        assert one >= math.log(share * product / total**2) - 1e-9, typed
    assert got[0] == pytest.approx(math.log(share * cases["amtte"] / total**2))


def test_letters_that_were_not_counted_have_average_rates():
    got = log_probs(table(), [("haß", "hat"), ("ńat", "hat"), ("haжt", "hat"), ("жж", "hж"), ("", "h")])
    assert np.isfinite(got).all()
    assert got[0] == pytest.approx(log_probs(table(), [("haż", "hat")])[0])


def test_a_table_without_letters_has_average_rates():
    got = log_probs(table(contexts={}), [("ha", "hat"), ("hatt", "hat"), ("cat", "hat")])
    assert np.isfinite(got[:2]).all()
    assert np.exp(got).sum() <= 1


def test_differences_of_case_are_no_edits():
    got = log_probs(table(), [("Recieve", "Receive"), ("recieve", "receive"), ("hat", "Hat")])
    assert got[0] == got[1]
    assert got[2] == -math.inf


def test_fitting_again_gives_the_same_table():
    assert table(created="") == table(created="")
    again = ErrorTable.model_validate_json(table().model_dump_json())
    assert again == table(created=again.created)
    with pytest.raises(InputError, match="no misspelling is one edit away"):
        fit_error_table({"a lot": ["alot"], "far": ["near"]}, "")


def test_a_frequent_edit_is_more_probable():
    model, tokenizer = trigram()
    swaps = fit_error_table({"the": ["teh"] * 300}, "")
    plain = check(model, tokenizer, "the cat sat on teh mat", threshold=0.1)
    fitted = check(model, tokenizer, "the cat sat on teh mat", threshold=0.1, errors=swaps)
    assert fitted[0].suggestions[0].text == plain[0].suggestions[0].text == "the"
    assert fitted[0].probability > plain[0].probability


@pytest.mark.parametrize("kind", ["word", "char", "unigram"])
def test_every_kind_of_model_uses_a_table(kind):
    model, tokenizer = trigram(kind)
    text, common = (
        "the cat sat on teh mat",
        {"threshold": 0.01, "search": CandidateSettings(min_surprisal_bits=6.0)},
    )
    swaps = fit_error_table({"the": ["teh"] * 300}, "")
    one, other = (check(model, tokenizer, text, errors=errors, **common) for errors in (None, swaps))
    assert one != other
    assert all(issue.start == 15 for issue in other if issue.probability > 0.5)


def test_long_words_are_not_compared():
    model, tokenizer = trigram()
    swaps = fit_error_table({"the": ["teh"]}, "")
    assert check(model, tokenizer, f"the {'x' * 200} sat", errors=swaps) == []
