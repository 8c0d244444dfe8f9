"""Validation and construction of lattices; words as token sequences."""

import numpy as np
import pytest

from models.errors import InputError, UnsupportedError
from models.language_model import EOS, UNK, Vocabulary
from models.lattices import lattice as limits
from models.lattices.graph import LabelTokenizer
from models.lattices.lattice import Arc, build_lattice
from models.tokenizers import WordTokenizer
from tests.reference.lattices import all_paths, text_of
from training.progress import Progress
from training.tokenizer import TokenizerSettings, learn_tokenizer


def made(sources, targets, words=None, *, start=0, end=None):
    """Build a lattice of arcs with zero scores."""
    words, end = words or [f"w{i}" for i in range(len(sources))], max(targets) if end is None else end
    arcs = [Arc(*arc, 0.0, 0.0) for arc in zip(sources, targets, words, strict=True)]
    num_nodes = max(*sources, *targets) + 1
    return build_lattice(arcs, name=None, start=start, end=end, times=np.arange(float(num_nodes)))


def test_nodes_in_the_wrong_order_are_put_in_the_right_one():
    lattice = made([3, 0, 3], [0, 1, 1], start=3, end=1)
    assert lattice.sources.tolist() == [0, 0, 1]
    assert lattice.targets.tolist() == [1, 2, 2]
    assert lattice.times.tolist() == [3.0, 0.0, 1.0]
    assert [lattice.words[label] for label in lattice.labels] == ["w0", "w2", "w1"]


def test_an_order_that_will_do_is_kept():
    lattice = made([0, 2, 0, 1], [2, 3, 1, 3])
    assert lattice.times.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert {text_of(lattice, path) for path in all_paths(lattice)} == {"w0 w1", "w2 w3"}


def test_nodes_on_no_path_are_dropped():
    lattice = made([0, 0, 2, 4, 1], [1, 2, 3, 1, 5], end=5)  # 2 → 3 is a dead end, 4 cannot be reached
    assert lattice.times.tolist() == [0.0, 1.0, 5.0]
    assert lattice.words == ("", "w0", "w4")


@pytest.mark.parametrize(("sources", "targets"), [([0, 1, 2, 1], [1, 2, 1, 3]), ([0, 1, 1], [1, 1, 3])])
def test_a_cycle_is_refused_and_a_node_on_it_named(sources, targets):
    with pytest.raises(InputError, match=r"node (1|2) is on a cycle"):
        made(sources, targets)


def test_an_end_that_cannot_be_reached_is_refused():
    with pytest.raises(InputError, match="no path leads from node 0 to node 3"):
        made([0, 2], [1, 3])


def test_sizes_are_limited(monkeypatch):
    monkeypatch.setattr(limits, "MAX_ARCS", 2)
    with pytest.raises(InputError, match="has 3 arcs; at most 2"):
        made([0, 0, 0], [1, 1, 1])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"am": np.nan}, "a score is nan"),
        ({"old_lm": -1e308}, r"a score is -1e\+308; it must be from -1e\+100"),
    ],
)
def test_scores_that_are_none_are_refused(change, problem):
    arcs = [Arc(0, 1, "a", 0.0, 0.0), Arc(1, 2, "b", 0.0, 0.0)._replace(**change)]
    with pytest.raises(InputError, match=problem):
        build_lattice(arcs, name=None, start=0, end=2, times=np.zeros(3))


TEXT = ["the cat sat on the mat .", "the dog ran to the cat !", "Über naïve café"] * 30
WORDS = ["", "the", "catamaran", "sat", "µ", "Über"]


def learn(**settings):
    return learn_tokenizer(TokenizerSettings(**settings), TEXT, progress=Progress())


@pytest.mark.parametrize(
    "settings",
    [{"kind": "word"}, {"kind": "bpe", "vocab_size": 300}, {"kind": "unigram", "vocab_size": 280}],
    ids=lambda settings: settings["kind"],
)
def test_the_tokens_of_words_make_up_those_of_a_sentence(settings):
    tokenizer = learn(**settings)
    spelling = LabelTokenizer(tokenizer).label_tokens(WORDS)
    sentence = [3, 1, 2, 4, 4, 5, 1]
    ids = [int(t) for label in sentence for t in spelling.tokens[label, : spelling.lengths[label]]]
    assert ids == tokenizer.encode(" ".join(WORDS[label] for label in sentence))
    assert spelling.tokens[spelling.end, : spelling.lengths[spelling.end]].tolist() == [EOS]


class Tied:
    """Tokenizer of the word "ab", whose two segmentations are equally probable; later in a text, the other is found."""

    members, token_bytes = None, (b"<unk>", b"<s>", b"</s>", b" ab", b" a", b"b")

    def encode(self, text):
        return [3, *[4, 5] * text.count(" ")] if text else []

    def encode_all(self, texts):
        return [*map(self.encode, texts)]


def test_a_word_with_two_equally_probable_segmentations_is_no_reason_to_refuse():
    spelling = LabelTokenizer(Tied()).label_tokens(["", "ab", "ab"])
    assert spelling.lengths.tolist() == [0, 1, 1, 1]
    assert spelling.tokens[1:3, 0].tolist() == [3, 3]


def test_words_that_the_model_does_not_know_are_counted_and_are_one_to_it():
    spelling = LabelTokenizer(WordTokenizer(Vocabulary(["a", "b"]))).label_tokens(["", "a", "x", "b", "y"])
    assert spelling.num_unknown.tolist() == [0, 0, 1, 0, 1, 0]
    assert spelling.canonical.tolist() == [0, 1, 2, 3, 2, 5]
    assert spelling.tokens[2, 0] == UNK


def test_the_label_without_a_word_has_no_tokens():
    spelling = LabelTokenizer(WordTokenizer(Vocabulary(["a"]))).label_tokens(["", "a"])
    assert spelling.lengths.tolist() == [0, 1, 1]
    assert spelling.num_words.tolist() == [0, 1, 0]


def test_characters_are_refused():
    with pytest.raises(UnsupportedError, match=r"the word 'the' has 3 tokens, but repeated 7"):
        LabelTokenizer(learn(kind="char")).label_tokens(WORDS)


def test_a_pattern_that_splits_words_is_fine_as_long_as_it_keeps_to_them():
    tokenizer = learn(kind="word", pattern=r"\w+|[^\w\s]", lowercase=True)
    assert LabelTokenizer(tokenizer).label_tokens(["", "Cat!", "sat"]).lengths.tolist() == [0, 2, 1, 1]


def test_tokens_that_reach_beyond_a_space_are_refused():
    tokenizer = learn(kind="word", pattern=r"the cat|\w+")
    with pytest.raises(UnsupportedError, match=r"' the cat' extends beyond a space"):
        LabelTokenizer(tokenizer)
