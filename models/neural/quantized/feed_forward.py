"""Layers over a fixed window of tokens, in integers."""

from typing import cast

import numpy as np
from torch import nn

from models.arrays import FloatArray, TokenIds
from models.neural.config import NetworkConfig
from models.neural.feed_forward import FeedForward
from models.neural.quantized.body import Activations, BodyOutputs, Int8Body, row_lengths
from models.neural.quantized.layers import run_dense_layer
from models.neural.quantized.linear import quantise_linear
from models.neural.quantized.norm import layer_norm_of
from models.neural.quantized.rows import Int8Rows
from models.neural.quantized.state import HiddenArrays
from models.shelf import PackedWeightCache


class Int8FeedForward(Int8Body):
    """The layers. Carries what `FeedForward` carries: the last vectors [n - 1, B, E].

    Args:
        body: the layers in single precision.
        config: what they are.
        shelf: where their weights lie.
    """

    def __init__(self, body: FeedForward, config: NetworkConfig, shelf: PackedWeightCache) -> None:
        self.layers = [
            quantise_linear(cast("nn.Linear", layer), shelf, f"layers.{number}")
            for number, layer in enumerate(body.layers)
        ]
        self.norms = [layer_norm_of(norm) for norm in body.norms]
        self.skips = body.skips
        self.rectified = config.activation == "relu"
        self.window, self.embedding_size = config.window, config.embedding_size

    def read(self, vectors: Int8Rows, alive: TokenIds, carried: HiddenArrays) -> BodyOutputs:
        """Read up to T vectors a row."""
        steps, batch = len(alive), carried[0].shape[1]
        read = Activations(vectors, None, (steps, batch, self.embedding_size)).floats
        seen = np.concatenate([carried[0], read])
        windows = np.concatenate([seen[k : k + steps] for k in range(self.window)], axis=2)
        stretch = Activations(None, windows, (steps, batch, windows.shape[2]))
        for number, layer in enumerate(self.layers):
            below, inputs = stretch, stretch.normalised(self.norms[number]).rows
            outputs = np.empty((steps, batch, layer.size), np.float32)
            flat = outputs.reshape(-1, layer.size)
            run_dense_layer(layer.matrix, layer.bias, inputs, batch, self.rectified, flat)
            stretch = Activations(None, outputs, (steps, batch, layer.size))
            if self.skips[number]:
                stretch = stretch.plus(below)
        stretch = stretch.normalised(self.norms[-1])
        return BodyOutputs(stretch.floats, stretch.rows, (self._last(seen, alive),))

    def _last(self, seen: FloatArray, alive: TokenIds) -> FloatArray:
        """The vectors [n - 1, B, E] that end where each row does."""
        batch = seen.shape[1]
        steps = row_lengths(alive, batch) + np.arange(self.window - 1)[:, None]
        last: FloatArray = seen[steps, np.arange(batch)]
        return last
