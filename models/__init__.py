"""What a language model is: families, vocabularies, tokenizers, decoding, checkpoints.

Pure: reads no clock, no environment and no network; knows nothing of HTTP or of training.
"""
