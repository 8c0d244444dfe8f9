"""Recipes of neural models: every family from text to a loaded checkpoint; keys that clash or do nothing."""

import numpy as np
import pytest

from models.checkpoint.load import load_checkpoint
from models.checkpoint.write import CheckpointDescription, write_checkpoint
from models.errors import InvalidInputError
from models.language_model import pad_sequences
from tests import families
from training.progress import Silent
from training.recipe import load_recipe
from training.single_model import train_neural
from training.texts import EncodedTexts

SMALL = [
    "neural.embedding_size=12",
    "neural.hidden_size=16",
    "train.learning_rate=1e-2",
    "train.batch_size=8",
    "train.validations=2",
    "train.precision=float32",
]
FAMILIES = ["feed-forward", "elman", "lstm", "gru", "mingru"]


def trained(name, *assignments, corpus=None):
    text = corpus or families.corpus()
    recipe = load_recipe(name, [*SMALL, "train.epochs=8", *assignments])
    texts = EncodedTexts(text, text, None)
    return train_neural("test", recipe, families.tokenizer(), texts, device="cpu", progress=Silent())


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_learns_and_comes_back_from_a_checkpoint(name, tmp_path):
    """A word depends on the one before: of 37 words five can follow, so 7 is good and 30 knows their counts."""
    result = trained(name)
    assert result.model.family == name
    assert result.figures["valid"]["perplexity"] < 12
    description = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {})
    write_checkpoint(tmp_path, result.model, families.tokenizer(), description)
    loaded = load_checkpoint(tmp_path).model
    batch = pad_sequences([[3, 4, 5], [6]])
    scores = [m.score(m.initial_state(2), *batch) for m in (loaded, result.model)]
    np.testing.assert_allclose(scores[0], scores[1], atol=0.05)  # what is loaded may be quantised


def test_a_backward_network_is_a_forward_one_of_reversed_sentences():
    backward = trained("gru", "direction=backward", "train.max_steps=5")
    forward = trained("gru", "train.max_steps=5", corpus=families.corpus().reversed())
    assert (backward.direction, forward.direction) == ("backward", "forward")
    assert backward.figures == forward.figures


def test_vectors_of_a_file_are_what_training_starts_from(tmp_path):
    """With hardly a step, the vectors of the words in it are still multiples of the file's."""
    path = tmp_path / "vectors.txt"
    path.write_text("w3 " + "1 -1 " * 6 + "\nelsewhere " + "1 1 " * 6 + "\n")
    settings = [f"train.embeddings={path}", "train.max_steps=1", "train.learning_rate=1e-9"]
    result = trained("lstm", *settings)
    vector = result.model.network.embedding.weight[families.tokenizer().encode("w3")[0]].detach().numpy()
    assert vector / vector[0] == pytest.approx([1, -1] * 6, rel=1e-3)
    assert result.facts["embeddings"] == {"source": "vectors.txt", "tokens": 1}


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (["neural.window=3"], r"neural\.window acts with neural\.cell=feed-forward only, given lstm"),
        (["neural.cell=mingru", "neural.weight_drop=0.2"], r"neural\.weight_drop acts with .* given mingru"),
        (["train.dropout_start=0.5", "neural.dropout=0"], r"train\.dropout_start acts with .* given 0"),
        (["neural.attention_window=9"], r"neural\.attention_window acts with neural\.attention="),
        (["neural.attention=dot"], r"neural\.attention: must be 'none', 'additive'"),
        (["neural.attention=scaled", "neural.attention_window=9999"], r"must be at most 512, given 9999"),
    ],
)
def test_a_key_that_would_do_nothing_or_cannot_be_is_refused(assignments, said):
    with pytest.raises(InvalidInputError, match=said) as caught:
        load_recipe("lstm", assignments)
    assert caught.value.parameter.startswith(("neural.", "train."))


def test_one_key_turns_models_of_both_families_round():
    assert load_recipe("ngram", ["direction=backward"]).reading_direction == "backward"
    assert load_recipe("ngram", ["ngram.direction=backward"]).reading_direction == "backward"
    assert load_recipe("lstm", ["direction=backward"]).reading_direction == "backward"
    assert load_recipe("lstm").reading_direction == "forward"


@pytest.mark.parametrize(
    ("recipe", "assignments", "said"),
    [
        ("mixture", ["direction=backward"], r"direction acts on the families ngram and neural"),
        ("ngram", ["direction=forward", "ngram.direction=backward"], r"ngram\.direction is backward, but"),
        ("lstm", ["direction=up"], r"direction: must be 'forward' or 'backward', given 'up'"),
    ],
)
def test_directions_that_clash_are_refused(recipe, assignments, said):
    with pytest.raises(InvalidInputError, match=said):
        load_recipe(recipe, assignments)
