"""Models to ARPA files and back, bit for bit, and files to models and back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.ngram.arpa_reader import read_arpa
from models.ngram.arpa_writer import write_arpa
from models.ngram.build import build_automaton, list_ngrams
from models.vocabulary import Vocabulary
from tests.arpa_files import listed, parse_arpa, random_arpa
from tests.backoff import random_model, to_orders

ENDINGS = ["", ".gz", ".xz", ".zst"]
TOKENS = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)


def identical(arrays, others):
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(arrays, others, strict=True))


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 2**32 - 1),
    order=st.integers(1, 5),
    tokens=st.lists(TOKENS, unique=True, min_size=1, max_size=6),
    ending=st.sampled_from(ENDINGS),
)
def test_an_exported_model_comes_back_bit_for_bit(tmp_path_factory, seed, order, tokens, ending):
    """Whatever its words are, and whether or not suffixes are listed."""
    path = tmp_path_factory.mktemp("arpa") / f"model{ending}"
    vocabulary = Vocabulary(tokens)
    model = random_model(seed, vocab_size=len(vocabulary), order=order)
    automaton = build_automaton(to_orders(model))
    write_arpa(path, vocabulary, list_ngrams(automaton))
    again = read_arpa(path)
    assert again.vocabulary.tokens == vocabulary.tokens
    assert identical(build_automaton(again.orders), automaton)


@pytest.mark.parametrize("seed", range(20))
def test_an_imported_file_is_exported_with_the_same_ngrams_and_floats(tmp_path, seed):
    rng = np.random.default_rng(seed)
    text, _ = random_arpa(rng, order=1 + seed % 5, unknown=seed % 3 > 0, orphans=seed % 2)
    (tmp_path / "theirs").write_text(text, encoding="utf-8")
    model = read_arpa(tmp_path / "theirs")
    written = write_arpa(tmp_path / "ours", model.vocabulary, list_ngrams(build_automaton(model.orders)))
    ours, theirs = (
        {words: tuple(map(np.float32, values)) for words, values in parse_arpa(whole).items()}
        for whole in ((tmp_path / "ours").read_text(encoding="utf-8"), text)
    )
    assert ours.pop(("<unk>",))[0] == theirs.pop(("<unk>",), (-100,))[0]
    assert ours == theirs
    assert listed(model.vocabulary, read_arpa(tmp_path / "ours").orders) == listed(
        model.vocabulary, model.orders
    )
    assert written.counts == tuple(len(ngrams.words) for ngrams, _ in model.orders)
