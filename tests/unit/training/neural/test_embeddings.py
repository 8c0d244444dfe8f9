"""Vectors from word2vec, fastText and GloVe files, and networks initialised with them."""

import gzip
import itertools
import lzma

import numpy as np
import pytest
import torch

from models.errors import FormatError, InputError
from models.language_model import Vocabulary
from models.neural.config import NetworkConfig
from models.neural.network import Network
from training.corpus import EncodedCorpus
from training.neural.embeddings import count_embeddings, initialise_embeddings, read_embeddings

VOCABULARY = Vocabulary(["the", "cat", "sat", "2005", ". . ."])
LINES = "cat 1 2 -3\nzebra 9 9 9\nthe 0.5 1e-2 0\n2005 4 5 6\n. . . 7 8 9\ncat 5 5 5\n"
FOUND = {4: [1, 2, -3], 3: [0.5, 0.01, 0], 6: [4, 5, 6], 7: [7, 8, 9]}


def read(tmp_path, content, size=3):
    path = tmp_path / "vectors.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_embeddings(path, VOCABULARY, size=size)


@pytest.mark.parametrize(
    "content",
    [
        LINES,
        f"6 3\n{LINES}",
        LINES.replace("\n", " \n"),  # word2vec's line ends
        LINES.replace("\n", "\r\n"),
        gzip.compress(LINES.encode(), mtime=0),
        lzma.compress(f"6 3\n{LINES}".encode()),
    ],
)
def test_vectors_of_known_words_are_read_and_the_first_of_two_counts(tmp_path, content):
    embeddings = read(tmp_path, content)
    assert embeddings.rows.tolist() == list(FOUND)
    np.testing.assert_array_equal(embeddings.vectors, np.array(list(FOUND.values()), dtype=np.float32))


