"""Published models: provenance, and model cards."""

import json
import subprocess
from types import SimpleNamespace

import pytest

from models.checkpoint.load import CheckpointDescription
from models.checkpoint.registry import LocalRegistry
from models.errors import InputError
from training import publish
from training.commands import run_train
from training.model_card import model_card_files

SMALL = [
    "tokenizer.kind=word",
    "ngram.order=2",
    "neural.hidden_size=8",
    "neural.embedding_size=8",
    "train.max_steps=2",
    "train.max_minutes=5",
    "train.batch_size=2",
    "train.bptt_length=4",
    "mixture.drop_unused=false",
]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """Directory of a published small mixture."""
    folder = tmp_path_factory.mktemp("publishing")
    corpus = folder / "corpus.txt"
    corpus.write_text("the cat sat on the mat\na dog lay on a rug\n" * 20)
    run_train("mixture", name="m", registry=folder / "registry", corpus=[corpus], assignments=SMALL)
    return folder / "registry" / "m" / "versions" / "1"


def read(path):
    return json.loads(path.read_text())


def test_a_part_is_recorded_with_the_tokenizer_it_was_trained_with(mixture):
    whole, *parts = (
        read(folder / "provenance.json")["recipe"]["tokenizer"]
        for folder in (mixture, mixture / "parts" / "0", mixture / "parts" / "1")
    )
    assert whole["kind"] == "word"
    assert parts == [whole, whole]


def test_the_learning_curve_is_kept_as_numbers(mixture):
    history = read(mixture / "parts" / "1" / "metrics.json")["history"]
    assert [record["step"] for record in history] == [1, 2]
    assert history[-1]["valid_perplexity"] > 1


@pytest.mark.parametrize(
    ("part", "said"),
    [("", "A mixture language model"), ("parts/0", "An n-gram"), ("parts/1", "An LSTM")],
)
def test_the_card_names_the_family_and_shows_its_pictures(mixture, part, said):
    card = (mixture / part / "MODEL_CARD.md").read_text()
    assert said in card
    pictures = [line.split("](")[1].rstrip(")") for line in card.splitlines() if line.startswith("![")]
    assert pictures
    assert all((mixture / part / picture).is_file() for picture in pictures)


def test_an_installed_copy_does_not_claim_the_commit_of_the_repository_around_it(tmp_path, monkeypatch):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    module = tmp_path / "publishing.py"
    module.touch()
    monkeypatch.setattr(publish, "__file__", str(module))
    assert publish._git_commit() is None


def test_a_part_may_be_a_recipe_of_ones_own_and_is_called_by_its_file(tmp_path):
    mine = tmp_path / "recipes" / "mine.toml"
    mine.parent.mkdir()
    mine.write_text('family = "neural"\n[neural]\ncell = "gru"\n')
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat sat on the mat\na dog lay on a rug\n" * 20)
    parts = f'mixture.recipes=["ngram", "{mine}"]'
    settings = [*SMALL, parts, "mixture.publish_parts=true"]
    result = run_train("mixture", name="m", registry=tmp_path / "r", corpus=[corpus], assignments=settings)
    assert [part["name"] for part in result["parts"]] == ["ngram@1", "mine@1"]
    assert (tmp_path / "r" / "mine" / "versions" / "1" / "learning-curve-mine.png").is_file()
    assert LocalRegistry(tmp_path / "r").default() == "m"


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ('["ngram", "/nosuch/my recipe.toml"]', "mixture.recipes is 'my recipe'"),
        ('["ngram", "/nosuch/mine.toml"]', "/nosuch/mine.toml: No such file"),
    ],
)
def test_parts_that_cannot_be_trained_or_published_are_refused_before_any_text_is_read(tmp_path, parts, said):
    settings = [f"mixture.recipes={parts}", "mixture.publish_parts=true"]
    absent = tmp_path / "absent.txt"
    with pytest.raises(InputError, match=said):
        run_train("mixture", name="m", registry=tmp_path / "r", corpus=[absent], assignments=settings)


PNG = b"\x89PNG"
FIGURES = {
    "tokens": 1000,
    "oov": 25,
    "perplexity": 123.456,
    "perplexity_without_oov": 100.0,
    "word_perplexity": 150.0,
    "bits_per_byte": 1.5,
}


def hit_rate(*values):
    return dict(zip(("order", "tokens", "share", "logprob", "perplexity"), values, strict=True))


