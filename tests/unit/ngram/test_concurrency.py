"""Many threads ask one model at once: each is told what it is told alone."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from models.ngram.build import quantise_automaton
from models.ngram.model import NGramModel, score_sentence_lines
from models.tokenizers import WordTokenizer
from models.vocabulary import Vocabulary
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Silent

THREADS = 8
WORDS = [f"w{i}" for i in range(400)]


@pytest.fixture(scope="module", params=["exact", "quantised"])
def model(request):
    rows = [(np.random.default_rng(i).zipf(1.3, size=12) % 400) + 3 for i in range(800)]
    made = estimate(EncodedCorpus.from_sentences(rows), Vocabulary(WORDS), order=4, progress=Silent()).model
    return (
        made if request.param == "exact" else NGramModel(quantise_automaton(made.automaton), made.vocabulary)
    )


def answers(model, tokenizer, seed):
    """Everything that a model can be asked, of texts that depend on a seed."""
    random = np.random.default_rng(seed)
    tokens, lengths = random.integers(3, 403, (60, 9)), random.integers(0, 10, 60)
    state = model.prefill(model.initial_state(60), tokens, lengths)
    lines = [" ".join(random.choice(WORDS, 7)) for _ in range(700)]
    return [
        state.ids,
        model.advance(state, tokens[:, 0]).ids,
        *model.score_detailed(state, tokens, lengths),
        model.next_log_probs(state),
        *model.top_k(state, 50),
        model.sample(state, random),
        score_sentence_lines(model, tokenizer, lines, threads=2).log_probs,
    ]


def test_threads_do_not_disturb_each_other(model):
    tokenizer = WordTokenizer(
        model.vocabulary
    )  # what it builds when it is first asked, it is asked for by all
    start = threading.Barrier(THREADS)

    def ask(seed):
        start.wait()
        return [answers(model, tokenizer, seed) for _ in range(2)]

    with ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(ask, range(THREADS)))
    for seed, given in enumerate(together):
        alone = answers(model, tokenizer, seed)
        for one in given:
            assert all(np.array_equal(a, b) for a, b in zip(one, alone, strict=True))
