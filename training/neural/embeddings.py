"""Initial embeddings of a network: pre-trained word vectors, or vectors computed of the training text.

Each line of these files has a word and its numbers. The first line
of word2vec and fastText files has the numbers of words and dimensions;
GloVe files have none. Files may be compressed (.gz, .xz, .zst, .bz2).
"""

import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from models.arrays import FloatArray, Int64s
from models.errors import FormatError, InputError
from models.language_model import Vocabulary
from models.neural.network import Network
from training.corpus import EncodedCorpus, read_lines
from training.recipe import Recipe

COUNTS = "counts"
"""Value of `train.embeddings` for vectors computed of the training text."""

_MAX_DIGITS = 18  # of a count
_WINDOW = 2
_MAX_COUNTED = 8_000_000
"""Maximum tokens of the text whose neighbours are counted."""
_NUM_CONTEXTS = 4096
_POWER_ITERATIONS = 2


class Embeddings(NamedTuple):
    """Vectors for a subset of a vocabulary's tokens.

    Attributes:
        rows: ids of the found tokens, each once [N].
        vectors: vectors of these tokens [N, E], float32.
        is_ranked: true if the first columns have most of the information.
    """

    rows: Int64s
    vectors: FloatArray
    is_ranked: bool = False


def read_embeddings(path: Path, vocabulary: Vocabulary, *, size: int) -> Embeddings:
    """Read vectors of a vocabulary's tokens from a file; a repeated word's first entry counts.

    The lookup is case-sensitive, never of control tokens. The numbers of words outside the
    vocabulary are counted but not parsed.

    Args:
        path: the file.
        vocabulary: tokens to find.
        size: required size of the vectors, E.

    Raises:
        FormatError: a file cannot be read, a line is not a word and E numbers, lines are missing, or
            no word is a token of the vocabulary.
    """
    missing_ids = dict(vocabulary.ids)
    rows: list[int] = []
    vectors: list[FloatArray] = []
    for number, line in _word_lines(path, size):
        word, _, numbers = line.partition(" ")
        if numbers.count(" ") != size - 1 or not word or not numbers:
            word, numbers = _split_line(path, number, line, size)
        row = missing_ids.pop(word, None)
        if row is None:
            continue
        try:
            with np.errstate(over="ignore"):  # reported below
                vector = np.array([float(text) for text in numbers.split(" ")], np.float32)
        except ValueError as error:
            raise FormatError(path, f"line {number}: {error}", hint="give the file in text format") from None
        if not np.isfinite(vector).all():
            raise FormatError(path, f"line {number} has a number that is not finite in float32")
        rows.append(row)
        vectors.append(vector)
    if not rows:
        problem = f"has none of the vocabulary's {len(vocabulary.ids)} tokens"
        raise FormatError(path, problem, hint="use tokenizer.kind=word, and check tokenizer.lowercase")
    return Embeddings(np.array(rows, np.int64), np.stack(vectors))


def count_embeddings(corpus: EncodedCorpus, num_tokens: int, *, size: int, seed: int) -> Embeddings:
    """Compute vectors of tokens by their neighbours, which save a network's first updates.

    They are the left singular vectors, times the roots of the singular values, of
    the positive pointwise mutual information of tokens and neighbours (Levy and
    Goldberg 2014, "Neural word embedding as implicit matrix factorization"; Levy et
    al. 2015). Neighbours are the most frequent tokens up to two places before and,
    separately, after a token; a pair at distance d counts 1/d.

    Args:
        corpus: training text; of a long one, the beginning is read.
        num_tokens: size of the vocabulary, V.
        size: width of the vectors, E; the last columns of a smaller vocabulary are 0.
        seed: seed of the randomised decomposition (Halko et al. 2011).
    """
    ids = corpus.with_boundaries()[:_MAX_COUNTED].astype(np.int64)
    pairs, weights = [], []
    for distance in range(1, _WINDOW + 1):
        pairs.append(ids[:-distance] * num_tokens + ids[distance:])
        weights.append(np.full(len(pairs[-1]), 1 / distance))
    keys, places = np.unique(np.concatenate(pairs), return_inverse=True)
    counts = np.bincount(places, np.concatenate(weights))
    first, second = keys // num_tokens, keys % num_tokens
    expected = (
        np.bincount(first, counts, num_tokens)[first]
        * np.bincount(second, counts, num_tokens)[second]
        / counts.sum()
    )
    information = np.log(counts / expected)
    order = np.argsort(-np.bincount(ids, minlength=num_tokens), kind="stable")
    num_contexts = min(_NUM_CONTEXTS, num_tokens)
    ranks = np.argsort(order)
    after = (information > 0) & (ranks[second] < num_contexts)
    before = (information > 0) & (ranks[first] < num_contexts)
    rows = np.concatenate([first[after], second[before]])
    columns = np.concatenate([ranks[second[after]], num_contexts + ranks[first[before]]])
    values = np.concatenate([information[after], information[before]])
    matrix = torch.sparse_coo_tensor(
        torch.from_numpy(np.stack([rows, columns])),
        torch.from_numpy(values.astype(np.float32)),
        (num_tokens, 2 * num_contexts),
        check_invariants=False,  # else torch warns
    ).coalesce()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        width = min(size, num_tokens)
        left, singular, _ = torch.svd_lowrank(matrix, q=width, niter=_POWER_ITERATIONS)
    vectors = np.zeros((num_tokens, size), np.float32)
    vectors[:, :width] = (left * singular.sqrt()).numpy()
    found = np.unique(rows)
    return Embeddings(found, vectors[found], is_ranked=True)


