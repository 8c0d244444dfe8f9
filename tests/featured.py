"""A small recurrent language model in NumPy that tells its features, for tests of what is built on them."""

import numpy as np

from models.arrays import to_numpy
from models.language_model import ReadWithFeatures, ScoresWithFeatures, prefill_sequences, score_sequences
from models.vocabulary import BOS


class FeaturedState:
    """A vector per row [B, W]."""

    def __init__(self, vectors):
        self.vectors = vectors

    def __len__(self):
        return len(self.vectors)

    def select(self, rows):
        return FeaturedState(self.vectors[rows])

    def concatenate(self, others):
        return FeaturedState(np.concatenate([self.vectors, *(other.vectors for other in others)]))


class FeaturedModel:
    """h ← tanh(h ∘ a + E[token]), p(w) ∝ exp(h · O[w]), with made-up a, E and O of the seed.

    Args:
        vocabulary: its tokens.
        width: numbers in h.
        seed: of the made-up parameters.
    """

    family = "featured"
    normalised = True

    def __init__(self, vocabulary, *, width=7, seed=0):
        random = np.random.default_rng(seed)
        self.vocabulary = vocabulary
        self.decay = random.uniform(-0.8, 0.8, width).astype(np.float32)
        self.embedding = random.normal(size=(len(vocabulary), width)).astype(np.float32)
        self.output = random.normal(size=(len(vocabulary), width)).astype(np.float32)

    @property
    def num_parameters(self):
        return self.embedding.size + self.output.size + self.decay.size

    @property
    def feature_size(self):
        return len(self.decay)

    def empty_state(self, batch):
        return FeaturedState(np.zeros((batch, self.feature_size), np.float32))

    def initial_state(self, batch):
        return self.advance(self.empty_state(batch), np.full(batch, BOS))

    def advance(self, state, tokens):
        return FeaturedState(np.tanh(state.vectors * self.decay + self.embedding[tokens]))

    def next_log_probs(self, state):
        logits = (state.vectors[:, None, :] * self.output).sum(axis=2)  # row by row the same
        logits[:, BOS] = -np.inf
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def features(self, state):
        return state.vectors

    def features_per_token(self, state, tokens, lengths):
        along = np.zeros((*tokens.shape, self.feature_size), np.float32)
        for t in range(tokens.shape[1]):
            along[:, t] = state.vectors
            state = self.advance(state, tokens[:, t])
        along[np.arange(tokens.shape[1]) >= lengths[:, None]] = 0
        return along

    def score_with_features(self, state, tokens, lengths):
        log_probs = to_numpy(score_sequences(self, state, tokens, lengths))
        return ScoresWithFeatures(log_probs, self.features_per_token(state, tokens, lengths))

    def read_with_features(self, state, tokens, lengths):
        scored = self.score_with_features(state, tokens, lengths)
        return ReadWithFeatures(*scored, prefill_sequences(self, state, tokens, lengths))
