"""Fake language models for tests: deterministic, failing, recording, and recurrent with features."""

import json
import time
from pathlib import Path

import numpy as np

from models.arrays import ModelBytes
from models.language_model import BOS, EOS, ReadResult, Vocabulary

WORDS = ("the", "cat", "sat", "on", "mat", "a", "dog", "ran", "of", "house")


class FakeState:
    """State with the last token of each row [B], −1 for the empty context."""

    def __init__(self, last):
        self.last = np.asarray(last, dtype=np.int64)

    def __len__(self):
        return len(self.last)

    def select(self, rows):
        return FakeState(self.last[rows])

    def concatenate(self, others):
        return FakeState(np.concatenate([self.last, *(other.last for other in others)]))


class FakeModel:
    """Bigram model with p(w | last token) drawn from a Dirichlet distribution.

    Args:
        vocabulary: tokens of the model.
        seed: random seed of the probabilities.
        endless: make `</s>` practically impossible.

    Tests may set `delay_s`, the duration of each `next_log_probs` call, and `fails`, which
    makes the calls raise.
    """

    family = "fake"
    normalised = True

    def __init__(self, vocabulary, *, seed=0, endless=False):
        self.vocabulary = vocabulary
        self.options = {"seed": seed, "endless": endless}
        self.delay_s, self.fails = 0.0, False
        size = len(vocabulary)
        p = np.random.default_rng(seed).dirichlet(np.full(size, 0.5), size=size + 1) + 1e-4
        p[:, BOS] = 0
        if endless:
            p[:, EOS] = 1e-12
        with np.errstate(divide="ignore"):
            self.table = np.log(p / p.sum(axis=1, keepdims=True)).astype(
                np.float32
            )  # last row: empty context
        self.num_advances = 0

    def memory(self):
        return ModelBytes(own=4200)

    @property
    def num_parameters(self):
        return self.table.size

    def initial_state(self, batch):
        return FakeState(np.full(batch, BOS))

    def empty_state(self, batch):
        return FakeState(np.full(batch, -1))

    def advance(self, state, tokens):
        assert len(state) == len(tokens)
        self.num_advances += 1
        return FakeState(tokens)

    def next_log_probs(self, state):
        if self.delay_s:
            time.sleep(self.delay_s)
        if self.fails:
            raise ZeroDivisionError("made to fail")
        return self.table[state.last]

    def save(self, directory):
        (directory / "config.json").write_text(json.dumps(self.options))
        np.save(directory / "weights.npy", self.table)

    @classmethod
    def load(cls, directory, vocabulary, *, device="cpu", weight_cache=None):  # noqa: ARG003 - a loader's signature
        return cls(vocabulary, **json.loads(Path(directory, "config.json").read_text()))


def fake_vocabulary(extra=()):
    """Ten words and the three control tokens."""
    return Vocabulary([*WORDS, *extra])


class SlowFakeModel(FakeModel):
    """`FakeModel` that sleeps at each token; for a service in another process."""

    def advance(self, state, tokens):
        time.sleep(0.01)
        return super().advance(state, tokens)


class NumberModel:
    """Model that predicts its state's number, records batch sizes and fails on one number."""

    family, vocabulary = "numbers", range(7)

    def __init__(self, poison=None):
        self.batches, self.poison = [], poison

    def next_log_probs(self, state):
        self._look_at(state, len(state))
        return np.repeat(state.numbers[:, None], 7, axis=1)

    def read(self, state, tokens, lengths, want):  # noqa: ARG002 - only the state is requested
        self._look_at(state, (len(state), int(lengths.max())))
        return ReadResult(np.zeros(0), state)

    def _look_at(self, state, batch):
        self.batches.append(batch)
        if self.poison is not None and self.poison in state:
            raise ZeroDivisionError


class Numbers:
    """State with one number per row."""

    def __init__(self, numbers):
        self.numbers = np.asarray(numbers)

    def __len__(self):
        return len(self.numbers)

    def __contains__(self, number):
        return number in self.numbers

    def select(self, rows):
        return Numbers(self.numbers[rows])

    def concatenate(self, others):
        return Numbers(np.concatenate([self.numbers, *(other.numbers for other in others)]))


