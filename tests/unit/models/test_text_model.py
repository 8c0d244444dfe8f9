"""Models with members of classes that come with a request: how many are kept, and for how long."""

import gc
import weakref

import pytest

from models import text_model
from models.language_model import Vocabulary
from models.slot_model import SlotModel, without_members
from models.text_model import TextModel
from models.tokenizers import WordTokenizer
from tests.support.fake_models import FakeModel


def loaded():
    vocabulary = Vocabulary(["$city", "to", "from"])
    return TextModel("m@1", FakeModel(vocabulary), WordTokenizer(vocabulary))


def test_the_latest_lists_are_kept():
    base = loaded()
    models = [base.with_slots({"city": [f"town {n}"]}) for n in range(17)]
    assert base.with_slots({"city": ["town 16"]}) is models[16]
    assert base.with_slots({"city": ["town 1"]}) is models[1]
    assert base.with_slots({"city": ["town 0"]}) is not models[0]
    assert base.with_slots({}) is base


@pytest.mark.parametrize(("limit", "kept"), [(7, 1), (16, 2)])  # a model has seven tokens
def test_fewer_models_with_large_vocabularies_are_kept(monkeypatch, limit, kept):
    monkeypatch.setattr(text_model, "_MAX_SLOTTED_BYTES", limit * text_model._TOKEN_BYTES)
    base = loaded()
    for n in range(5):
        base.with_slots({"city": [f"town {n}"]})
    assert len(base._slotted) == kept


def test_members_of_a_request_keep_the_model_in_memory_only_while_it_runs():
    base = loaded().with_slots({"city": ["stored"]})  # as a model with a list of its training text
    ended, request = weakref.ref(without_members(base.model)), base.with_slots({"city": ["ulm"]})
    assert isinstance(base.model, SlotModel)
    del base
    gc.collect()
    assert ended() is without_members(request.model)
    del request
    gc.collect()
    assert ended() is None
