"""Penalties on a body's outputs (Merity et al. 2017, "Revisiting activation regularization"): AR and TAR."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.neural.network import Network
from training.neural.settings import TrainSettings


class OutputPenalties:
    """Adds α · mean(d²) + β · mean((h_t − h_{t−1})²) to what is minimised, h being outputs, d those after dropout.

    Their gradients are simple, so they are added where the loss's own gradient passes by: nothing is
    propagated twice. The loss that is reported is without them.

    Args:
        network: whose outputs [T, B, W] are penalised in training.
        settings: α, `activation_penalty`, and β, `slowness_penalty`.

    Attributes:
        scale: of both; 1, but for a process that has a part of the batch.
    """

    def __init__(self, network: Network, settings: TrainSettings) -> None:
        self.scale = 1.0
        self._activation = settings.activation_penalty
        self._slowness = settings.slowness_penalty
        if self._activation or self._slowness:
            network.output_dropout.register_forward_hook(self._hook)

    def _hook(self, module: nn.Module, given: tuple[Tensor], dropped: Tensor) -> None:
        outputs = given[0]
        if not module.training or not outputs.requires_grad:
            return
        if self._activation:
            activity = dropped.detach()
            _hook_gradient(dropped, lambda gradient: self._with_activation(gradient, activity))
        if self._slowness and len(outputs) > 1:
            raw = outputs.detach()
            _hook_gradient(outputs, lambda gradient: self._with_slowness(gradient, raw))

    def _with_activation(self, gradient: Tensor, dropped: Tensor) -> Tensor:
        return torch.add(gradient, dropped, alpha=2 * self.scale * self._activation / dropped.numel())

    def _with_slowness(self, gradient: Tensor, outputs: Tensor) -> Tensor:
        changes = outputs[1:] - outputs[:-1]
        share = 2 * self.scale * self._slowness / changes.numel()
        gradient = gradient.clone()
        gradient[1:].add_(changes, alpha=share)
        gradient[:-1].sub_(changes, alpha=share)
        return gradient


def _hook_gradient(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    tensor.register_hook(change)  # type: ignore[no-untyped-call]  # torch ships it untyped
