"""Sentences by the million score as sentences one by one."""

import numpy as np
import pytest

from models.errors import InvalidInputError
from models.ngram.model import score_sentence_lines, score_sentences
from models.tokenizers import WordTokenizer
from models.vocabulary import EOS

LINES = ["i love cats", "", "mice", "no such words"] * 700


@pytest.fixture
def tokenizer(vocabulary):
    return WordTokenizer(vocabulary)


def alone(model, tokenizer, line):
    ids = np.array([[*tokenizer.encode(line), EOS]])
    return model.score(model.initial_state(1), ids, np.array([ids.shape[1]]))[0]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_lines_score_as_each_alone(model, tokenizer, threads):
    scores = score_sentence_lines(model, tokenizer, LINES, threads=threads)
    expected = [alone(model, tokenizer, line) for line in LINES[:4]] * 700
    assert np.array_equal(scores.log_probs, np.concatenate(expected))
    assert np.diff(scores.offsets).tolist() == [len(row) for row in expected]
    assert scores.sums == pytest.approx([row.sum() for row in expected], abs=1e-5)


def test_ids_score_as_their_text(model, tokenizer):
    ids, offsets = tokenizer.encode_ragged(LINES)
    assert np.array_equal(
        score_sentences(model, ids, offsets, threads=2).log_probs,
        score_sentence_lines(model, tokenizer, LINES).log_probs,
    )


def test_no_line_is_no_trouble(model, tokenizer):
    assert len(score_sentence_lines(model, tokenizer, [], threads=4).log_probs) == 0


@pytest.mark.parametrize("offsets", [[0, 50_000_000, 2], [0, 1, 5], [1, 2], [0, 2, 1, 2], []])
def test_offsets_that_lead_astray_are_refused(model, offsets):
    with pytest.raises(InvalidInputError, match="offsets"):
        score_sentences(model, np.array([3, 4]), np.array(offsets, dtype=np.int64))


@pytest.mark.parametrize("word", [-1, 10, 2**32 + 3])
def test_an_unknown_id_is_refused(model, word):
    with pytest.raises(InvalidInputError, match=f"is {word}, but token ids are 0 to 9"):
        score_sentences(model, np.array([3, word]), np.array([0, 2]))
