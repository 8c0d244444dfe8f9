"""In-process queries of a published model, re-ranking of n-best lists, rescoring of lattices."""

import dataclasses
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import typer
from pydantic import BaseModel
from typing_extensions import override

from models.arrays import Int64s
from models.calls import iter_outputs, run_to_completion
from models.checking.error_model import CalibrationStore, ErrorTableStore
from models.checkpoint.folders import data_folder
from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import Address, open_registry
from models.completion.user_model import UserModelLimits
from models.decoding.parameters import MAX_CHOICES
from models.errors import DomainError, InputError, ModelNotFoundError
from models.files import atomic_writer, split_words
from models.lattices.files import LatticeFormat
from models.lattices.lattice import Lattice
from models.lattices.proposals import rescore_with_proposals
from models.lattices.rescoring import (
    RescoredLattice,
    first_pass_text,
    nbest_candidates,
    oracle_errors,
)
from models.reranking.candidates import CandidateList
from models.reranking.formats.writer import write_lists
from models.reranking.metrics import make_metric
from models.reranking.metrics.metric import METRIC_TITLES, UNCHANGED, Metric, format_score, paired_bootstrap
from models.reranking.ranking import Profile, ProfileStore
from models.reranking.tuning.cross_fitting import with_references
from models.reranking.tuning.fitting import TuningSettings
from models.scoring.candidate_features import check_score_mode
from models.text_model import Limits, TextModel
from service.hosting.loaded_model import LoadedModel
from service.hosting.state_store import StateStore
from service.hosting.user_store import UserStore
from service.hosting.word_list_store import WordListStore
from service.local.streams import good_items, open_target
from service.operations.autocomplete import Autocomplete
from service.operations.check import Check
from service.operations.generate import Generate
from service.operations.next_token import NextToken
from service.operations.operation import (
    Call,
    HunspellDictionaries,
    Operation,
    Resources,
    answer_each,
    read_batch,
    write_reply,
)
from service.operations.rerank import RankedList, Rerank
from service.operations.rerank_request import RerankItem
from service.operations.restore import Restore
from service.operations.score import Score
from service.schemas.wire import parse_object

Asked = TypeVar("Asked", bound=Operation[Any])
W = TypeVar("W", bound=BaseModel)

Json = dict[str, Any]
NO_MODEL = "-"
UNLIMITED = Limits(
    max_texts=sys.maxsize,
    max_tokens_per_sequence=sys.maxsize,
    max_new_tokens=sys.maxsize,
    max_reply_entries=sys.maxsize,
)
_OPERATIONS: dict[str, type[Operation[Any]]] = {
    "/v1/autocomplete": Autocomplete,
    "/v1/check": Check,
    "/v1/generate": Generate,
    "/v1/next-token": NextToken,
    "/v1/restore": Restore,
    "/v1/score": Score,
}

_BATCH_ARCS = 1 << 15
"""Arcs at which a batch of lattices is complete; a batch shares model calls."""

LATTICE_FORMATS: dict[str, LatticeFormat] = {"slf-lattice": "slf", "kaldi-lattice": "kaldi"}
"""Output formats of lattices."""

TEXT = "text"
"""Output format of the id and best string of each lattice."""


def load_published(registry: Address, address: str, device: str, precision: str) -> LoadedModel:
    """Load a published model.

    Raises:
        DomainError: the registry or model is missing or damaged.
    """
    store = open_registry(registry)
    version = store.resolve(address)
    checkpoint = load_checkpoint(store.fetch(version), device=device, precision=precision)
    return LoadedModel.of(version.address, checkpoint)


class LocalCall(Call):
    """Call of a command: documents of a registry, no limits, and nobody who counts or logs.

    Args:
        registry: folder or address of the registry.
        resolve: finds a model by its address, see `Call.resolve`.
        hunspell: Hunspell dictionaries of checks.
    """

    owner, request_id, num_bytes = "", "", 0

    def __init__(
        self, registry: Address, resolve: Callable[..., LoadedModel], hunspell: HunspellDictionaries = ()
    ) -> None:
        self.resources = Resources(
            limits=UNLIMITED,
            profiles=ProfileStore(registry),
            calibrations=CalibrationStore(registry),
            errors=ErrorTableStore(registry),
            states=StateStore(process="", max_states=0, max_bytes=0, ttl_s=0),
            users=UserStore(None, max_users=0, ttl_s=0, bounds=UserModelLimits()),
            word_lists=WordListStore(data_folder() / "wordlists", max_lists=0, max_bytes=0),
        )
        self._resolve, self._hunspell = resolve, hunspell

    @override
    def resolve(self, address: str | None, *, any_version: bool = False) -> LoadedModel:
        return self._resolve(address, any_version=any_version)

    @override
    def find_dictionaries(self, names: Sequence[str]) -> HunspellDictionaries:
        return self._hunspell


