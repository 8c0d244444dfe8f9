"""Decoding: choice of tokens by sampling or beam search, with rules and stop texts."""
