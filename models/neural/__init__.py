"""Neural language models in torch."""
