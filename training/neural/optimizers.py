"""The optimisers: which settings act on which, and what decays."""

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from training.neural.settings import TrainSettings


def make_optimizer(network: nn.Module, settings: TrainSettings) -> Optimizer:
    """The optimiser that the settings name, over all parameters.

    Weight decay acts on matrices only. Biases, the gains of norms and learned initial states set
    levels; pulling them to zero only shifts what the network expresses.
    """
    matrices = [p for p in network.parameters() if p.ndim == 2]
    others = [p for p in network.parameters() if p.ndim != 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    rate = settings.learning_rate
    if settings.optimizer == "sgd":
        return SGD(groups, lr=rate, momentum=settings.momentum, fused=True)
    if settings.optimizer == "rmsprop":
        return RMSprop(groups, lr=rate, momentum=settings.momentum, foreach=True)
    adam = AdamW if settings.optimizer == "adamw" else Adam
    return adam(groups, lr=rate, betas=settings.betas, fused=True)


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Make the next update use a rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
