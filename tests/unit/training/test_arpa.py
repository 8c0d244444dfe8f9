"""Import and export of ARPA files: metrics, provenance, sums of probabilities, direction."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.errors import FormatError, InputError, UnsupportedError
from models.language_model import Vocabulary, score_sequences
from models.ngram.build import build_automaton
from models.ngram.model import NGramModel
from tests.reference.backoff import SMALL, random_model, to_orders
from training.commands import run_train
from training.publish import run_export_arpa, run_import_arpa
from training.single_model import row_sum_facts

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture
def registry(tmp_path):
    return LocalRegistry(tmp_path / "registry", create=True)


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.arpa"
    path.write_text(SMALL)
    return path


def imported(registry, path, **options):
    result = run_import_arpa(path, name="m", registry=registry.root, **options)
    return load_checkpoint(Path(result["path"]))


def json_of(checkpoint, name):
    return json.loads((checkpoint.path / f"{name}.json").read_text())


def test_an_imported_model_answers_as_its_file_says(registry, small):
    checkpoint = imported(registry, small)
    start = checkpoint.model.initial_state(1)
    tokens = np.array([checkpoint.tokenizer.encode("a b unheard-of a")])
    log10 = score_sequences(checkpoint.model, start, tokens, np.array([4]))[0] / np.log(10)
    assert log10.tolist() == pytest.approx([-0.2, -0.1, -0.25 - 0.1 - 1.5, -0.6], abs=1e-6)


def test_provenance_of_an_import_names_its_file(registry, small):
    provenance = json_of(imported(registry, small), "provenance")
    assert provenance["source"] == {
        "format": "ARPA",
        "file": "small.arpa",
        "sha256": hashlib.sha256(SMALL.encode()).hexdigest(),
    }
    assert "numba" in provenance["libraries"]


def test_held_out_text_gives_figures_and_none_gives_none(registry, small, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("A b\na x\n")
    with_text = imported(registry, small, corpus=[text], lowercase=True)
    assert with_text.metrics["test"]["tokens"] == 6
    assert with_text.metrics["test"]["oov"] == 1
    assert with_text.metrics["data"]["test"]["sources"] == ["text.txt"]
    assert "6 | 1 (" in (with_text.path / "MODEL_CARD.md").read_text()
    without = imported(registry, small)
    assert "test" not in without.metrics
    assert "No held-out text" in (without.path / "MODEL_CARD.md").read_text()


@pytest.mark.parametrize("words", [("A", "B"), ("A", "b"), ("a", "\u00c9t\u00e9")])
def test_capitals_are_refused_where_texts_are_lower_cased(registry, small, words):
    text = small.read_text()
    for before, after in zip("ab", words, strict=True):
        text = re.sub(rf"\b{before}\b(?=[\t\n ])", after, text)
    small.write_text(text)
    with pytest.raises(InputError, match=r"of 2 words of small.arpa, such as .* omit --lowercase, or"):
        imported(registry, small, lowercase=True)
    assert imported(registry, small).tokenizer.encode(words[0]) == [3]


def test_unlisted_prefixes_are_told(registry, small):
    small.write_text(SMALL.replace("ngram 2=4", "ngram 2=3").replace("-0.3\ta b\t-0.25\n", ""))
    checkpoint = imported(registry, small)
    assert json_of(checkpoint, "metrics")["arpa"]["missing_prefixes"] == 1
    card = (checkpoint.path / "MODEL_CARD.md").read_text()
    assert "1 prefixes of n-grams are not listed; they are added with the back-off weight 0" in card


def test_probabilities_that_do_not_sum_to_one_are_said_not_to(registry, small):
    checkpoint = imported(registry, small)
    assert not checkpoint.manifest.normalised
    assert not checkpoint.metrics["normalisation"]["normalised"]


def test_an_imported_model_can_be_made_smaller(registry, small):
    checkpoint = imported(registry, small, prune_entropy=0.1, quantize_bits=8)
    assert checkpoint.metrics["ngrams_before_pruning"] == [5, 4, 2]
    assert sum(checkpoint.metrics["ngrams"]) < 11
    assert checkpoint.model.automaton.log10_probs.dtype == np.uint8
    assert not checkpoint.manifest.normalised


@pytest.mark.parametrize("order", [1, 2, 4])
def test_a_model_that_is_one_is_measured_as_one(order):
    vocabulary = Vocabulary("abcde")
    orders = to_orders(random_model(7, vocab_size=8, order=order))
    sums = row_sum_facts(NGramModel(build_automaton(orders), vocabulary))
    assert sums["normalised"]
    assert sums["contexts"] > 2 or order == 1


def test_one_wrong_weight_of_a_long_context_is_seen():
    vocabulary = Vocabulary("abcde")
    orders = to_orders(random_model(7, vocab_size=8, order=4))
    backoffs = orders[2][1].log10_backoffs
    backoffs[int(np.flatnonzero(np.diff(orders[3][0].prefixes))[0])] += 0.01
    assert not row_sum_facts(NGramModel(build_automaton(orders), vocabulary))["normalised"]


def test_exported_arpa_is_imported_as_the_same_model(registry, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat sat on the mat\na dog lay on a rug\n" * 20)
    run_train("ngram", name="t", registry=registry.root, corpus=[corpus], assignments=["ngram.order=3"])
    run_export_arpa("t", tmp_path / "t.arpa.xz", registry=registry.root)
    trained = load_checkpoint(registry.resolve("t").path)
    again = imported(registry, tmp_path / "t.arpa.xz")
    assert again.manifest.vocabulary_fingerprint == trained.manifest.vocabulary_fingerprint
    assert again.tokenizer.fingerprint == trained.tokenizer.fingerprint
    assert all(
        np.array_equal(a, b) for a, b in zip(again.model.automaton, trained.model.automaton, strict=True)
    )
    assert again.manifest.normalised


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_subword_model_is_imported_as_the_same_model_with_its_tokenizer(registry, tmp_path, kind):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat sat on the mat\na dog lay on a rug\nÜber naïve <s> 100 %\n" * 20)
    settings = [
        "ngram.order=3",
        f"tokenizer.kind={kind}",
        "tokenizer.vocab_size=28",
        "tokenizer.byte_fallback=false",
    ]
    run_train("ngram", name="t", registry=registry.root, corpus=[corpus], assignments=settings)
    run_export_arpa("t", tmp_path / "t.arpa", registry=registry.root)
    trained = load_checkpoint(registry.resolve("t").path)
    again = imported(
        registry, tmp_path / "t.arpa", pieces_of=trained.path / "tokenizer.model", corpus=[corpus]
    )
    assert again.manifest.vocabulary_fingerprint == trained.manifest.vocabulary_fingerprint
    assert again.metrics["arpa"]["unlisted_pieces"] == 0
    for text in ("the cat sat on a rug", "Über ☃ dogs", ""):
        assert again.tokenizer.encode(text) == trained.tokenizer.encode(text)
    assert again.tokenizer.token_bytes == trained.tokenizer.token_bytes
    assert all(
        np.array_equal(a, b) for a, b in zip(again.model.automaton, trained.model.automaton, strict=True)
    )


@pytest.mark.parametrize(
    ("setting", "splits"),
    [("min_count=1", True), ("lowercase=true", False), ("normalise=nfc", False), ("pattern=.", False)],
)
def test_an_export_says_if_the_words_are_those_between_spaces(registry, tmp_path, setting, splits):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat sat on the mat\na dog lay on a rug\n" * 20)
    assignments = ["ngram.order=2", f"tokenizer.{setting}"]
    run_train("ngram", name="t", registry=registry.root, corpus=[corpus], assignments=assignments)
    exported = run_export_arpa("t", tmp_path / "t.arpa", registry=registry.root)
    assert exported["splits_at_spaces"] is splits


def test_a_backward_model_stays_backward(registry, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat sat on the mat\na dog lay on a rug\n" * 20)
    settings = ["ngram.order=2", "ngram.direction=backward"]
    trained = run_train(
        "ngram", name="t", registry=registry.root, corpus=[corpus], valid=[corpus], assignments=settings
    )
    run_export_arpa("t", tmp_path / "t.arpa", registry=registry.root)
    again = imported(registry, tmp_path / "t.arpa", corpus=[corpus])
    assert again.manifest.direction == "backward"
    assert again.metrics["test"]["perplexity"] == pytest.approx(trained["valid"]["perplexity"])


def test_a_model_without_any_long_ngram_is_tested_by_what_it_has(registry, tmp_path):
    text = SMALL.replace("3=2", "3=0").replace("-0.1\t<s> a b\n-0.05\ta b </s>\n", "")
    (tmp_path / "m.arpa").write_text(text)
    assert imported(registry, tmp_path / "m.arpa").model.order == 3


def test_other_families_are_not_exported(registry, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat sat on the mat\na dog lay on a rug\n" * 20)
    small = ["neural.hidden_size=8", "neural.embedding_size=8", "train.max_steps=1", "train.batch_size=2"]
    run_train("gru", name="g", registry=registry.root, corpus=[corpus], assignments=small)
    with pytest.raises(UnsupportedError, match="g@1 is of the family 'gru'; only n-gram models"):
        run_export_arpa("g", tmp_path / "g.arpa", registry=registry.root)


def test_a_bad_name_or_file_publishes_nothing(registry, small):
    with pytest.raises(InputError, match="name is 'a/b'"):
        run_import_arpa(small, name="a/b", registry=registry.root)
    small.write_text(SMALL[:-20])
    with pytest.raises(FormatError, match="the file ends"):
        run_import_arpa(small, name="m", registry=registry.root)
    assert registry.models() == []


def test_a_file_whose_middle_order_is_empty_is_imported(registry, small):
    text = re.sub(r"ngram 2=\d+", "ngram 2=0", SMALL)
    text = re.sub(r"ngram 3=\d+", "ngram 3=0", text)
    text = re.sub(r"(\\([23])-grams:\n).*?(?=\n\\)", r"\1", text, flags=re.DOTALL)
    small.write_text(text)
    assert imported(registry, small).model.order >= 2
