"""Pretrained causal language models of Hugging Face's formats, computed by the library transformers."""