def ask(call: LocalCall, path: str, request: Mapping[str, Any]) -> Json:
    """Return the reply of an endpoint, as the service sends it.

    Raises:
        InputError: the request is invalid, also for the model.
    """
    reply: Json = json.loads(run_to_completion(write_reply(_operation(call, path, request))))
    return reply


def _operation(call: LocalCall, path: str, request: Mapping[str, Any]) -> Any:
    kind = _OPERATIONS[path]
    return _prepared(kind.of(call, parse_values(kind.request, request)))


def parse_values(kind: type[W], values: Mapping[str, Any]) -> W:
    """Validate values of a command like the fields of a request.

    Raises:
        InputError: a value is invalid, or not UTF-8.
    """
    try:
        _check_utf8(values)
    except UnicodeEncodeError:
        raise InputError("the text is not UTF-8: convert it first, for example with iconv") from None
    return parse_object(kind, values)


def _check_utf8(value: Any) -> None:
    """Reject texts with other bytes, which arguments of a command have as surrogates."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            _check_utf8(part)


def _prepared(operation: Asked) -> Asked:
    for step in operation.prepare():
        step()
    return operation


def sample_lines(call: LocalCall, request: Mapping[str, Any], count: int) -> Iterator[str]:
    """Yield continuations as lines of a training text, to `</s>` or a line break; none is empty.

    With a seed in the request, the lines are the same each time.

    Raises:
        InputError: the request is invalid, or some hundred lines in a row are empty.
    """
    seeds = random.Random(request.get("seed"))
    fields = {**request, "stop": [*request.get("stop", ()), "\n"], "n": MAX_CHOICES}
    _operation(call, "/v1/generate", fields)  # refuses the seed, too
    num_lines = 0
    for number in itertools.count():
        operation = _operation(call, "/v1/generate", {**fields, "seed": seeds.getrandbits(62)})
        choices = run_to_completion(operation.run()).choices
        lines = [line for choice in choices if (line := f"{request['prompt']}{choice.text}".strip())]
        if not lines and number:
            message = f"{operation.models[0].address} generates empty lines only"
            raise InputError(message, param="lines")
        yield from lines[: count - num_lines]
        num_lines += len(lines)
        if num_lines >= count:
            return


def stream_text(call: LocalCall, request: Mapping[str, Any]) -> Iterator[str]:
    """Stream the text of a continuation.

    Raises:
        InputError: the request is invalid, also for this model; raised before iteration.
    """
    operation = _operation(call, "/v1/generate", {**request, "stream": True})
    outputs = iter_outputs(operation.run())
    pieces = (choice.text for value, last in outputs for choice in (value.choices if last else value[:1]))
    first = next(pieces)  # never empty: every choice has a final chunk
    return itertools.chain([first], pieces)


def model_loader(
    load: Callable[[str], LoadedModel], default: str | None = None
) -> Callable[..., LoadedModel]:
    """Return a function that loads each address's model once, and the default's for None.

    If `any_version`, one not in the registry is replaced like in a service.

    Raises:
        InputError: the address is None and there is no default; raised by the function.
    """

    @cache
    def loaded(address: str | None, *, any_version: bool = False) -> LoadedModel:
        address = default if address is None else address
        if address is None:
            raise InputError.of("model", "is missing; give its name")
        try:
            return load(address)
        except ModelNotFoundError:
            if not any_version:
                raise
            return load(address.partition("@")[0])

    return loaded


def main_model(argument: str) -> dict[str, str]:
    """Return /v1/rerank's query string setting for the argument MODEL; none for `-`."""
    return {} if argument == NO_MODEL else {"mixture" if "=" in argument else "model": argument}


