"""Language models: families, vocabularies, tokenizers, decoding and checkpoints.

Pure: reads no clock and no environment, and no network but in `checkpoint`; imports neither HTTP
code nor training.
"""
