"""Networks of a mixture with recipes of their own, trained side by side in processes."""

import os
import signal
from functools import partial

import pytest
import torch

from models.errors import InputError, ProcessLostError
from tests.support import families
from training.ensemble import divide_minutes, networks_at_once, train_side_by_side
from training.mixture import part_recipes
from training.progress import SILENT, Progress, Terminated, exit_on_sigterm
from training.recipe import load_recipe
from training.single_model import ResumableRuns, TrainingInputs, train_single
from training.texts import EncodedTexts

TEXTS = EncodedTexts(families.corpus(), families.corpus(40, seed=3), families.corpus(30, seed=4))
SMALL = [
    "tokenizer.kind=word",
    "neural.hidden_size=8",
    "neural.embedding_size=8",
    "train.max_steps=12",
    "train.max_minutes=100",
    "train.epochs=1000000",
    "train.patience=1000000",
    "train.batch_size=2",
    "train.bptt_length=4",
    "train.validations=2",
]
TWO = ['mixture.recipes=["ngram"]', 'mixture.parts=[{recipe="lstm"}, {recipe="gru", neural.hidden_size=12}]']
ENDLESS = "train.max_steps=1000000000"


def networks(*settings):
    parts = part_recipes(load_recipe("mixture", [*SMALL, *TWO, *settings]))
    return {title: part for title, part in parts.items() if part.family == "neural"}


def inputs(progress=SILENT, runs=None, texts=TEXTS):
    return TrainingInputs(families.tokenizer(), texts, "cpu", progress, runs)


def weights(trained):
    return trained.model.network.state_dict()


@pytest.fixture
def runs(tmp_path):
    return partial(ResumableRuns, tmp_path, "m")


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Reacting(Progress):
    """Progress that calls `react` once, when all networks have reported figures."""

    def __init__(self, react):
        self.react = react
        self.notes = []

    def advance(self, _=1, note=""):
        self.notes.append(note)
        if self.react is not None and note.count("tokens/s") == 2:
            react, self.react = self.react, None
            react()


def test_parts_have_titles_seeds_and_tables_of_their_own():
    parts = """{recipe="lstm", train={learning_rate=0.1}},
        {recipe="lstm", seed=3, neural={hidden_size=9}, train={weight_decay=0.4}}"""
    recipe = load_recipe(
        "mixture",
        ["seed=7", "train.weight_decay=0.3", 'mixture.recipes=["lstm", "ngram"]', f"mixture.parts=[{parts}]"],
    )
    parts = part_recipes(recipe)
    assert list(parts) == ["lstm", "ngram", "lstm-2", "lstm-3"]
    assert [part.seed for part in parts.values()] == [7, 8, 8, 3]
    lstm = load_recipe("lstm")
    assert [parts[name].train.weight_decay for name in ("lstm", "lstm-2", "lstm-3")] == [0.3, 0.3, 0.4]
    assert parts["lstm-2"].train.learning_rate == 0.1 != lstm.train.learning_rate
    assert [parts[name].neural.hidden_size for name in ("lstm-2", "lstm-3")] == [lstm.neural.hidden_size, 9]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ('{recipe="lstm", neural={hidden=3}}', "recipe lstm: neural.hidden: unknown key"),
        ('{recipe="lstm", train={epochs=0}}', "recipe lstm: train.epochs: must be at least 1, given 0"),
        ('{recipe="nosuch"}', "unknown recipe 'nosuch'"),
        ('{recipe="quickstart"}', "'quickstart', which is itself a mixture"),
        (
            '{recipe="lstm", direction="backward"}',
            "mixture.parts.direction: unknown key; .* recipe, mixed, seed",
        ),
        ("{seed=3}", "mixture.parts.recipe: is missing"),
    ],
)
def test_keys_of_a_part_are_checked_by_name(part, said):
    with pytest.raises(InputError, match=said):
        part_recipes(load_recipe("mixture", [f"mixture.parts=[{part}]"]))


def test_minutes_are_those_of_all_networks():
    recipe = load_recipe("mixture", [*SMALL, *TWO, "train.max_minutes=10"])
    parts = part_recipes(recipe)
    at_once = networks_at_once(2, "cpu")
    limited = divide_minutes(recipe, parts, "cpu")
    assert [limited[name].train.max_minutes for name in ("lstm", "gru")] == [5 * at_once, 5 * at_once]
    assert limited["ngram"] == parts["ngram"]
    on_a_device = divide_minutes(recipe, parts, "cuda")
    assert [on_a_device[name].train.max_minutes for name in ("lstm", "gru")] == [5, 5]


