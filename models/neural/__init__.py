"""Recurrent language models in torch."""
