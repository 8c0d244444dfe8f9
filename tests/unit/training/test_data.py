"""The texts of a training run."""

import pytest

from models.errors import InvalidInputError
from training.progress import Silent
from training.texts import read_texts


def written(folder, name, lines):
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_without_validation_text_the_end_is_held_out_and_named(tmp_path):
    path = written(tmp_path, "my.txt", range(40))
    texts = read_texts([path], [], [], unit="line", progress=Silent())
    assert texts.train.sentences == [str(i) for i in range(38)]
    assert texts.valid.sentences == ["38", "39"]
    assert texts.valid.sources == ["the end of my.txt"]


def test_given_validation_text_nothing_is_held_out(tmp_path):
    train, valid = written(tmp_path, "a.txt", "abc"), written(tmp_path, "b.txt", "d")
    texts = read_texts([train], [valid], [], unit="line", progress=Silent())
    assert (texts.train.sentences, texts.valid.sentences, texts.test) == (["a", "b", "c"], ["d"], None)


def test_one_sentence_is_too_few_to_hold_one_out(tmp_path):
    with pytest.raises(InvalidInputError, match="1 sentence, at least 2"):
        read_texts([written(tmp_path, "my.txt", "a")], [], [], unit="line", progress=Silent())


def test_validation_text_alone_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="need --corpus"):
        read_texts([], [written(tmp_path, "my.txt", "a")], [], unit="line", progress=Silent())
