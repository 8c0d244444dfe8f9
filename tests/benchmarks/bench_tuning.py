"""Tuned re-ranking of recognised speech beside KenLM with grid-searched weights: the same text, the same folds.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_tuning.py [--folds 2] [common-voice …]

For each fold an n-gram model of order 4 is estimated from the references of the other folds and scores the fold's
lists: once in our automaton, for `tune`, and once in KenLM's Python module, for a grid of weights with the rank in
the list as the first-pass score. Weights found on the other folds re-rank every list.
Then half of the lists is tuned on and the other half re-ranked, over several halves: the maximum loss.
"""

import argparse
import itertools
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from preparation import needed_data, peer

from models.calls import run_to_completion
from models.language_model import EOS, UNK, Vocabulary, pad_sequences, score_sequences
from models.ngram.arpa_writer import write_arpa
from models.ngram.build import list_ngrams
from models.ngram.model import NGramModel
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.features import ListFeatures, offsets_of
from models.reranking.metrics import make_metric
from models.reranking.metrics.metric import paired_bootstrap
from models.reranking.tuning.cross_fitting import TuningData, cross_fit, tuning_data
from models.reranking.tuning.fitting import TuningSettings, assign_folds
from models.reranking.tuning.mert import TuningProblem, argmax_by_list
from models.tokenizers import WordTokenizer
from tests.support.nbest_lists import RECOGNISED, recognised
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress

kenlm = peer("kenlm", "ufal.kenlm>=26")
ORDER = 4
BATCH = 512
HALVES = 10
WEIGHTS = np.concatenate(([0.0], np.geomspace(0.01, 10, 40)))
"""Grid of weights of KenLM's score; the rank in the list has weight 1."""

WORD_BONUSES = np.linspace(-3, 3, 25)


class Scored(NamedTuple):
    """Scores of each candidate by both models of the fold's text: ours [C, 4], KenLM's log-probability [C]."""

    ours: np.ndarray
    kenlm: np.ndarray


def estimated(lines: Sequence[str]) -> tuple[WordTokenizer, NGramModel]:
    tokenizer = WordTokenizer(Vocabulary(dict.fromkeys(word for line in lines for word in line.split())))
    corpus = EncodedCorpus.from_sentences(tokenizer.encode_all(lines))
    return tokenizer, estimate(corpus, tokenizer.vocabulary, order=ORDER, progress=Progress()).model


def own_features(tokenizer: WordTokenizer, model: NGramModel, texts: Sequence[str]) -> np.ndarray:
    """`lm`, `tokens`, `unk`, `words` of each text."""
    rows = []
    for begin in range(0, len(texts), BATCH):
        some = texts[begin : begin + BATCH]
        tokens, lengths = pad_sequences([[*ids, EOS] for ids in tokenizer.encode_all(some)])
        scores = score_sequences(model, model.initial_state(len(some)), tokens, lengths)
        inside = np.arange(tokens.shape[1]) < lengths[:, None]
        unknown = ((tokens == UNK) & inside).sum(axis=1)
        words = [len(text.split()) for text in some]
        rows.append(np.column_stack([(scores * inside).sum(axis=1, dtype=float), lengths, unknown, words]))
    return np.concatenate(rows)


def scored(lists: Sequence[CandidateList], folds: np.ndarray) -> Scored:
    texts = [c.text for one in lists for c in one.candidates]
    of_candidates = np.repeat(folds, np.diff(offsets_of(lists)))
    ours, theirs = np.zeros((len(texts), 4)), np.zeros(len(texts))
    for fold in range(int(folds.max()) + 1):
        told = [one.references[0] for one, own in zip(lists, folds, strict=True) if own != fold]
        tokenizer, model = estimated(told)
        rows = np.flatnonzero(of_candidates == fold)
        ours[rows] = own_features(tokenizer, model, [texts[row] for row in rows])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "fold.arpa"
            write_arpa(path, model.vocabulary, list_ngrams(model.automaton))
            config = kenlm.Config()
            config.show_progress = False
            peer = kenlm.Model(str(path), config)
            theirs[rows] = [peer.score(texts[row]) * math.log(10) for row in rows]
    return Scored(ours, theirs)


