"""Training with classes: lists of members, marks in the text, published parts, figures of `evaluate`."""

import json
import math

import pytest

from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.errors import FormatError, InputError
from models.slot_model import SlotModel
from training.commands import run_evaluate, run_evaluate_autocomplete, run_train
from training.publish import run_export_arpa

pytestmark = pytest.mark.usefixtures("no_pictures")

CITIES = ("boston", "new york", "denver")
LINES = [f"flights from {a} to {b}" for a in CITIES for b in CITIES] * 5
NETWORK = ["neural.hidden_size=8", "neural.embedding_size=4", "train.max_steps=3", "train.batch_size=2"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(LINES))
    (tmp_path / "marked.txt").write_text("\n".join(["flights from $city to $city"] * 20))
    (tmp_path / "cities.txt").write_text("\n".join((*CITIES, "ulm", "")))
    return tmp_path


def train(folder, recipe, name, *assignments, text="text.txt"):
    """Train a model, and return its checkpoint as it is served."""
    registry = LocalRegistry(folder / "registry", create=True)
    corpus = [] if text is None else [folder / text]
    run_train(recipe, corpus=corpus, name=name, registry=str(registry.root), assignments=assignments)
    return load_checkpoint(registry.fetch(registry.resolve(name)))


def listed(folder):
    return f"tokenizer.slots.city={folder / 'cities.txt'}"


def evaluate(folder, name, text="text.txt", **options):
    common = {
        "corpus": [folder / text],
        "registry": str(folder / "registry"),
        "unit": "line",
        "device": "cpu",
    }
    return run_evaluate(name, **common, context="sentence", window=1, **options)


@pytest.mark.parametrize("kind", ["word", "unigram", "bpe"])
def test_members_of_a_list_are_read_as_the_class(folder, kind):
    loaded = train(folder, "ngram", "listed", listed(folder), f"tokenizer.kind={kind}")
    assert isinstance(loaded.model, SlotModel)
    plain = loaded.tokenizer.members.plain
    assert plain.decode(plain.encode("flights from $city")) == "flights from $city"
    held_out = len(LINES) // 20 * 2
    counts = json.loads((loaded.path / "slots.json").read_text())["city"]
    assert list(counts) == [*CITIES, "ulm"]
    assert sum(counts.values()) == 2 * len(LINES) - held_out + len(counts)  # one more than it occurs
    assert counts["ulm"] == 1
    assert (
        loaded.tokenizer.decode(loaded.tokenizer.encode("flights from new york")) == "flights from new york"
    )
    assert len(loaded.model.vocabulary) > loaded.manifest.vocab_size


def test_figures_of_training_say_what_they_count(folder):
    notes = {}
    for name, keys in {"listed": [listed(folder)], "plain": []}.items():
        common = {"name": name, "registry": str(folder / "registry"), "corpus": [folder / "text.txt"]}
        notes[name] = run_train("ngram", assignments=keys, **common)["notes"]
    assert any("the mark of a class as one token" in note for note in notes["listed"])
    assert not any("class" in note for note in notes["plain"])


def test_marks_of_the_text_have_no_members_of_their_own(folder):
    loaded = train(folder, "ngram", "marked", "tokenizer.slots.city=", text="marked.txt")
    assert not isinstance(loaded.model, SlotModel)
    assert not (loaded.path / "slots.json").exists()
    with_members = evaluate(folder, "marked", slots={"city": CITIES})
    assert with_members["oov"] == 0
    assert with_members["logprob"] > evaluate(folder, "marked")["logprob"]


def test_words_count_as_in_the_text(folder):
    """A city of two words is one token, but two words of the perplexity per word."""
    train(folder, "ngram", "listed", listed(folder))
    train(folder, "ngram", "plain")
    listed_figures, plain = evaluate(folder, "listed"), evaluate(folder, "plain")
    assert listed_figures["tokens"] < plain["tokens"]
    for figures in (listed_figures, plain):
        per_word = math.exp(-figures["logprob"] / plain["tokens"])  # its tokens are words and ends of lines
        assert figures["word_perplexity"] == pytest.approx(per_word)


def test_figures_count_the_members_of_the_list(folder):
    train(folder, "ngram", "listed", listed(folder))
    (folder / "unseen.txt").write_text("flights from ulm to bonn\n" * 5)
    unseen = evaluate(folder, "listed", "unseen.txt", slots={"city": ["ulm", "bonn"]})
    assert unseen["oov"] == 0
    typed = run_evaluate_autocomplete(
        "listed",
        corpus=[folder / "unseen.txt"],
        registry=str(folder / "registry"),
        unit="line",
        device="cpu",
        slots={"city": ["ulm", "bonn"]},
    )
    assert typed["unknown_words"] == 0
    assert typed["keys_pressed"]["top_3"] < typed["keys"] / 2


