"""The corpus inside CPython."""

import pytest

from training.progress import Silent
from training.texts import read_default_corpus


@pytest.fixture(scope="module")
def corpus():
    return read_default_corpus(Silent())


def test_it_has_a_few_hundred_thousand_words_and_a_twentieth_of_documents_held_out(corpus):
    words = [sum(len(s.split()) for s in part.sentences) for part in corpus]
    assert 150_000 < words[0] < 1_000_000
    assert all(0.01 < held_out / words[0] < 0.15 for held_out in words[1:])


def test_the_split_is_the_same_wherever_and_in_whatever_order_files_are_found(tmp_path, monkeypatch):
    numbers, read = range(60), []
    for library, order in ((tmp_path / "a", numbers), (tmp_path / "b", reversed(numbers))):
        library.mkdir()
        for number in order:
            text = f'"""Module number {number} has one sentence of documentation."""'
            (library / f"module_{number}.py").write_text(text)
        monkeypatch.setattr("sysconfig.get_paths", lambda library=library: {"stdlib": str(library)})
        read.append(read_default_corpus(Silent()))
    first, second = ([part.sha256 for part in parts] for parts in read)
    assert first == second
    assert all(any("Module number" in s for s in part.sentences) for part in read[0])


def test_no_sentence_of_some_length_is_in_two_parts(corpus):
    train, valid, test = ({s for s in part.sentences if len(s) >= 40} for part in corpus)
    assert not train & valid
    assert not (train | valid) & test
