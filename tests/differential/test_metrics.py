"""Error rates against jiwer; BLEU, chrF, resampling and minimum-Bayes-risk choice against sacrebleu."""

import sys

import jiwer
import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from models.calls import run_to_completion
from models.files import ASCII_WHITESPACE
from models.reranking.mbr import expected_utilities
from models.reranking.metrics import make_metric
from models.reranking.metrics.metric import resampled_scores
from models.reranking.metrics.ngram_overlap import effective_bleu, tokenize_13a
from tests.support.nbest_lists import RECOGNISED, recognised, translated

texts = st.text("ab é.", max_size=12)


def theirs(name, text, reference):
    count = jiwer.process_words if name == "wer" else jiwer.process_characters
    found = count(reference, text)
    errors = found.substitutions + found.deletions + found.insertions
    return [errors, found.hits + found.substitutions + found.deletions]


def rate(name, text, reference):
    return 100 * (jiwer.wer if name == "wer" else jiwer.cer)(reference, text)


@pytest.mark.parametrize("name", ["wer", "cer"])
@given(texts, texts)
def test_counts_and_rates_are_those_of_jiwer(name, text, reference):
    metric = make_metric(name)
    statistics = metric.statistics([text], [reference])
    assert statistics[0].tolist() == theirs(name, text, reference)
    assert metric.score(statistics)[0] == pytest.approx(rate(name, text, reference))


SPACES = [c for c in map(chr, range(sys.maxunicode + 1)) if c.isspace() and c not in ASCII_WHITESPACE]


@pytest.mark.parametrize("name", ["wer", "cer"])
@pytest.mark.parametrize("space", [*SPACES, "\u200b", "\u2060", "\ufeff"], ids=ascii)
def test_wide_white_space_is_counted_as_by_jiwer(name, space):
    """Alone within a word, it is part of the word; at the ends of a text and beside a space it is none."""
    for text in (f"50{space}000 roofs", f"{space}50 000{space}", f"50 {space}000", f"50{space}{space}000"):
        statistics = make_metric(name).statistics([text], ["60 000 roofs"])
        assert statistics[0].tolist() == theirs(name, text, "60 000 roofs")


def check_corpus(name, lists):
    """Check all hypotheses; hypotheses of equal rank form one system's output."""
    metric = make_metric(name)
    totals = sum(metric.statistics(one.texts, [one.reference]) for one in lists)
    references = [one.reference for one in lists]
    for system, ours in enumerate(totals):
        assert ours.tolist() == theirs(name, [one.texts[system] for one in lists], references)


@pytest.mark.data
@pytest.mark.parametrize("name", ["wer", "cer"])
@pytest.mark.parametrize("corpus", RECOGNISED)
def test_counts_of_recognised_speech_are_those_of_jiwer(name, corpus, data_dir):
    check_corpus(name, recognised(data_dir, corpus))


@pytest.mark.data
def test_counts_of_translations_are_those_of_jiwer(data_dir):
    check_corpus("wer", translated(data_dir))


@pytest.mark.data
def test_the_first_hypotheses_and_the_best_have_the_rates_that_the_data_is_known_for(data_dir):
    metric = make_metric("wer")
    lists = [metric.statistics(one.texts, [one.reference]) for one in recognised(data_dir, "common-voice")]
    first = metric.score(sum(rows[0] for rows in lists))
    oracle = metric.score(sum(rows[rows[:, 0].argmin()] for rows in lists))
    assert [round(float(first), 2), round(float(oracle), 1)] == [15.44, 11.3]


THEIRS = {"bleu": BLEU, "chrf": CHRF}
names = st.sampled_from(sorted(THEIRS))
awkward = st.text("ab 19.,-'&;<>!\n\u00a0é\U0001f600", max_size=20) | st.sampled_from(
    ["&quot;a&amp;lt;", "a-\nb <skipped>c", "1,000.5.", "a...b ..5", "", " "]
)
words = st.lists(st.sampled_from(["the", "a", "cat,", "sat", "3.5", "on"]), max_size=9).map(" ".join)
awkward_texts = awkward | words
segments = st.lists(st.tuples(awkward_texts, awkward_texts, awkward_texts), min_size=1, max_size=5)


def totals(metric, hypotheses, references):
    """Statistics of a corpus, [N, S]; references are by segment."""
    return np.concatenate(
        [metric.statistics([text], known) for text, known in zip(hypotheses, references, strict=True)]
    )


@given(awkward)
def test_text_is_cut_into_the_same_tokens(text):
    assert tokenize_13a(text) == Tokenizer13a()(text.rstrip()).split()