def grid_searched(data: TuningData, peer: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Return the candidates [N] that KenLM's score chooses, with the best weights of the other folds."""
    problem = data.problem
    rank = problem.features[:, problem.names.index("rank")]
    words = problem.features[:, problem.names.index("words")]
    grid = list(itertools.product(WEIGHTS, WORD_BONUSES))
    choices = [
        argmax_by_list(rank + weight * (peer + bonus * words), problem.offsets) for weight, bonus in grid
    ]
    errors = np.array([problem.statistics[choice, 0] for choice in choices])  # [G, N]
    chosen = problem.first_pass().copy()
    for fold in range(int(folds.max()) + 1):
        best = int(errors[:, folds != fold].sum(axis=1).argmin())
        chosen[folds == fold] = choices[best][folds == fold]
    return chosen


def line(label: str, problem: TuningProblem, chosen: np.ndarray) -> str:
    first, after = problem.statistics[problem.first_pass()], problem.statistics[chosen]
    test = run_to_completion(paired_bootstrap(problem.metric, first, after, samples=1000, seed=12345))
    return (
        f"{label:28} {problem.score(chosen):6.2f}   {test.difference:+.2f} "
        f"[{test.low:+.2f}, {test.high:+.2f}]  p = {test.p_value:.3f}"
    )


def worst_half(data: TuningData) -> tuple[float, int]:
    """Return the maximum loss with the other half's weights, in points of WER, and how often weights were used."""
    problem, lost, used = data.problem, -math.inf, 0
    for seed in range(HALVES):
        order = np.random.default_rng(seed).permutation(problem.num_lists)
        inside, outside = np.sort(order[::2]), np.sort(order[1::2])
        half = TuningData(
            data.lists,
            tuple(shape.of(inside) for shape in data.shapes),
            data.candidate_indices,
            data.counts,
            (),
        )
        outcome = run_to_completion(cross_fit(half, np.arange(len(inside)) % 2, TuningSettings()))
        rest = data.shapes[outcome.fitted.shape].of(outside)
        lost = max(lost, rest.score(outcome.fitted.chosen(rest)) - rest.score(rest.first_pass()))
        used += outcome.figures.decision == "tuned"
    return lost, used


def compare(folder: Path, name: str, num_folds: int) -> None:
    lists = [
        CandidateList(str(i), "", tuple(map(Candidate, dict.fromkeys(one.texts))), (one.reference,))
        for i, one in enumerate(recognised(folder, name))
    ]
    settings = TuningSettings(folds=num_folds)
    folds = assign_folds(lists, folds=num_folds, seed=settings.seed)
    models = scored(lists, folds)
    computed = ListFeatures(("lm", "tokens", "unk", "words"), models.ours, offsets_of(lists))
    data = run_to_completion(
        tuning_data(lists, computed, make_metric("wer"), length_exponents=settings.length_exponents)
    )
    began = time.perf_counter()
    outcome = run_to_completion(cross_fit(data, folds, settings))
    took_s = time.perf_counter() - began
    problem = data.problem
    print(
        f"\n{name}: {problem.num_lists:,} lists, {len(problem.features):,} candidates; order {ORDER}, {num_folds} folds"
    )
    print(problem.metric.signature)
    print(line("first pass", problem, outcome.first))
    print(line("weights tried", problem, outcome.held_out) + f"   {took_s:.1f} s")
    print(f"{'tuned':28} {outcome.figures.tuned:6.2f}   {outcome.figures.decision}")
    ungated = run_to_completion(cross_fit(data, folds, TuningSettings(folds=num_folds, max_p_value=1.0)))
    print(line("tried, whatever is better", problem, ungated.held_out))
    print(line("KenLM, grid of weights", problem, grid_searched(data, models.kenlm, folds)))
    print(line("oracle", problem, outcome.oracle))
    lost, used = worst_half(data)
    print(f"other halves, {HALVES} times: {lost:+.2f} at worst; weights used {used} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folds", type=int, default=2)
    parser.add_argument("names", nargs="*", default=list(RECOGNISED))
    arguments = parser.parse_args()
    folder = needed_data()
    for name in arguments.names:
        compare(folder, name, arguments.folds)


if __name__ == "__main__":
    main()
