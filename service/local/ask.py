"""In-process queries of a published model, and re-ranking of n-best list files.

The service's schemas and operations are called without HTTP, so command-line values are validated
like HTTP requests.
"""

import dataclasses
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import typer

from models.arrays import Int64s
from models.calls import Work, iter_outputs, run_to_completion
from models.checking.calibration import CalibrationStore
from models.checking.error_model import ErrorTableStore
from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import Address, open_registry
from models.decoding.parameters import MAX_CHOICES
from models.errors import InvalidInputError, LanguageModelError, ModelNotFoundError
from models.files import atomic_writer
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.writer import write_lists
from models.reranking.metrics import make_metric
from models.reranking.metrics.metric import METRIC_TITLES, UNCHANGED, Metric, format_score, paired_bootstrap
from models.reranking.ranking import Profile, ProfileStore
from models.reranking.tuning.cross_fitting import select_with_references
from models.reranking.tuning.fitting import TuningSettings
from models.scoring.candidate_features import check_score_mode
from models.scoring.model_weights import WeightedModel
from models.scoring.texts import Limits
from service.hosting.loaded_model import LoadedModel
from service.local.streams import good_items, open_target
from service.operations import check as checking
from service.operations.autocomplete import AutocompleteRequest
from service.operations.autocomplete import autocomplete as complete_text
from service.operations.generate import ChoiceChunk, GenerateRequest, GenerateResult
from service.operations.generate import generate as generate_text
from service.operations.inputs import WordLists, answer_each, read_batch
from service.operations.next_token import (
    NextTokenRequest,
    next_token_result,
    rank_next_tokens,
    rank_next_words,
)
from service.operations.rerank import RankedList, list_chunks, rerank
from service.operations.rerank_request import RerankItem, RerankJob, read_rerank_query
from service.operations.score import ScoreRequest, score_reply
from service.operations.score import score as score_texts
from service.schemas.replies import GenerateReply, NextTokenReply, NextWordReply, to_json
from service.schemas.wire import parse_json

Json = dict[str, Any]
NO_MODEL = "-"
UNLIMITED = Limits(
    max_texts=sys.maxsize,
    max_tokens_per_sequence=sys.maxsize,
    max_new_tokens=sys.maxsize,
    max_reply_entries=sys.maxsize,
)


def load_published(registry: Address, address: str, device: str, precision: str) -> LoadedModel:
    """Load a published model.

    Raises:
        LanguageModelError: the registry or model is missing or damaged.
    """
    store = open_registry(registry)
    version = store.resolve(address)
    checkpoint = load_checkpoint(store.fetch(version), device=device, precision=precision)
    return LoadedModel.of(version.address, checkpoint)


def next_token(loaded: LoadedModel, request: Mapping[str, Any]) -> Json:
    """Return the reply of POST /v1/next-token."""
    parsed = parse_json(NextTokenRequest, request_body(request))
    reply: NextWordReply | NextTokenReply
    if parsed.unit == "word":
        reply = NextWordReply(loaded.address, run_to_completion(rank_next_words(loaded, parsed, UNLIMITED)))
    else:
        ranked = run_to_completion(rank_next_tokens(loaded, parsed, UNLIMITED))
        reply = NextTokenReply(loaded.address, [next_token_result(loaded, result) for result in ranked])
    return _shown(reply)


def autocomplete(models: Sequence[LoadedModel], request: Mapping[str, Any]) -> Json:
    """Return the reply of POST /v1/autocomplete by one model or several, without a user."""
    parsed = parse_json(AutocompleteRequest, request_body(request))
    weighted = [WeightedModel(loaded) for loaded in models]
    return _shown(run_to_completion(complete_text(weighted, parsed, UNLIMITED)))


