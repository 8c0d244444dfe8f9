"""Versioned checkpoints and their registries: the only contract between training and serving.

Registries in object stores, reached through fsspec, are the only network access of `models`.
"""
