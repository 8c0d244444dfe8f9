"""Choosing tokens from distributions: processors, sampling, stopping."""
