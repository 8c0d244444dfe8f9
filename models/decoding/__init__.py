"""Choosing tokens from distributions: rules, kernels that follow them, beams, stopping."""
