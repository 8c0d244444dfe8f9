"""The recurrence h_t = a_t h_{t-1} + b_t, all steps at once.

Steps are joined by doubling (Hillis and Steele 1986): log₂ T passes of element-wise work. Products of
decays in [0, 1] can only vanish, so nothing needs logarithms or overflows, as cumulative quotients would.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def linear_recurrence(decays: Tensor, drives: Tensor, start: Tensor) -> Tensor:
    """h_1 … h_T [T, ...] of h_t = a_t h_{t-1} + b_t.

    Args:
        decays: a [T, ...].
        drives: b, of the same shape.
        start: h_0 [...].
    """
    outputs: Tensor = _LinearRecurrence.apply(decays, drives, start)  # type: ignore[no-untyped-call]
    return outputs


class _LinearRecurrence(torch.autograd.Function):
    """Its gradient is the same recurrence from the last step to the first."""

    @staticmethod
    def forward(ctx: Any, decays: Tensor, drives: Tensor, start: Tensor) -> Tensor:
        first = torch.addcmul(drives[0], decays[0], start)
        outputs = _scan(decays, torch.cat([first[None], drives[1:]]))
        ctx.save_for_backward(decays, start, outputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decays, start, outputs = ctx.saved_tensors
        # the gradient of b_t is that of h_t: its own plus a_{t+1} times that of h_{t+1}
        later = torch.cat([decays[1:], torch.zeros_like(start)[None]])
        of_drives = _scan(later.flip(0), of_outputs.flip(0)).flip(0)
        before = torch.cat([start[None], outputs[:-1]])
        return of_drives * before, of_drives, of_drives[0] * decays[0]


def _scan(decays: Tensor, drives: Tensor) -> Tensor:
    """h_1 … h_T from h_0 = 0."""
    width = 1
    while width < len(decays):  # each entry stands for the `width` steps that end with it
        drives = torch.cat([drives[:width], torch.addcmul(drives[width:], decays[width:], drives[:-width])])
        decays = torch.cat([decays[:width], decays[width:] * decays[:-width]])
        width *= 2
    return drives
