"""Network configuration, and weights as arrays by parameter name; imports no torch.

The configuration is `neural.*` of recipes, `config.json` of checkpoints. A network is stored in
`config.json` and `model.safetensors`; a shared matrix is stored once.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from models.arrays import AnyArray
from models.errors import ManifestError
from models.files import CONFIG_FILE, check_config, read_config
from models.language_model import BOS
from models.tensor_files import map_tensors

MIN_HEAD_TOKENS = 3
"""Minimum tokens in the first cluster: the number of control ids."""

WIDTH_DIVISOR = 4
"""Ratio of the vector widths of a cluster and the next cluster."""

CellName = Literal["feed-forward", "elman", "lstm", "gru", "mingru"]
ActivationName = Literal["tanh", "relu"]
AttentionName = Literal["none", "additive", "multiplicative", "scaled"]
OutputName = Literal["softmax", "adaptive"]

_RECURRENT_CELLS = ("elman", "lstm", "gru", "mingru")

ACTS_WITH: dict[str, tuple[str, tuple[str, ...]]] = {
    "window": ("cell", ("feed-forward",)),
    "activation": ("cell", ("feed-forward", "elman")),
    "orthogonal": ("cell", _RECURRENT_CELLS[:3]),
    "weight_drop": ("cell", _RECURRENT_CELLS[:3]),
    "forget_bias": ("cell", ("lstm",)),
    "learned_state": ("cell", _RECURRENT_CELLS),
    "attention_window": ("attention", ("additive", "multiplicative", "scaled")),
    "attention_size": ("attention", ("additive", "scaled")),
    "cutoffs": ("output", ("adaptive",)),
}
"""Keys with an effect only for certain values of another key: that key and the values."""

MAX_INT8_WIDTH = 1 << 17
"""Largest input width of an int8 layer: sums of byte products must fit into 32 bits."""

WEIGHTS_FILE = "model.safetensors"
_OBSOLETE_PREFIX = "recurrent."  # prefix of the tensors of the first recurrent networks

GATES = {"feed-forward": 1, "elman": 1, "gru": 3, "lstm": 4, "mingru": 2}
"""Number of matrices of the inputs in one layer, which are stored as one."""

Shapes: TypeAlias = dict[str, tuple[int, ...]]


def cutoffs_problem(cutoffs: Sequence[int], *, vocab_size: int | None = None) -> str | None:
    """Return what is wrong with the clusters' first ranks, as a message; None if they are valid.

    Args:
        cutoffs: the ranks.
        vocab_size: V, if known.
    """
    bounds = (MIN_HEAD_TOKENS - 1, *cutoffs)
    if len(bounds) == 1 or any(low >= high for low, high in itertools.pairwise(bounds)):
        return f"must be an ascending list from {MIN_HEAD_TOKENS} or more, such as [2000, 10000], given {list(cutoffs)}"
    if vocab_size is not None and cutoffs[-1] >= vocab_size:
        return f"must stay below the vocabulary's {vocab_size} tokens, given {list(cutoffs)}"
    return None


def cluster_shapes(cutoffs: Sequence[int], *, vocab_size: int, width: int) -> list[tuple[int, int]]:
    """Return each cluster's number of tokens and vector width; the first has the full width."""
    bounds = itertools.pairwise((0, *cutoffs, vocab_size))
    return [(end - begin, max(1, width // WIDTH_DIVISOR**i)) for i, (begin, end) in enumerate(bounds)]


class NetworkConfig(BaseModel):
    """Shape of a network, without the vocabulary size.

    Attributes:
        cell: type of the layers between embedding and output: `feed-forward` (Bengio et
            al. 2003), `elman` (Elman 1990), `lstm` (Hochreiter and Schmidhuber 1997, with
            forget gates), `gru` (Cho et al. 2014) or `mingru` (Feng et al. 2024); it is
            also the name of the model's family.
        layers: number of stacked layers.
        embedding_size: width of a token's vector.
        hidden_size: width of each layer.
        window: number of context tokens of a feed-forward network.
        activation: activation function of feed-forward and Elman layers.
        residual: add each layer's input to its output, if both have the same width.
        layer_norm: normalise each layer's input and the last layer's output (Ba et al.
            2016).
        orthogonal: initialise the recurrent matrices orthogonally, gate by gate (Saxe et
            al. 2014).
        forget_bias: initial bias of an LSTM's forget gates (Jozefowicz et al. 2015).
        learned_state: learn the initial state, instead of using zeros.
        attention: attention over the last outputs of the layers, added to the newest
            output: `additive` (Bahdanau et al. 2015), `multiplicative` (Luong et al.
            2015), `scaled` (Vaswani et al. 2017) or `none`.
        attention_window: number of outputs to attend to, including the newest.
        attention_size: width of the vectors that additive and scaled attention compare.
        tied: share one matrix between embedding and output (Press and Wolf 2017); if
            their widths differ, a linear layer projects the hidden state to the
            embedding's width.
        output: `softmax` over all tokens at once, or `adaptive`, in two steps for rare
            tokens, whose vectors are narrower (Grave et al. 2017; if tied, also in the
            embedding, Baevski and Auli 2019).
        cutoffs: frequency ranks at which the clusters of an adaptive softmax begin, such
            as [2000, 10000].
        self_normalised: true if logits were trained to approximate log-probabilities; set
            by training, not in a recipe.
        dropout: share of values dropped in training before the output layer; also the
            default of `input_dropout` and `hidden_dropout`.
        input_dropout: share of embedding values dropped.
        hidden_dropout: share of values dropped between layers.
        embedding_dropout: share of the vocabulary whose vectors are dropped in each
            segment of training text (Gal and Ghahramani 2016).
        weight_drop: share of the hidden-to-hidden weights dropped in each segment (Merity
            et al. 2018).
        variational: drop the same values of a segment's row at every step (Gal and
            Ghahramani 2016) instead of new values at each step.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cell: CellName = "lstm"
    layers: int = Field(1, ge=1, le=16)
    embedding_size: int = Field(256, ge=1, le=8192)
    hidden_size: int = Field(512, ge=1, le=8192)
    window: int = Field(5, ge=1, le=64)
    activation: ActivationName = "tanh"
    residual: bool = False
    layer_norm: bool = False
    orthogonal: bool = False
    forget_bias: float = Field(1.0, ge=-100, le=100)
    learned_state: bool = False
    attention: AttentionName = "none"
    attention_window: int = Field(32, ge=2, le=512)
    attention_size: int = Field(128, ge=1, le=8192)
    tied: bool = True
    output: OutputName = "softmax"
    cutoffs: tuple[int, ...] = Field((), validate_default=True)
    self_normalised: bool = False
    dropout: float = Field(0.2, ge=0, lt=1)
    input_dropout: float | None = Field(None, ge=0, lt=1)
    hidden_dropout: float | None = Field(None, ge=0, lt=1)
    embedding_dropout: float = Field(0.0, ge=0, lt=1)
    weight_drop: float = Field(0.0, ge=0, lt=1)
    variational: bool = True

    @field_validator("cutoffs")
    @classmethod
    def _fit(cls, cutoffs: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        problem = cutoffs_problem(cutoffs) if cutoffs or info.data.get("output") == "adaptive" else None
        if problem is not None:
            raise ValueError(problem)
        return cutoffs

    @property
    def of_inputs(self) -> float:
        """Dropout of embeddings."""
        return self.dropout if self.input_dropout is None else self.input_dropout

    @property
    def between_layers(self) -> float:
        """Dropout between layers."""
        return self.dropout if self.hidden_dropout is None else self.hidden_dropout

    @property
    def layer_inputs(self) -> tuple[int, ...]:
        """Input width of each layer."""
        tokens = self.window if self.cell == "feed-forward" else 1
        return (tokens * self.embedding_size, *[self.hidden_size] * (self.layers - 1))

    @property
    def skips(self) -> list[bool]:
        """True for each layer whose input is added to its output."""
        return [self.residual and size == self.hidden_size for size in self.layer_inputs]

    @property
    def feature_size(self) -> int:
        """Width of the output layer's input, E."""
        return self.embedding_size if self.tied else self.hidden_size

    @property
    def cell_states(self) -> int:
        """Number of vectors in a layer's cell state; 0 for feed-forward layers, which have no cells."""
        return {"feed-forward": 0, "lstm": 2}.get(self.cell, 1)

    def clusters(self, vocab_size: int) -> list[tuple[int, int]]:
        """Return each cluster's number of tokens and vector width; none if not adaptive."""
        if self.output != "adaptive":
            return []
        return cluster_shapes(self.cutoffs, vocab_size=vocab_size, width=self.feature_size)

    @property
    def int8_problem(self) -> str | None:
        """Reason why int8 does not support the network; None if it does."""
        width = max(self.layer_inputs)
        if width > MAX_INT8_WIDTH:
            return f"int8 supports layer inputs of up to {MAX_INT8_WIDTH} numbers, given {width}"
        return None

    def unused_key(self) -> str | None:
        """Return a message about a key that was set without effect; None if there is none."""
        for key, (other, values) in ACTS_WITH.items():
            given = getattr(self, other)
            if key in self.model_fields_set and given not in values:
                return f"{key} requires neural.{other}={' or '.join(values)}, given {given}"
        if "self_normalised" in self.model_fields_set:
            return f"self_normalised is decided by train.self_normalise and train.loss, given {self.self_normalised}"
        if self.residual and self.hidden_size not in self.layer_inputs:
            return (
                f"residual requires layers as wide as their input, given neural.hidden_size={self.hidden_size} "
                f"and one layer that reads {self.layer_inputs[0]}"
            )
        return None


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