@given(names, segments)
def test_statistics_of_each_segment_are_the_same(name, rows):
    hypotheses, *references = map(list, zip(*rows, strict=True))
    expected = THEIRS[name]()._extract_corpus_statistics(hypotheses, references)
    ours = totals(make_metric(name), hypotheses, zip(*references, strict=True))
    assert ours.tolist() == expected


@given(names, segments)
def test_corpus_scores_are_the_same(name, rows):
    hypotheses, *references = map(list, zip(*rows, strict=True))
    metric = make_metric(name, num_references=2)
    score = metric.score(totals(metric, hypotheses, zip(*references, strict=True)).sum(axis=0))
    assert float(score) == pytest.approx(THEIRS[name]().corpus_score(hypotheses, references).score, abs=1e-9)


@given(awkward_texts, awkward_texts)
def test_sentence_scores_are_the_same(text, reference):
    bleu, chrf = make_metric("bleu"), make_metric("chrf")
    ours = (
        effective_bleu(bleu.statistics([text], [reference]))[0][0],
        chrf.score(chrf.statistics([text], [reference]))[0],
    )
    theirs = (
        sacrebleu.sentence_bleu(text, [reference]).score,
        sacrebleu.sentence_chrf(text, [reference]).score,
    )
    assert ours == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize("name", THEIRS)
@pytest.mark.parametrize("references", [1, 2, None])
def test_signatures_are_the_same(name, references):
    theirs = THEIRS[name]()
    second = {1: [], 2: [["a", "b"]], None: [[None, "b"]]}[references]
    theirs.corpus_score(["a", "b"], [["a", "b"], *second])
    assert make_metric(name, num_references=references).signature == str(theirs.get_signature())


@pytest.mark.data
@pytest.mark.parametrize(("name", "known"), [("chrf", 58.67), ("bleu", 33.65)])
def test_the_best_system_of_a_shared_task_has_the_same_score(name, known, data_dir):
    texts, references = zip(*((one.texts[5], one.reference) for one in translated(data_dir)), strict=True)
    metric = make_metric(name)
    ours = float(metric.score(totals(metric, texts, [[one] for one in references]).sum(axis=0)))
    assert ours == pytest.approx(THEIRS[name]().corpus_score(texts, [references]).score, abs=1e-9)
    assert round(ours, 2) == known


@pytest.mark.data
def test_resampled_scores_are_the_same(data_dir):
    lists = translated(data_dir)[:150]
    hypotheses = [[one.texts[system] for one in lists] for system in (0, 1)]
    references = [[one.reference] for one in lists]
    metric = make_metric("bleu")
    both = np.stack([totals(metric, texts, references) for texts in hypotheses])
    ours = resampled_scores(metric, both, samples=200, seed=12345)
    named = [("a", hypotheses[0]), ("b", hypotheses[1])]
    _, theirs = PairedTest(
        named, {"BLEU": BLEU()}, list(map(list, zip(*references, strict=True))), "bs", 200
    )()
    np.testing.assert_allclose(ours.mean(axis=0), [result.mean for result in theirs["BLEU"]], atol=1e-9)


SENTENCE_SCORES = {"chrf": sacrebleu.sentence_chrf, "bleu": sacrebleu.sentence_bleu}
TEXTS = ["The goods cost less than 20 euros.", "The goods have cost under 20 Euros.", "", "Goods: 20.", "No"]


@pytest.mark.parametrize("utility", SENTENCE_SCORES)
def test_utilities_are_expected_sentence_scores(utility):
    posteriors = np.array([0.4, 0.25, 0.05, 0.2, 0.1])
    score = SENTENCE_SCORES[utility]
    expected = [[score(text, [reference]).score for reference in TEXTS] @ posteriors for text in TEXTS]
    np.testing.assert_allclose(
        run_to_completion(expected_utilities(TEXTS, posteriors, utility)), expected, atol=1e-9
    )


@pytest.mark.data
def test_choosing_by_chrf_reproduces_the_known_gain(data_dir):
    lists = translated(data_dir)
    uniform = np.ones(9)
    chosen = [
        one.texts[run_to_completion(expected_utilities(one.texts, uniform, "chrf")).argmax()] for one in lists
    ]
    for name, known in (("chrf", 59.46), ("bleu", 34.47)):
        metric = make_metric(name)
        rows = [
            metric.statistics([text], [one.reference])[0] for text, one in zip(chosen, lists, strict=True)
        ]
        assert round(float(metric.score(np.sum(rows, axis=0))), 2) == known
