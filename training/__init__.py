"""Training, evaluation and publishing of language models."""
