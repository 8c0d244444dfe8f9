"""Names that the model has never seen, in a tenth of the Common Voice lists: their recall and word error rates.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_phrases.py [--sentences 300000] [--sizes 200 1000 10000]

A name of a novel replaces a rare word of the reference. Where a hypothesis has the right word, it gets the right name;
elsewhere the name is garbled like the word: letters at the same relative places become those that the recogniser wrote.
Half of the names have a frequent first name. The n-gram model of order 3 is estimated from other novels, so it knows no
last name. The phrases are the names in the lists and further ones. Weights are cross-fitted in two folds by reference:
of `rank` and `phrases`, and of all default features. Rows with proposals have further candidates, of phrases that are
spelled like words of a candidate; the last ones are made of the first candidates alone, with the default weights.

Further rows have no names put in: the phrases are the rare words of the references that the recognisers of Common Voice
and LibriSpeech got wrong, one of each such reference, and names to make 2,000.
"""

import argparse
import difflib
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from preparation import needed_data, novels_or_documentation, train

from models.calls import run_to_completion
from models.phrases import NO_PHRASES, Phrase, PhraseList
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.metrics import make_metric
from models.reranking.metrics.metric import paired_bootstrap
from models.reranking.proposals import DEFAULT_WEIGHTS
from models.reranking.ranking import LogLinearModel
from models.reranking.tuning.cross_fitting import TuningOutcome, cross_fit, tuning_data
from models.reranking.tuning.fitting import TuningSettings, assign_folds
from models.scoring.candidate_features import ScoringModels, score_candidates
from models.scoring.proposed_candidates import make_proposers, propose_candidates, untuned_weights
from models.words import fold_words
from service.local.ask import UNLIMITED, load_published
from tests.support.nbest_lists import recognised

SHARE = 10
CAPITALISED = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{3,}\b")


DEFAULT = {"lm": 1.0, "phrases": 10.0, **{name: DEFAULT_WEIGHTS[name] for name in ("distance", "doubt")}}
"""Default weights of a request with phrases."""


class NamedLists(NamedTuple):
    """Lists, and the name in each; empty in most."""

    lists: list[CandidateList]
    names: list[str]


def candidate_lists(folder: Path, name: str) -> list[CandidateList]:
    return [
        CandidateList(str(i), "", tuple(map(Candidate, dict.fromkeys(one.texts))), (one.reference,))
        for i, one in enumerate(recognised(folder, name))
    ]


def read_names(folder: Path, sentences: int) -> tuple[list[str], list[str], list[str]]:
    """Return the model's text, frequent first names in it, and last names of other novels that are not in it."""
    texts = novels_or_documentation(folder, sentences)
    told = [" ".join(re.findall(r"[a-z']+", text.lower())) for text in texts["train"]]
    known = set(" ".join(told).split())
    capitalised = Counter(name for text in texts["train"] for name in CAPITALISED.findall(text))
    first = [name.lower() for name, _ in capitalised.most_common(200)]
    others = {name.lower() for text in texts["valid"] + texts["test"] for name in CAPITALISED.findall(text)}
    return told, first, sorted(others - known)


def garbled(name: str, said: str, heard: str) -> str:
    """Change a name as the recogniser changed a word."""
    pieces, at, scale = [], 0, len(name) / len(said)
    for kind, begin, end, heard_begin, heard_end in difflib.SequenceMatcher(
        None, said, heard, autojunk=False
    ).get_opcodes():
        if kind != "equal":
            pieces += [name[at : round(begin * scale)], heard[heard_begin:heard_end]]
            at = round(end * scale)
    return " ".join("".join([*pieces, name[at:]]).split())


def heard_instead(reference: Sequence[str], place: int, text: str) -> tuple[list[str], str, list[str]] | None:
    """Split a hypothesis at the words for one reference word; None if they belong to several words."""
    words = text.split()
    matcher = difflib.SequenceMatcher(None, reference, words, autojunk=False)
    kind, begin, end, first, last = next(one for one in matcher.get_opcodes() if one[1] <= place < one[2])
    if kind == "equal":
        first, last = first + place - begin, first + place - begin + 1
    elif end - begin > 1:
        return None
    return words[:first], " ".join(words[first:last]), words[last:]


