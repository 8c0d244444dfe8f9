"""ARPA files, given and random, and rescored lattices against KenLM."""

import itertools
import lzma
import math
import sys
from pathlib import Path
from typing import NamedTuple

import kenlm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.files import ASCII_WHITESPACE
from models.language_model import EOS, UNK, Vocabulary, pad_sequences
from models.lattices.graph import LabelTokenizer, PathWeights
from models.lattices.rescoring import nbest_candidates, rescore
from models.lattices.token_passing import LatticeSearch
from models.ngram.arpa_reader import read_arpa
from models.ngram.arpa_writer import write_arpa
from models.ngram.build import build_automaton, list_ngrams
from models.ngram.model import NGramModel, NGramState
from models.tokenizers import WordTokenizer
from tests.reference.backoff import SMALL, random_arpa
from tests.reference.lattices import all_paths, random_lattice, text_of

LN_10 = math.log(10)


def imported(path):
    arpa = read_arpa(path)
    return NGramModel(build_automaton(arpa.orders), arpa.vocabulary)


def scores(model, lines):
    """Natural-log probabilities of every word and `</s>`, and the length of its matched n-gram."""
    encoded = [[*ids, EOS] for ids in WordTokenizer(model.vocabulary).encode_all(lines)]
    tokens, lengths = pad_sequences(encoded)
    inside = np.arange(tokens.shape[1]) < lengths[:, None]
    details = model.score_detailed(model.initial_state(len(lines)), tokens, lengths)
    return details.log_probs[inside], details.orders[inside], tokens[inside]


def assert_scores_as_kenlm(path, model, lines, *, lengths=True):
    """Check log-probabilities and matched lengths; KenLM fills missing suffixes with blanks and counts them."""
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
    """Orders 2 to 6, with and without `<unk>`, with and without all suffixes, with 0 or −99 for `<s>`."""
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


SPACES = [c for c in map(chr, range(sys.maxunicode + 1)) if c.isspace() and c not in ASCII_WHITESPACE]


@pytest.mark.parametrize("space", SPACES, ids=ascii)
def test_words_with_wide_white_space_score_as_with_kenlm(tmp_path, space):
    path, word = tmp_path / "wide.arpa", f"ten{space}thousand"
    path.write_text(
        SMALL.replace("\ta\t", f"\t{word}\t").replace(" a", f" {word}").replace("\ta ", f"\t{word} "),
        encoding="utf-8",
    )
    lines = [word, f"{word} b", f"b {word} {word}", f"{space}b", f"b{space} {word}\t{word}"]
    assert_scores_as_kenlm(path, imported(path), lines, lengths=False)


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
    """Also escaped words and zero back-off weights, which KenLM spells differently."""
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
    """Line with its numbers as floats; a missing back-off weight is 0, the probability of `<s>` is ignored."""
    prob, tab, rest = line.partition("\t")
    if not tab:
        return line
    words, _, backoff = rest.partition("\t")
    return (None if words == "<s>" else np.float32(prob), words, np.float32(backoff or 0))


LETTERS = "abcdefgh"
NGram = tuple[str, ...]


class Read(NamedTuple):
    """File as written, as read here and as read by KenLM."""

    listed: set[NGram]
    vocabulary: Vocabulary
    model: NGramModel
    oracle: kenlm.Model


def closed(ngrams: set[NGram]) -> set[NGram]:
    """Return the n-grams and all their contiguous parts."""
    return {n[i:j] for n in ngrams for i in range(len(n)) for j in range(i + 1, len(n) + 1)}


def random_ngrams(random: np.random.Generator, order: int, *, pruned: bool, unknown: bool) -> set[NGram]:
    """N-grams whose prefixes are listed; if `pruned`, a few lack their suffix, as entropy pruning leaves them."""
    inner = [*LETTERS[: random.integers(1, len(LETTERS) + 1)], *(["<unk>"] if unknown else [])]
    listed = {(word,) for word in ["<s>", "</s>", *inner]}
    for _ in range(random.integers(3, 40)):
        words = random.choice(inner, size=random.integers(1, order + 1)).tolist()
        text = ["<s>"] * (random.random() < 0.4) + words + ["</s>"] * (random.random() < 0.3)
        listed.add(tuple(text[:order]))
    listed |= {("<s>", *inner[:1])}
    listed = closed(listed)
    if pruned:
        prefixes = {n[:-1] for n in listed}
        for longer in sorted(listed, key=lambda n: (len(n), n)):
            fellows = sum(len(n) == len(longer) - 1 for n in listed)
            if len(longer) > 2 and longer[1:] not in prefixes and random.random() < 0.5 and fellows > 12:
                listed.discard(longer[1:])
                break  # KenLM accepts few missing suffixes
    return listed


def arpa_text(random: np.random.Generator, listed: set[NGram], *, largest_backoff: float) -> str:
    """ARPA text with the lines of each order shuffled and some back-offs omitted."""
    top = max(map(len, listed))
    orders = [sorted(n for n in listed if len(n) == k) for k in range(1, top + 1)]
    lines = ["\\data\\", *(f"ngram {k}={len(ngrams)}" for k, ngrams in enumerate(orders, start=1))]
    for k, ngrams in enumerate(orders, start=1):
        lines += ["", f"\\{k}-grams:"]
        for place in random.permutation(len(ngrams)):
            ngram = ngrams[place]
            prob = random.choice([0, -99]) if ngram == ("<s>",) else -random.exponential()
            has_backoff = k < top and ngram[-1] != "</s>" and random.random() < 0.8
            backoff = f"\t{min(random.normal(-0.3, 0.5), largest_backoff):.6f}" if has_backoff else ""
            lines.append(f"{prob:.6f}\t{' '.join(ngram)}{backoff}")
    return "\n".join([*lines, "", "\\end\\", ""])


