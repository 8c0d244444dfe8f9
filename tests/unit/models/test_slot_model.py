"""Models whose classes have members: exact against slow sums in float64, in every way of asking."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.arrays import to_numpy
from models.checking import checker as checks
from models.checking.checker import Checker
from models.checking.error_model import CheckSettings
from models.language_model import (
    BOS,
    Vocabulary,
    Want,
    pad_sequences,
    read_sequences,
    read_step_by_step,
    score_choices,
    score_sequences,
)
from models.lattices.graph import LabelTokenizer
from models.slot_model import SlotModel, with_slots
from models.tokenizers import WordTokenizer
from tests.support import families

CLASSES = {"w5": "$city", "w9": "$contact"}
WORDS = [CLASSES.get(word, word) for word in families.WORDS]
SLOTS = {
    "city": ["w1 w2", "ulm", "w3", "w7"],
    "contact": {"w7": 3.0, "ulm": 1.0, "mary ann": 4.0, "w0": 0.5},
}


class Renamed:
    """A small model of every family whose words w5 and w9 are classes."""

    def __init__(self, model):
        self.model, self.vocabulary = model, Vocabulary(WORDS)

    def __getattr__(self, name):
        return getattr(self.model, name)


def slotted(name, slots=SLOTS):
    """Return a family's model with members, and its tokenizer."""
    return with_slots(Renamed(families.model(name)), WordTokenizer(Vocabulary(WORDS)), slots)


FAMILIES = ["ngram", "lstm", "adaptive", "mixture by context", "adapted cache"]


def slow_rows(model, state, shares, plain):
    """Return p(w | h) of one row from the definition, in float64."""
    of_model = np.exp(to_numpy(model.next_log_probs(state))[0].astype(np.float64))
    row = np.zeros(plain + len({m for m, _ in shares if m >= plain}))
    row[:plain] = of_model
    for given_class in {c for _, c in shares}:
        row[given_class] = 0
    for (member, given_class), share in shares.items():
        row[member] += of_model[given_class] * share
    return row


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_are_the_sums_of_the_definition(name):
    model, tokenizer = slotted(name)
    state = model.advance(model.initial_state(1), np.array([8]))
    expected = slow_rows(model.model, state, tokenizer.members.shares, len(WORDS) + 3)
    row = np.exp(to_numpy(model.next_log_probs(state))[0].astype(np.float64))
    assert row == pytest.approx(expected, abs=1e-6)
    assert row.sum() == pytest.approx(1, abs=1e-5)
    assert row[BOS] == row[tokenizer.classes["city"]] == 0


def texts():
    member = st.sampled_from(["w0", "w1", "w2", "w3", "w7", "ulm", "mary", "ann", "$city", "x"])
    return st.lists(st.lists(member, max_size=9).map(" ".join), min_size=1, max_size=5)