def prepare_rerank(
    settings: Mapping[str, Any], registry: Address, load: Callable[[str], LoadedModel]
) -> Rerank:
    """Parse settings of POST /v1/rerank's query string (None: unset); load the models.

    Raises:
        InputError: a setting is invalid, also for the models, or the profile does not exist.
        DomainError: the registry or model is missing or damaged.
    """
    read = Rerank.parse_settings({name: value for name, value in settings.items() if value is not None})
    operation = _prepared(Rerank(LocalCall(registry, model_loader(load)), read))
    check_score_mode(operation.job.models, read.score_mode)
    report_replaced(read.profile, operation.job.tuned_on)
    return operation


def report_replaced(profile: str | None, tuned_on: Sequence[str]) -> None:
    """Tell on standard error if other versions score than a profile was tuned on."""
    if tuned_on:
        note = f"profile {profile} was tuned on {', '.join(tuned_on)}; test its weights with `gramophone tune --check`"
        typer.echo(note, err=True)


def rerank_file(
    operation: Rerank,
    lists: Iterable[CandidateList],
    *,
    file: str,
    target: str,
    output_format: str | None,
) -> None:
    """Re-rank a stream of lists and write them; report single lists' errors on standard error.

    Args:
        operation: re-ranking with models and settings.
        lists: lists of a file.
        file: name of the file, for messages.
        target: file or folder to write; `-` is standard output.
        output_format: `jsonl` or None for the lines that POST /v1/rerank replies.

    Raises:
        InputError: no list can be re-ranked.
        FormatError: the target cannot be written.
    """
    metric = metric_of_profile(operation.job.profile)
    num_referred, total = 0, np.zeros(1, np.int64)  # counts of first, chosen and best ones

    def counted() -> Iterator[RankedList]:
        nonlocal num_referred, total
        for one in _rerank_lists(operation, lists, file):
            if one.given.references:
                texts = [candidate.text for candidate in one.given.candidates]
                of_candidates = metric.statistics(texts, one.given.references)
                errors = of_candidates[:, 0]
                best = metric.score(of_candidates).argmax() if metric.higher_is_better else errors.argmin()
                total = total + of_candidates[[0, int(one.order[0]), int(best)]]
                num_referred += 1
            yield one

    ranked = counted()
    if output_format not in {None, "jsonl"}:
        cut = operation.given.top
        new = (reorder_list(ranked_list, cut) for ranked_list in ranked)
        write_lists(new, open_target(target), output_format)
    elif target != "-" and output_format is None:
        raise InputError("--output needs --output-format", param="output")
    else:
        printed = nullcontext(partial(typer.echo, nl=False))
        with printed if target == "-" else atomic_writer(Path(target)) as write:
            for ranked_list in ranked:
                write(b"".join((*operation.line(ranked_list), b"\n")))
    if num_referred:
        tell_scores(metric, total, f"{num_referred:,} lists", "re-ranked")


def tell_scores(metric: Metric, counts: Int64s, what: str, chosen: str) -> None:
    """Tell on standard error the scores of first, chosen and oracle texts [3, statistics]."""
    first, new, best = (format_score(metric.name, score) for score in metric.score(counts).tolist())
    title = f"{METRIC_TITLES[metric.name]} of {what} with references"
    typer.echo(f"{title}: first pass {first}, {chosen} {new}, best possible {best}", err=True)


def metric_of_profile(profile: Profile | None) -> Metric:
    """Return the metric a profile was tuned for, else the word error rate."""
    if profile is None:
        return make_metric("wer")
    of_signature = dict(part.partition(":")[::2] for part in profile.signature.split("|"))
    return make_metric(profile.metric or "wer", normaliser=of_signature.get("normaliser", UNCHANGED))


