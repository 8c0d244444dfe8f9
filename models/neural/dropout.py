"""Dropout as recurrent language models use it: of values, of whole tokens, of weights. Training mode only."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Dropout(nn.Module):
    """Drops values of [T, B, W] and scales up those that stay.

    Args:
        share: of the values.
        variational: whether a row drops the same values at each of the T steps (Gal and Ghahramani 2016).

    Attributes:
        shard: which of how many equal parts of a batch the rows are; others may be in other processes, and
            masks are those of the whole batch.
    """

    def __init__(self, share: float, *, variational: bool) -> None:
        super().__init__()
        self.share = share
        self.variational = variational
        self.shard = (0, 1)

    def forward(self, values: Tensor) -> Tensor:
        """The values [T, B, W], some of them 0 in training mode."""
        if not self.training or not self.share:
            return values
        number, count = self.shard
        if count == 1 and not self.variational:
            return functional.dropout(values, self.share)
        times, rows, width = values.shape
        shape = (1 if self.variational else times, rows * count, width)
        if self.variational:
            mask = _dropout_mask(values.new_empty(shape), self.share)
        else:
            mask = functional.dropout(values.new_ones(shape), self.share)
        return values * mask[:, number * rows : (number + 1) * rows]


def drop_tokens(embedded: Tensor, tokens: Tensor, share: float, vocab_size: int) -> Tensor:
    """Embeddings [T, B, E] of tokens [T, B], those of some tokens of the vocabulary 0 wherever they stand."""
    kept = _dropout_mask(embedded.new_empty(vocab_size, 1), share)
    return embedded * kept[tokens]


def drop_weights(weights: Tensor, share: float) -> Tensor:
    """Weights of which a share is 0, DropConnect (Wan et al. 2013; Merity et al. 2018).

    There are many, and on a CPU torch draws a number of 32 bits for each, one after the other, which takes
    as long as the layer: sixteen bits do, so a share is one in 65,536 off at most.
    """
    if weights.is_cuda:
        return functional.dropout(weights, share)
    count = weights.numel()
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = draws.view(torch.int16)[:count].view(weights.shape) >= round(share * 2**16) - 2**15
    return weights * kept.to(weights.dtype).div_(1 - share)


def _dropout_mask(mask: Tensor, share: float) -> Tensor:
    return mask.bernoulli_(1 - share).div_(1 - share)
