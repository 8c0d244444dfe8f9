"""Back-off n-gram models as torch tensors on a device; the only part of `models.ngram` that imports torch."""
