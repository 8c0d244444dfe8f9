"""Memory that training gives back and takes again at every update."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_MAX_THRESHOLD = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let this process keep large blocks that it frees, to use them again.

    glibc returns each to the system and takes it back page by page, zeroed: an eighth of an update's
    time on a CPU. Other allocators are left alone.

    Returns:
        Whether it is so now.
    """
    if not sys.platform.startswith("linux"):
        return False
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is None:
        return False
    return bool(tune(_MMAP_THRESHOLD, _MAX_THRESHOLD >> 1)) and bool(tune(_TRIM_THRESHOLD, _MAX_THRESHOLD))