HITS = [
    hit_rate(1, 600, 0.6, -6.0, 403.4),
    hit_rate(2, 400, 0.4, -2.0, 7.389),
    hit_rate(3, 0, 0.0, None, None),
]
TEXT = {"sources": ["a.txt"], "sentences": 9, "sha256": "0123456789abcdef"}
NGRAM = {
    "valid": {**FIGURES, "hit_rates": HITS},
    "ngrams": [30, 1_200, 4_500],
    "discounts": [[0.5, 1.0, 1.5], [0.6, 1.1, 1.4], [0.7, 1.2, 1.3]],
    "fallback_orders": [1],
    "smoothing": "modified-kneser-ney",
    "context": "sentence",
    "data": {"train": TEXT},
}
RECIPE = {"family": "ngram", "tokenizer": {"kind": "word"}, "ngram": {"order": 3}, "mixture": {"models": []}}
TRAINED = {"recipe": RECIPE, "seed": 1, "seconds": 2.0}


def card(metrics, *, family="ngram", provenance=TRAINED, direction="forward"):
    model = SimpleNamespace(family=family, num_parameters=5_730, vocabulary=range(30))
    description = CheckpointDescription("2026-01-01", metrics, provenance, [], {}, direction)
    files = model_card_files("m", model, "word", description, {})
    return files["MODEL_CARD.md"].decode(), files


