"""Assembly of sorted tables into the automaton's arrays."""

import resource

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.errors import FormatError, InputError
from models.ngram import build as ranking
from models.ngram.build import (
    MAX_NGRAMS,
    MAX_STATES,
    NGrams,
    NGramWeights,
    build_automaton,
    check_ngram_counts,
    rank_arcs,
)
from training.progress import SILENT
from training.scale import assembly
from training.scale.assembly import assemble, open_automaton

UNIGRAMS = [(0, 0.1, 1.0), (1, 0.0, 1.0), (2, 0.4, 1.0), (3, 0.3, 1.0), (4, 0.2, 1.0)]
BIGRAMS = [(1, 3, 0.5, 0.25), (3, 2, 0.5, 0.5), (3, 4, 0.25, 0.5), (4, 3, 0.75, 0.125)]


def table(folder, rows, order):
    names = [*(f"w{i}" for i in range(1, order + 1)), "p", "g"]
    kinds = [*([pa.int32()] * order), pa.float64(), pa.float64()]
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    folder.mkdir()
    half = len(rows) // 2
    whole = pa.table(dict(zip(names, columns, strict=True)))
    pq.write_table(whole.slice(0, half), folder / "part-00000.parquet")
    pq.write_table(whole.slice(half), folder / "part-00001.parquet")
    return folder


def assembled(tmp_path, bigrams, unigrams=UNIGRAMS):
    tables = [table(tmp_path / "1", unigrams, 1), table(tmp_path / "2", bigrams, 2)]
    (tmp_path / "automaton").mkdir()
    assemble(tables, tmp_path / "automaton", SILENT)
    return open_automaton(tmp_path / "automaton")


def test_the_arrays_are_those_that_are_built_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(assembly, "_BATCH", 3)
    words = np.arange(5, dtype=np.int32)
    nowhere = np.zeros(5, np.int32)
    with np.errstate(divide="ignore"):
        probs, longer = (
            np.log10([row[-2] for row in rows]).astype(np.float32) for rows in (UNIGRAMS, BIGRAMS)
        )
    backoffs = np.log10([1, 0.25, 1, 0.5, 0.125]).astype(np.float32)
    bigrams = NGrams(
        np.array([3, 2, 4, 3], np.int32), np.array([1, 3, 3, 4], np.int32), np.full(4, -1, np.int32)
    )
    expected = build_automaton(
        [
            (NGrams(words, nowhere, nowhere), NGramWeights(probs, backoffs)),
            (bigrams, NGramWeights(longer, np.zeros(0, np.float32))),
        ]
    )
    found = assembled(tmp_path, BIGRAMS)
    for name, array in expected._asdict().items():
        np.testing.assert_array_equal(getattr(found, name), array, err_msg=name)
        assert getattr(found, name).dtype == array.dtype
        assert not getattr(found, name).flags.writeable


@pytest.mark.parametrize(
    ("bigrams", "row"),
    [
        ([*BIGRAMS[1:], BIGRAMS[0]], 3),
        ([BIGRAMS[0], BIGRAMS[0]], 1),
        ([BIGRAMS[0], (9, 3, 0.5, 0.5)], 1),
    ],
)
def test_rows_out_of_order_or_without_context_are_told(tmp_path, bigrams, row):
    with pytest.raises(FormatError, match=rf"row {row} is out of order, or its context is missing"):
        assembled(tmp_path, bigrams)


def test_an_order_may_be_empty(tmp_path):
    found = assembled(tmp_path, [BIGRAMS[0]])
    assert found.order_starts.tolist() == [0, 5, 6]


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_arcs_are_ranked_alike_in_blocks_of_any_size(monkeypatch, block):
    """States have few or many arcs, with tied probabilities."""
    random = np.random.default_rng(3)
    sizes = random.choice([0, 3, 200, 500], size=40)
    first_arcs = np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint32)
    log10_probs = -random.integers(1, 50, size=sizes.sum()).astype(np.float32)
    whole = rank_arcs(first_arcs, log10_probs)
    monkeypatch.setattr(ranking, "_BLOCK", block)
    for expected, found in zip(whole, rank_arcs(first_arcs, log10_probs), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert whole.states.tolist() == [0, *(1 + np.flatnonzero(sizes[1:] > 128))]
    assert len(whole.arcs) == sizes[whole.states].sum() == whole.starts[-1]


def test_more_ngrams_than_can_be_numbered_are_refused():
    check_ngram_counts([10, MAX_STATES - 11, MAX_NGRAMS - MAX_STATES])
    with pytest.raises(InputError, match=r"have 4,294,967,296 n-grams; the limit is 4,294,967,295"):
        check_ngram_counts([10, MAX_NGRAMS - 9])
    with pytest.raises(InputError, match=r"2,147,483,648 n-grams below the highest order; the"):
        check_ngram_counts([10, MAX_STATES - 10, 0])


def test_a_full_disk_is_an_error_and_no_signal(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    tables = [table(tmp_path / "1", UNIGRAMS, 1), table(tmp_path / "2", BIGRAMS, 2)]
    (tmp_path / "automaton").mkdir()
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            assemble(tables, tmp_path / "automaton", SILENT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