def test_time_that_a_round_does_not_use_goes_to_the_others(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    parts = (
        'mixture.parts=[{recipe="lstm", train.max_minutes=2}, {recipe="gru", train.teacher=["lstm"]}, '
        '{recipe="gru", train={teacher=["lstm"], max_minutes=1}}]'
    )
    for minutes, expected in ((10, [2, 8, 1]), (3, [1.5, 1.5, 1])):
        recipe = load_recipe("mixture", [*SMALL, "mixture.recipes=[]", parts, f"train.max_minutes={minutes}"])
        limited = divide_minutes(recipe, part_recipes(recipe), "cpu").values()
        assert [part.train.max_minutes for part in limited] == expected


def test_parts_without_a_common_limit_keep_their_own():
    recipe = load_recipe("mixture", TWO)
    parts = part_recipes(recipe)
    assert divide_minutes(recipe, parts, "cpu") == parts


def test_too_few_minutes_are_refused_with_the_numbers():
    recipe = load_recipe("mixture", [*SMALL, *TWO, "train.max_minutes=0.09"])
    with pytest.raises(
        InputError, match=r"0\.09, which is 0\.045 for each of 2 rounds of 2 networks; .* 0\.05"
    ):
        divide_minutes(recipe, part_recipes(recipe), "cuda")


@pytest.mark.usefixtures("one_thread")
def test_networks_are_those_trained_one_after_the_other():
    recipes = networks()
    progress = Reacting(None)
    together = train_side_by_side(recipes, inputs(progress), at_once=2)
    assert list(together) == ["lstm", "gru"]
    assert "lstm: perplexity" in progress.notes[-1]
    assert "gru: perplexity" in progress.notes[-1]
    for title, recipe in recipes.items():
        alone = train_single(title, recipe, inputs())
        for name, tensor in weights(alone).items():
            assert torch.equal(tensor, weights(together[title])[name]), name
        assert together[title].figures == alone.figures
        for facts in (together[title].facts, alone.facts):
            facts.pop("throughput", None)  # measured
        assert together[title].facts == alone.facts
        assert together[title].recipe == alone.recipe


@pytest.mark.usefixtures("one_thread")
def test_ctrl_c_ends_all_networks_which_can_go_on(runs):
    progress = Reacting(lambda: os.kill(os.getpid(), signal.SIGINT))
    own = runs(resume=False)
    train_side_by_side(networks(ENDLESS), inputs(progress, own), at_once=2)
    assert own.interrupted
    assert all(own.state_file(title).exists() for title in ("lstm", "gru"))
    resumed = runs(resume=True)
    train_side_by_side(networks("train.max_steps=1"), inputs(SILENT, resumed), at_once=2)
    assert not resumed.interrupted
    assert [note.split(" after ")[0] for note in resumed.notes if "resumed" in note] == [
        "lstm: resumed",
        "gru: resumed",
    ]
    assert resumed.seconds_before > 0


def test_sigterm_saves_all_networks(runs):
    progress = Reacting(lambda: os.kill(os.getpid(), signal.SIGTERM))
    own = runs(resume=False)
    with exit_on_sigterm(), pytest.raises(Terminated):
        train_side_by_side(networks(ENDLESS, "train.save_minutes=100"), inputs(progress, own), at_once=2)
    assert all(own.state_file(title).exists() for title in ("lstm", "gru"))


def test_a_network_that_fails_ends_the_others_after_saving(runs):
    recipes = networks(
        ENDLESS,
        'mixture.parts=[{recipe="lstm"}, {recipe="gru", train={learning_rate=1e36, optimizer="sgd"}}]',
    )
    own = runs(resume=False)
    with pytest.raises(InputError, match=r"at step \d+: .* train\.learning_rate is 1e\+36"):
        train_side_by_side(recipes, inputs(SILENT, own), at_once=2)
    assert own.state_file("lstm").exists()


def test_a_killed_process_ends_the_command_with_the_reason(runs):
    def kill_one():
        children = torch.multiprocessing.active_children()
        os.kill(children[0].pid, signal.SIGKILL)

    with pytest.raises(
        ProcessLostError, match=r"process that trained (lstm|gru) ended .*, with status -9; --resume"
    ):
        train_side_by_side(networks(ENDLESS), inputs(Reacting(kill_one), runs(resume=False)), at_once=2)
    assert not torch.multiprocessing.active_children()
