"""Registries in object stores: the one place where `models` reaches a network, by way of fsspec."""
