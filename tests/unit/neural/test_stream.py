"""The corpus as streams."""

import numpy as np
import pytest

from models.errors import InvalidInputError
from training.corpora.encoded import EncodedCorpus
from training.neural.stream import Streams

TEXT = EncodedCorpus.from_sentences([[3, 4, 5], [], [6], [7, 8, 9, 10]])


def test_targets_are_the_inputs_a_step_later():
    streams = Streams(TEXT, batch_size=2, bptt_length=3, seed=1)
    for stretch in streams.stretches(3):
        np.testing.assert_array_equal(stretch.inputs[1:], stretch.targets[:-1])


def test_each_stream_goes_on_where_its_last_stretch_ended():
    streams = Streams(TEXT, batch_size=2, bptt_length=3, seed=1)
    before, after = streams.stretches(1)
    np.testing.assert_array_equal(before.targets[-1], after.inputs[0])
    assert (before.first, after.first) == (True, False)


def test_epochs_start_at_different_places_given_by_the_seed():
    def starts(seed):
        streams = Streams(TEXT, batch_size=1, bptt_length=15, seed=seed)
        return [tuple(s.inputs[:, 0]) for s in streams.stretches(6)]

    assert len(set(starts(1))) > 1
    assert starts(1) == starts(1)
    assert starts(1) != starts(2)


def test_a_text_shorter_than_a_batch_fills_fewer_streams():
    streams = Streams(TEXT, batch_size=64, bptt_length=5, seed=1)
    assert streams.batch_size == 2
    assert streams.steps_per_epoch == 1


def test_a_text_shorter_than_a_stretch_is_one_stretch():
    streams = Streams(EncodedCorpus.from_sentences([[3]]), batch_size=8, bptt_length=50, seed=1)
    (stretch,) = streams.stretches(1)
    assert stretch.inputs.shape == (2, 1)


def test_an_empty_text_is_refused():
    with pytest.raises(InvalidInputError, match="no sentences"):
        Streams(EncodedCorpus.from_sentences([]), batch_size=8, bptt_length=5, seed=1)
