"""Layers over a fixed window of tokens, which carry nothing but the window."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.neural.body import Body, Hidden
from models.neural.config import NetworkConfig
from models.neural.dropout import Dropout


class FeedForward(Body):
    """f(W [x_{t-n+1}; …; x_t] + b), and more layers above (Bengio et al. 2003).

    With many layers, skips and normalisation it is the modern variant of Sun and Iyyer (2021). Carries
    the last n - 1 vectors [n - 1, B, E]; they are zeros before a text begins.

    Args:
        config: the shape; n is its `window`.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.width = config.hidden_size
        self.before = config.window - 1
        self.embedding_size = config.embedding_size
        sizes = config.layer_inputs
        self.layers = nn.ModuleList([nn.Linear(size, self.width) for size in sizes])
        self.norms = nn.ModuleList(
            [nn.LayerNorm(size) if config.layer_norm else nn.Identity() for size in [*sizes, self.width]]
        )
        self.skips = [config.residual and size == self.width for size in sizes]
        self.activation = torch.tanh if config.activation == "tanh" else functional.relu
        self.dropout = Dropout(config.between_layers, variational=config.variational)

    def start(self, batch: int) -> Hidden:
        """Zeros."""
        like = next(self.parameters())
        return (like.new_zeros(self.before, batch, self.embedding_size),)

    def forward(self, inputs: Tensor, carried: Hidden) -> tuple[Tensor, Hidden]:
        """Read T vectors a row: [T, B, E] to [T, B, H], all T at once."""
        seen = torch.cat([carried[0], inputs])
        width = len(inputs)
        outputs = torch.cat([seen[k : k + width] for k in range(self.before + 1)], dim=-1)
        for number, (layer, norm) in enumerate(zip(self.layers, self.norms[:-1], strict=True)):
            below = self.dropout(norm(outputs)) if number else norm(outputs)
            above = self.activation(layer(below))
            outputs = above + outputs if self.skips[number] else above
        return self.norms[-1](outputs), (seen[width:],)
