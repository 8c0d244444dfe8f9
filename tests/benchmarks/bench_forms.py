"""Forms of numbers, abbreviations and initials, and corrections: word error rates of public n-best lists.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_forms.py [--lists chime4 flights]

Weights and corrections are cross-fitted, each fold with an order-4 model of the other folds' references. `one` has the
first candidates only. `untuned` has the default weights and a model of novels. The peer is the first pass, and the best
of the candidates that it wrote.
"""

import argparse
import re
import tempfile
from pathlib import Path

import numpy as np
from preparation import needed_data, novels_or_documentation, train

from models.calls import run_to_completion
from models.reranking.candidates import CandidateList
from models.reranking.formats.reader import read_lists
from models.reranking.proposals import DEFAULT_WEIGHTS, FORM_FEATURES, UNKNOWN_WEIGHT
from models.reranking.ranking import LogLinearModel
from models.reranking.tuning.cross_fitting import TuningOutcome, tuning_data
from models.scoring.candidate_features import ScoringModels, score_candidates
from models.scoring.proposed_candidates import make_proposers, propose_candidates
from service.local.ask import UNLIMITED, load_published
from service.local.tune import tune_lists, write_fold_texts
from service.operations.tune import TuneJob, TuneSettings

FOLDS = {"chime4": 2, "flights": 5, "common-voice": 2, "librispeech-clean": 2}
ROWS = {
    "corrections": {"corrections": True},
    "forms": {"forms": "en"},
    "both": {"forms": "en", "corrections": True},
}
WORDS = ("--set", "tokenizer.kind=word", "--set")


def models_of(registry: Path, name: str) -> ScoringModels:
    """Load a model."""
    return ScoringModels((load_published(registry, name, "cpu", "auto"),))


def fold_models(folder: Path, name: str, lists: list[CandidateList], folds: int) -> tuple[ScoringModels, ...]:
    """Train a model for each fold, on the references of the others."""
    paths = write_fold_texts(lists, folder / name, folds=folds, seed=0)
    found = []
    for number, path in enumerate(paths):
        model = f"{name}-{number}"
        train(folder / "registry", "ngram", model, f"--corpus={path}", *WORDS, "ngram.order=4")
        found.append(models_of(folder / "registry", model))
    return tuple(found)


def tuned(lists: list[CandidateList], models: tuple[ScoringModels, ...], **options: object) -> TuningOutcome:
    """Tune on lists, as `gramophone tune` does."""
    settings = TuneSettings(folds=len(models), **options)
    job = TuneJob(settings, models[0], models)
    return tune_lists(job, lists, lambda *_: None)[0]


def untuned(lists: list[CandidateList], models: ScoringModels) -> float:
    """Return the word error rate with the default weights of forms."""
    weights = {"lm": 1.0, "unk": UNKNOWN_WEIGHT, **{name: DEFAULT_WEIGHTS[name] for name in FORM_FEATURES}}
    proposers = make_proposers(models, forms="en")
    weighting = LogLinearModel(weights=weights)
    found = run_to_completion(propose_candidates(models, lists, proposers, weighting, UNLIMITED))
    computed = run_to_completion(score_candidates(models, found, UNLIMITED)).features
    metric = TuneSettings().metric_of(lists)
    data = run_to_completion(tuning_data(found, computed, metric, features=[*weights]))
    chosen = data.problem.chosen(np.array([*weights.values()]))
    return data.problem.score(chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lists", nargs="*", default=[*FOLDS])
    given = parser.parse_args()
    data = needed_data()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "novels.txt"
        splits = novels_or_documentation(data, 300_000)
        text.write_text("\n".join(" ".join(re.findall("[a-z']+", line.lower())) for line in splits["train"]))
        train(folder / "registry", "ngram", "novels", f"--corpus={text}", *WORDS, "ngram.order=3")
        novels = models_of(folder / "registry", "novels")
        for kind in given.lists:
            lists = list(read_lists(data / "nbest" / f"{kind}.json"))
            one = [CandidateList(each.name, "", each.candidates[:1], each.references) for each in lists]
            models = fold_models(folder, kind, lists, FOLDS[kind])
            for label, options in ROWS.items():
                many, single = (tuned(some, models, **options).figures for some in (lists, one))
                print(
                    f"{kind:18} {label:12} first pass {many.baseline:6.2f}   best of the list and proposals "
                    f"{many.oracle:6.2f}   tuned {many.tuned:6.2f} ({many.decision})   one {single.tuned:6.2f}",
                    flush=True,
                )
            print(f"{kind:18} untuned      one {untuned(one, novels):6.2f}", flush=True)


if __name__ == "__main__":
    main()