def with_name(one: CandidateList, place: int, name: str) -> CandidateList | None:
    """Replace a word of the reference and of the hypotheses by a name."""
    reference = one.references[0].split()
    texts = []
    for candidate in one.candidates:
        split = heard_instead(reference, place, candidate.text)
        if split is None:
            return None
        before, heard, after = split
        texts.append(" ".join([*before, garbled(name, reference[place], heard), *after]))
    told = " ".join([*reference[:place], name, *reference[place + 1 :]])
    return CandidateList(one.name, "", tuple(map(Candidate, dict.fromkeys(texts))), (told,))


def put_names(lists: list[CandidateList], first: Sequence[str], last: Sequence[str]) -> NamedLists:
    """Put a name into a tenth of the lists."""
    draw = random.Random(0)
    counts = Counter(word for one in lists for word in one.references[0].split())
    changed, names = list(lists), [""] * len(lists)
    unused = iter(last)
    for number in draw.sample(range(len(lists)), len(lists)):
        words = lists[number].references[0].split()
        rare = [place for place, word in enumerate(words) if counts[word] == 1 and len(word) > 3]
        if not rare:
            continue
        name = next(unused) if draw.random() < 0.5 else f"{draw.choice(first)} {next(unused)}"
        if (new := with_name(lists[number], draw.choice(rare), name)) is not None:
            changed[number], names[number] = new, name
        if sum(map(bool, names)) == len(lists) // SHARE:
            break
    return NamedLists(changed, names)


def misheard_words(lists: Sequence[CandidateList]) -> NamedLists:
    """Find a rare word in each reference for which the first candidate has other words; none in most."""
    counts = Counter(word for one in lists for word in set(one.references[0].split()))
    names = []
    for one in lists:
        said, heard = one.references[0].split(), one.candidates[0].text.split()
        changes = difflib.SequenceMatcher(None, said, heard, autojunk=False).get_opcodes()
        wrong = [said[a] for kind, a, b, _, _ in changes if kind == "replace" and b - a == 1]
        names.append(next((word for word in wrong if counts[word] <= 2 and len(word) > 3), ""))
    return NamedLists(list(lists), names)


def fitted(
    named: NamedLists,
    models: ScoringModels,
    phrases: PhraseList,
    folds: np.ndarray,
    features: Sequence[str] | None = None,
) -> TuningOutcome:
    computed = run_to_completion(score_candidates(models, named.lists, UNLIMITED, phrases=phrases)).features
    data = run_to_completion(tuning_data(named.lists, computed, make_metric("wer"), features=features))
    return run_to_completion(cross_fit(data, folds, TuningSettings(max_p_value=1.0)))


def with_proposals(
    named: NamedLists, models: ScoringModels, phrases: PhraseList, weighting: LogLinearModel
) -> NamedLists:
    """Append candidates of proposed phrases."""
    proposers = make_proposers(models, phrases=phrases)
    work = propose_candidates(models, named.lists, proposers, weighting, UNLIMITED, phrases=phrases)
    return NamedLists(run_to_completion(work), named.names)


def microseconds(phrases: PhraseList, lists: Sequence[CandidateList]) -> float:
    """Measure the search for phrases in a candidate."""
    texts = [candidate.text for one in lists for candidate in one.candidates]
    began = time.perf_counter()
    for text in texts:
        phrases.find(text)
    return (time.perf_counter() - began) / len(texts) * 1e6


