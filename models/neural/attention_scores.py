"""How much an output looks at each earlier one, before normalisation: the three classic formulas.

Each maps outputs [T, B, H] and what they may look at, [M + T, B, H], to scores [B, T, M + T]; those
outside the band j ∈ [t, t + M] have no meaning.
"""

import math

import torch
from torch import Tensor, nn

_MAX_TANH_VALUES = 1 << 22  # values of tanh at once (16 MiB)


class AdditiveScores(nn.Module):
    """v · tanh(W q + U k + b) (Bahdanau et al. 2015).

    Args:
        width: H.
        size: of the vectors that are added.
    """

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.queries = nn.Linear(width, size)
        self.keys = nn.Linear(width, size, bias=False)
        self.reduction = nn.Linear(size, 1, bias=False)

    def forward(self, outputs: Tensor, seen: Tensor) -> Tensor:
        """Scores [B, T, M + T], 0 outside the band."""
        times, batch = outputs.shape[:2]
        window = len(seen) - times + 1
        queries = self.queries(outputs)
        keys = self.keys(seen).unfold(0, window, 1).transpose(2, 3)  # [T, B, window, size], no copy
        step = max(1, _MAX_TANH_VALUES // max(1, batch * window * queries.shape[2]))
        banded = torch.cat(
            [
                self.reduction(torch.tanh(queries[t : t + step, :, None] + keys[t : t + step]))[..., 0]
                for t in range(0, times, step)
            ]
        )
        columns = torch.arange(times, device=seen.device)[:, None] + torch.arange(window, device=seen.device)
        scores = banded.new_zeros(batch, times, len(seen))
        return scores.scatter(2, columns.expand(batch, -1, -1), banded.transpose(0, 1))


class MultiplicativeScores(nn.Module):
    """q · W k (Luong et al. 2015, "general").

    Args:
        width: H.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.queries = nn.Linear(width, width, bias=False)

    def forward(self, outputs: Tensor, seen: Tensor) -> Tensor:
        """Scores [B, T, M + T]."""
        queries: Tensor = self.queries(outputs)
        return queries.transpose(0, 1) @ seen.permute(1, 2, 0)


class ScaledScores(nn.Module):
    """W q · U k / √size (Vaswani et al. 2017).

    Args:
        width: H.
        size: of the vectors that are multiplied.
    """

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.queries = nn.Linear(width, size, bias=False)
        self.keys = nn.Linear(width, size, bias=False)
        self.scale = 1 / math.sqrt(size)

    def forward(self, outputs: Tensor, seen: Tensor) -> Tensor:
        """Scores [B, T, M + T]."""
        queries: Tensor = self.queries(outputs) * self.scale
        keys: Tensor = self.keys(seen)
        return queries.transpose(0, 1) @ keys.permute(1, 2, 0)
