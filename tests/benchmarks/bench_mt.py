"""Choosing among nine systems' translations: by consensus alone, and with a language model, tuned on one half.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_mt.py [--every 6]

The feature `consensus:chrf` alone is the minimum-Bayes-risk choice by chrF. The language model is of order 4, on a
part of the novels and the references of the tuning half. Weights found on one half of the segments choose in the
other. The figures are chrF and BLEU of all segments, beside the best single system.
"""

import argparse
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from preparation import needed_data, read_lines

from models.calls import run_to_completion
from models.language_model import EOS, UNK, Vocabulary, pad_sequences, score_sequences
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.features import ListFeatures, offsets_of
from models.reranking.metrics import make_metric
from models.reranking.metrics.metric import Metric, paired_bootstrap
from models.reranking.tuning.cross_fitting import cross_fit, tuning_data
from models.reranking.tuning.fitting import TuningSettings, assign_folds
from models.tokenizers import WordTokenizer
from tests.support.nbest_lists import translated
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress

ORDER = 4
BATCH = 512
WORDS = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")
TUNED = {
    "consensus": ("consensus:chrf",),
    "consensus, lm": ("consensus:chrf", "lm"),
    "consensus, lm, words": ("consensus:chrf", "lm", "words"),
    "consensus (2), lm, words, unk": ("consensus:chrf", "consensus:bleu", "lm", "words", "unk"),
}
Choice = np.ndarray
"""Chosen candidate of each segment: its row among all candidates."""


def spaced(text: str) -> str:
    return " ".join(WORDS.findall(text))


def model_features(corpus: Sequence[str], texts: Sequence[str]) -> np.ndarray:
    """`lm`, `tokens`, `unk` of each text under an n-gram model of the corpus; words seen once are unknown."""
    counts = Counter(word for line in corpus for word in line.split())
    tokenizer = WordTokenizer(Vocabulary(sorted(word for word, count in counts.items() if count > 1)))
    encoded = EncodedCorpus.from_sentences(tokenizer.encode_all(corpus))
    model = estimate(encoded, tokenizer.vocabulary, order=ORDER, progress=Progress()).model
    rows = []
    for begin in range(0, len(texts), BATCH):
        some = texts[begin : begin + BATCH]
        tokens, lengths = pad_sequences([[*ids, EOS] for ids in tokenizer.encode_all(some)])
        scores = score_sequences(model, model.initial_state(len(some)), tokens, lengths)
        inside = np.arange(tokens.shape[1]) < lengths[:, None]
        rows.append(
            np.column_stack(
                [(scores * inside).sum(axis=1, dtype=float), lengths, ((tokens == UNK) & inside).sum(axis=1)]
            )
        )
    return np.concatenate(rows)


def computed_features(
    folder: Path, lists: Sequence[CandidateList], folds: np.ndarray, every: int
) -> ListFeatures:
    novels = [spaced(line) for line in read_lines(folder / "novels" / "novels.train.txt.xz")[::every]]
    texts = [spaced(c.text) for one in lists for c in one.candidates]
    of_candidates = np.repeat(folds, np.diff(offsets_of(lists)))
    values = np.zeros((len(texts), 4))
    for fold in range(int(folds.max()) + 1):
        told = [spaced(one.references[0]) for one, own in zip(lists, folds, strict=True) if own != fold]
        rows = np.flatnonzero(of_candidates == fold)
        values[rows, :3] = model_features([*told, *told, *novels], [texts[row] for row in rows])
    values[:, 3] = [len(c.text.split()) for one in lists for c in one.candidates]
    return ListFeatures(("lm", "tokens", "unk", "words"), values, offsets_of(lists))


def show(label: str, choice: Choice, best: Choice, statistics: dict[str, np.ndarray]) -> None:
    told = []
    for name, counts in statistics.items():
        metric = make_metric(name)
        test = run_to_completion(
            paired_bootstrap(metric, counts[best], counts[choice], samples=1000, seed=12345)
        )
        score = float(make_metric(name).score(counts[choice].sum(axis=0)))
        told.append(
            f"{name} {score:6.2f} {test.difference:+.2f} [{test.low:+.2f}, {test.high:+.2f}] p = {test.p_value:.3f}"
        )
    print(f"{label:40} {'   '.join(told)}")


def counts_of(metric: Metric, lists: Sequence[CandidateList]) -> np.ndarray:
    return np.concatenate(
        [metric.statistics([c.text for c in one.candidates], one.references) for one in lists]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=6, help="use one in this many lines of the novels")
    arguments = parser.parse_args()
    folder = needed_data()
    lists = [
        CandidateList(str(i), "", tuple(map(Candidate, one.texts)), (one.reference,))
        for i, one in enumerate(translated(folder))
    ]
    statistics = {name: counts_of(make_metric(name), lists) for name in ("chrf", "bleu")}
    for name in statistics:
        print(name, make_metric(name).signature)
    begins = offsets_of(lists)[:-1]
    systems = [begins + system for system in range(len(lists[0].candidates))]
    best = max(
        systems, key=lambda rows: float(make_metric("chrf").score(statistics["chrf"][rows].sum(axis=0)))
    )
    show("best single system (by chrF)", best, best, statistics)
    folds = assign_folds(lists, folds=2, seed=0)
    computed = computed_features(folder, lists, folds, arguments.every)
    for name in statistics:
        for label, features in TUNED.items():
            began = time.process_time()
            data = run_to_completion(
                tuning_data(
                    lists, computed, make_metric(name), features=features, length_exponents=(0.0, 1.0)
                )
            )
            outcome = run_to_completion(cross_fit(data, folds, TuningSettings()))
            chosen = begins + data.candidate_indices[outcome.held_out]
            show(f"{label}; for {name}, {time.process_time() - began:.0f} s", chosen, best, statistics)


if __name__ == "__main__":
    main()
