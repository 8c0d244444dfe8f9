"""Dropout as recurrent language models use it: of values, of whole tokens, of weights. Training mode only."""

from torch import Tensor, nn
from torch.nn import functional


class Dropout(nn.Module):
    """Drops values of [T, B, W] and scales up those that stay.

    Args:
        share: of the values.
        variational: whether a row drops the same values at each of the T steps (Gal and Ghahramani 2016).
    """

    def __init__(self, share: float, *, variational: bool) -> None:
        super().__init__()
        self.share = share
        self.variational = variational

    def forward(self, values: Tensor) -> Tensor:
        """The values [T, B, W], some of them 0 in training mode."""
        if not self.training or not self.share:
            return values
        if not self.variational:
            return functional.dropout(values, self.share)
        return values * _kept(values.new_empty(1, *values.shape[1:]), self.share)


def drop_tokens(embedded: Tensor, tokens: Tensor, share: float, vocab_size: int) -> Tensor:
    """Embeddings [T, B, E] of tokens [T, B], those of some tokens of the vocabulary 0 wherever they stand."""
    kept = _kept(embedded.new_empty(vocab_size, 1), share)
    return embedded * kept[tokens]


def drop_weights(weights: Tensor, share: float) -> Tensor:
    """Weights of which a share is 0, DropConnect (Wan et al. 2013; Merity et al. 2018)."""
    return functional.dropout(weights, share)


def _kept(mask: Tensor, share: float) -> Tensor:
    return mask.bernoulli_(1 - share).div_(1 - share)
