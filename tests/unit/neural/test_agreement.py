"""Processes that were started differently are told apart."""

import pytest

from models.errors import InvalidInputError
from training.commands import check_agreement, check_same_command
from training.recipe import load_recipe


def told(machine, **facts):
    return {"machine": machine, "facts": facts}


def test_equal_facts_pass():
    check_agreement([told("a", seed=1), told("b", seed=1)])


def test_the_first_other_process_is_named_with_both_values():
    with pytest.raises(
        InvalidInputError, match=r"process 2 on c .* process 0 on a: seed is 3 there and 1 in"
    ):
        check_agreement([told("a", seed=1), told("b", seed=1), told("c", seed=3)])


def test_a_fact_that_one_process_lacks_is_a_difference():
    with pytest.raises(InvalidInputError, match="ngram: seed is None there and 1 in process 0"):
        check_agreement([{"machine": "a", "facts": {"ngram: seed": 1}}, told("b")])


def test_no_more_is_listed_than_can_be_read():
    many, others = ({f"key{i}": value for i in range(9)} for value in (1, 2))
    with pytest.raises(InvalidInputError, match=r"key2 is 2 there and 1 in process 0; and 6 more; give all"):
        check_agreement([told("a", **many), told("b", **others)])


class _Told:
    """Processes of which the second one says what it is given to say."""

    def __init__(self, monkeypatch, change):
        monkeypatch.setattr("training.commands.Processes.current", lambda: self)
        self._change = change

    def gather_texts(self, text):
        return [text, self._change(text)]


def facts_of(recipe, **more):
    return check_same_command(recipe, {}, **({"device": "cpu", "resume": False} | more))


def test_a_changed_key_of_the_recipe_is_named(monkeypatch):
    _Told(monkeypatch, lambda text: text.replace('"train.batch_size": 64', '"train.batch_size": 32'))
    with pytest.raises(InvalidInputError, match=r"train\.batch_size is 32 there and 64 in process 0"):
        facts_of(load_recipe("lstm", ["train.batch_size=64"]))


def test_resume_on_one_machine_only_is_refused(monkeypatch):
    _Told(monkeypatch, lambda text: text.replace('"--resume": false', '"--resume": true'))
    with pytest.raises(InvalidInputError, match="--resume is True there and False in process 0"):
        facts_of(load_recipe("lstm"))


def test_another_torch_is_allowed_and_told(monkeypatch):
    _Told(monkeypatch, lambda text: text.replace('"torch": "', '"torch": "9'))
    (note,) = facts_of(load_recipe("lstm"))
    assert "different versions of torch: " in note


def test_one_process_alone_agrees_with_itself():
    assert facts_of(load_recipe("lstm")) == []
