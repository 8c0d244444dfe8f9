"""From a device's name to a device that is there."""

import torch

from models.errors import InvalidInputError


def resolve_device(name: str) -> torch.device:
    """The device that a name stands for.

    Single precision is single precision on it: cuDNN's recurrent kernels, unlike products, round their
    factors to ten bits unless they are told not to, and scores would be off by more than a CPU's golden
    test allows.

    Args:
        name: `cpu`, `cuda`, `cuda:1`, …, or `auto`: a CUDA device if there is one, else the CPU.

    Raises:
        InvalidInputError: the name is not one of these, or this machine has no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if kind not in {"cpu", "cuda"} or (":" in name and not (kind == "cuda" and index.isdecimal())):
        raise InvalidInputError(
            f"device is {name!r}, it can be auto, cpu, cuda or cuda:<number>", parameter="device"
        )
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise InvalidInputError(
            f"device is {name!r}, but torch sees {torch.cuda.device_count()} CUDA devices here",
            parameter="device",
        )
    if kind == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    return torch.device(kind, int(index)) if index else torch.device(kind)
