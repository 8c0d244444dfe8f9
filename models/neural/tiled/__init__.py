"""Products in single precision on a processor's matrix tiles, for serving: weights are packed once, at load."""
