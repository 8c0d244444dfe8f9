"""Choosing among candidates by a weighted sum of features."""
