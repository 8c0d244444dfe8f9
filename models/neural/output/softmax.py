"""The softmax over the whole vocabulary."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.neural.output.layer import OutputLayer
from models.neural.output.log_sums import log_sum_exp
from models.vocabulary import BOS

INITIAL_RANGE = 0.1


class Softmax(OutputLayer):
    """p(w) ∝ exp(v_w · x + b_w).

    Args:
        width: E, of the vectors.
        vocab_size: V.
        shared: the embedding's matrix [V, E] if it is the output's too; None for one of its own.
    """

    def __init__(self, width: int, vocab_size: int, *, shared: nn.Parameter | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, width)) if shared is None else shared
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        if shared is None:
            nn.init.uniform_(self.weight, -INITIAL_RANGE, INITIAL_RANGE)
        never_predicted = torch.zeros(vocab_size, device="cpu")  # known, also where all else is shapes alone
        never_predicted[BOS] = -math.inf
        self.register_buffer("never_predicted", never_predicted, persistent=False)  # added to the bias
        self.never_predicted: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """Unnormalised log-probabilities [N, V] after vectors [N, E]; minus infinity for `<s>`."""
        return functional.linear(features, self.weight, self.bias + self.never_predicted)

    def log_probs(self, features: Tensor) -> Tensor:
        """Natural-log probabilities [N, V] after vectors [N, E]."""
        return torch.log_softmax(self.logits(features), dim=-1)

    def target_log_probs(self, features: Tensor, ids: Tensor) -> Tensor:
        """Natural-log probabilities [N] of ids [N]."""
        logits = self.logits(features)
        if torch.is_grad_enabled() or logits.is_cuda:
            return -functional.cross_entropy(logits, ids, reduction="none")
        return logits.gather(1, ids[:, None])[:, 0] - log_sum_exp(logits)

    def choice_log_probs(self, features: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
        """Natural-log probabilities [C] of ids [C] after vectors [N, E], by number in `rows` [C]."""
        logits = self.logits(features)
        return logits[rows, ids] - log_sum_exp(logits)[rows]

    def target_logits(self, features: Tensor, ids: Tensor) -> Tensor:
        """Unnormalised log-probabilities [N] of ids [N], at the cost of a dot product each."""
        return (features * self.weight[ids]).sum(-1) + self.bias[ids] + self.never_predicted[ids]

    @torch.no_grad()
    def initialise_from_counts(self, counts: Tensor) -> None:
        """Set the bias to the tokens' log frequencies, which saves the first epoch's learning them."""
        self.bias.copy_(torch.log(counts / counts.sum()))
