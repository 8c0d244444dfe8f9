"""Devices that tests of torch code run on: this machine's."""

import torch

DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
"""Tests are collected once for each, so a machine without CUDA has none that needs it."""
