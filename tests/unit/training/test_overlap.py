"""What of a held-out text the training text has, against sets of tuples of words."""

import re

import numpy as np
import pytest

from models.errors import FormatError
from training.corpus import Corpus, read_corpus, read_lines
from training.overlap import (
    NGRAMS,
    OverlapCounter,
    is_suspicious,
    overlap,
    overlap_phrase,
    overlap_with_files,
    overlaps,
)
from training.progress import Silent

WORDS = ["the", "cat", "sat", "naïve", "漢字", "on", "a", "mat"]


def texts(seed, count):
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS[:3], random.integers(0, 25))) for _ in range(count)]


def words_of(sentence):
    stripped = (re.sub(r"[^\w\s]|_", "", word) for word in sentence.lower().split())
    return tuple(word for word in stripped if word)


def runs(sentence, n):
    words = words_of(sentence)
    return [words[i : i + n] for i in range(len(words) - n + 1)]


def expected(held_out, training):
    """(total, seen) of sentences and of runs by length."""
    whole = [words_of(s) for s in held_out if len(words_of(s)) >= 8]
    known = {words_of(s) for s in training}
    found = [(len(whole), sum(s in known for s in whole))]
    for n in NGRAMS:
        own = [run for s in held_out for run in runs(s, n)]
        known = {run for s in training for run in runs(s, n)}
        found.append((len(own), sum(run in known for run in own)))
    return found


def counts(found):
    return [(seen.total, seen.seen) for seen in (found.sentences, *found.ngrams.values())]


@pytest.mark.parametrize("block", [1, 7, 8192])
def test_what_is_seen_is_what_sets_of_words_say(block, monkeypatch):
    monkeypatch.setattr("training.overlap._BLOCK_LINES", block)
    held_out, training = texts(0, 60), texts(1, 900)
    held_out += training[5:9]
    found = overlap(held_out, training, progress=Silent())
    assert counts(found) == expected(held_out, training)
    total, seen, share = found.ngrams[8]
    assert 0 < seen < total
    assert share == seen / total


@pytest.mark.parametrize("leaked", [0, 1, 2, 30, 100])
def test_as_much_is_seen_as_leaked(leaked):
    """Of 100 sentences of 13 words, so many stand between sentences of other words in the training text."""
    held_out, training = (
        [" ".join(f"{kind}{i}x{j}" for j in range(13)) for i in range(100)] for kind in "ht"
    )
    training[50:50] = held_out[100 - leaked :]
    corpora = [Corpus(some, "", []) for some in (held_out, training)]
    found = overlaps({"test": corpora[0], "none": None}, corpora[1], progress=Silent())
    assert counts(overlap(held_out, training, progress=Silent())) == [
        (100, leaked),
        (600, 6 * leaked),
        (100, leaked),
    ]
    assert found.keys() == {"test"}
    assert found["test"]["sentences"] == {"total": 100, "seen": leaked, "share": leaked / 100}
    assert is_suspicious(found["test"]) == (leaked > 1)


def test_case_punctuation_and_kinds_of_spaces_do_not_matter():
    held_out = ["\u201cThe naïve cat\u2019s 漢字 \u2014 sat on a mat again, \u2018twas\u2019 said.\u201d"]
    training = ['the NAÏVE cat\'s\u00a0漢字 sat , on a mat again \u2003, "twas" said .']
    assert counts(overlap(held_out, training, progress=Silent()))[0] == (1, 1)
    assert counts(overlap(held_out, [training[0].replace("cat", "dog")], progress=Silent()))[0] == (1, 0)


def test_runs_do_not_reach_across_sentences():
    sentence = "a b c d e f g h i j k l m n o p"
    apart = [sentence[: 2 * 6], sentence[2 * 6 :]]
    assert counts(overlap([sentence], apart, progress=Silent())) == [(1, 0), (9, 3), (4, 0)]


def test_a_word_more_or_another_order_is_another_sentence():
    sentence = "one two three four five six seven eight"
    for other in (f"{sentence} nine", " ".join(reversed(sentence.split()))):
        found = overlap([sentence], [other], progress=Silent())
        assert found.sentences == (1, 0, 0.0)


def test_nothing_of_some_length_has_no_share():
    found = overlap(["too short", ""], ["too short"], progress=Silent())
    assert found.sentences == (0, 0, None)
    assert not is_suspicious(found.as_facts())
    assert overlap_phrase(found.as_facts()).startswith("none of its sentences of 8 words or more")


def facts(sentences, ngrams):
    return {"sentences": {"share": sentences}, "ngrams": {"8": {"share": 1.0}, "13": {"share": ngrams}}}


def test_more_than_a_hundredth_of_sentences_or_a_twentieth_of_runs_is_suspicious():
    assert not is_suspicious(facts(0.01, 0.05))
    assert is_suspicious(facts(0.0101, 0.0))
    assert is_suspicious(facts(0.0, 0.0501))


@pytest.mark.parametrize("unit", ["line", "paragraph"])
def test_files_are_read_as_a_corpus_is(unit, tmp_path):
    training = [f"{s}." for s in texts(1, 300)]
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    files[0].write_text("\n\n".join(training[:100]))
    files[1].write_text(" Then ".join(training[100:]))
    read = read_corpus(files, unit=unit, progress=Silent()).sentences
    held_out = [*training[90:110], *read[100:120]]
    found = overlap_with_files(held_out, files, unit=unit, progress=Silent())
    assert counts(found) == expected(held_out, read)
    assert found.sentences.seen > 0


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FormatError, match=r"none\.txt: there is no such file"):
        overlap_with_files(["a"], [tmp_path / "none.txt"], unit="line", progress=Silent())


def test_no_training_text_has_seen_nothing():
    assert OverlapCounter(["a b c d e f g h"]).result().sentences == (1, 0, 0.0)


@pytest.mark.data
def test_novels_held_out_text_is_not_in_its_training_text(data_dir):
    test = list(read_lines(data_dir / "novels-1m" / "test.txt.xz"))
    files = [data_dir / "novels-1m" / "train.txt.xz"]
    found = overlap_with_files(test, files, unit="line", progress=Silent())
    training = list(read_lines(files[0]))
    assert counts(found) == expected(test, training)
    assert (found.sentences.seen, found.ngrams[13].seen) == (0, 0)
    leaked = [line for line in training if len(words_of(line)) > 20][:50]
    found = overlap_with_files([*test, *leaked], files, unit="line", progress=Silent())
    assert found.sentences.seen == 50
    assert is_suspicious(found.as_facts())
