"""Re-ranking of candidates by a weighted sum of features."""
