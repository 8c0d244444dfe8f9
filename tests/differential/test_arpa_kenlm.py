"""ARPA files against KenLM: the same file gives the same scores, and what is exported is read there."""

import lzma
import math

import kenlm
import numpy as np
import pytest

from models.language_model import pad_sequences
from models.ngram.arpa_reader import read_arpa
from models.ngram.arpa_writer import write_arpa
from models.ngram.build import build_automaton, list_ngrams
from models.ngram.model import NGramModel
from models.tokenizers import WordTokenizer
from models.vocabulary import EOS, UNK
from tests.arpa_files import random_arpa

LN_10 = math.log(10)


def imported(path):
    arpa = read_arpa(path)
    return NGramModel(build_automaton(arpa.orders), arpa.vocabulary)


def scores(model, lines):
    """Natural-log probabilities of every word and `</s>`, and the length of the n-gram each comes from."""
    encoded = [[*ids, EOS] for ids in WordTokenizer(model.vocabulary).encode_all(lines)]
    tokens, lengths = pad_sequences(encoded)
    inside = np.arange(tokens.shape[1]) < lengths[:, None]
    details = model.score_detailed(model.initial_state(len(lines)), tokens, lengths)
    return details.log_probs[inside], details.orders[inside], tokens[inside]


def assert_scores_as_kenlm(path, model, lines, *, lengths=True):
    """Matched lengths differ where suffixes are missing: KenLM counts the blanks that it puts there."""
    oracle = kenlm.Model(str(path))
    expected = [word for line in lines for word in oracle.full_scores(line)]
    log_probs, orders, tokens = scores(model, lines)
    assert np.abs(log_probs / LN_10 - [log10 for log10, _, _ in expected]).max() < 1e-5
    assert not lengths or (orders == [length for _, length, _ in expected]).all()
    assert ((tokens == UNK) == [oov for _, _, oov in expected]).all()


def random_lines(rng, words, count=40):
    return [" ".join(rng.choice([*words, "unheard-of"], rng.integers(0, 15))) for _ in range(count)]


@pytest.mark.parametrize("seed", range(24))
def test_random_files_score_as_with_kenlm(tmp_path, seed):
    """Orders 2 to 6, with and without `<unk>`, with and without all suffixes, and both ways to write `<s>`."""
    rng = np.random.default_rng(seed)
    text, words = random_arpa(
        rng,
        order=2 + seed % 5,
        unknown=seed % 4 > 0,
        orphans=seed % 3,
        num_words=12,
        start=["0", "-99"][seed % 2],
    )
    path = tmp_path / "random.arpa"
    path.write_text(text, encoding="utf-8")
    assert_scores_as_kenlm(path, imported(path), random_lines(rng, words), lengths=seed % 3 == 0)


@pytest.mark.parametrize("seed", range(6))
def test_kenlm_reads_what_is_exported(tmp_path, seed):
    rng = np.random.default_rng(seed)
    text, words = random_arpa(rng, order=2 + seed % 3, orphans=seed % 2)
    (tmp_path / "theirs").write_text(text, encoding="utf-8")
    model = imported(tmp_path / "theirs")
    write_arpa(tmp_path / "ours.arpa", model.vocabulary, list_ngrams(model.automaton))
    assert_scores_as_kenlm(tmp_path / "ours.arpa", model, random_lines(rng, words), lengths=seed % 2 == 0)


@pytest.mark.parametrize("first", ["-inf", "-99"])
def test_kenlm_reads_probabilities_of_zero_and_comments_that_are_exported(tmp_path, first):
    """Escaped words and back-off weights of zero, too; KenLM has its own spelling for the latter."""
    lines = [
        "\\data\\",
        "ngram 1=6",
        "ngram 2=2",
        "",
        "\\1-grams:",
        "-1\t<unk>",
        "-99\t<s>\t-0.5",
        "-1\t</s>",
    ]
    lines += [f"{first}\ta\t-0.2", "-1\tb\t-inf", "-1\t%\t-0.1", "", "\\2-grams:", "-0.1\t<s> b", "-0.3\tb a"]
    (tmp_path / "theirs").write_text("\n".join([*lines, "", "\\end\\", ""]))
    model = imported(tmp_path / "theirs")
    write_arpa(tmp_path / "ours.arpa", model.vocabulary, list_ngrams(model.automaton))
    oracle = kenlm.Model(str(tmp_path / "ours.arpa"))
    expected = [log10 for log10, _, _ in oracle.full_scores("b a % a")]
    log_probs = scores(model, ["b a % a"])[0] / LN_10
    assert np.allclose(log_probs, expected, atol=1e-5)


@pytest.mark.data
@pytest.mark.parametrize("name", ["order4", "order4-pruned"])
def test_reference_files_score_as_with_kenlm(data_dir, tmp_path, name):
    packed = data_dir / "reference" / f"{name}.arpa.xz"
    path = tmp_path / "plain.arpa"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    lines = lzma.decompress((data_dir / "reference" / "test.txt.xz").read_bytes()).decode().splitlines()
    assert_scores_as_kenlm(path, imported(packed), lines)


@pytest.mark.data
def test_a_reference_file_is_exported_as_it_was(data_dir, tmp_path):
    packed = data_dir / "reference" / "order4-pruned.arpa.xz"
    model = read_arpa(packed)
    write_arpa(tmp_path / "ours.arpa", model.vocabulary, model.orders)
    texts = [
        (tmp_path / "ours.arpa").read_text(encoding="utf-8"),
        lzma.decompress(packed.read_bytes()).decode(),
    ]
    ours, theirs = ({line for line in map(unified, text.splitlines()) if line} for text in texts)
    assert ours == theirs


def unified(line):
    """A line with its numbers as floats; a back-off weight of 0 and none are the same, `<s>` has none of both."""
    prob, tab, rest = line.partition("\t")
    if not tab:
        return line
    words, _, backoff = rest.partition("\t")
    return (None if words == "<s>" else np.float32(prob), words, np.float32(backoff or 0))