def check(
    models: Sequence[LoadedModel],
    registry: Address,
    request: Mapping[str, Any],
    word_lists: WordLists = (),
) -> Json:
    """Return the reply of POST /v1/check by one model or several and Hunspell dictionaries."""
    parsed = parse_json(checking.CheckRequest, request_body(request))
    calibration = None
    if len(models) == 1:
        needed = parsed.precision is not None
        calibration = CalibrationStore(registry).read(models[0].address, any_version=needed)
    weighted = [WeightedModel(loaded) for loaded in models]
    errors = {loaded.address: ErrorTableStore(registry).read(loaded.address) for loaded in models}
    reply, _ = run_to_completion(checking.check(weighted, parsed, calibration, UNLIMITED, word_lists, errors))
    return _shown(reply)


def score(loaded: LoadedModel, request: Mapping[str, Any]) -> Json:
    """Return the reply of POST /v1/score."""
    parsed = parse_json(ScoreRequest, request_body(request))
    scores = run_to_completion(score_texts(loaded, parsed.items(UNLIMITED), parsed, UNLIMITED))
    return _shown(score_reply(loaded, scores, parsed.detail))


def generate(loaded: LoadedModel, request: Mapping[str, Any]) -> Json:
    """Return the unstreamed reply of POST /v1/generate."""
    result = run_to_completion(_generate(loaded, {**request, "logprobs": True}))
    return _shown(GenerateReply(loaded.address, result.choices, result.usage))


def _generate(loaded: LoadedModel, request: Mapping[str, Any]) -> Work[ChoiceChunk, GenerateResult]:
    parsed = parse_json(GenerateRequest, request_body(request))
    return generate_text(loaded, parsed, parsed.parameters(UNLIMITED), UNLIMITED)


def sample_lines(loaded: LoadedModel, request: Mapping[str, Any], count: int) -> Iterator[str]:
    """Yield continuations as lines of a training text, to `</s>` or a line break; none is empty.

    With a seed in the request, the lines are the same each time.

    Raises:
        InvalidInputError: the request is invalid, or some hundred lines in a row are empty.
    """
    seeds = random.Random(request.get("seed"))
    fields = {**request, "stop": [*request.get("stop", ()), "\n"], "n": MAX_CHOICES}
    parse_json(GenerateRequest, request_body(fields)).parameters(UNLIMITED)  # refuses the seed, too
    num_lines = 0
    for number in itertools.count():
        result = run_to_completion(_generate(loaded, {**fields, "seed": seeds.getrandbits(62)}))
        lines = [line for choice in result.choices if (line := f"{request['prompt']}{choice.text}".strip())]
        if not lines and number:
            raise InvalidInputError(f"{loaded.address} generates empty lines only", parameter="lines")
        yield from lines[: count - num_lines]
        num_lines += len(lines)
        if num_lines >= count:
            return


def stream_text(loaded: LoadedModel, request: Mapping[str, Any]) -> Iterator[str]:
    """Stream the text of a continuation.

    Raises:
        InvalidInputError: the request is invalid, also for this model; raised before iteration.
    """
    outputs = iter_outputs(_generate(loaded, {**request, "stream": True}))
    pieces = (choice.text for value, last in outputs for choice in (value.choices if last else value[:1]))
    first = next(pieces)  # never empty: every choice has a final chunk
    return itertools.chain([first], pieces)


def model_loader(load: Callable[[str], LoadedModel]) -> Callable[..., LoadedModel]:
    """Return a function that loads each address's model once, and rejects None.

    If `any_version`, one not in the registry is replaced like in a service.
    """

    @cache
    def loaded(address: str | None, *, any_version: bool = False) -> LoadedModel:
        if address is None:
            raise InvalidInputError.of("model", "is missing; give its name")
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
) -> RerankJob:
    """Parse settings of POST /v1/rerank's query string (None: unset); load the models.

    Raises:
        InvalidInputError: a setting is invalid, also for the models, or the profile does not exist.
        LanguageModelError: the registry or model is missing or damaged.
    """
    read = read_rerank_query({name: value for name, value in settings.items() if value is not None})
    profile = None if read.profile is None else ProfileStore(registry).read(read.profile)
    job = read.job(profile, model_loader(load))
    check_score_mode(job.models, read.score_mode)
    report_replaced(read.profile, job.tuned_on)
    return job


