"""Division of a corpus into streams."""

import itertools

import numpy as np
import pytest

from models.errors import InputError
from models.language_model import BOS, EOS, UNK
from training.corpus import EncodedCorpus
from training.neural.settings import TrainSettings
from training.neural.streams import Streams

TEXT = EncodedCorpus.from_sentences([[3, 4, 5], [], [6], [7, 8, 9, 10]])


def cut(corpus, *, seed, **settings):
    """Streams of a text, by default without unknown words."""
    return Streams(corpus, TrainSettings(**{"unknown_share": 0.0, **settings}), seed=seed)


def test_targets_are_the_inputs_a_step_later():
    streams = cut(TEXT, batch_size=2, bptt_length=3, seed=1)
    for stretch in streams.segments(3):
        np.testing.assert_array_equal(stretch.inputs[1:], stretch.targets[:-1])


def test_each_stream_goes_on_where_its_last_stretch_ended():
    streams = cut(TEXT, batch_size=2, bptt_length=3, seed=1)
    before, after = streams.segments(1)
    np.testing.assert_array_equal(before.targets[-1], after.inputs[0])
    assert (before.first, after.first) == (True, False)


def test_epochs_start_at_different_places_given_by_the_seed():
    def starts(seed):
        streams = cut(TEXT, batch_size=1, bptt_length=15, seed=seed)
        return [tuple(s.inputs[:, 0]) for s in streams.segments(6)]

    assert len(set(starts(1))) > 1
    assert starts(1) == starts(1)
    assert starts(1) != starts(2)


def test_blocks_of_sentences_are_shuffled_anew_for_each_epoch():
    sentences = [[number] * (number % 5) for number in range(3, 200)]
    corpus = EncodedCorpus.from_sentences(sentences)
    streams = cut(corpus, batch_size=1, bptt_length=len(corpus.with_boundaries()), shuffle_block=20, seed=1)
    epochs = [[s.inputs[0, 0], *s.targets[:, 0]] for s in streams.segments(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    text = corpus.with_boundaries().tolist()
    for epoch in epochs:
        assert sorted(epoch) == sorted(text)  # all tokens, once
        at = epoch.index(BOS)
        rolled = [*epoch[at:], *epoch[:at]]
        begins = [i for i, token in enumerate(rolled) if token == BOS]
        found = [tuple(rolled[i:j]) for i, j in itertools.pairwise([*begins, len(rolled)])]
        assert sorted(found) == sorted((BOS, *sentence, EOS) for sentence in sentences)  # whole sentences
        follow = [b[1] == a[1] + 1 for a, b in itertools.pairwise(found) if len(a) > 2 < len(b)]
        assert 0.5 < np.mean(follow) < 1  # most sentences follow the one before them


def test_the_positions_of_targets_are_those_in_the_text():
    for shuffle_block in (0, 4):
        streams = cut(TEXT, batch_size=2, bptt_length=3, shuffle_block=shuffle_block, seed=1)
        for segment in streams.segments(3):
            assert (TEXT.with_boundaries()[segment.positions] == segment.targets).all()


def test_a_text_shorter_than_a_batch_fills_fewer_streams():
    streams = cut(TEXT, batch_size=64, bptt_length=5, seed=1)
    assert streams.batch_size == 2
    assert streams.steps_per_epoch == 1


def test_a_text_shorter_than_a_stretch_is_one_stretch():
    streams = cut(EncodedCorpus.from_sentences([[3]]), batch_size=8, bptt_length=50, seed=1)
    (stretch,) = streams.segments(1)
    assert stretch.inputs.shape == (2, 1)


def test_an_empty_text_is_refused():
    with pytest.raises(InputError, match="no sentences"):
        cut(EncodedCorpus.from_sentences([]), batch_size=8, bptt_length=5, seed=1)


LONG = EncodedCorpus.from_sentences([range(3, 60)] * 200)


@pytest.mark.parametrize("bptt_length", [10, 35, 70])
def test_variable_lengths_vary_around_the_middle(bptt_length):
    streams = cut(LONG, batch_size=4, bptt_length=bptt_length, variable_bptt=True, seed=1)
    lengths = [len(s.inputs) for s in streams.segments(20)]
    assert len(lengths) == 20 * streams.steps_per_epoch
    assert len(set(lengths)) > 3
    assert np.mean(lengths) == pytest.approx(0.975 * bptt_length, rel=0.06)
    assert 0.01 < np.mean(np.array(lengths) < 0.65 * bptt_length) < 0.1
    assert min(lengths) >= 2


def test_variable_stretches_follow_one_another():
    streams = cut(LONG, batch_size=4, bptt_length=30, variable_bptt=True, seed=1)
    stretches = list(streams.segments(1))
    for before, after in itertools.pairwise(stretches):
        np.testing.assert_array_equal(before.targets[-1], after.inputs[0])


@pytest.mark.parametrize("variable", [False, True])
def test_skipping_leads_to_the_same_stretches(variable):
    def all_of(skip):
        streams = cut(LONG, batch_size=4, bptt_length=30, variable_bptt=variable, seed=5)
        return list(streams.segments(3, skip=skip))

    whole = all_of(0)
    for skip in (1, len(whole) // 3, len(whole) // 3 + 1, len(whole) - 1, len(whole)):
        rest = all_of(skip)
        assert len(rest) == len(whole) - skip
        for ours, theirs in zip(rest, whole[skip:], strict=True):
            np.testing.assert_array_equal(ours.inputs, theirs.inputs)
            assert (ours.epoch, ours.first) == (theirs.epoch, theirs.first)


def test_words_of_one_occurrence_are_unknown_in_some_passes():
    once, often = list(range(10, 210)), [5, 6, 7]
    sentences = [[word, *often] for word in once]
    corpus = EncodedCorpus.from_sentences(sentences, num_words=800, num_bytes=3200)
    streams = cut(corpus, batch_size=2, bptt_length=5, unknown_share=0.3, seed=1)
    passes = [[], [], []]
    for segment in streams.segments(len(passes)):
        passes[segment.epoch].append((segment.inputs, segment.positions))
    text = corpus.with_boundaries()
    unknown = []
    for segments in passes:
        tokens = np.concatenate([inputs.ravel() for inputs, _ in segments])
        unknown.append((tokens == UNK).mean() / (tokens >= 10).mean())
        assert set(tokens[tokens >= 10]) <= set(once)
        assert {BOS, EOS, *often} <= set(tokens)
    assert 0.15 < np.mean(unknown) / (1 + np.mean(unknown)) < 0.45
    assert len(set(unknown)) == len(unknown)  # others in each pass
    assert UNK not in text


def test_a_text_with_unknown_words_is_unchanged():
    corpus = EncodedCorpus.from_sentences([[10, UNK, 12]], num_words=3, num_bytes=9)
    (segment,) = cut(corpus, batch_size=1, bptt_length=4, unknown_share=1.0, seed=1).segments(1)
    assert set(segment.inputs.ravel()) | set(segment.targets.ravel()) >= {10, UNK, 12}
