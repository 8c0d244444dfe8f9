"""Back-off n-gram models as tensors on a device; nothing else here imports torch."""
