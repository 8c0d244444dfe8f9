"""Array types, and conversion of torch tensors to NumPy.

Models compute in NumPy on a CPU and in torch on a CUDA device. Code that uses their results on the
host converts them here; this module does not import torch.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

TokenIds: TypeAlias = npt.NDArray[np.int64]
"""Token ids, [B] or [B, T]."""

FloatArray: TypeAlias = npt.NDArray[np.float32]
"""Natural-log probabilities in single precision."""


class Array(Protocol):
    """Common interface of NumPy arrays and torch tensors."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        ...

    @property
    def ndim(self) -> int:
        """Number of axes."""
        ...

    def __getitem__(self, key: Any, /) -> Any: ...


def to_numpy(array: Array) -> FloatArray:
    """The same values as a float32 NumPy array on the host; no copy if the array is one already."""
    if isinstance(array, np.ndarray):
        return np.asarray(array, dtype=np.float32)
    tensor: Any = array
    return np.asarray(tensor.detach().cpu().numpy(), dtype=np.float32)


def on_one_device(arrays: Sequence[Array]) -> bool:
    """Return whether all arrays are torch tensors on one device, so that they can be combined there."""
    devices = {None if isinstance(array, np.ndarray) else getattr(array, "device", None) for array in arrays}
    return len(devices) == 1 and None not in devices
