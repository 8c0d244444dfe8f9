"""The relational estimator on DuckDB, compared with the in-memory estimator and KenLM's."""

import lzma
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.ngram.build import list_ngrams, verify_automaton
from tests.reference.backoff import weights_by_words
from tests.support.relational import assert_same, in_memory, limit_with_room, relational, tokenizer_of
from training.scale.duckdb_engine import DuckDBEngine

WORDS = st.sampled_from(["a", "b", "c", "d", "e", "<s>", "the"])
LINES = st.lists(st.lists(WORDS, min_size=1, max_size=8).map(" ".join), min_size=1, max_size=40)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = DuckDBEngine(limit_with_room(), tmp_path_factory.mktemp("spill"))
    engine._connection.execute("SET threads = 1")  # test processes share the cores
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def reference(data_dir):
    return lzma.decompress((data_dir / "reference" / "corpus.txt.xz").read_bytes()).decode().splitlines()


@given(
    lines=LINES,
    order=st.integers(1, 5),
    smoothing=st.sampled_from(["modified-kneser-ney", "kneser-ney", "absolute"]),
    thresholds=st.lists(st.integers(0, 2), max_size=4).map(sorted),
    backward=st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_of_any_text_the_model_is_that_of_the_estimator_in_memory(
    engine, lines, order, smoothing, thresholds, backward
):
    wanted = {"order": order, "smoothing": smoothing, "prune": [0, *thresholds][:order], "backward": backward}
    with tempfile.TemporaryDirectory() as folder:
        found = relational(engine, Path(folder), lines, **wanted)
        assert_same(found, in_memory(lines, **wanted))
        verify_automaton(found, Path(folder))


@pytest.mark.data
@pytest.mark.parametrize("prune", [(), (0, 0, 1, 1)])
def test_of_the_reference_the_model_is_that_of_the_estimator_in_memory(engine, reference, tmp_path, prune):
    found = relational(engine, tmp_path, reference, order=4, prune=prune)
    assert_same(found, in_memory(reference, order=4, prune=prune))


@pytest.mark.data
def test_every_weight_of_the_pruned_reference_is_that_of_kenlm(engine, data_dir, reference, tmp_path):
    """210,970 n-grams: the same set, each probability and back-off within 1e-5 in log10."""
    automaton = relational(engine, tmp_path, reference, order=4, prune=(0, 0, 1, 1))
    found = weights_by_words(list_ngrams(automaton), tokenizer_of(reference).vocabulary)
    packed = (data_dir / "reference" / "order4-pruned.arpa.xz").read_bytes()
    rows = [line.split("\t") for line in lzma.decompress(packed).decode().splitlines()]
    expected = {r[1]: (float(r[0]), float(r[2]) if len(r) == 3 else 0.0) for r in rows if len(r) > 1}
    assert found.keys() == expected.keys()
    del found["<s>"], expected["<s>"]  # 0 here, minus infinity in KenLM's file: it is never predicted
    differences = np.array([found[ngram] for ngram in expected]) - np.array(list(expected.values()))
    assert np.abs(differences).max() < 1e-5


@pytest.mark.data
def test_of_the_toy_text_the_weights_are_those_of_kenlm_with_fallback_discounts(engine, data_dir, tmp_path):
    lines = (data_dir / "reference" / "toy.txt").read_text().splitlines()
    automaton = relational(engine, tmp_path, lines, order=3)
    found = weights_by_words(list_ngrams(automaton), tokenizer_of(lines).vocabulary)
    rows = [line.split("\t") for line in (data_dir / "reference" / "toy.arpa").read_text().splitlines()]
    expected = {row[1]: float(row[0]) for row in rows if len(row) > 1}
    assert found.keys() == expected.keys()
    del expected["<s>"]
    assert {ngram: found[ngram][0] for ngram in expected} == pytest.approx(expected, abs=1e-5)
