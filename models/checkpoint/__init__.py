"""Versioned checkpoints and their registries: the only contract between training and serving.

Registries in object stores are the one place where `models` reaches a network, through fsspec.
"""
