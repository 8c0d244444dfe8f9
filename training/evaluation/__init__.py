"""Evaluation of published models: perplexity, autocomplete and spelling."""
