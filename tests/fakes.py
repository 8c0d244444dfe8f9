"""A deterministic language model for tests: bigrams with made-up probabilities."""

import json
import time
from pathlib import Path

import numpy as np

from models.vocabulary import BOS, EOS, Vocabulary

WORDS = ("the", "cat", "sat", "on", "mat", "a", "dog", "ran", "of", "house")


class FakeState:
    """The last token of each row [B]; −1 after nothing."""

    def __init__(self, last):
        self.last = np.asarray(last, dtype=np.int64)

    def __len__(self):
        return len(self.last)

    def select(self, rows):
        return FakeState(self.last[rows])

    def concatenate(self, others):
        return FakeState(np.concatenate([self.last, *(other.last for other in others)]))


class FakeModel:
    """p(w | last token) drawn once from a Dirichlet distribution of the seed.

    Args:
        vocabulary: its tokens.
        seed: of the made-up probabilities.
        endless: never end a sentence.

    `delay_s` and `fails` may be set on the model: how long each look at the distribution
    takes, and whether it raises.
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
            )  # last row: after nothing
        self.num_advances = 0

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
    """The same, taking its time over each token; for a service in another process."""

    def advance(self, state, tokens):
        time.sleep(0.01)
        return super().advance(state, tokens)


class NumberModel:
    """Tells what number its state is; notes how many rows it was asked for at once, and fails on one number."""

    family, vocabulary = "numbers", range(7)

    def __init__(self, poison=None):
        self.batches, self.poison = [], poison

    def next_log_probs(self, state):
        self._look_at(state, len(state))
        return np.repeat(state.numbers[:, None], 7, axis=1)

    def prefill(self, state, _tokens, lengths):
        self._look_at(state, (len(state), int(lengths.max())))
        return state

    def _look_at(self, state, batch):
        self.batches.append(batch)
        if self.poison is not None and self.poison in state:
            raise ZeroDivisionError


class Numbers:
    """A state that is a number a row."""

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
