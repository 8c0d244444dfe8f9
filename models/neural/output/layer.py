"""What an output layer can do; `<s>` is never predicted."""

from abc import ABC, abstractmethod

from torch import Tensor, nn


class OutputLayer(nn.Module, ABC):
    """Vectors to distributions over the vocabulary of size V.

    Attributes:
        holds_few_logits: whether it is never all logits of many vectors that are in memory at once.
    """

    streams_logits = False

    @abstractmethod
    def log_probs(self, features: Tensor) -> Tensor:
        """Natural-log probabilities [N, V] after vectors [N, E]; minus infinity for `<s>`."""

    @abstractmethod
    def target_log_probs(self, features: Tensor, ids: Tensor) -> Tensor:
        """Natural-log probabilities [N] of ids [N] after vectors [N, E]."""

    @abstractmethod
    def choice_log_probs(self, features: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
        """Natural-log probabilities [C] of ids [C] after vectors [N, E], by number in `rows` [C], never falling.

        A vector costs what its distribution does, however many ids there are.
        """

    def target_logits(self, features: Tensor, ids: Tensor) -> Tensor:
        """Unnormalised log-probabilities [N] of ids [N], without a sum over the vocabulary where that can be spared."""
        return self.target_log_probs(features, ids)

    @abstractmethod
    def initialise_from_counts(self, counts: Tensor) -> None:
        """Set biases so that the layer starts from the tokens' frequencies.

        Args:
            counts: how often each token occurs, [V].
        """

    @property
    def problem(self) -> str | None:
        """What is wrong with stored weights of the right shapes, in words; None if nothing is."""
        return None