RAISES, HANGS, SPEAKS_NONSENSE = "house house", "mat mat", "dog dog"
HANG_S = 1.0


class PoisonedModel(FakeModel):
    """Model that raises at one repeated word, sleeps at another and returns NaN after a third.

    Args:
        hang_s: duration of the sleep; also in the model's options.
    """

    def __init__(self, vocabulary, *, hang_s=HANG_S, **options):
        super().__init__(vocabulary, **options)
        self.options["hang_s"] = hang_s
        words = (poison.split()[0] for poison in (RAISES, HANGS, SPEAKS_NONSENSE))
        self._raises, self._hangs, self._nonsense = map(vocabulary.id_of, words)
        self._after_nonsense = len(vocabulary)  # state id after the third word is repeated

    def advance(self, state, tokens):
        twice = np.asarray(tokens)[state.last == tokens]
        if self._raises in twice:
            raise ZeroDivisionError("poison")
        if self._hangs in twice:
            time.sleep(self.options["hang_s"])
        told = super().advance(state, tokens)
        told.last = np.where(
            (state.last == tokens) & (tokens == self._nonsense), self._after_nonsense, tokens
        )
        return told

    def next_log_probs(self, state):
        is_nonsense = state.last == self._after_nonsense
        rows = self.table[np.where(is_nonsense, 0, state.last)]
        return np.where(is_nonsense[:, None], np.float32(np.nan), rows)


class Texts:
    """State that holds all previous tokens, one text per row."""

    def __init__(self, texts):
        self.texts = texts

    def __len__(self):
        return len(self.texts)

    def select(self, rows):
        return Texts([self.texts[row] for row in rows])

    def concatenate(self, others):
        return Texts([text for state in (self, *others) for text in state.texts])


class RememberingModel(FakeModel):
    """Model with one distribution for all contexts; records the texts of its calls."""

    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        self.asked = []

    def initial_state(self, batch):
        return Texts([(BOS,)] * batch)

    def advance(self, state, tokens):
        return Texts([(*text, token) for text, token in zip(state.texts, tokens.tolist(), strict=True)])

    def next_log_probs(self, state):
        self.asked += state.texts
        return self.table[[0] * len(state)]


class FeaturedState:
    """State with a vector per row [B, W]."""

    def __init__(self, vectors):
        self.vectors = vectors

    def __len__(self):
        return len(self.vectors)

    def select(self, rows):
        return FeaturedState(self.vectors[rows])

    def concatenate(self, others):
        return FeaturedState(np.concatenate([self.vectors, *(other.vectors for other in others)]))


class FeaturedModel:
    """Recurrent model h ← tanh(h ∘ a + E[token]), p(w) ∝ exp(h · O[w]), with random a, E and O.

    Args:
        vocabulary: tokens of the model.
        width: size of h.
        seed: random seed of the parameters.
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
        logits = (state.vectors[:, None, :] * self.output).sum(axis=2)  # independent of the batch
        logits[:, BOS] = -np.inf
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def features(self, state):
        return state.vectors

    def read(self, state, tokens, lengths, want):  # noqa: ARG002 - all are computed
        scores = np.zeros(tokens.shape, np.float32)
        along = np.zeros((*tokens.shape, self.feature_size), np.float32)
        after = state.vectors.copy()
        for column in range(tokens.shape[1]):
            live = np.flatnonzero(lengths > column)
            here, ids = FeaturedState(after[live]), tokens[live, column]
            along[live, column] = here.vectors
            scores[live, column] = self.next_log_probs(here)[np.arange(len(live)), ids]
            after[live] = self.advance(here, ids).vectors
        before = along[np.arange(tokens.shape[1]) < np.asarray(lengths)[:, None]]
        return ReadResult(scores, FeaturedState(after), FeaturedState(before))


def take_turn(scheduler):
    """Run one turn of a scheduler, as its engine does; return True if any work was done."""
    interactive = scheduler.serve_interactive()
    return scheduler.serve_bulk() or interactive