def written(folder: Path, random: np.random.Generator, order: int, *, pruned: bool, unknown: bool) -> Read:
    listed = random_ngrams(random, order, pruned=pruned, unknown=unknown)
    path = folder / "random.arpa"
    # KenLM computes missing n-grams and caps their probability at 1
    text = arpa_text(random, listed, largest_backoff=0 if pruned else np.inf)
    path.write_text(text, encoding="utf-8")
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    read = read_arpa(path)
    model = NGramModel(build_automaton(read.orders), read.vocabulary, normalised=False)
    return Read(listed, read.vocabulary, model, kenlm.Model(str(path), config))


def theirs(oracle: kenlm.Model, words: list[str], *, bos: bool) -> list[tuple[float, int]]:
    """Natural-log probability and matched order of each word."""
    state, after = kenlm.State(), kenlm.State()
    (oracle.BeginSentenceWrite if bos else oracle.NullContextWrite)(state)
    scores = []
    for word in words:
        full = oracle.BaseFullScore(state, word, after)
        scores.append((full.log_prob * LN_10, full.ngram_length))
        state, after = after, kenlm.State()
    return scores


def longest(listed: set[NGram], text: NGram) -> int:
    return max(n for n in range(1, len(text) + 1) if text[-n:] in listed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("arpa")


@given(st.integers(0, 2**32), st.integers(2, 6), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_a_file_means_what_it_means_to_kenlm(folder, seed, order, pruned, unknown, bos):
    random = np.random.default_rng(seed)
    listed, vocabulary, model, oracle = written(folder, random, order, pruned=pruned, unknown=unknown)
    words = [*random.choice([*LETTERS, "x"], size=15).tolist(), "</s>"]
    ids = np.array([[*(vocabulary.id_of(word) for word in words[:-1]), EOS]])
    start = model.initial_state(1) if bos else model.empty_state(1)
    ours = model.score_detailed(start, ids, np.array([len(words)]))
    expected = theirs(oracle, words, bos=bos)
    logprobs = [logprob for logprob, _ in expected]
    # relative tolerance: an unlisted <unk> has 10^-100, and single precision limits the digits of its logarithm
    assert np.allclose(ours.log_probs[0], logprobs, atol=1e-5, rtol=1e-7)
    known = [vocabulary[i] for i in ids[0]]
    texts = [(*["<s>"] * bos, *known[: i + 1])[-model.order :] for i in range(len(known))]
    assert ours.orders[0].tolist() == [longest(listed | {("<unk>",)}, text) for text in texts]
    # KenLM adds the suffixes that a file lacks
    assert [n for _, n in expected] == [longest(closed(listed) | {("<unk>",)}, text) for text in texts]


@given(st.integers(0, 2**32), st.integers(2, 6))
@settings(max_examples=50, deadline=None)
def test_texts_in_one_state_have_one_future_with_kenlm(folder, seed, order):
    random = np.random.default_rng(seed)
    _, vocabulary, model, oracle = written(folder, random, order, pruned=False, unknown=True)
    texts = [random.choice(list(LETTERS), size=6).tolist() for _ in range(40)]
    state = NGramState(np.full(40, model.automaton.initial, np.int32))
    for column in zip(*texts, strict=True):
        state = model.advance(state, np.array([vocabulary.id_of(word) for word in column]))
    future = random.choice(list(LETTERS), size=4).tolist()
    scores = [[score for score, _ in theirs(oracle, [*text, *future], bos=True)[6:]] for text in texts]
    by_state = sorted(zip(state.ids.tolist(), scores, strict=True))
    for _, group in itertools.groupby(by_state, key=lambda pair: pair[0]):
        assert np.ptp([row for _, row in group], axis=0).max() < 1e-5


WEIGHTS = PathWeights(am=0.1, lm=1.0, words=0.2)


def kenlm_totals(oracle, lattice):
    """The best total and the log-probability of each distinct string."""
    answers = {}
    for path in map(list, all_paths(lattice)):
        text = text_of(lattice, path)
        log_prob = oracle.score(text) * math.log(10)
        total = 0.1 * lattice.am[path].sum() + log_prob + 0.2 * len(text.split())
        answers[text] = max(answers.get(text, (-math.inf, 0.0)), (total, log_prob))
    return answers


@pytest.mark.parametrize("order", [2, 3, 5])
def test_the_n_best_lists_are_kenlms(order, tmp_path):
    rng, path = np.random.default_rng(order), tmp_path / "random.arpa"
    text, words = random_arpa(rng, order=order)
    path.write_text(text, encoding="utf-8")
    arpa, oracle = read_arpa(path), kenlm.Model(str(path))
    model = NGramModel(build_automaton(arpa.orders), arpa.vocabulary, normalised=False)
    lattices = [random_lattice(rng, words=[*words[:4], "new"], num_nodes=8, num_arcs=12) for _ in range(20)]
    search = LatticeSearch(max_tokens_per_node=100_000)
    rescored = rescore(
        lattices,
        model,
        LabelTokenizer(WordTokenizer(arpa.vocabulary)),
        weights=[WEIGHTS] * len(lattices),
        search=search,
    )
    for one in rescored:
        expected = kenlm_totals(oracle, one.lattice)
        found = nbest_candidates(one, 10).candidates
        best = sorted((total for total, _ in expected.values()), reverse=True)[:10]
        assert [expected[candidate.text][0] for candidate in found] == pytest.approx(best, abs=1e-4)
        for candidate in found:
            assert candidate.features["lm"] == pytest.approx(expected[candidate.text][1], rel=1e-5)