def report_replaced(profile: str | None, tuned_on: Sequence[str]) -> None:
    """Tell on standard error if other versions score than a profile was tuned on."""
    if tuned_on:
        note = f"profile {profile} was tuned on {', '.join(tuned_on)}; test its weights with `gramophone tune --check`"
        typer.echo(note, err=True)


def _shown(reply: Any) -> Json:
    """Return a reply as the service sends it."""
    shown: Json = json.loads(to_json(reply))
    return shown


def request_body(request: Mapping[str, Any]) -> bytes:
    """Encode as JSON, for the same validation as HTTP requests."""
    try:
        return json.dumps(request, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidInputError("the text is not UTF-8: convert it first, for example with iconv") from None


def rerank_file(
    job: RerankJob,
    lists: Iterable[CandidateList],
    *,
    file: str,
    target: str,
    output_format: str | None,
    metric: Metric,
) -> None:
    """Re-rank a stream of lists and write them; report single lists' errors on standard error.

    Args:
        job: models and settings.
        lists: lists of a file.
        file: name of the file, for messages.
        target: file or folder to write; `-` is standard output.
        output_format: `jsonl` or None for the lines that POST /v1/rerank replies.
        metric: metric of the lists with references.

    Raises:
        InvalidInputError: no list can be re-ranked.
        FormatError: the target cannot be written.
    """
    num_referred, total = 0, np.zeros(1, np.int64)  # counts of first, chosen and best ones

    def counted() -> Iterator[RankedList]:
        nonlocal num_referred, total
        for one in _rerank_lists(job, lists, file):
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
        cut = job.settings.top
        new = (reorder_list(ranked_list, cut) for ranked_list in ranked)
        write_lists(new, open_target(target), output_format)
    elif target != "-" and output_format is None:
        raise InvalidInputError("--output needs --output-format", parameter="output")
    else:
        printed = nullcontext(partial(typer.echo, nl=False))
        with printed if target == "-" else atomic_writer(Path(target)) as write:
            for ranked_list in ranked:
                write(b"".join((*list_chunks(ranked_list, job, tuned_on=job.tuned_on), b"\n")))
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
    job: RerankJob, lists: Iterable[CandidateList], settings: TuningSettings, *, file: str
) -> Json:
    """Test if a profile's weights improve on the first pass, by the metric they were tuned for.

    Args:
        job: re-ranking with the profile.
        lists: lists, best ones it was not tuned on; ignored without references.
        settings: maximum p-value, samples of the bootstrap, and seed.
        file: name of the lists' file, for messages.

    Returns:
        `model`, `tuned_on`, `metric`, `signature`, the number of `lists`, the scores `baseline` and `tuned` in percent,
        their `significance`, and `holds`: true if they improve, or if the profile keeps the first pass.

    Raises:
        InvalidInputError: no list can be re-ranked, or none has a reference.
    """
    profile, metric = job.profile, metric_of_profile(job.profile)
    counts = []
    for one in _rerank_lists(job, select_with_references([*lists])[1], file):
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
        candidates.append(Candidate(ranked.given.candidates[index].text, features))
    return dataclasses.replace(ranked.given, candidates=tuple(candidates))


def _rerank_lists(job: RerankJob, lists: Iterable[CandidateList], file: str) -> Iterator[RankedList]:
    """Yield re-ranked lists; report single lists' errors on standard error."""

    def outcomes() -> Iterator[RankedList | str]:
        items, numbers = map(RerankItem, lists), itertools.count(1)
        answer = partial(rerank, job, limits=UNLIMITED, name=lambda _: "")
        while batch := run_to_completion(read_batch(items, lambda item: len(item.given.candidates))):
            ranked = run_to_completion(answer_each(answer, batch))
            for item, outcome, number in zip(batch, ranked, numbers, strict=False):
                if isinstance(outcome, LanguageModelError):
                    name = "" if item.given.name is None else f" ({item.given.name})"
                    yield f"{file}: list {number}{name}: {outcome}"
                else:
                    yield outcome

    none_good = InvalidInputError(f"{file}: no list can be re-ranked")
    return good_items(outcomes(), file, rest="more lists failed", none_good=none_good)
