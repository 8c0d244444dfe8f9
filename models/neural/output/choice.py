"""From a configuration to the two layers that know the vocabulary, which may share their vectors."""

from typing import TypeAlias, cast

from torch import nn

from models.neural.config import NetworkConfig
from models.neural.output.adaptive import AdaptiveSoftmax
from models.neural.output.layer import OutputLayer
from models.neural.output.softmax import INITIAL_RANGE, Softmax
from models.neural.output.vectors import ClusteredEmbedding

TokenEmbedding: TypeAlias = nn.Embedding | ClusteredEmbedding


def make_embedding(config: NetworkConfig, vocab_size: int) -> TokenEmbedding:
    """The configured vectors of tokens that are read; clustered where they are an adaptive softmax's too.

    Raises:
        InvalidInputError: the cutoffs do not fit the vocabulary.
    """
    if config.output == "adaptive" and config.tied:
        return _make_clustered_embedding(config, vocab_size, config.embedding_size)
    embedding = nn.Embedding(vocab_size, config.embedding_size)
    nn.init.uniform_(embedding.weight, -INITIAL_RANGE, INITIAL_RANGE)
    return embedding


def make_output_layer(
    config: NetworkConfig, embedding: TokenEmbedding, *, vocab_size: int, width: int
) -> OutputLayer:
    """The configured output layer.

    Args:
        config: the shape.
        embedding: what `make_embedding` made; its vectors are the output's too if the network is tied.
        vocab_size: V.
        width: of what the layer reads; the embedding's if the network is tied.

    Raises:
        InvalidInputError: the cutoffs do not fit the vocabulary.
    """
    if config.output == "adaptive":
        tied = isinstance(embedding, ClusteredEmbedding)
        vectors = embedding if tied else _make_clustered_embedding(config, vocab_size, width)
        return AdaptiveSoftmax(width, cast("ClusteredEmbedding", vectors), initial_range=INITIAL_RANGE)
    matrix = cast("nn.Parameter", embedding.weight) if config.tied else None
    return Softmax(width, vocab_size, shared=matrix)


def _make_clustered_embedding(config: NetworkConfig, vocab_size: int, width: int) -> ClusteredEmbedding:
    return ClusteredEmbedding(vocab_size, width, cutoffs=config.cutoffs, initial_range=INITIAL_RANGE)