def test_parts_of_a_mixture_keep_their_members(folder):
    train(folder, "ngram", "listed", listed(folder))
    train(
        folder,
        "ngram",
        "low",
        listed(folder),
        "ngram.order=2",
        "tokenizer.slots.city=" + str(folder / "cities.txt"),
    )
    mixed = train(
        folder, "ngram-mixture", "mixed", 'mixture.models=["listed", "low"]', "mixture.recipes=[]", "ngram={}"
    )
    assert isinstance(mixed.model, SlotModel)
    assert mixed.tokenizer.encode("new york")[0] >= mixed.manifest.vocab_size


def test_a_network_continues_with_the_members_of_its_base(folder):
    train(folder, "lstm", "base", listed(folder), "tokenizer.kind=word", *NETWORK)
    (folder / "more.txt").write_text("\n".join(["flights from new york to ulm"] * 20))
    tuned = train(folder, "finetune", "tuned", "train.from=base", "train.max_steps=2", text="more.txt")
    assert isinstance(tuned.model, SlotModel)
    assert json.loads((tuned.path / "slots.json").read_text())["city"]["ulm"] > 10


def test_arpa_files_have_the_class(folder):
    train(folder, "ngram", "listed", listed(folder))
    run_export_arpa("listed", folder / "out.arpa", registry=str(folder / "registry"))
    text = (folder / "out.arpa").read_text()
    assert "$city" in text
    assert "boston" not in text


@pytest.mark.parametrize(
    ("assignments", "error", "problem"),
    [
        (["tokenizer.slots.city=missing.txt"], FormatError, "missing.txt"),
        (["tokenizer.slots.City=x"], InputError, "a class is named 'City'"),
        (["tokenizer.slots.city=", "tokenizer.kind=char"], InputError, "slots require"),
        (["tokenizer.slots=x"], InputError, "tokenizer.slots"),
    ],
)
def test_wrong_keys_are_refused(folder, assignments, error, problem):
    with pytest.raises(error, match=problem):
        train(folder, "ngram", "refused", *assignments)


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_marks_of_one_class_and_members_of_another(folder, kind):
    (folder / "both.txt").write_text("\n".join(f"{line} with $contact" for line in LINES))
    loaded = train(
        folder,
        "ngram",
        "both",
        listed(folder),
        "tokenizer.slots.contact=",
        f"tokenizer.kind={kind}",
        text="both.txt",
    )
    contact, city = (loaded.tokenizer.classes[name] for name in ("contact", "city"))
    assert contact in loaded.tokenizer.members.plain.encode("with $contact")
    counts = loaded.model.model.next_log_probs(loaded.model.model.initial_state(1))[0]
    assert counts[contact] == pytest.approx(counts[city], abs=5)  # both are predicted


def test_a_list_without_a_member_in_the_text_is_refused(folder):
    """The model would have no class, and its list could not be read again."""
    (folder / "cities.txt").write_text("paris\nulm\n")
    with pytest.raises(InputError, match=r"tokenizer.slots.city: \$city is not in the vocabulary"):
        train(folder, "ngram", "refused", listed(folder))


def test_a_model_that_begins_with_another_has_its_classes(folder):
    train(folder, "lstm", "base", listed(folder), "tokenizer.kind=word", *NETWORK)
    with pytest.raises(InputError, match="has the classes and members of the published models"):
        train(folder, "finetune", "tuned", "train.from=base", listed(folder))


def test_both_compared_models_have_the_members(folder):
    for name, order in (("high", 3), ("low", 2)):
        train(folder, "ngram", name, listed(folder), f"ngram.order={order}")
    (folder / "unseen.txt").write_text("flights from ulm to bonn\n" * 5)
    figures = evaluate(folder, "high", "unseen.txt", slots={"city": ["ulm", "bonn"]}, against="low")
    assert figures["oov"] == figures["against"]["oov"] == 0


def test_dynamic_evaluation_refuses_members(folder):
    train(folder, "lstm", "network", listed(folder), "tokenizer.kind=word", *NETWORK)
    with pytest.raises(InputError, match="dynamic evaluation cannot read members of classes"):
        evaluate(folder, "network", dynamic=True)


def test_a_member_with_a_mark_is_refused(folder):
    (folder / "cities.txt").write_text("boston\nthe $city\n")
    with pytest.raises(InputError, match=r"tokenizer.slots.city: the member 'the \$city' contains the mark"):
        train(folder, "ngram", "refused", listed(folder))
