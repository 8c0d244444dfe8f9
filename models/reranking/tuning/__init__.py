"""Tuning of a log-linear model's weights over candidates, and significance of the gain."""
