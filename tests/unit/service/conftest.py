"""Loaded models for use cases, without a registry."""

from types import SimpleNamespace

import pytest

from models.calls import ModelCall
from models.tokenizers import CharacterTokenizer, WordTokenizer
from models.vocabulary import Vocabulary
from service.engine.calls import run_single
from service.hosting.loaded_model import LoadedModel
from tests.support.fake_models import FakeModel, fake_vocabulary


def loaded(tokenizer, **options):
    model = FakeModel(tokenizer.vocabulary, **options)
    checkpoint = SimpleNamespace(
        model=model,
        tokenizer=tokenizer,
        manifest=SimpleNamespace(vocab_size=len(tokenizer.vocabulary), direction="forward"),
    )
    return LoadedModel("fake@1", checkpoint)


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
    """Function that runs a use case and returns its result and number of steps."""

    def run(work):
        steps, answer = 0, None
        while True:
            try:
                told = work.send(answer)
            except StopIteration as stop:
                return stop.value, steps
            answer = run_single(told) if isinstance(told, ModelCall) else None
            steps += 1

    return run
