"""How good a model is while it is trained, measured on a part of the validation text."""

import math

import numpy as np

from models.neural.model import NeuralModel
from models.scoring import perplexity
from models.vocabulary import BOS
from training.corpora.encoded import EncodedCorpus
from training.evaluation import evaluate
from training.neural.settings import TrainSettings
from training.progress import Silent

_NUM_ROWS = 16
_MIN_ROW_TOKENS = 256  # tokens: shorter rows would mostly measure how a text begins


class Validation:
    """The same sample of a text, whenever it is asked.

    In sentence context, sentences from all over it. In stream context, some rows of running text
    from all over it, read side by side: one row would be slow, and the first tokens of a few cost little.

    Args:
        corpus: the validation text.
        settings: context and size.
    """

    def __init__(self, corpus: EncodedCorpus, settings: TrainSettings) -> None:
        self._stream = settings.validate_context == "stream"
        self._sentences = sample_sentences(corpus, settings.valid_tokens)
        self._rows = sample_rows(corpus, settings.valid_tokens)

    def perplexity(self, model: NeuralModel) -> float:
        """Per token; infinite where a probability is zero or not a number."""
        if not self._stream:
            measured = evaluate(model, self._sentences, progress=Silent()).perplexity or math.inf
        else:
            state = model.advance(model.empty_state(len(self._rows)), self._rows[:, 0])
            tokens = self._rows[:, 1:]
            lengths = np.full(len(tokens), tokens.shape[1])
            scores = model.score(state, tokens, lengths)[tokens != BOS]
            measured = perplexity(float(scores.sum(dtype="float64")), len(scores)) or math.inf
        return measured if math.isfinite(measured) else math.inf


def sample_sentences(corpus: EncodedCorpus, tokens: int) -> EncodedCorpus:
    """Sentences from all over a corpus, of about so many tokens to predict, one at least."""
    every = -(-corpus.num_tokens // tokens)
    return EncodedCorpus.from_sentences(
        [corpus.sentence(i).tolist() for i in range(0, corpus.num_sentences, every)]
    )


def sample_rows(corpus: EncodedCorpus, tokens: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Rows of running text [R, T] from all over a corpus, of at most about so many tokens in all."""
    text = corpus.with_boundaries().astype(np.int64)
    count = max(1, min(_NUM_ROWS, min(len(text), tokens) // _MIN_ROW_TOKENS))
    width = max(2, min(len(text), tokens) // count)
    starts = np.linspace(0, len(text) - width, count).astype(np.int64)
    return np.asarray(text[starts[:, None] + np.arange(width)])