def report(
    label: str, named: NamedLists, outcome: TuningOutcome, chosen: np.ndarray, other: np.ndarray
) -> None:
    """Print the recall of the names, and WER and its difference to another choice on lists with and without names."""
    has_name = np.array(list(map(bool, named.names)))
    right = [
        bool(PhraseList([Phrase(text=name)]).find(text))
        for name, text in zip(named.names, outcome.data.texts(chosen), strict=True)
        if name
    ]
    line = f"{label:24} recall {100 * np.mean(right):6.2f}"
    problem = outcome.data.problem
    for part, rows in (("with", has_name), ("without", ~has_name), ("all", has_name | True)):
        before, after = problem.statistics[other[rows]], problem.statistics[chosen[rows]]
        test = run_to_completion(paired_bootstrap(problem.metric, before, after, samples=1000, seed=12345))
        score = problem.metric.score(after.sum(axis=0))
        line += f"   {part} {score:6.2f} {test.difference:+.2f} [{test.low:+.2f}, {test.high:+.2f}]"
    print(line, flush=True)


def report_proposals(
    named: NamedLists, models: ScoringModels, phrases: PhraseList, folds: np.ndarray
) -> None:
    """Print the rows with proposals."""
    proposed = with_proposals(named, models, phrases, untuned_weights(phrases))
    tuned = fitted(proposed, models, phrases, folds, ["rank", "phrases", "distance", "doubt"])
    report("with proposals", proposed, tuned, tuned.held_out, tuned.first)
    first = [replace(each, candidates=each.candidates[:1]) for each in named.lists]
    one = with_proposals(NamedLists(first, named.names), models, phrases, LogLinearModel(weights=DEFAULT))
    alone = fitted(one, models, phrases, folds, list(DEFAULT))
    report("one candidate, untuned", one, alone, alone.data.problem.chosen([*DEFAULT.values()]), alone.first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=300_000)
    parser.add_argument("--sizes", type=int, nargs="*", default=[200, 1000, 10000])
    arguments = parser.parse_args()
    folder = needed_data()
    told, first, last = read_names(folder, arguments.sentences)
    lists = candidate_lists(folder, "common-voice")
    spoken = {word for one in lists for word in fold_words(one.references[0])}
    last = [name for name in last if name not in spoken]
    random.Random(1).shuffle(last)
    named = put_names(lists, first, last)
    folds = assign_folds(named.lists, folds=2, seed=0)
    with tempfile.TemporaryDirectory() as box:
        registry, text = Path(box) / "registry", Path(box) / "novels.txt"
        text.write_text("\n".join(told))
        train(
            registry,
            "ngram",
            "novels",
            f"--corpus={text}",
            "--set",
            "tokenizer.kind=word",
            "--set",
            "ngram.order=3",
        )
        models = ScoringModels((load_published(registry, "novels", "cpu", "auto"),))
        present = [one for one in named.names if one]
        print(f"{len(lists):,} lists, {len(present)} with a name; WER, and its change by the phrases")
        plain = fitted(named, models, NO_PHRASES, folds)
        report("first pass", named, plain, plain.first, plain.first)
        report("oracle", named, plain, plain.oracle, plain.first)
        report("default features", named, plain, plain.held_out, plain.first)
        unused = [one for one in last if one not in " ".join(present).split()]
        unused += [f"{one} {other}" for one in first for other in unused]
        for size in arguments.sizes:
            phrases = PhraseList([Phrase(text=one) for one in [*present, *unused][:size]])
            print(f"{len(phrases)} phrases, found in {microseconds(phrases, named.lists):.1f} µs a candidate")
            everything = fitted(named, models, phrases, folds)
            report("default and phrases", named, everything, everything.held_out, plain.held_out)
            two = fitted(named, models, phrases, folds, ["rank", "phrases"])
            report("rank and phrases", named, two, two.held_out, two.first)
            report_proposals(named, models, phrases, folds)
        for name in ("common-voice", "librispeech-clean"):
            found = misheard_words(candidate_lists(folder, name))
            own = sorted({word for word in found.names if word})
            phrases = PhraseList([Phrase(text=word) for word in list(dict.fromkeys([*own, *unused]))[:2000]])
            print(f"{name}: {len(own):,} misheard rare words in {len(found.lists):,} lists")
            report_proposals(found, models, phrases, assign_folds(found.lists, folds=2, seed=0))


if __name__ == "__main__":
    main()
