"""Language models: families, vocabularies, tokenizers, decoding and checkpoints.

Pure: reads no clock, environment or network (but in `checkpoint`); imports neither HTTP
code nor training.
"""