@pytest.mark.parametrize("name", FAMILIES)
@given(lines=texts())
def test_reading_a_sequence_equals_reading_its_tokens(name, lines):
    model, tokenizer = slotted(name)
    tokens, lengths = pad_sequences(tokenizer.encode_all(lines))
    want = Want(scores=True, state=True, before=True)
    start = model.initial_state(len(lines))
    whole = read_sequences(model, start, tokens, lengths, want)
    steps = read_step_by_step(model, start, tokens, lengths, want)
    assert whole.log_probs == pytest.approx(steps.log_probs, abs=2e-5)
    for part in ("state", "before"):
        rows = [to_numpy(model.next_log_probs(getattr(read, part))) for read in (whole, steps)]
        assert np.exp(rows[0]) == pytest.approx(np.exp(rows[1]), abs=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
@given(lines=texts())
def test_scores_do_not_depend_on_other_texts(name, lines):
    model, tokenizer = slotted(name)
    ids = tokenizer.encode_all(lines)
    together = score_sequences(model, model.initial_state(len(ids)), *pad_sequences(ids))
    for row, sequence in enumerate(ids):
        alone = score_sequences(model, model.initial_state(1), *pad_sequences([sequence]))
        assert together[row, : len(sequence)] == pytest.approx(alone[0], abs=2e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_choices_are_entries_of_the_rows(name):
    model, _ = slotted(name)
    state = model.advance(model.initial_state(2), np.array([8, 3]))
    rows = to_numpy(model.next_log_probs(state))
    size = len(model.vocabulary)
    chosen = score_choices(model, state, np.repeat([0, 1], size), np.tile(np.arange(size), 2))
    assert np.exp(chosen.reshape(2, size)) == pytest.approx(np.exp(rows), abs=1e-6)


def test_the_more_probable_reading_stands_in_the_history():
    model, tokenizer = slotted("ngram")
    (token,), city, contact = tokenizer.encode("w7"), *map(tokenizer.classes.get, ("city", "contact"))
    readings = {
        token: 1.0,
        city: tokenizer.members.shares[token, city],
        contact: tokenizer.members.shares[token, contact],
    }
    histories = [[], [4], [8], [8, 11], [12, 3], [6]]
    chosen = set()
    for history in histories:
        state = model.model.initial_state(1)
        for given_token in history:
            state = model.model.advance(state, np.array([given_token]))
        row = to_numpy(model.model.next_log_probs(state))[0]
        best = max(readings, key=lambda reading: row[reading] + np.log(readings[reading]))
        chosen.add(best)
        after = model.model.next_log_probs(model.model.advance(state, np.array([best])))
        assert to_numpy(model.model.next_log_probs(model.advance(state, np.array([token])))) == pytest.approx(
            to_numpy(after)
        )
    assert len(chosen) > 1  # the history decides


def test_other_classes_keep_their_members():
    model, tokenizer = slotted("ngram")
    again, renewed = with_slots(model, tokenizer, {"city": ["bonn"]})
    assert isinstance(again, SlotModel)
    assert again.model is model.model
    assert "mary ann" not in renewed.vocabulary  # of a request, not of the model
    stored = WordTokenizer(Vocabulary(WORDS))
    stored.slots = {"city": {"ulm": 2.0}, "contact": {"mary ann": 1.0}}
    _, extended = with_slots(model.model, stored, {"city": ["bonn"]})
    assert "mary ann" in extended.vocabulary
    assert "bonn" in extended.vocabulary
    assert "ulm" not in extended.vocabulary


def test_checks_read_the_words_to_the_right_that_the_model_uses(monkeypatch):
    model, tokenizer = slotted("ngram")
    checker, found = Checker(tokenizer), []
    monkeypatch.setattr(
        checks, "rescore_batch", lambda *_, right_tokens, **__: iter([found.append(right_tokens)])
    )
    for one in (model, model.model):
        next(next(checker.rescore_all(one, [*checker.sentences("w1 ulm w2")], CheckSettings())))
    assert found == [families.model("ngram").order - 1] * 2


def test_members_of_several_words_are_not_found_in_lattices():
    _, tokenizer = slotted("ngram")
    labels = LabelTokenizer(tokenizer).label_tokens(["", "w1", "w2", "ulm", "mary", "ann"])
    plain = len(WORDS) + 3
    assert labels.lengths.tolist() == [0, 1, 1, 1, 1, 1, 1]
    assert (labels.tokens[:, 0] >= plain).tolist() == [False, False, False, True, False, False, False]


def test_members_need_no_model_row_of_their_own():
    """10,000 members cost a row of the model and an addition: the model is read once per token."""
    model, tokenizer = slotted("lstm", {"city": [f"town {n}" for n in range(5000)]})
    assert len(tokenizer.vocabulary) == len(WORDS) + 3 + 5000
    row = np.exp(to_numpy(model.next_log_probs(model.initial_state(1)))[0].astype(np.float64))
    assert row.sum() == pytest.approx(1, abs=1e-5)
    assert len(np.unique(row[-5000:])) == 1