def test_control_tokens_are_not_found(tmp_path):
    assert read(tmp_path, "</s> 1 1 1\n<unk> 1 1 1\n<s> 1 1 1\nsat 1 2 3\n").rows.tolist() == [5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("cat 1 2 3\ndog 1 2\n", r"vectors\.txt: has vectors of 2 numbers; neural\.embedding_size is 3"),
        ("cat 1 2\n", r"vectors of 2 numbers; .* is 3 \(set neural\.embedding_size=2\)"),
        ("2 300\ncat 1 2 3\n", r"vectors of 300 numbers; neural\.embedding_size is 3"),
        (
            "cat 1 2 3\nsat 1 2 3\ndog 1 2 3 4\n",
            r"line 3 has 4 numbers after its word, not 3: 'dog 1 2 3 4'",
        ),
        ("cat 1 2 3\nsat 1 2 3\ndog\n", r"line 3 has 0 numbers"),
        ("cat 1 2 3\n 1 2 3\nsat 1 2 3\n", r"line 2 has"),
        ("dog 1 2 3\n\ncat 1 two 3\n", r"line 3: could not convert string to float: 'two'"),
        ("cat 1 nan 3\n", r"line 1 has a number that is not finite"),
        ("cat 1 1e39 3\n", r"line 1 has a number that is not finite"),
        ("3 3\ncat 1 2 3\nsat 1 2 3\n", r"has 2 words; the first line gives 3 \(it may be truncated"),
        ("dog 1 2 3\n", r"has none of the vocabulary's 5 tokens"),
        ("", r"is empty"),
        (b"\x00\x01", r"is binary"),
        (gzip.compress(LINES.encode(), mtime=0)[:-9], r"is damaged"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, content, message):
    with pytest.raises(FormatError, match=message):
        read(tmp_path, content)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(FormatError, match="there is no such file"):
        read_embeddings(tmp_path / "none", VOCABULARY, size=3)


@pytest.mark.parametrize("tied", [True, False])
def test_a_network_starts_from_the_vectors_at_its_own_scale(tmp_path, tied):
    network = Network(NetworkConfig(embedding_size=3, hidden_size=4, tied=tied), len(VOCABULARY))
    before = network.embedding.weight.detach().clone()
    embeddings = read(tmp_path, LINES)
    initialise_embeddings(network, embeddings)
    after = network.embedding.weight.detach()
    others = [0, 1, 2, 5]
    assert torch.equal(after[others], before[others])
    ratios = after[list(embeddings.rows)].numpy() / np.where(embeddings.vectors, embeddings.vectors, np.nan)
    assert np.nanstd(ratios) < 1e-6
    started = after[list(embeddings.rows)]
    assert float(started.square().mean()) == pytest.approx(float(before.square().mean()), rel=1e-4)
    assert network.embedding.weight.requires_grad


def test_vectors_of_several_widths_cannot_be_started(tmp_path):
    config = NetworkConfig(embedding_size=3, hidden_size=4, output="adaptive", cutoffs=(4,))
    with pytest.raises(InputError, match=r"set neural\.output=softmax") as caught:
        initialise_embeddings(Network(config, len(VOCABULARY)), read(tmp_path, LINES))
    assert caught.value.param == "train.embeddings"


@torch.no_grad()
def test_narrow_vectors_of_rare_tokens_start_from_the_first_columns():
    vocabulary = Vocabulary([f"w{number}" for number in range(60)])
    rng = np.random.default_rng(1)
    weights = 1 / np.arange(1, 61)
    ids = rng.choice(np.arange(60), size=(300, 8), p=weights / weights.sum()) + len(vocabulary) - 60
    corpus = EncodedCorpus.from_sentences(ids.tolist())
    config = NetworkConfig(embedding_size=16, hidden_size=4, output="adaptive", cutoffs=(10, 30))
    network = Network(config, len(vocabulary))
    counts = np.bincount(corpus.tokens, minlength=len(vocabulary)) + 1.0
    network.output.initialise_from_counts(torch.as_tensor(counts, dtype=torch.float32))
    lengths = [float(table.square().mean()) for table in network.embedding.tables]
    found = count_embeddings(corpus, len(vocabulary), size=16, seed=3)
    initialise_embeddings(network, found)
    after, vectors = network.embedding(torch.arange(len(vocabulary))), torch.from_numpy(found.vectors)
    for begin, end, width in [(0, 10, 16), (10, 30, 4), (30, len(vocabulary), 1)]:
        inside = [n for n, row in enumerate(found.rows) if begin <= network.embedding.rank[row] < end]
        rows = torch.from_numpy(found.rows)[inside]
        given, started = vectors[inside, :width], after[rows, :width]
        torch.testing.assert_close(started, given * (started.norm() / given.norm()))
        assert not after[rows, width:].any()
    assert [float(table.square().mean()) for table in network.embedding.tables] == pytest.approx(
        lengths, rel=0.05
    )
    assert float(network.embedding.projection(1).square().sum()) == 16


def corpus_of(sentences, vocabulary):
    ids = [[vocabulary.ids[word] for word in sentence.split()] for sentence in sentences]
    return EncodedCorpus.from_sentences(ids)


def test_words_in_the_same_places_get_similar_vectors():
    rng = np.random.default_rng(0)
    nouns, verbs, others = ["cat", "dog", "bird"], ["sat", "ran", "sang"], ["the", "a", "there", "here"]
    lines = [
        f"{rng.choice(others[:2])} {rng.choice(nouns)} {rng.choice(verbs)} {rng.choice(others[2:])}"
        for _ in range(400)
    ]
    vocabulary = Vocabulary([*nouns, *verbs, *others])
    found = count_embeddings(corpus_of(lines, vocabulary), len(vocabulary), size=6, seed=1)
    assert set(found.rows) >= {vocabulary.ids[word] for word in (*nouns, *verbs, *others)}
    vector = dict(
        zip(found.rows.tolist(), found.vectors / np.linalg.norm(found.vectors, axis=1)[:, None], strict=True)
    )
    of = lambda word: vector[vocabulary.ids[word]]  # noqa: E731
    within = min(of(a) @ of(b) for words in (nouns, verbs) for a, b in itertools.combinations(words, 2))
    between = max(of(a) @ of(b) for a, b in itertools.product(nouns, verbs))
    assert within > 0.9
    assert between < 0.5


def test_vectors_of_counts_are_the_same_for_equal_seeds_and_random_for_tokens_without_neighbours():
    vocabulary = Vocabulary([f"w{number}" for number in range(50)])
    lines = [" ".join(f"w{number}" for number in range(start, start + 5)) for start in range(20)]
    corpus = corpus_of(lines, vocabulary)
    state = torch.get_rng_state()
    one, other = (count_embeddings(corpus, len(vocabulary), size=64, seed=3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(one.vectors, other.vectors)
    assert one.vectors.shape == (len(one.rows), 64)
    assert vocabulary.ids["w49"] not in one.rows
    assert np.isfinite(one.vectors).all()


@pytest.mark.parametrize("lines", [[], ["w1"], ["w1 w1"]])
def test_a_text_with_hardly_a_neighbour_has_vectors_too(lines):
    vocabulary = Vocabulary(["w1", "w2"])
    found = count_embeddings(corpus_of(lines, vocabulary), len(vocabulary), size=4, seed=3)
    assert found.vectors.shape == (len(found.rows), 4)
    assert np.isfinite(found.vectors).all()
    network = Network(NetworkConfig(embedding_size=4, hidden_size=4, layers=1), len(vocabulary))
    initialise_embeddings(network, found)
    assert torch.isfinite(network.embedding.weight).all()
