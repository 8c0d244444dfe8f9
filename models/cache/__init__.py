"""Cache language models: recent tokens, mixed with the probabilities of any model."""
