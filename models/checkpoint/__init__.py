"""Versioned checkpoints on disk: the only contract between training and serving."""
