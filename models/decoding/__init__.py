"""Decoding: choice of tokens from distributions, by sampling or beam search, with rules and stop texts."""
