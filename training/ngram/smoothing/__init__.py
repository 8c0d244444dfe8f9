"""Smoothing: from counts to the probabilities and back-off weights of a back-off model."""
