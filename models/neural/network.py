"""The network: embedding → body → (projection) → output layer, often tied to the embedding.

Time comes first, [T, B], the layout that the recurrent kernels compute in. Dropout is active in
training mode only.
"""

from typing import cast

import torch
from torch import Tensor, nn

from models.neural.attention import AttentionBody
from models.neural.body import Body, Hidden
from models.neural.config import NetworkConfig
from models.neural.dropout import Dropout, drop_tokens
from models.neural.feed_forward import FeedForward
from models.neural.output.choice import make_embedding, make_output_layer
from models.neural.output.softmax import Softmax
from models.neural.recurrent import Recurrent


class Network(nn.Module):
    """A neural language model's parameters and forward computation.

    Args:
        config: the shape.
        vocab_size: V.

    Attributes:
        takes_any_shape: whether numbers of rows and tokens that were not met before cost nothing more.

    Raises:
        InvalidInputError: the configuration's cutoffs do not fit the vocabulary.
    """

    accepts_any_shape = False

    def __init__(self, config: NetworkConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.embedding = make_embedding(config, vocab_size)
        self.input_dropout = Dropout(config.of_inputs, variational=config.variational)
        self.body: Body = FeedForward(config) if config.cell == "feed-forward" else Recurrent(config)
        if config.attention != "none":
            self.body = AttentionBody(self.body, config)
        self.output_dropout = Dropout(config.dropout, variational=config.variational)
        width = config.embedding_size if config.tied else self.body.width
        self.feature_size = width
        narrowed = self.body.width != width
        self.projection = nn.Linear(self.body.width, width) if narrowed else nn.Identity()
        self.output = make_output_layer(config, self.embedding, vocab_size=vocab_size, width=width)

    def tie(self) -> None:
        """Let the output layer have the embedding's matrix again, after the embedding was given another."""
        if self.config.tied and isinstance(self.output, Softmax):
            self.output.weight = cast("nn.Parameter", self.embedding.weight)

    def initial_hidden(self, batch: int) -> Hidden:
        """What is carried before any token: no output, and what the body starts with, mostly zeros."""
        return (next(self.parameters()).new_zeros(1, batch, self.body.width), *self.body.start(batch))

    def detach_and_reset(self, hidden: Hidden, kept: Tensor) -> Hidden:
        """What a training step starts from: cut off from the past's gradients, and in some rows begun anew.

        Args:
            hidden: what the step before left.
            kept: which rows go on, booleans [B].
        """
        begun = self.initial_hidden(len(kept))
        mask = kept[None, :, None]
        return tuple(torch.where(mask, part.detach(), new) for part, new in zip(hidden, begun, strict=True))

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
        outputs, carried = self.body(self.input_dropout(embedded), hidden[1:])
        return outputs, (outputs[-1:], *carried)

    def step(self, tokens: Tensor, hidden: Hidden) -> Hidden:
        """Read one token a row, ids [B], in evaluation mode: the same as `forward`, faster for few rows on a CPU."""
        output, carried = self.body.step(self.embedding(tokens), hidden[1:])
        return (output[None], *carried)

    def features(self, outputs: Tensor) -> Tensor:
        """What the output layer reads, [..., E], of the body's outputs [..., W]; in training [T, B, W]."""
        narrowed: Tensor = self.projection(self.output_dropout(outputs))
        return narrowed

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Natural-log probabilities [N, V] of the next token after outputs [N, W]."""
        return self.output.log_probs(self.features(outputs))

    def target_logits(self, outputs: Tensor, ids: Tensor) -> Tensor:
        """Unnormalised log-probabilities [N] of given next tokens, ids [N], after outputs [N, W]."""
        return self.output.target_logits(self.features(outputs), ids)

    def choice_log_probs(self, outputs: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
        """Natural-log probabilities [C] of ids [C] after outputs [N, W], by number in `rows` [C], never falling."""
        return self.output.choice_log_probs(self.features(outputs), rows, ids)

    def target_log_probs(self, outputs: Tensor, ids: Tensor) -> Tensor:
        """Natural-log probabilities [N] of given next tokens, ids [N], after outputs [N, W]."""
        return self.output.target_log_probs(self.features(outputs), ids)
