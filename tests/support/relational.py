"""The relational estimator on small texts, and the in-memory estimator for comparison."""

from pathlib import Path

import numpy as np

from models.language_model import Vocabulary
from models.ngram.automaton import Automaton
from models.tokenizers import WordTokenizer
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate, make_smoothing
from training.progress import SILENT
from training.recipe import NGramSettings
from training.scale.assembly import assemble, open_automaton
from training.scale.options import own_memory_bytes
from training.scale.training import PlanRunner, workspace, write_vocabulary, write_windows

EXACT = ("order_starts", "first_arcs", "suffixes", "words")


def limit_with_room():
    """Memory limit that leaves an engine one gigabyte on top of this process's current memory."""
    return own_memory_bytes() + 10**9


def tokenizer_of(lines) -> WordTokenizer:
    return WordTokenizer(Vocabulary(sorted({word for line in lines for word in line.split()})))


def relational(engine, folder: Path, lines, *, backward=False, **settings) -> Automaton:
    """Estimate an automaton with an engine's tables."""
    tokenizer = tokenizer_of(lines)
    wanted = NGramSettings(**settings)
    with workspace(folder) as work:
        size = len(tokenizer.vocabulary)
        work.stage("vocabulary", "v", lambda place: write_vocabulary(place, size))
        windows = {"order": wanted.order, "backward": backward, "held_out": {}, "progress": SILENT}
        work.stage("windows", "w", lambda place: write_windows(place, tokenizer, lines, **windows))
        plan = PlanRunner(work, lambda: engine, engine_name="test", progress=SILENT)
        tables, *_ = plan.estimate(wanted, size)
        work.stage("automaton", "a", lambda place: assemble(tables, place, SILENT))
        return open_automaton(work.path("automaton"))


def in_memory(lines, *, backward=False, **settings) -> Automaton:
    """Estimate the automaton in memory."""
    tokenizer = tokenizer_of(lines)
    wanted = NGramSettings(**settings)
    corpus = EncodedCorpus.from_sentences(tokenizer.encode_all(lines))
    return estimate(
        corpus.reversed() if backward else corpus,
        tokenizer.vocabulary,
        order=wanted.order,
        smoothing=make_smoothing(wanted.smoothing),
        prune=wanted.prune,
    ).model.automaton


def assert_same(found: Automaton, expected: Automaton) -> None:
    """Check for identical n-grams, and log10 probabilities and back-off weights within 1e-6."""
    for name in EXACT:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    for name in ("log10_probs", "log10_backoffs"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-6, atol=1e-6)
