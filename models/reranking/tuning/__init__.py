"""Tuning of the weights of a log-linear model over candidates, and significance of the gain."""
