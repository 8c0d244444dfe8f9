"""Models that continue from a published one: weights, vocabulary, exact resuming, refusals."""

import json
import time

import numpy as np
import pytest
import torch

from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import open_registry
from models.errors import InputError
from models.language_model import CONTROL_TOKENS, Vocabulary
from models.neural.model import NeuralModel
from models.neural.network import Network
from tests.support import families
from tests.support.resumable import NETWORK, VOCABULARY, Ending, fit, weights
from training.commands import run_train
from training.mixture import part_recipe
from training.neural.run import TrainingRun
from training.neural.settings import TrainSettings
from training.recipe import PartSettings, Recipe, load_recipe
from training.tokenizer import TokenizerSettings, learn_tokenizer

pytestmark = pytest.mark.usefixtures("no_pictures")


def started_from(base, words):
    """Model before its first update, over the words of its base and more."""
    vocabulary = Vocabulary(words)
    run = TrainingRun(
        families.corpus(30),
        families.corpus(5, seed=2),
        vocabulary,
        Recipe(family="neural", neural=base.config, train=TrainSettings(batch_size=2, bptt_length=4)),
        device=torch.device("cpu"),
        clock=time.monotonic,
        embeddings=None,
        base=base.network,
    )
    return NeuralModel(run.network.eval(), vocabulary)


def next_probs(model, ids):
    """Distributions after each token of a text [T, V]."""
    state, rows = model.initial_state(1), []
    for token in ids:
        state = model.advance(state, np.array([token]))
        rows.append(np.exp(model.next_log_probs(state)[0], dtype=np.float64))
    return np.array(rows)


TEXT = families.corpus().tokens[:20]


@pytest.mark.parametrize("name", families.NEURAL)
def test_before_the_first_update_the_distributions_are_those_of_the_base(name):
    base = families.model(name)
    np.testing.assert_allclose(
        next_probs(started_from(base, families.WORDS), TEXT), next_probs(base, TEXT), rtol=1e-5, atol=1e-8
    )


@pytest.mark.parametrize("name", families.NEURAL)
def test_new_words_take_a_share_of_the_probability_and_leave_the_ratios_of_the_others(name):
    base = families.model(name)
    before = next_probs(base, TEXT)
    grown = next_probs(started_from(base, [*families.WORDS, "new", "newer", "newest"]), TEXT)
    assert (grown[:, -3:] > 0).all()
    np.testing.assert_allclose(grown.sum(axis=1), 1, rtol=1e-5)
    shared = np.ones(before.shape[1], dtype=bool)
    if base.config.output == "adaptive":  # new words share the probability of the last cluster
        shared = base.network.output.vectors.rank.numpy() >= base.config.cutoffs[-1]
        np.testing.assert_allclose(grown[:, :-3][:, ~shared], before[:, ~shared], rtol=1e-5)
    left = grown[:, :-3][:, shared]
    share = left.sum(axis=1, keepdims=True) / before[:, shared].sum(axis=1, keepdims=True)
    assert (share < 1).all()
    np.testing.assert_allclose(left / share, before[:, shared], rtol=1e-4)


def base_network():
    torch.manual_seed(5)
    return Network(NETWORK, len(VOCABULARY))


def test_a_resumed_run_from_a_base_is_equal_bit_for_bit(tmp_path):
    state_file = tmp_path / "runs" / "state.pt"
    settings = {"base": base_network(), "from": "net@1"}
    whole = weights(fit(**settings))
    for updates in (1, 17, 30):
        assert fit(state_file, progress=Ending(updates), **settings).stopped == "interrupted"
    with pytest.raises(InputError, match=r"train\.from was net@1 and is net@2"):
        fit(state_file, **(settings | {"from": "net@2"}))
    resumed = weights(fit(state_file, **settings))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    anew = weights(fit())
    assert not any(torch.equal(whole[name], anew[name]) for name in whole)


def test_the_result_is_the_base_if_no_validation_is_better():
    good = fit(max_steps=200, loss="softmax")
    harmed = fit(base=good.model.network, max_steps=30, learning_rate=3.0, average="none")
    kept = weights(good)
    assert all(torch.equal(kept[name], tensor) for name, tensor in weights(harmed).items())
    assert harmed.notes == ("no validation was better than that of the base, so its weights are unchanged",)
    assert fit(base=good.model.network, max_steps=60, average="none").notes == ()
    assert harmed.history[-1].valid_perplexity > 2 * good.history[-1].valid_perplexity


NEW_TEXT = ["the cat sat", "the emu sat", "emu and ibex", "the emu and and"]


def test_new_words_follow_the_known_ones_by_count():
    for settings, added in (
        ({"min_count": 1}, ["and", "emu", "sat", "ibex"]),
        ({"min_count": 2}, ["and", "emu", "sat"]),
        ({"min_count": 1, "vocab_size": 8}, ["and", "emu"]),
        ({"min_count": 1, "vocab_size": 6}, []),
    ):
        grown = learn_tokenizer(TokenizerSettings(**settings), NEW_TEXT, known=["The", "cat", "the"])
        assert grown.vocabulary.tokens == (*CONTROL_TOKENS, "The", "cat", "the", *added)


