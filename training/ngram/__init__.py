"""Estimating n-gram models."""
