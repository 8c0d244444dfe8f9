"""The text as a table of windows."""

import numpy as np
import pyarrow.parquet as pq

from models.tokenizers import WordTokenizer
from models.vocabulary import BOS, EOS, Vocabulary
from training.corpus import EncodedCorpus
from training.overlap import overlap
from training.progress import SILENT
from training.scale.plan import ABSENT
from training.scale.tables import COUNTS_FILE, WindowSettings, text_windows, write_windows

TOKENIZER = WordTokenizer(Vocabulary(["a", "b", "c"]))
A, B, C = (TOKENIZER.vocabulary.id_of(word) for word in "abc")


def test_every_place_with_enough_words_has_its_row_and_so_has_the_beginning_of_a_sentence():
    windows = text_windows(EncodedCorpus.from_sentences([[A, B], [C]]), 4).T.tolist()
    assert windows == [[BOS, A, B, EOS], [BOS, C, EOS, ABSENT]]


def test_no_window_crosses_the_end_of_a_sentence():
    windows = text_windows(EncodedCorpus.from_sentences([[A], [B]]), 2).T.tolist()
    assert windows == [[BOS, A], [A, EOS], [BOS, B], [B, EOS]]


def test_single_words_are_windows_of_one():
    assert text_windows(EncodedCorpus.from_sentences([[A], []]), 1).tolist() == [[BOS, A, EOS, BOS, EOS]]


def test_the_table_has_the_windows_of_all_blocks_with_counts_and_overlap_beside(tmp_path):
    sentences = ["a b c a b c a b", "c b a"] * 5000  # more than one block
    reading = WindowSettings(3, backward=False, held_out={"valid": ["a b c a b c a b", "b b b b b b b b"]})
    found = write_windows(tmp_path, TOKENIZER, sentences, reading, SILENT)
    table = pq.read_table(tmp_path / "part.parquet")
    assert table.column_names == ["w1", "w2", "w3"]
    assert table.num_rows == 5000 * (8 + 3)
    counts = np.load(tmp_path / COUNTS_FILE)
    assert counts[[A, B, C, EOS]].tolist() == [20_000, 20_000, 15_000, 10_000]
    assert found["tokens"] == counts.sum()
    expected = overlap(reading.held_out["valid"], sentences, progress=SILENT).as_facts()
    assert found["overlap"] == {"valid": expected}
    assert expected["sentences"]["seen"] == 1


def test_backward_each_sentence_is_read_from_its_last_word(tmp_path):
    write_windows(tmp_path, TOKENIZER, ["a b"], WindowSettings(3, backward=True, held_out={}), SILENT)
    rows = pq.read_table(tmp_path / "part.parquet").to_pylist()
    assert [tuple(row.values()) for row in rows] == [(BOS, B, A), (B, A, EOS)]
