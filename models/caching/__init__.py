"""What a cache remembers of a text, and the probabilities it makes of that."""
