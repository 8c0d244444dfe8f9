"""Mask, bias and penalties, by hand-computed numbers."""

import numpy as np
import pytest

from models.decoding.adjusting import adjust
from models.decoding.banned import BannedSequences
from models.decoding.batch import Batch
from models.decoding.parameters import DecodingParameters
from models.vocabulary import EOS

P = np.array([0.1, 0.0, 0.1, 0.5, 0.2, 0.1])
with np.errstate(divide="ignore"):
    LOG = np.log(P).astype(np.float32)


def adjusted(*generated, prompt=(), banned=None, **options):
    """Scores of the only row, as probabilities that need not sum to one."""
    batch = Batch(DecodingParameters(max_tokens=9, **options), [np.array(prompt, np.int64)], banned)
    for token in generated:
        batch.append(np.array([token]))
    scores, counts = LOG.copy(), np.zeros(len(LOG), np.int32)
    adjust(scores, 0, batch.rows(), counts)
    assert not counts.any()
    return np.exp(scores)


def test_unknown_and_start_are_impossible():
    np.testing.assert_allclose(adjusted(), [0, 0, 0.1, 0.5, 0.2, 0.1], rtol=1e-6)


def test_a_repeated_token_has_its_probability_raised_to_the_penalty():
    """Of the prompt or generated, however often."""
    got = adjusted(4, 4, prompt=(3, 3), repetition_penalty=2.0)
    np.testing.assert_allclose(got, [0, 0, 0.1, 0.25, 0.04, 0.1], rtol=1e-6)


def test_a_token_of_both_the_prompt_and_the_continuation_is_penalised_once():
    got = adjusted(4, prompt=(4, 5), repetition_penalty=2.0)
    np.testing.assert_allclose(got, [0, 0, 0.1, 0.5, 0.04, 0.01], rtol=1e-6)


def test_a_positive_score_is_divided_by_the_repetition_penalty():
    got = adjusted(3, repetition_penalty=2.0, logit_bias=((3, 4.0),))
    np.testing.assert_allclose(np.log(got[3]), (np.log(0.5) + 4) / 2, rtol=1e-6)


def test_presence_counts_once_and_frequency_every_time():
    """Of what was generated alone."""
    got = adjusted(4, 5, 4, 4, prompt=(3,), presence_penalty=0.5, frequency_penalty=0.25)
    np.testing.assert_allclose(
        got, [0, 0, 0.1, 0.5, 0.2 * np.exp(-0.5 - 3 * 0.25), 0.1 * np.exp(-0.5 - 0.25)], rtol=1e-6
    )


def test_repetition_comes_before_presence():
    got = adjusted(4, repetition_penalty=2.0, presence_penalty=1.0)
    np.testing.assert_allclose(got[4], 0.04 * np.exp(-1), rtol=1e-6)


def test_a_bias_is_added_but_makes_nothing_possible():
    got = adjusted(logit_bias=((0, 100.0), (1, 100.0), (3, -1.0), (5, 2.0)))
    np.testing.assert_allclose(got, [0, 0, 0.1, 0.5 / np.e, 0.2, 0.1 * np.e**2], rtol=1e-6)


@pytest.mark.parametrize(("generated", "possible"), [((), False), ((3,), False), ((3, 3), True)])
def test_the_end_waits_for_min_tokens(generated, possible):
    assert (adjusted(*generated, min_tokens=2)[EOS] > 0) == possible


def test_the_end_never_comes_when_it_is_ignored():
    assert adjusted(3, 3, ignore_eos=True)[EOS] == 0


def test_a_banned_sequence_cannot_be_completed():
    banned = BannedSequences([(3, 4), (5,)])
    np.testing.assert_allclose(adjusted(4, banned=banned), [0, 0, 0.1, 0.5, 0.2, 0], rtol=1e-6)
    np.testing.assert_allclose(adjusted(4, 3, banned=banned), [0, 0, 0.1, 0.5, 0, 0], rtol=1e-6)


def test_selected_rows_keep_their_own_past():
    parameters = DecodingParameters(max_tokens=99, frequency_penalty=1.0)
    batch = Batch(parameters, [np.zeros(0, np.int64)] * 3, BannedSequences([(4, 4)]))
    for _ in range(20):  # more than there was room for at first
        batch.append(np.array([3, 4, 5]))
    batch.select([2, 1, 1])
    rows = batch.rows()
    assert rows.lengths.tolist() == [20] * 3
    assert rows.history[:, :20].tolist() == [[5] * 20, [4] * 20, [4] * 20]
    last = [rows.edit_ids[begin:end].tolist() for begin, end in rows.edit_spans]
    assert last == [[0, 1], [0, 1, 4], [0, 1, 4]]
