"""A model whose states are the tokens read, to see what was read."""

from models.vocabulary import BOS
from tests.fakes import FakeModel


class Texts:
    """A state that is all tokens so far, a row a text."""

    def __init__(self, texts):
        self.texts = texts

    def __len__(self):
        return len(self.texts)

    def select(self, rows):
        return Texts([self.texts[row] for row in rows])

    def concatenate(self, others):
        return Texts([text for state in (self, *others) for text in state.texts])


class RememberingModel(FakeModel):
    """Expects the same everywhere, and remembers what was read when it was asked."""

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
