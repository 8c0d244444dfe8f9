"""Offline: corpora, tokenizers, estimation, training, evaluation, publishing; never imports `service`."""