def test_new_characters_follow_the_known_ones():
    grown = learn_tokenizer(TokenizerSettings(kind="char", min_count=3), NEW_TEXT, known="xt")
    assert grown.vocabulary.tokens[3:6] == ("x", "t", " ")


SMALL = ["neural.hidden_size=8", "neural.embedding_size=6", "train.max_steps=3", "train.batch_size=2"]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Registry with models to continue from, a text for them and another text."""
    folder = tmp_path_factory.mktemp("bases")
    (folder / "old.txt").write_text("the cat sat on the mat\na dog lay on a rug\nthe dog saw the cat\n" * 40)
    (folder / "new.txt").write_text("the emu sat on the ibex\na dog saw an emu\nemu and ibex sat\n" * 40)
    for name, recipe, *more in (
        ("net", "gru", "tokenizer.kind=word", "neural.dropout=0.3"),
        ("back", "lstm", "tokenizer.kind=word", "direction=backward"),
        ("pieces", "elman", "tokenizer.byte_fallback=false"),
        ("counts", "ngram", "ngram.order=2"),
        ("back-counts", "ngram", "ngram.order=2", "direction=backward"),
        ("mixed", "mixture", "tokenizer.kind=word", "ngram.order=2", "mixture.drop_unused=false"),
    ):
        assignments = [*more, *(SMALL if recipe != "ngram" else [])]
        run_train(
            recipe, name=name, registry=folder / "r", corpus=[folder / "old.txt"], assignments=assignments
        )
    return folder


def fine_tune(folder, base, *assignments, recipe="finetune", **options):
    settings = [f"train.from={base}", "train.max_steps=3", "train.batch_size=2", *assignments]
    text = [folder / "new.txt"]
    return run_train(
        recipe, name="tuned", registry=folder / "r", corpus=text, assignments=settings, **options
    )


def test_a_network_takes_shape_and_tokenizer_from_its_base_and_names_it(published):
    result = fine_tune(published, "net", "neural.dropout=0.1")
    registry = open_registry(published / "r")
    base, tuned = (
        load_checkpoint(registry.fetch(registry.resolve(name))) for name in ("net@1", result["model"])
    )
    assert tuned.tokenizer.fingerprint == base.tokenizer.fingerprint
    text = base.metrics["data"]["train"]["sha256"]
    assert result["base"] == {"model": "net@1", "training_text_sha256": text}
    card = (tuned.path / "MODEL_CARD.md").read_text()
    assert f"- base: model net@1, training_text_sha256 {text}\n" in card
    assert "- tokenizer: from net@1\n" in card
    recipe = json.loads((tuned.path / "provenance.json").read_text())["recipe"]
    assert recipe["train"]["from"] == "net@1"
    assert [recipe["neural"][key] for key in ("cell", "hidden_size", "dropout")] == ["gru", 8, 0.1]


def test_other_bases_and_added_words(published):
    base, grown = (
        open_registry(published / "r").manifest(open_registry(published / "r").resolve(address))
        for address in ("net@1", fine_tune(published, "net", "tokenizer.min_count=2")["model"])
    )
    assert grown.vocab_size == base.vocab_size + 4
    assert fine_tune(published, "back")["base"]["model"] == "back@1"
    pieces = fine_tune(published, "pieces", "tokenizer.kind=unigram")
    assert pieces["base"]["model"] == "pieces@1"
    registry = open_registry(published / "r")
    old, new = (
        load_checkpoint(registry.fetch(registry.resolve(address))).tokenizer.lexicon
        for address in ("pieces@1", pieces["model"])
    )
    assert (new[: len(old)], set(new[len(old) :])) == (old, {"an", "emu", "ibex", "and"})
    assert fine_tune(published, pieces["model"])["base"]["model"] == pieces["model"]


@pytest.mark.parametrize(
    ("base", "assignments", "said"),
    [
        (
            "''",
            [],
            r"recipe finetune: train\.from: must be set, given ''",
        ),
        ("nobody", [], r"train\.from: there is no model 'nobody' in .*; models: "),
        ("net@7", [], r"train\.from: .*net.*7"),
        ("counts", [], r"train\.from: counts@1 is of the family ngram; a network continues from a network"),
        ("mixed", [], r"train\.from: mixed@1 is of the family mixture; a network"),
        (
            "net",
            ["neural.cell=lstm"],
            r"neural\.cell is lstm, but gru in net@1; unset keys, as in the recipe finetune",
        ),
        (
            "net",
            ["neural.hidden_size=9", "neural.embedding_size=6", "neural.layers=2"],
            r"neural\.layers is 2, but 1 in net@1; neural\.hidden_size is 9, but 8 in net@1; unset",
        ),
        ("net", ["direction=backward"], r"direction is backward, but forward in net@1"),
        ("back", ["direction=forward"], r"direction is forward, but backward in back@1"),
        ("net", ["tokenizer.kind=bpe"], r"tokenizer\.kind is bpe, but word in net@1"),
        (
            "pieces",
            ["tokenizer.kind=word", 'tokenizer.pattern="[a-z]+"'],
            r"tokenizer\.pattern is \[a-z\]\+, but None in pieces@1; tokenizer\.kind is word, but sentencepiece in",
        ),
        ("pieces", ["tokenizer.min_count=2"], r"tokenizer\.min_count is 2, but None in pieces@1"),
        ("pieces", ["tokenizer.vocab_size=9000"], r"tokenizer\.vocab_size is 9000, but \d+ in pieces@1"),
        ("net", ["tokenizer.vocab_size=5"], r"tokenizer\.vocab_size is 5, but 13 in net@1"),
        ("net", ["tokenizer.lowercase=true"], r"tokenizer\.lowercase is True, but False in net@1"),
        (
            "net",
            ["train.embeddings=v.txt"],
            r"embeddings has no effect on the vectors of net \(train\.from\)",
        ),
        (
            "net",
            ['train.teacher=["mixed"]', "tokenizer.min_count=1"],
            r"tokenizer\.min_count adds words, which the models of train\.teacher lack",
        ),
    ],
)
def test_a_base_that_does_not_fit_is_refused_and_nothing_is_written(published, base, assignments, said):
    before = sorted((published / "r").rglob("*"))
    with pytest.raises(InputError, match=said):
        fine_tune(published, base, *assignments)
    assert sorted((published / "r").rglob("*")) == before


def test_a_mixture_and_its_parts_have_no_base():
    with pytest.raises(InputError, match=r"families ngram and neural, given mixture; .*mixture\.models"):
        load_recipe("mixture", ["train.from=net@1"])
    part = PartSettings(recipe="lstm", train={"from": "net@1"})
    with pytest.raises(InputError, match=r"train\.from of 'lstm' is net@1; .*mixture\.models"):
        part_recipe(load_recipe("mixture"), part, seed=1)


def published_model(folder, address):
    registry = open_registry(folder / "r")
    return load_checkpoint(registry.fetch(registry.resolve(address)))


@pytest.mark.parametrize("compression", [[], ["ngram.quantize_bits=8", "ngram.prune_entropy=1e-4"]])
def test_an_n_gram_model_is_mixed_with_its_base(published, compression):
    same = ["ngram.order=3", *compression]
    tuned = run_train(
        "ngram",
        name="tuned",
        registry=published / "r",
        corpus=[published / "new.txt"],
        assignments=["train.from=counts", *same],
    )
    mixed = run_train(
        "ngram-mixture",
        name="mix",
        registry=published / "r",
        corpus=[published / "new.txt"],
        assignments=['mixture.recipes=["ngram"]', 'mixture.models=["counts"]', *same],
    )
    one, other = (published_model(published, result["model"]) for result in (tuned, mixed))
    assert (one.path / "ngram.bin").read_bytes() == (other.path / "ngram.bin").read_bytes()
    assert tuned["weights"] == mixed["weights"]
    assert tuned["base"]["model"] == "counts@1"
    assert (one.path / "MODEL_CARD.md").read_text().count("base: model counts@1") == 1


@pytest.mark.parametrize("base", ["counts", "back-counts"])
def test_an_n_gram_model_has_the_words_of_both_texts(published, base):
    result = run_train(
        "ngram",
        name="tuned",
        registry=published / "r",
        corpus=[published / "new.txt"],
        assignments=[f"train.from={base}", "tokenizer.min_count=2"],
    )
    tuned, old = published_model(published, result["model"]), published_model(published, base)
    assert set(tuned.tokenizer.vocabulary.tokens) - set(old.tokenizer.vocabulary.tokens) == {
        "emu",
        "an",
        "and",
        "ibex",
    }
    assert tuned.manifest.direction == old.manifest.direction
    text = tuned.tokenizer.encode("the emu sat on a mat")
    reading = text[::-1] if base == "back-counts" else text
    probs = next_probs(tuned.model, reading)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-5)
    assert probs[range(len(text) - 1), reading[1:]].min() > 1e-4


@pytest.mark.parametrize(
    ("recipe", "assignments", "said"),
    [
        (
            "ngram",
            ["train.from=net"],
            r"net@1 is of the family gru; an n-gram model continues from an n-gram",
        ),
        ("ngram", ["train.from=counts", "direction=backward"], r"backward, but forward in counts@1"),
        (
            "ngram",
            ["train.from=counts", "tokenizer.lowercase=true"],
            r"lowercase is True, but False in counts@1",
        ),
        ("ngram", ["train.from=pieces"], r"pieces@1 is of the family elman"),
    ],
)
def test_a_base_that_does_not_fit_an_n_gram_model_is_refused(published, recipe, assignments, said):
    before = sorted((published / "r").rglob("*"))
    with pytest.raises(InputError, match=said):
        run_train(
            recipe,
            name="tuned",
            registry=published / "r",
            corpus=[published / "new.txt"],
            assignments=assignments,
        )
    assert sorted((published / "r").rglob("*")) == before


def test_a_teacher_must_have_the_tokenizer_of_the_base(published):
    with pytest.raises(InputError, match=r"train\.teacher: net@1 has another tokenizer .* than pieces@1"):
        fine_tune(published, "pieces", 'train.teacher=["net@1"]')
