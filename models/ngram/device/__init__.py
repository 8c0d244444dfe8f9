"""Back-off n-gram models as tensors on a device: the part of `models.ngram` that imports torch."""