def rows(text, head):
    """Cells of the table with this header, by row."""
    lines = text[text.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_n_grams_hits_and_discounts_stand_in_one_table():
    text, _ = card(NGRAM)
    assert rows(text, "| order |") == [
        ["1", "30", "60.0%", "403.4", "0.5000", "1.0000", "1.5000", "constants"],
        ["2", "1,200", "40.0%", "7.389", "0.6000", "1.1000", "1.4000", "estimated"],
        ["3", "4,500", "0.0%", "", "0.7000", "1.2000", "1.3000", "estimated"],
    ]
    assert "A token of the validation text is found" in text
    assert "- smoothing: modified-kneser-ney" in text


def test_an_order_that_pruning_left_nothing_of_has_a_row_all_the_same():
    text, files = card({**NGRAM, "ngrams": [30, 1_200, 0], "valid": {**FIGURES, "hit_rates": HITS[:2]}})
    assert rows(text, "| order |")[2] == ["3", "0", "0.0%", "", "0.7000", "1.2000", "1.3000", "estimated"]
    assert files["ngrams.png"].startswith(PNG)


def test_one_discount_for_all_counts_is_one_column():
    text, _ = card({**NGRAM, "discounts": [[0.5] * 3, [0.6] * 3, [0.7] * 3], "fallback_orders": []})
    assert [row[4:] for row in rows(text, "| order |")] == [["0.5000"], ["0.6000"], ["0.7000"]]


def test_facts_of_any_smoothing_are_shown():
    facts = {"lambdas": [[0.25, 0.5], [0.125, 1e-7], []], "buckets": 2, "fitted_on": None}
    text, _ = card({**NGRAM, "discounts": [], "fallback_orders": [], **facts})
    assert [row[4] for row in rows(text, "| order |")] == ["0.25, 0.5", "0.125, 1e-07", "none"]
    assert "- buckets: 2\n- fitted on: none\n" in text


def test_held_out_figures_have_the_rate_of_unknown_words_and_both_perplexities():
    text, _ = card(NGRAM)
    assert rows(text, "| model |") == [
        ["m", "", "valid", "1,000", "25 (2.50%)", "123.46", "100.00", "150.00", "1.500"]
    ]


def test_figures_of_hundreds_of_digits_have_room():
    vast = hit_rate(1, 600, 0.6, -690.0, 1e300)
    text, files = card({**NGRAM, "valid": {**FIGURES, "perplexity": 2e299, "hit_rates": [vast, *HITS[1:]]}})
    assert "| 1e+300 |" in text
    assert "| 2e+299 |" in text
    assert files["ngrams.png"].startswith(PNG)


def test_an_impossible_token_makes_a_perplexity_infinite():
    impossible = hit_rate(1, 600, 0.6, None, None)
    text, _ = card({**NGRAM, "valid": {**FIGURES, "perplexity": None, "hit_rates": [impossible, *HITS[1:]]}})
    assert rows(text, "| model |")[0][5] == "infinite"
    assert rows(text, "| order |")[0][3] == "infinite"


def test_the_picture_is_there_with_and_without_hit_rates():
    for metrics in (NGRAM, {**NGRAM, "valid": FIGURES}):
        text, files = card(metrics)
        assert files["ngrams.png"].startswith(PNG)
        assert "(ngrams.png)" in text


def test_an_imported_model_has_an_origin_instead_of_a_training():
    source = {"file": "big.arpa.gz", "sha256": "abc"}
    text, files = card({"ngrams": [30, 1_200]}, provenance={"source": source})
    assert "No held-out text was scored." in text
    assert "## Origin\n\n- source: file big.arpa.gz, sha256 abc\n" in text
    assert "## Training" not in text
    assert files.keys() == {"MODEL_CARD.md", "ngrams.png"}


def test_figures_on_text_that_fitted_discounts_are_not_held_out():
    text, _ = card({**NGRAM, "discounts_fitted_on": ["dev.txt"], "test": FIGURES})
    assert "## Held-out figures" not in text
    said = "not held out: the discounts were fitted on this text (dev.txt); figures on test are held out."
    assert said in text
    assert "## Held-out figures" in card(NGRAM)[0]


def test_keys_that_the_smoothing_does_not_look_at_are_not_shown():
    settings = {"order": 3, "k": 0.1, "buckets": 1, "prune": []}
    for smoothing, shown in (("add-k", "k 0.1"), ("jelinek-mercer", "buckets 1")):
        recipe = {**RECIPE, "ngram": {**settings, "smoothing": smoothing}}
        text, _ = card(NGRAM, provenance={**TRAINED, "recipe": recipe})
        assert f"- n-grams: order 3, {shown}, smoothing {smoothing}\n" in text


def test_an_imported_file_is_described_in_sentences():
    arpa = {"lists_unknown": False, "ignored_backoffs": 7, "ignored_starts": 0, "split_words": 0}
    sums = {"contexts": 12, "largest_deviation": 0.25, "normalised": False}
    text, _ = card({"ngrams": [30, 1_200], "arpa": arpa, "normalisation": sums}, provenance={"source": {}})
    assert "- the file has no <unk>; unknown words have the log10 probability -100\n" in text
    assert "- 7 back-off weights of the highest order are ignored\n" in text
    assert "- probabilities do not sum to 1: over 12 contexts, the largest deviation is 0.25\n" in text
    assert "arpa" not in text


def test_a_backward_model_says_so():
    assert "It reads backward" in card(NGRAM, direction="backward")[0]
    assert "backward" not in card(NGRAM)[0]


def test_other_families_have_no_section_of_n_grams():
    recipe = {**RECIPE, "family": "neural"}
    text, files = card(
        {"valid": FIGURES, "stopped": "epochs"}, family="lstm", provenance={**TRAINED, "recipe": recipe}
    )
    assert "An LSTM language model" in text
    assert "## N-grams" not in text
    assert files.keys() == {"MODEL_CARD.md"}


@pytest.mark.parametrize(("family", "said"), [("mixture", "A mixture"), ("ngram", "It is a static mixture")])
def test_both_kinds_of_mixtures_show_parts_and_weights(family, said):
    parts = [{"name": name, "family": "ngram", "weight": 0.5, "valid": FIGURES} for name in ("a@1", "b@1")]
    text, files = card({"valid": FIGURES, "parts": parts, "weights": [0.5, 0.5]}, family=family)
    assert said in text
    assert [row[:2] for row in rows(text, "| model |")] == [["m", ""], ["a@1", "0.500"], ["b@1", "0.500"]]
    assert "fitted by EM" in text
    assert files["perplexities.png"].startswith(PNG)


def test_the_cost_of_each_part_is_told_with_those_of_its_own_parts():
    inner = {"name": "lstm", "family": "lstm", "weight": 0.5, "step_ms": 0.61, "valid": FIGURES}
    part = {"name": "m without cache", "family": "mixture", "weight": 0.7, "step_ms": 0.8, "valid": FIGURES}
    text, _ = card({"valid": FIGURES, "parts": [{**part, "parts": [inner]}]}, family="cache")
    assert "networks in int8 if possible): lstm 0.61 ms, m without cache 0.8 ms." in text
    assert "Time of one step" not in card(NGRAM)[0]


def test_parts_with_other_unknown_words_carry_a_caveat():
    part = {"name": "a@1", "family": "ngram", "weight": 1.0, "valid": {**FIGURES, "oov": 30}}
    assert "roughly comparable" in card({"valid": FIGURES, "parts": [part]})[0]
    assert "roughly comparable" not in card({"valid": FIGURES, "parts": [{**part, "valid": FIGURES}]})[0]


def test_a_card_tells_the_parameters_of_a_cache():
    cache = {"kind": "continuous", "window": 10_000, "flatness": 14.0, "half_life": 2_500.0, "weight": 0.18}
    cache["prior"] = 0.25
    text, _ = card({"valid": FIGURES, "cache": cache}, family="cache")
    assert "of the last 10,000 tokens: θ = 14, half-life 2,500, weight 0.180, prior 0.25" in text
    assert "## Cache" not in card(NGRAM)[0]