def check_profile(
    operation: Rerank, lists: Iterable[CandidateList], settings: TuningSettings, *, file: str
) -> Json:
    """Test if a profile's weights improve on the first pass, by the metric they were tuned for.

    Args:
        operation: re-ranking with the profile.
        lists: lists, best ones it was not tuned on; ignored without references.
        settings: maximum p-value, samples of the bootstrap, and seed.
        file: name of the lists' file, for messages.

    Returns:
        `model`, `tuned_on`, `metric`, `signature`, the number of `lists`, the scores `baseline` and `tuned` in percent,
        their `significance`, and `holds`: true if they improve, or if the profile keeps the first pass.

    Raises:
        InputError: no list can be re-ranked, or none has a reference.
    """
    job, counts = operation.job, []
    profile, metric = job.profile, metric_of_profile(job.profile)
    for one in _rerank_lists(operation, with_references([*lists])[1], file):
        texts = [one.given.candidates[index].text for index in (0, int(one.order[0]))]
        counts.append(metric.statistics(texts, one.given.references))
    before, after = np.stack(counts, axis=1)
    samples, seed = settings.bootstrap_samples, settings.seed
    test = run_to_completion(paired_bootstrap(metric, before, after, samples=samples, seed=seed))
    is_better = test.difference > 0 if metric.higher_is_better else test.difference < 0
    return {
        "model": job.models.main_address,
        "tuned_on": list(job.tuned_on),
        "metric": metric.name,
        "signature": metric.signature,
        "lists": len(counts),
        "baseline": float(metric.score(before.sum(axis=0))),
        "tuned": float(metric.score(after.sum(axis=0))),
        "significance": dataclasses.asdict(test),
        "holds": (profile is not None and profile.decision == "first_pass")
        or (is_better and test.p_value <= settings.max_p_value),
    }


def reorder_list(ranked: RankedList, top: int | None) -> CandidateList:
    """Return the re-ranked list with all features; `score` is the new, `old_score` the old total."""
    candidates = []
    for index in ranked.order[:top].tolist():
        features = ranked.features(index)
        if "score" in features:
            features["old_score"] = features.pop("score")
        features["score"] = float(ranked.totals[index])
        candidates.append(dataclasses.replace(ranked.given.candidates[index], features=features))
    return dataclasses.replace(ranked.given, candidates=tuple(candidates))


def _rerank_lists(operation: Rerank, lists: Iterable[CandidateList], file: str) -> Iterator[RankedList]:
    """Yield re-ranked lists; report single lists' errors on standard error."""

    def outcomes() -> Iterator[RankedList | str]:
        items, numbers = map(RerankItem, lists), itertools.count(1)
        while batch := run_to_completion(read_batch(items, operation.size)):
            ranked = run_to_completion(answer_each(operation.answer, batch))
            for item, outcome, number in zip(batch, ranked, numbers, strict=False):
                if isinstance(outcome, DomainError):
                    name = "" if item.given.name is None else f" ({item.given.name})"
                    yield f"{file}: list {number}{name}: {outcome}"
                else:
                    yield outcome

    none_good = InputError(f"{file}: no list can be re-ranked")
    return good_items(outcomes(), file, rest="more lists failed", none_good=none_good)


def rescore_lattices(
    loaded: TextModel, lattices: Iterable[Lattice], **settings: Any
) -> Iterator[RescoredLattice]:
    """Rescore lattices in batches, in order, with the settings of `rescore_with_proposals`.

    Raises:
        UnsupportedError: the model reads backward, or its tokenizer does not separate words.
    """
    batch, num_arcs = list[Lattice](), 0
    for lattice in itertools.chain(lattices, [None]):
        if lattice is not None:
            batch.append(lattice)
            num_arcs += lattice.num_arcs
        if lattice is None or num_arcs >= _BATCH_ARCS:
            yield from run_to_completion(rescore_with_proposals(batch, loaded, **settings))
            batch, num_arcs = [], 0


def write_best(
    lattices: Iterable[RescoredLattice], count: int, target: Path | BinaryIO, output_format: str
) -> None:
    """Write each lattice's `count` best strings in an n-best format; as `text`, id and best string.

    With references, the word error rates of the first pass's and the best strings, and of the oracle paths, are
    printed to standard error.
    """
    metric = make_metric("wer")
    # per lattice: errors and words of first, best and oracle strings
    errors = list[list[Int64s]]()

    def counted() -> Iterator[CandidateList]:
        for rescored in lattices:
            one = nbest_candidates(rescored, count)
            if one.references:
                texts = [first_pass_text(rescored.lattice), one.candidates[0].text]
                of_texts = metric.statistics(texts, one.references)
                right = map(split_words, one.references)
                oracle = min((oracle_errors(rescored.lattice, words), -len(words)) for words in right)
                errors.append([*of_texts, np.abs(oracle)])
            yield one

    if output_format == TEXT:
        with atomic_writer(target) if isinstance(target, Path) else nullcontext(target.write) as write:
            for item in counted():
                write(f"{item.name or ''} {item.candidates[0].text}".strip().encode() + b"\n")
    else:
        write_lists(counted(), target, output_format)
    if errors:
        tell_scores(metric, np.sum(errors, axis=0), f"{len(errors):,} lattices", "rescored")
