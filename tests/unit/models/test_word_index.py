"""Hash tables of words: exact, growing, consistent with Python dictionaries."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from models.files import split_words
from models.language_model import Vocabulary
from models.tokenizers import CharacterTokenizer, WordTokenizer
from models.word_index import WordCounter, WordIndex, measure_text
from models.word_kernels import WordTable, find_word, insert_word

LINES = ["the cat  sat", "", " the\n\nÜber naïve cat\u3000", "漢字 cat\x1cthe\x85x"]
VOCABULARY = Vocabulary(["the", "cat", "naïve", "漢字", "x"])


@pytest.mark.parametrize(("unicode_spaces", "split"), [(False, split_words), (True, str.split)])
def test_words_are_found_line_by_line_and_others_are_unknown(unicode_spaces, split):
    ids, offsets = WordIndex(VOCABULARY.ids, unicode_spaces=unicode_spaces).encode(LINES)
    rows = [ids[begin:end].tolist() for begin, end in pairwise(offsets)]
    assert rows == [[VOCABULARY.id_of(word) for word in split(line)] for line in LINES]


@pytest.mark.parametrize("lines", [[], [""], ["", ""], ["\n"], [" "], ["cat"]])
def test_few_and_empty_lines(lines):
    ids, offsets = WordIndex(VOCABULARY.ids).encode(lines)
    assert len(offsets) == len(lines) + 1
    assert offsets[-1] == len(ids) == sum(len(line.split()) for line in lines)


def test_an_index_without_words_knows_none():
    assert WordIndex({}).encode(["a b"]).ids.tolist() == [0, 0]


def test_words_with_the_same_hash_are_told_apart():
    words, text = WordTable(), np.frombuffer(b"onetwosix", np.uint8)
    hashed = np.uint64(77)
    for number, start in enumerate((0, 3)):
        found, mixed, slot = find_word(words.table, text, start, start + 3, hashed)
        assert found == -1
        insert_word(words.table, number, text, start, start + 3, np.uint64(mixed), slot)
    assert [find_word(words.table, text, start, start + 3, hashed)[0] for start in (0, 3, 6)] == [0, 1, -1]


def test_counting_grows_with_the_text():
    rng = np.random.default_rng(1)
    lines = [" ".join(map(str, rng.integers(0, 1 << 18, size=500))) for _ in range(200)] + [
        "x" * 100_000,
        "x",
    ]
    counter = WordCounter()
    for begin in range(0, len(lines), 7):
        counter.add(lines[begin : begin + 7])
    counter.add([])
    expected = Counter(word for line in lines for word in line.split())
    assert list(counter.counts().items()) == list(expected.items())  # also in order of first occurrence


def test_a_table_grows_and_keeps_its_words():
    table = WordTable(["a", "bc"])
    for _ in range(3):
        table.size = table.capacity  # as if it were full
        table.table.starts[3:] = 3
        table.grow(10)
    assert table.all_words()[:3] == [b"a", b"bc", b""]
    assert len(table.table.spelling) >= 13


def test_half_a_surrogate_pair_is_part_of_a_word():
    ids = WordIndex({"a\ud800": 5}).encode(["a\ud800 a\ud801 a"]).ids
    assert ids.tolist() == [5, 0, 0]


def test_words_and_bytes_are_those_of_the_lines_without_their_ends():
    assert measure_text(LINES) == (
        sum(len(split_words(s)) for s in LINES),
        sum(len(s.encode()) for s in LINES),
    )
    assert measure_text([]) == (0, 0)


def test_threads_share_an_index():
    index = WordIndex(VOCABULARY.ids)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(index.encode, [LINES * 50] * 16))
    assert all(np.array_equal(answer.ids, answers[0].ids) for answer in answers)


@pytest.mark.parametrize(
    "tokenizer",
    [
        WordTokenizer(VOCABULARY),
        WordTokenizer(VOCABULARY, lowercase=True),
        WordTokenizer(VOCABULARY, pattern=r"\w+"),
        WordTokenizer(Vocabulary(["a", "<unk>"]), marked_unknown="unknown"),
        CharacterTokenizer(Vocabulary("abc \n")),
    ],
)
def test_a_tokenizer_says_the_same_of_one_text_and_of_many(tokenizer):
    texts = [*LINES, "THE CAT", "a <unk> ΣΑΣ İ"]
    one_by_one = [tokenizer.encode(text) for text in texts]
    ids, offsets = tokenizer.encode_ragged(texts)
    assert tokenizer.encode_all(texts) == one_by_one
    assert [ids[begin:end].tolist() for begin, end in pairwise(offsets)] == one_by_one
    assert tokenizer.encode_all([]) == []
