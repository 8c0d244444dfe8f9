"""Held-out sentences that occur in the training text, against Python sets."""

import numpy as np
import pytest

from models.errors import FormatError
from training.corpus import Corpus, read_corpus, read_lines
from training.progress import Progress
from training.texts import OverlapCounter, is_suspicious, overlap_phrase, overlap_with_files, overlaps

WORDS = ["the", "cat", "sat", "naïve", "漢字", "on", "a", "mat"]


def texts(seed, count):
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS[:3], random.integers(0, 25))) for _ in range(count)]


def overlap(held_out, training):
    corpora = [Corpus(list(some), "", []) for some in (held_out, training)]
    return overlaps({"test": corpora[0]}, corpora[1])["test"]


def expected(held_out, training):
    long, known = [s.lower().split() for s in held_out], [s.lower().split() for s in training]
    long = [words for words in long if len(words) >= 8]
    return len(long), sum(words in known for words in long)


def counts(facts):
    return facts["sentences"]["total"], facts["sentences"]["seen"]


def test_overlap_equals_sets_of_sentences_and_n_grams():
    held_out, training = texts(0, 60), texts(1, 900)
    held_out += training[5:9] * 2  # repeated sentences count repeatedly
    facts = overlap(held_out, training)
    assert counts(facts) == expected(held_out, training)
    assert facts["sentences"]["share"] == facts["sentences"]["seen"] / facts["sentences"]["total"]


@pytest.mark.parametrize("leaked", [0, 1, 2, 30, 100])
def test_as_much_is_seen_as_leaked(leaked):
    """`leaked` of 100 held-out sentences occur between other sentences of the training text."""
    held_out, training = (
        [" ".join(f"{kind}{i}x{j}" for j in range(13)) for i in range(100)] for kind in "ht"
    )
    training[50:50] = held_out[100 - leaked :]
    facts = overlap(held_out, training)
    assert facts == {"sentences": {"total": 100, "seen": leaked, "share": leaked / 100}}
    assert is_suspicious(facts) == (leaked > 1)


def test_texts_that_are_not_there_are_left_out():
    text = Corpus(["a b c d e f g h"], "", [])
    assert overlaps({"test": text, "none": None}, text).keys() == {"test"}
    assert overlaps({"test": text}, Corpus([], "", [])) == {}


def test_several_texts_are_counted_alone():
    same, other = "a b c d e f g h", "i j k l m n o p"
    held_out = {"valid": Corpus([same, same, other], "", []), "test": Corpus([other], "", [])}
    facts = overlaps(held_out, Corpus([same.upper()], "", []))
    assert {name: counts(one) for name, one in facts.items()} == {"valid": (3, 2), "test": (1, 0)}


def test_case_and_kinds_of_spaces_do_not_matter():
    held_out, training = (
        ["The naïve cat 漢字 sat on a mat."],
        ["the NAÏVE  cat\u00a0漢字 sat on a\u2003mat. "],
    )
    assert counts(overlap(held_out, training)) == (1, 1)
    assert counts(overlap(held_out, [training[0].replace("cat", "dog")])) == (1, 0)


def test_a_word_more_or_another_order_is_another_sentence():
    sentence = "one two three four five six seven eight"
    for other in (f"{sentence} nine", " ".join(reversed(sentence.split()))):
        assert counts(overlap([sentence], [other])) == (1, 0)


def test_nothing_of_some_length_has_no_share():
    facts = overlap(["too short", ""], ["too short"])
    assert facts["sentences"] == {"total": 0, "seen": 0, "share": None}
    assert not is_suspicious(facts)
    assert overlap_phrase(facts).startswith("none of its sentences of 8 words or more")


def test_more_than_a_hundredth_is_suspicious():
    assert not is_suspicious({"sentences": {"share": 0.01}})
    assert is_suspicious({"sentences": {"share": 0.0101}})


@pytest.mark.parametrize("unit", ["line", "paragraph"])
def test_files_are_read_as_a_corpus_is(unit, tmp_path):
    training = [f"{s}." for s in texts(1, 300)]
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    files[0].write_text("\n\n".join(training[:100]))
    files[1].write_text(" Then ".join(training[100:]))
    read = read_corpus(files, unit=unit, progress=Progress()).sentences
    held_out = [*training[90:110], *read[100:120]]
    facts = overlap_with_files(held_out, files, unit=unit, progress=Progress())
    assert counts(facts) == expected(held_out, read)
    assert facts["sentences"]["seen"] > 0


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FormatError, match=r"none\.txt: there is no such file"):
        overlap_with_files(["a"], [tmp_path / "none.txt"], unit="line", progress=Progress())


def test_no_training_text_has_seen_nothing():
    assert counts(OverlapCounter(["a b c d e f g h"]).facts()) == (1, 0)


@pytest.mark.data
def test_novels_held_out_text_is_not_in_its_training_text(data_dir):
    test = list(read_lines(data_dir / "novels-1m" / "test.txt.xz"))
    files = [data_dir / "novels-1m" / "train.txt.xz"]
    assert overlap_with_files(test, files, unit="line", progress=Progress())["sentences"]["seen"] == 0
    leaked = [line for line in read_lines(files[0]) if len(line.split()) > 20][:50]
    facts = overlap_with_files([*test, *leaked], files, unit="line", progress=Progress())
    assert facts["sentences"]["seen"] == 50
    assert is_suspicious(facts)
