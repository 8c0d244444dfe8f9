"""Smoothing methods of n-gram models."""
