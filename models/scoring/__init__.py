"""Scores of texts, prompts and candidate lists by models with their tokenizers."""
