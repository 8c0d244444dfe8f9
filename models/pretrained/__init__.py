"""Pretrained causal language models in Hugging Face's formats, computed by transformers."""
