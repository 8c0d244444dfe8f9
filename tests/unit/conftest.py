"""Text models, without a registry."""

from types import SimpleNamespace

import pytest

from models.calls import ModelCall, run_call
from models.language_model import Vocabulary
from models.text_model import TextModel
from models.tokenizers import CharacterTokenizer, WordTokenizer
from tests.support.fake_models import FakeModel, fake_vocabulary


def loaded(tokenizer, **options):
    return TextModel("fake@1", FakeModel(tokenizer.vocabulary, **options), tokenizer)


@pytest.fixture
def words():
    return loaded(WordTokenizer(fake_vocabulary()))


@pytest.fixture
def characters():
    return loaded(CharacterTokenizer(Vocabulary("abcdefghijklmnopqrstuvwxyz ")))


@pytest.fixture
def load():
    return loaded


@pytest.fixture
def finish():
    """Function that runs an operation and returns its result and number of steps."""

    def run(work):
        steps, answer = 0, None
        while True:
            try:
                told = work.send(answer)
            except StopIteration as stop:
                return stop.value, steps
            answer = run_call(told) if isinstance(told, ModelCall) else None
            steps += 1

    return run


def operation(kind, model, request, limits):
    """Operation of a kind on a validated request, of a caller with these limits."""
    call = SimpleNamespace(limits=limits, resolve=lambda _: model, word_lists=lambda entries, _: entries)
    return kind.of(call, request)
