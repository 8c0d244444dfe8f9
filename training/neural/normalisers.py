"""How near to log-probabilities the logits of a self-normalised model come."""

from typing import Any, NamedTuple

import numpy as np

from models.neural.model import NeuralModel
from models.scoring import pad_sequences
from models.vocabulary import EOS
from training.corpora.encoded import EncodedCorpus

_SENTENCES = 256  # scored together
_TOKENS = 20_000  # enough for two digits


class LogNormalisers(NamedTuple):
    """Log-normalisers over a text: what unnormalised scores are off by, in nats a token.

    Attributes:
        mean: near 0 if the scores are to be compared with log-probabilities.
        deviation: standard deviation; what disturbs the order of candidates.
    """

    mean: float
    deviation: float


def log_normalisers(model: NeuralModel, corpus: EncodedCorpus) -> LogNormalisers:
    """Mean and deviation of log Σ exp of the logits, over sentences from all over a text.

    Args:
        model: whose logits.
        corpus: at least one sentence; some 20,000 of its tokens are looked at.
    """
    every = max(1, corpus.num_tokens // _TOKENS)
    chosen = range(0, corpus.num_sentences, every)
    offs = []
    for start in range(0, len(chosen), _SENTENCES):
        sentences = [[*corpus.sentence(i).tolist(), EOS] for i in chosen[start : start + _SENTENCES]]
        tokens, lengths = pad_sequences(sentences)
        state = model.initial_state(len(sentences))
        off = model.score_unnormalised(state, tokens, lengths) - model.score(state, tokens, lengths)
        offs.append(off[np.arange(tokens.shape[1]) < lengths[:, None]])
    values = np.concatenate(offs).astype(np.float64)
    return LogNormalisers(float(values.mean()), float(values.std()))


def normaliser_facts(model: NeuralModel, corpus: EncodedCorpus) -> dict[str, Any]:
    """What is remembered of a self-normalised model; nothing of others."""
    if not model.self_normalised:
        return {}
    return {"log_normalisers": log_normalisers(model, corpus)._asdict()}
