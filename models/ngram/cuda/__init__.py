"""Back-off n-gram models as torch tensors on a device; nothing else in `models.ngram` imports torch."""
