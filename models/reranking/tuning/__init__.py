"""Tuning of the weights of a log-linear model over candidates, and tests whether they help."""
