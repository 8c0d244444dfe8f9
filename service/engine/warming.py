"""A model's first answers, given to nobody: kernels are compiled and chosen before the first request."""

from importlib import import_module
from typing import Any

import numpy as np

from models.protocol import BlockSampler, LanguageModel, TopKPredictor, supports
from models.scoring import prefill_sequences, score_sequences
from models.vocabulary import EOS

BATCHES = (1, 2, 17, 64)
"""Rows: alone; fewest together; an odd number past a vector's width; many."""

_WIDTH = 5
_TOP = 10


def warm_up(model: LanguageModel[Any]) -> None:
    """Let a model do all that requests will ask of it, at several batch sizes.

    Raises:
        Whatever the model raises.
    """
    vocab_size = len(model.vocabulary)
    for batch in BATCHES:
        tokens = _tokens(batch * _WIDTH, vocab_size).reshape(batch, _WIDTH)
        lengths = 1 + np.arange(batch) % _WIDTH
        state = model.advance(model.initial_state(batch), tokens[:, 0])
        model.next_log_probs(state)
        if supports(model, TopKPredictor):
            model.top_k(state, min(_TOP, vocab_size))
        if supports(model, BlockSampler):
            rows = np.arange(batch)
            model.logits(model.block_sums(state, np.ones(batch, np.float32)), rows, np.zeros(batch, np.int64))
        score_sequences(model, state, tokens, lengths)
        prefill_sequences(model, state.select(np.arange(batch)[::-1].copy()), tokens, lengths)
    model.next_log_probs(model.empty_state(1))
    for name in ("models.decoding.extending", "models.decoding.next_tokens"):
        import_module(name)  # and with them all kernels that choose tokens


def _tokens(count: int, vocab_size: int) -> Any:
    """Ordinary ids [count] from across the vocabulary; `</s>` where it has none."""
    ordinary = vocab_size - EOS - 1
    if ordinary == 0:
        return np.full(count, EOS, dtype=np.int64)
    return EOS + 1 + np.arange(count, dtype=np.int64) * 7919 % ordinary
