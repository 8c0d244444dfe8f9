"""Which floating-point type the matrix products of training compute in."""

from typing import Any

import torch

from training.neural.settings import TrainSettings

_CPU_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")


def training_precision(settings: TrainSettings, device: torch.device) -> torch.dtype:
    """The type that the settings name; for `auto`, bfloat16 where the device has instructions for it."""
    if settings.precision == "auto":
        return torch.bfloat16 if _has_bfloat16(device) else torch.float32
    return torch.bfloat16 if settings.precision == "bfloat16" else torch.float32


def _has_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older torch cannot say
    return any(capabilities.get(name, False) for name in _CPU_INSTRUCTIONS)


def autocast(precision: torch.dtype, device: torch.device) -> torch.autocast:
    """A context in which matrix products compute in a type."""
    return torch.autocast(device.type, precision, enabled=precision != torch.float32)
