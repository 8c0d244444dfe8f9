"""Cache language models: recent tokens, and a mixture of their probabilities with any model's."""