def initial_embeddings(recipe: Recipe, corpus: EncodedCorpus, vocabulary: Vocabulary) -> Embeddings | None:
    """Return the vectors that `train.embeddings` asks for; None without this key.

    Raises:
        FormatError: see `read_embeddings`.
    """
    source, size = recipe.train.embeddings, recipe.neural.embedding_size
    if source == COUNTS:
        return count_embeddings(corpus, len(vocabulary), size=size, seed=recipe.seed)
    return read_embeddings(Path(source), vocabulary, size=size) if source else None


def initialise_embeddings(network: Network, embeddings: Embeddings) -> None:
    """Initialise a network's embeddings of some tokens.

    One factor scales all vectors of a table to the root mean square of the initial
    ones: pre-trained ones are up to ten times as long, too long for a tied output.
    The narrower vectors of rare tokens are the first columns of ranked ones.

    Raises:
        InputError: the network's vectors have several widths, and the given ones are not ranked.
    """
    embedding, rows = network.embedding, torch.from_numpy(embeddings.rows)
    if isinstance(embedding, nn.Embedding):
        _initialise_table(embedding.weight, rows, embeddings.vectors)
        return
    if not embeddings.is_ranked:
        raise InputError.of(
            "train.embeddings",
            "cannot initialise a tied adaptive softmax, whose vectors have several widths; "
            "set neural.output=softmax or neural.tied=false",
        )
    ranks = embedding.rank.cpu()[rows]
    for number, (begin, end) in enumerate(itertools.pairwise(embedding.bounds)):
        inside = (ranks >= begin) & (ranks < end)
        table = embedding.table(number)
        width = table.shape[1]
        _initialise_table(table, ranks[inside] - begin, embeddings.vectors[inside.numpy(), :width])
        if number:  # widened vectors keep these columns, and the length of the initial ones
            with torch.no_grad():
                projection = embedding.projection(number)
                projection.copy_(torch.eye(*projection.shape) * (projection.shape[1] / width) ** 0.5)


@torch.no_grad()
def _initialise_table(weight: Tensor, rows: Tensor, vectors: FloatArray) -> None:
    """Set rows of a table [N, E] to vectors, scaled to the root mean square of the initial ones."""
    given = torch.from_numpy(vectors).to(weight.device)
    scale = weight.square().mean().sqrt() / given.square().mean().sqrt().clamp(min=torch.finfo().tiny)
    weight[rows.to(weight.device)] = scale * given


def _word_lines(path: Path, size: int) -> Iterator[tuple[int, str]]:
    """Yield non-blank lines, right-stripped, numbered from 1; check a first line with counts."""
    expected: int | None = None
    num_words = 0
    for number, line in enumerate(read_lines(path), start=1):
        text = line.rstrip(" \r")
        counts = text.split(" ") if number == 1 else []
        if len(counts) == 2 and all(count.isdecimal() and len(count) <= _MAX_DIGITS for count in counts):
            expected = int(counts[0])
            _check_width(path, int(counts[1]), size)
        elif text:
            num_words += 1
            yield number, text
    if expected is not None and num_words != expected:
        problem = f"has {num_words} words; the first line gives {expected}"
        raise FormatError(path, problem, hint="it may be truncated; download it again")


def _split_line(path: Path, number: int, line: str, size: int) -> tuple[str, str]:
    """Split a line into a word with spaces, not ending in a number, and its numbers."""
    fields, width = line.split(" "), 0
    with suppress(ValueError):
        for field in reversed(fields[1:]):
            float(field)
            width += 1
    if width == size and fields[0]:
        return " ".join(fields[:-size]), " ".join(fields[-size:])
    if number <= 2 and width:
        _check_width(path, width, size)
    problem = f"line {number} has {width} numbers after its word, not {size}: {line[:40]!r}"
    raise FormatError(path, problem, hint="each line is a word and its numbers, separated by single spaces")


def _check_width(path: Path, width: int, size: int) -> None:
    if width != size:
        problem = f"has vectors of {width} numbers; neural.embedding_size is {size}"
        raise FormatError(path, problem, hint=f"set neural.embedding_size={width}")
