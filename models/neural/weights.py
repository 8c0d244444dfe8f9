"""Network weights as arrays by parameter name: shapes and stored files; imports no torch.

A network is stored in `config.json` and `model.safetensors`; a shared matrix is stored once.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from models.arrays import AnyArray
from models.errors import ManifestError
from models.files import CONFIG_FILE, check_config, read_config
from models.neural.config import NetworkConfig, cutoffs_problem
from models.tensor_files import map_tensors
from models.vocabulary import BOS

WEIGHTS_FILE = "model.safetensors"
_OBSOLETE_PREFIX = "recurrent."  # prefix of the tensors of the first recurrent networks

GATES = {"feed-forward": 1, "elman": 1, "gru": 3, "lstm": 4, "mingru": 2}
"""Number of matrices of the inputs in one layer, which are stored as one."""

Shapes: TypeAlias = dict[str, tuple[int, ...]]


class NetworkWeights(NamedTuple):
    """Weights of a network.

    Attributes:
        config: shape of the network.
        vocab_size: V.
        arrays: arrays by name, at least those of `parameter_shapes`.
    """

    config: NetworkConfig
    vocab_size: int
    arrays: Mapping[str, AnyArray]


def parameter_shapes(config: NetworkConfig, vocab_size: int) -> Shapes:
    """Return the shapes of a network's parameters by name in `models.neural.network`.

    A parameter that embedding and output share has its name in the embedding.
    """
    hidden, width, clusters = config.hidden_size, config.feature_size, config.clusters(vocab_size)
    body = "body." if config.attention == "none" else "body.inner."
    shapes = {body + name: shape for name, shape in _layer_shapes(config).items()} | _attention_shapes(config)
    if not (clusters and config.tied):
        shapes["embedding.weight"] = (vocab_size, config.embedding_size)
    if width != hidden:
        shapes |= {"projection.weight": (width, hidden), "projection.bias": (width,)}
    if not clusters:
        shapes["output.bias"] = (vocab_size,)
        return shapes if config.tied else shapes | {"output.weight": (vocab_size, width)}
    tails, vectors = len(clusters) - 1, "embedding" if config.tied else "output.vectors"
    shapes |= {"output.clusters": (tails, width), f"{vectors}.rank": (vocab_size,)}
    for number, (size, narrow) in enumerate(clusters):
        shapes[f"{vectors}.tables.{number}"] = (size, narrow)
        shapes[f"output.biases.{number}"] = (size if number else size + tails,)
        if number:
            shapes[f"{vectors}.projections.{number - 1}"] = (narrow, width)
    return shapes


def _layer_shapes(config: NetworkConfig) -> Shapes:
    hidden, rows = config.hidden_size, GATES[config.cell] * config.hidden_size
    shapes: Shapes = {}
    for number, size in enumerate(config.layer_inputs):
        if config.cell in {"feed-forward", "mingru"}:
            layer = f"layers.{number}" if config.cell == "feed-forward" else f"cells.{number}.gates"
            shapes |= {f"{layer}.weight": (rows, size), f"{layer}.bias": (rows,)}
        else:
            cell = f"cells.{number}.kernel"
            shapes |= {f"{cell}.weight_ih_l0": (rows, size), f"{cell}.weight_hh_l0": (rows, hidden)}
            shapes |= {f"{cell}.bias_ih_l0": (rows,), f"{cell}.bias_hh_l0": (rows,)}
    if config.layer_norm:
        for number, size in enumerate((*config.layer_inputs, hidden)):
            shapes |= {f"norms.{number}.weight": (size,), f"norms.{number}.bias": (size,)}
    if config.learned_state:
        shapes |= {f"initial.{part}": (config.layers, 1, hidden) for part in range(config.cell_states)}
    return shapes


def _attention_shapes(config: NetworkConfig) -> Shapes:
    hidden, size, scores = config.hidden_size, config.attention_size, "body.scores"
    if config.attention == "none":
        return {}
    shapes: Shapes = {"body.projection.weight": (hidden, hidden)}
    if config.attention == "multiplicative":
        return shapes | {f"{scores}.queries.weight": (hidden, hidden)}
    shapes |= {f"{scores}.queries.weight": (size, hidden), f"{scores}.keys.weight": (size, hidden)}
    if config.attention == "additive":
        shapes |= {f"{scores}.queries.bias": (size,), f"{scores}.reduction.weight": (1, size)}
    return shapes


def is_rank(name: str) -> bool:
    """True if a parameter is the tokens' ranks, the only integers, not learnt."""
    return name.endswith(".rank")


def count_parameters(config: NetworkConfig, vocab_size: int) -> int:
    """Number of learnt values; a shared matrix counts once."""
    shapes = parameter_shapes(config, vocab_size)
    return sum(math.prod(shape) for name, shape in shapes.items() if not is_rank(name))


def read_weights(directory: Path, *, vocab_size: int) -> NetworkWeights:
    """Map the weights of a stored network into memory, read-only.

    Args:
        directory: folder of both files.
        vocab_size: V, which the files must match.

    Raises:
        ManifestError: a file is missing or damaged, or does not match the other or V.
    """
    path = directory / CONFIG_FILE
    fields = read_config(path)
    size = fields.pop("vocab_size", None)
    config = check_config(NetworkConfig, fields, path)
    if size != vocab_size:
        raise ManifestError(f"{path}: vocab_size is {size!r}, the vocabulary has {vocab_size} tokens")
    problem = cutoffs_problem(config.cutoffs, vocab_size=vocab_size) if config.output == "adaptive" else None
    if problem is not None:
        raise ManifestError(f"{path}: neural.cutoffs: {problem}")
    path = directory / WEIGHTS_FILE
    arrays = map_tensors(path)
    shapes = parameter_shapes(config, vocab_size)
    if any(name.startswith(_OBSOLETE_PREFIX) for name in arrays):
        raise ManifestError(f"{path} was written by an earlier version; train the model again")
    if arrays.keys() != shapes.keys():
        differing = ", ".join(sorted(arrays.keys() ^ shapes.keys()))
        raise ManifestError(f"{path}: tensors are missing or unexpected: {differing}")
    for name, shape in shapes.items():
        array, dtype = arrays[name], np.dtype(np.int64 if is_rank(name) else np.float32)
        if array.shape != shape or array.dtype != dtype:
            raise ManifestError(
                f"{path}: {name} is {list(array.shape)} {array.dtype}, config.json requires {list(shape)} {dtype}"
            )
        # no temporary of the array's size
        if not np.isfinite([array.min(), array.max()]).all():
            raise ManifestError(f"{path}: {name} has values that are not finite")
        if is_rank(name) and not np.array_equal(np.sort(array), np.arange(len(array))):
            raise ManifestError(f"{path}: rank is not a permutation of 0 to {len(array) - 1}")
        if is_rank(name) and array[BOS] != 0:
            raise ManifestError(f"{path}: rank of <s> is {array[BOS]}, it must be 0")
    return NetworkWeights(config, vocab_size, arrays)
