"""The network: embedding → body → (projection) → output layer, often tied to the embedding.

Time comes first, [T, B], the layout that the recurrent kernels compute in. Dropout is active in
training mode only.
"""

from typing import cast

from torch import Tensor, nn

from models.neural.body import Body, Hidden
from models.neural.config import NetworkConfig
from models.neural.dropout import Dropout, drop_tokens
from models.neural.output.layer import OutputLayer
from models.neural.output.softmax import INITIAL_RANGE, Softmax
from models.neural.recurrent import Recurrent


class Network(nn.Module):
    """A neural language model's parameters and forward computation.

    Args:
        config: the shape.
        vocab_size: V.
    """

    def __init__(self, config: NetworkConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.embedding = nn.Embedding(vocab_size, config.embedding_size)
        nn.init.uniform_(self.embedding.weight, -INITIAL_RANGE, INITIAL_RANGE)
        self.input_dropout = Dropout(config.of_inputs, variational=config.variational)
        self.body: Body = Recurrent(config)
        self.output_dropout = Dropout(config.dropout, variational=config.variational)
        width = config.embedding_size if config.tied else self.body.width
        narrowed = self.body.width != width
        self.projection = nn.Linear(self.body.width, width) if narrowed else nn.Identity()
        shared = cast("nn.Parameter", self.embedding.weight) if config.tied else None
        self.output: OutputLayer = Softmax(width, vocab_size, shared=shared)

    def zero_hidden(self, batch: int) -> Hidden:
        """What is carried before any token."""
        return self.body.zero_hidden(batch)

    def forward(self, tokens: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """Read T tokens a row.

        Args:
            tokens: ids [T, B].
            hidden: what was carried up to the first of them; it is not changed.

        Returns:
            The body's outputs [T, B, W] and what is carried on.
        """
        embedded = self.embedding(tokens)
        if self.training and self.config.embedding_dropout:
            embedded = drop_tokens(embedded, tokens, self.config.embedding_dropout, self.vocab_size)
        outputs, hidden = self.body(self.input_dropout(embedded), hidden)
        return outputs, hidden

    def step(self, tokens: Tensor, hidden: Hidden) -> Hidden:
        """Read one token a row, ids [B], in evaluation mode: the same as `forward`, faster for few rows on a CPU."""
        return self.body.step(self.embedding(tokens), hidden)

    def features(self, outputs: Tensor) -> Tensor:
        """What the output layer reads, [..., E], of the body's outputs [..., W]; in training [T, B, W]."""
        narrowed: Tensor = self.projection(self.output_dropout(outputs))
        return narrowed

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Natural-log probabilities [N, V] of the next token after outputs [N, W]."""
        return self.output.log_probs(self.features(outputs))

    def target_log_probs(self, outputs: Tensor, ids: Tensor) -> Tensor:
        """Natural-log probabilities [N] of given next tokens, ids [N], after outputs [N, W]."""
        return self.output.target_log_probs(self.features(outputs), ids)
