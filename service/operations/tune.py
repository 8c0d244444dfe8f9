"""Tuning of weights on lists or lattices with references, for POST /v1/rerank/tune and the command line."""

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from pydantic import Field
from typing_extensions import override

from models.arrays import Int64s, runs_by_cost
from models.calls import Work, map_in_steps
from models.errors import InputError
from models.normaliser import Writing
from models.phrases import MAX_PHRASES, NO_PHRASES, Phrase, PhraseList, is_phrase_feature
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.corrections import CorrectionTable, PhraseCorrection
from models.reranking.features import (
    CONSENSUS,
    RANK,
    ListFeatures,
    check_given,
    feature_model,
    is_derived,
    needs_main_model,
    offsets_of,
)
from models.reranking.metrics import make_metric
from models.reranking.metrics.metric import MAX_SAMPLES, NORMALISERS, UNCHANGED, Metric
from models.reranking.proposals import DEFAULT_WEIGHTS
from models.reranking.ranking import Profile
from models.reranking.tuning.correction_estimation import (
    CorrectionCounts,
    count_corrections,
    learn_corrections,
    with_closest_forms,
)
from models.reranking.tuning.cross_fitting import (
    MAX_FEATURES,
    TuningFigures,
    TuningOutcome,
    cross_fit,
    list_prefix,
    tuning_data,
    with_references,
)
from models.reranking.tuning.fitting import (
    MAX_EXPONENTS,
    MAX_FOLDS,
    MAX_RESAMPLES,
    MAX_RESTARTS,
    MAX_SEED,
    MIN_SAMPLES,
    TuningSettings,
    assign_folds,
)
from models.scoring.candidate_features import MAX_MODELS, ScoringModels, score_candidates, scoring_models
from models.scoring.proposed_candidates import make_proposers, propose_candidates, untuned_weights
from models.text_model import Limits
from service.hosting.loaded_model import LoadedModel
from service.operations.lattices import MAX_NBEST, LatticeIn, LatticeSearchSettings
from service.operations.operation import LISTS_AT_ONCE, Call, Cost, Operation
from service.operations.rerank import MAX_COMPARED
from service.operations.rerank_request import CandidateIn, Mixture, ProposalSettings, TunedModel, main_models
from service.schemas import with_examples
from service.schemas.wire import (
    Forms,
    LengthExponent,
    ModelAddress,
    Probability,
    TimedRequest,
    WireModel,
    between,
    either,
    schema_only,
    shared_fields,
)

if TYPE_CHECKING:
    from models.lattices.graph import LatticeWeights
    from models.lattices.lattice import Lattice
    from models.lattices.token_passing import LatticeSearch

MAX_CANDIDATES = 65_536
"""Maximum candidates of a request's lists; the command line has no limit."""

MAX_SEARCHES = 4096
"""Maximum searches of one request: (folds + 1) · exponents · (restarts + resamples)."""

_ARCS_AT_ONCE = 1 << 13
_MAX_STRINGS = MAX_CANDIDATES // 2

ProgressCallback: TypeAlias = Callable[[str, int, int], None]
"""Callback with the kind of work, its completed amount and its total."""

_DEFAULTS = TuningSettings()
_OfLattices: TypeAlias = Annotated[int | None, Field(exclude_if=lambda value: value is None)]

_EXAMPLE_LISTS: list[dict[str, Any]] = [
    {
        "candidates": [
            {"text": first, "features": {"am": am}},
            {"text": second, "features": {"am": am - 0.4}},
        ],
        "reference": right,
    }
    for first, second, right, am in (
        ("return a knew list", "return a new list", "return a new list", -12.1),
        ("the name of a file", "the naim of a file", "the name of a file", -13.0),
        ("raise an hour", "raise an error", "raise an error", -8.3),
        ("call this function", "call this funk shun", "call this function", -10.2),
    )
]
_EXAMPLE_LATTICES = [
    {"confusions": [[{"text": one["text"]} for one in each["candidates"]]], "reference": each["reference"]}
    for each in _EXAMPLE_LISTS
]


class ReferredIn(WireModel):
    """References of a list or lattice."""

    reference: str | None = None
    """Reference text; lists without a reference are not used."""
    references: list[str] | None = Field(None, min_length=1)
    """Several alternative references, instead of `reference`."""

    @property
    def right_texts(self) -> tuple[str, ...]:
        """All references."""
        return tuple(self.references or ()) if self.reference is None else (self.reference,)


class ReferredLatticeIn(LatticeIn, ReferredIn):
    """A lattice as in /v1/lattices, with references."""

    model_config = with_examples(_EXAMPLE_LATTICES[0])

    _referred = either("reference", "references")


class ReferredListIn(ReferredIn):
    """The hypotheses for one input, in first-pass order, with references."""

    candidates: list[CandidateIn] = Field(min_length=1)
    """Candidates, each a complete sentence, as in /v1/rerank."""
    context: str = ""
    """Context before each candidate; read but not scored."""
    continuation: str | None = None
    """Text to score after each candidate instead of the candidate, which becomes context."""
    id: str | None = None
    """Client's id of the list; not used."""

    _one_of = either("reference", "references", neither="")

    def given(self) -> CandidateList:
        """Convert the list to one of the operation."""
        candidates = tuple(self.candidates)
        return CandidateList(self.id, self.context, candidates, self.right_texts, self.continuation)


class TuneSettings(TimedRequest):
    """Settings of tuning and of its evaluation."""

    metric: Literal["wer", "cer", "bleu", "chrf"] = "wer"
    """Metric to optimise."""
    normaliser: Annotated[str, schema_only(enum=list(NORMALISERS))] = UNCHANGED
    """Normalisation of texts before `wer` and `cer` compare them: `none`, `lower` or `lower-unpunctuated`."""
    model: ModelAddress = None
    mixture: Mixture | None = None
    """Models whose probabilities are mixed at every token, instead of `model`."""
    models: Annotated[list[TunedModel], Field(max_length=MAX_MODELS)] = Field(default_factory=list)
    """Further models, each with its own features."""
    form: Writing = "asis"
    """Form in which pretrained models read the texts, as in /v1/rerank."""
    given_only: bool = False
    """True to use no model: only given features, and features derived from them, get weights."""
    features: Annotated[list[str], schema_only(minItems=1, maxItems=MAX_FEATURES)] | None = None
    """Features that may get a weight. Default: `rank`, `rank:log`, the features given with every candidate (if
    one seems to be a mean over the text, also times its length), `lm` and `unk` of each model, `words`, the features of
    the phrases, and `correction` with corrections."""
    phrases: Annotated[list[Phrase], schema_only(maxItems=MAX_PHRASES)] = Field(default_factory=list)
    """Phrases that candidates may contain, as in /v1/rerank."""
    length_exponents: Annotated[list[LengthExponent], schema_only(minItems=1, maxItems=MAX_EXPONENTS)] = (
        Field(default_factory=lambda: list(_DEFAULTS.length_exponents))
    )
    """Length exponents of `lm` to choose from, the simplest first."""
    propose: bool = False
    """True to propose the phrases for words that are spelled nearly like them, as in /v1/rerank."""
    forms: Forms | None = None
    """Language in which to propose forms of numbers and abbreviations, as in /v1/rerank."""
    corrections: bool = False
    """True to learn corrections of systematic errors, which add corrected candidates to the lists. Each list is
    corrected by what was learnt from the other folds."""
    folds: Annotated[int, between(2, MAX_FOLDS)] = _DEFAULTS.folds
    """Number of folds for cross-validation; each fold is held out once."""
    seed: Annotated[int, between(0, MAX_SEED)] = _DEFAULTS.seed
    """Seed of folds, random starts and resamples; equal seeds give equal replies."""
    restarts: Annotated[int, between(0, MAX_RESTARTS)] = _DEFAULTS.restarts
    """Number of random starts of a search, in addition to a start from each feature alone."""
    resamples: Annotated[int, between(1, MAX_RESAMPLES)] = _DEFAULTS.resamples
    """Number of resamples of the lists; the weights are the mean of the best weights of each."""
    max_p_value: Probability = _DEFAULTS.max_p_value
    """Maximum p-value of the gain on held-out lists for the weights to be accepted; 1 accepts any gain."""
    bootstrap_samples: Annotated[int, between(MIN_SAMPLES, MAX_SAMPLES)] = _DEFAULTS.bootstrap_samples
    """Number of bootstrap samples that estimate the p-value."""

    @cached_property
    def search(self) -> TuningSettings:
        """Settings of the search.

        Raises:
            InputError: a value is outside its limits.
        """
        return TuningSettings(**shared_fields(self, TuningSettings))

    def metric_of(self, lists: Sequence[CandidateList]) -> Metric:
        """Return the objective; some of the lists may have no references.

        Raises:
            InputError: the metric does not support the normaliser.
        """
        counts = {len(given.references) for given in lists if given.references}
        return make_metric(
            self.metric,
            num_references=counts.pop() if len(counts) == 1 else None,
            normaliser=self.normaliser,
        )

    def resolve_models(self, resolve: Callable[[str | None], LoadedModel]) -> ScoringModels[LoadedModel]:
        """Find the scoring models.

        Args:
            resolve: finds a model by address.

        Raises:
            InputError: a mixture is invalid or given with a model, or models with `given_only`.
        """
        if self.given_only and (self.model is not None or self.mixture is not None or self.models):
            raise InputError.of("given_only", "is true, but models are given")
        main = [] if self.given_only else main_models(self.model, self.mixture)
        extra = [(model.name, model.model) for model in self.models]
        return scoring_models(main, extra, resolve, self.form)


class TuneJob(NamedTuple):
    """Settings and models of tuning.

    Attributes:
        settings: settings of POST /v1/rerank/tune.
        models: scoring models that the weights apply to.
        fold_models: scoring models of each fold's lists, instead of `models`; may be empty.
    """

    settings: TuneSettings
    models: ScoringModels
    fold_models: tuple[ScoringModels, ...] = ()

    def models_of(self, fold: int) -> ScoringModels:
        """Return the scoring models of a fold's lists."""
        return self.fold_models[fold] if self.fold_models else self.models


class TuneRequest(TuneSettings, LatticeSearchSettings):
    """Find weights for re-ranking or for lattices, and evaluate them on held-out lists or lattices."""

    model_config = with_examples(
        {"lists": _EXAMPLE_LISTS, "features": ["am", "lm"], "max_p_value": 1},
        {"lattices": _EXAMPLE_LATTICES, "max_p_value": 1},
    )

    lists: Annotated[list[ReferredListIn], Field(min_length=1)] | None = None
    """Candidate lists as for /v1/rerank, with references."""
    lattices: Annotated[list[ReferredLatticeIn], Field(min_length=1)] | None = None
    """Lattices as for /v1/lattices, with references, instead of `lists`. They are tuned on with one model, features of
    /v1/lattices (default: all, with those of proposals), and the length exponent 0."""
    nbest: Annotated[int, Field(ge=2, le=MAX_NBEST)] = 50
    """Number of texts that each search of a lattice adds to those tuned on."""

    _one_of = either("lists", "lattices")


@dataclass(frozen=True, slots=True)
class TuneReply(TuningFigures):
    """Tuned weights, and their evaluation.

    Scores are in percent.

    Attributes:
        decision: `tuned`, or `first_pass` if the tuned weights are not accepted.
        reason: explanation of the decision.
        weights: weights by feature, found on all lists; `{"rank": 1}`, which preserves the order, for
            `first_pass`.
        length_exponent: length exponent of `lm`.
        posterior_scale: scale of the posteriors.
        metric: metric that was optimised.
        signature: signature of the metric: its exact variant and settings.
        baseline: score of the first candidates.
        tried: score of the candidates chosen by weights that were found on other lists.
        tuned: score of the returned weights: `tried`, or `baseline` for `first_pass`.
        oracle: score of the best candidates, corrected ones included.
        worst: score of the worst candidates.
        significance: paired bootstrap of `tried` against `baseline`.
        folds: results of each fold, whose weights were found on the other folds.
        counts: numbers of lists and candidates.
        posteriors: cross-entropy of the posteriors.
        model: address of the model of `lm`, or the parts and weights of a mixture; null if no model was used.
        models: addresses of further models by their names in features.
        features: all features that could get a weight.
        ignored_features: given features that some candidates lack.
        profile: body for PUT /admin/profiles/{name}.
        rounds: number of rounds of searching lattices and tuning on all texts found; omitted for lists.
        new_strings: number of texts that the last weights find in lattices and that were not tuned on. With 0, the
            held-out score is that of searching lattices; omitted for lists.
    """

    model: str | None
    models: dict[str, str]
    features: list[str]
    ignored_features: list[str]
    profile: dict[str, Any]
    rounds: _OfLattices = None
    new_strings: _OfLattices = None


def tune_reply(
    tuned: TuningOutcome,
    models: ScoringModels,
    settings: TuneSettings,
    corrections: Sequence[PhraseCorrection] = (),
) -> TuneReply:
    """Return a tuning's result in wire format, with a profile created now.

    Args:
        tuned: the result.
        models: scoring models.
        settings: settings of the tuning, of which the profile gets those of the weighted features.
        corrections: for the profile, unless it keeps the first pass.
    """
    reply = TuneReply(
        **{field.name: getattr(tuned.figures, field.name) for field in fields(tuned.figures)},
        model=models.main_address,
        models={name: loaded.address for name, loaded in models.extra.items()},
        features=list(tuned.data.problem.names),
        ignored_features=list(tuned.data.ignored),
        profile={},
    )
    values = asdict(reply)
    for name in ("profile", "rounds", "new_strings"):  # the latter are added for lattices
        del values[name]
    reply.profile.update({name: values[name] for name in Profile.model_fields if name in values})
    reply.profile["models"] = _models(reply.weights, models)
    if models.form != "asis":
        reply.profile["form"] = models.form
    is_tuned = reply.decision == "tuned"
    proposes = is_tuned and settings.propose
    if proposes or any(map(is_phrase_feature, reply.weights)):
        reply.profile["phrases"] = [phrase.model_dump() for phrase in settings.phrases]
    if proposes:
        reply.profile["propose"] = True
    if is_tuned and settings.forms is not None:
        reply.profile["forms"] = settings.forms
    if is_tuned and corrections:
        reply.profile["corrections"] = [one.model_dump() for one in corrections]
    reply.profile["figures"] = {
        name: value for name, value in values.items() if name == "models" or name not in Profile.model_fields
    }
    reply.profile["created"] = datetime.now(UTC).isoformat(timespec="seconds")
    return reply


def _models(weights: Mapping[str, float], models: ScoringModels) -> list[dict[str, Any]]:
    """Return the models that the weights require."""
    needed = {
        feature_model(name) or ""
        for name in weights
        if feature_model(name) is not None or needs_main_model(name)
    }
    main = [
        {"address": part.address, "weight": weight}
        for part, weight in zip(models.parts, models.mixture_weights, strict=True)
        if "" in needed
    ]
    further = [
        {"name": name, "address": loaded.address} for name, loaded in models.extra.items() if name in needed
    ]
    return [*main, *further]


def tune_and_evaluate(
    settings: TuneSettings,
    models: ScoringModels,
    lists: Sequence[CandidateList],
    features_of: Callable[[Sequence[CandidateList]], Work[Any, ListFeatures]],
    limits: Limits,
    *,
    models_of: Callable[[int], ScoringModels] | None = None,
    searched: Callable[[], None] = lambda: None,
    proposes: bool = True,
) -> Work[Any, tuple[TuningOutcome, TuneReply]]:
    """Learn corrections if requested, search for weights and evaluate them.

    Args:
        settings: settings of tuning.
        models: scoring models that the weights apply to.
        lists: candidate lists; ignored without references.
        features_of: work that computes candidates' features, of lists with references.
        models_of: scoring models of a fold's lists; None for `models`.
        limits: of one text with its context.
        searched: called after each resample, at most `settings.search.num_resamples` times.
        proposes: False if the lists have the candidates of proposals already.

    Raises:
        InputError: no list has references, a feature is missing, or lists are too few.
    """
    metric, search = settings.metric_of(lists), settings.search
    numbers, referenced = with_references(lists)
    folds = assign_folds(referenced, folds=search.folds, seed=search.seed)
    counts: list[CorrectionCounts] = []
    if settings.corrections:
        learnt_from: Sequence[CandidateList] = referenced
        for forms in make_proposers(models, forms=settings.forms):
            learnt_from = yield from with_closest_forms(learnt_from, forms)
        counts = yield from count_corrections(learnt_from, folds)
    models_of = models_of or (lambda _: models)
    if proposes:
        referenced = yield from propose_by_fold(settings, referenced, folds, counts, models_of, limits)
    of_numbers = dict(zip(numbers.tolist(), referenced, strict=True))
    lists = [of_numbers.get(n, one) for n, one in enumerate(lists)]
    corrections = (yield from learn_corrections(counts)) if counts else []
    computed = yield from features_of(referenced)
    data = yield from tuning_data(
        lists, computed, metric, features=settings.features, length_exponents=search.length_exponents
    )
    yield None
    tuned = yield from cross_fit(data, folds, search, searched=searched)
    return tuned, tune_reply(tuned, models, settings, corrections)


def propose_by_fold(
    settings: TuneSettings,
    lists: Sequence[CandidateList],
    folds: Int64s,
    counts: Sequence[CorrectionCounts],
    models_of: Callable[[int], ScoringModels],
    limits: Limits,
) -> Work[Any, tuple[CandidateList, ...]]:
    """Append candidates of proposals; corrections are those learnt without a list's fold.

    Args:
        settings: settings of tuning: phrases and forms.
        lists: lists with references.
        folds: fold of each list, from 0 [N].
        counts: evidence of each fold for corrections; empty without corrections.
        models_of: scoring models of a fold's lists.
        limits: of one text with its context.
    """
    phrases, extended = PhraseList(settings.phrases), list(lists)
    for fold in range(int(folds.max()) + 1):
        learnt = (yield from learn_corrections([*counts[:fold], *counts[fold + 1 :]])) if counts else []
        proposers = make_proposers(
            models_of(fold),
            corrections=CorrectionTable(learnt) if learnt else None,
            phrases=phrases if settings.propose else NO_PHRASES,
            forms=settings.forms,
        )
        if proposers:
            own = np.flatnonzero(folds == fold).tolist()
            given = [lists[i] for i in own]
            found = yield from propose_candidates(
                models_of(fold), given, proposers, untuned_weights(phrases), limits, phrases=phrases
            )
            for index, one in zip(own, found, strict=True):
                extended[index] = one
    return tuple(extended)


def lattice_settings(given: TuneSettings) -> TuneSettings:
    """Return the settings for lattices, which have other defaults and fewer choices.

    Raises:
        InputError: a setting is not one of lattices.
    """
    from models.lattices.graph import PATH_FEATURES  # compiled code

    phrases, defaults = PhraseList(given.phrases), TuneSettings()
    sources = ProposalSettings(None, phrases if given.propose else NO_PHRASES, given.forms)
    features = [*PATH_FEATURES, *phrases.features, *sources.path_weights({})]
    for_lists = ("given_only", "mixture", "models", "form", "corrections")
    wrong = {name: getattr(given, name) != getattr(defaults, name) for name in for_lists}
    chosen = features if given.features is None else given.features
    wrong["features"] = not {*features}.issuperset(chosen)
    wrong["length_exponents"] = "length_exponents" in given.model_fields_set and given.length_exponents != [0]
    for name in filter(wrong.__getitem__, wrong):
        raise InputError.of(
            name,
            f"is {str(getattr(given, name))[:80]}; lattices are tuned on with one model, features of "
            f"{', '.join(features)}, and the length exponent 0",
        )
    values = {name: getattr(given, name) for name in TuneSettings.model_fields}
    return TuneSettings.model_validate(values | {"features": chosen, "length_exponents": [0.0]})


def tune_on_lattices(
    job: TuneJob,
    lattices: "Sequence[Lattice]",
    search: "LatticeSearch",
    limits: Limits,
    *,
    nbest: int,
    max_rounds: int = 10,
    max_strings: int = sys.maxsize,
    watch: ProgressCallback = lambda *_: None,
) -> Work[Any, tuple[TuningOutcome, TuneReply]]:
    """Tune on lattices with references, in rounds of searching them and tuning on all strings found.

    Each lattice is searched for its `nbest` best strings with weights found on all lattices, and with those found
    without its fold. If the last weights find no new strings, the held-out score is that of searching lattices.
    No round begins after all lattices have `max_strings`.

    Raises:
        InputError: the lattices are too few.
        UnsupportedError: a model reads backward, or its tokenizer does not separate words.
    """
    from models.lattices.graph import PathWeights, tuned_weights
    from models.lattices.proposals import rescore_with_proposals
    from models.lattices.rescoring import find_candidates

    settings = job.settings.search
    lists = [CandidateList(one.name, "", (), one.references) for one in lattices]
    job.settings.metric_of(lists)  # refuses a wrong normaliser now
    folds = assign_folds(lists, folds=settings.folds, seed=settings.seed)
    phrases = PhraseList(job.settings.phrases)
    sources = ProposalSettings(None, phrases if job.settings.propose else NO_PHRASES, job.settings.forms)
    unused = sources.path_weights({})  # of tuned weights those of features left out are 0
    weights_of = partial(tuned_weights, phrases=phrases.features, proposals=unused)
    own = {name: DEFAULT_WEIGHTS[name] for name in unused if name in (job.settings.features or ())}
    untuned = partial(PathWeights.of, {}, phrases=phrases.features, proposals=unused | own)
    num_arcs = np.array([one.num_arcs for one in lattices])
    found = [dict[str, Candidate]() for _ in lattices]  # by text; with the latest features

    def search_all(
        number: int, searches: "Sequence[tuple[int, tuple[LatticeWeights, ProposalSettings]]]"
    ) -> Work[Any, int]:
        """Search the lattices of folds with weights and proposals; count the new strings."""
        num_before = sum(map(len, found))
        for fold, (of_fold, proposals) in searches:
            watch(f"round {number}: searching lattices", fold, settings.folds)
            own, models = np.flatnonzero(folds == fold), job.models_of(fold)
            proposers = proposals.proposers(models)
            for run in runs_by_cost(num_arcs[own], _ARCS_AT_ONCE):
                some = [lattices[i] for i in own[run]]
                rescored = yield from rescore_with_proposals(
                    some,
                    models.parts[0],
                    weights=of_fold,
                    search=search,
                    phrases=phrases,
                    proposers=proposers,
                )
                for i, one in zip(own[run], rescored, strict=True):
                    candidates = yield from find_candidates(one, nbest)
                    found[i] |= {candidate.text: candidate for candidate in candidates}
        return sum(map(len, found)) - num_before

    def tune(given: TuneSettings, number: int) -> Work[Any, tuple[TuningOutcome, TuneReply]]:
        searches = itertools.count()

        def searched() -> None:
            watch(f"round {number}: optimising weights", next(searches), settings.num_resamples)

        def no_features(referenced: Sequence[CandidateList]) -> Work[Any, ListFeatures]:
            searched()  # the first call shows that none has ended
            yield None
            offsets = offsets_of(referenced)
            return ListFeatures((), np.zeros((int(offsets[-1]), 0)), offsets)

        return tune_and_evaluate(
            given, job.models, lists, no_features, limits, searched=searched, proposes=False
        )

    # the first strings are too few to prove a gain
    exploring = TuneSettings.model_validate(job.settings.model_dump() | {"max_p_value": 1.0})
    # nothing is proposed in the first pass
    first: list[tuple[LatticeWeights, ProposalSettings]] = [
        (weights_of({RANK: 1.0}), ProposalSettings()),
        (untuned, sources),
    ]
    yield from search_all(1, [*itertools.product(range(settings.folds), first)])
    for number in range(1, max_rounds + 1):
        lists = [replace(one, candidates=(*own.values(),)) for one, own in zip(lists, found, strict=True)]
        tuned, _ = yield from tune(exploring, number)
        of_all = tuned.found.by_feature(tuned.data.problem.names)
        of_folds = [(of_all, fold.weights) for fold in tuned.figures.folds]
        searches = [(fold, (weights_of(one), sources)) for fold, both in enumerate(of_folds) for one in both]
        num_new = yield from search_all(number + 1, searches)
        if not num_new or sum(map(len, found)) >= max_strings:
            break
    tuned, reply = yield from tune(job.settings, number)
    rounds: dict[str, Any] = {"rounds": number, "new_strings": num_new}
    reply.profile["figures"] |= rounds
    return tuned, replace(reply, **rounds)


def _check(
    features: Sequence[str], lists: Sequence[CandidateList], numbers: Int64s, models: ScoringModels
) -> Work[Any, None]:
    """Reject lists invalid for tuning; `numbers` are their indices, for messages."""
    for begin in range(0, len(lists), LISTS_AT_ONCE):
        batch, batch_numbers = lists[begin : begin + LISTS_AT_ONCE], numbers[begin : begin + LISTS_AT_ONCE]
        check_given(batch, models=models.extra, place=partial(list_prefix, batch_numbers))
        yield None
    compares = any(name.startswith(CONSENSUS) and is_derived(name) for name in features)
    longest = max(len(item.candidates) for item in lists)
    if compares and longest > MAX_COMPARED:
        raise InputError(
            f"a list has {longest} candidates; at most {MAX_COMPARED} are accepted for {CONSENSUS} features",
            param="features",
        )


class Tune(Operation[TuneReply]):
    """Tune weights for /v1/rerank on lists with references, and estimate their gain on held-out lists.

    With `lattices`, the weights are for /v1/lattices: lattices are searched, and weights tuned on all texts found so
    far, in rounds, until a search finds no new ones.

    If the gain over the first pass is not significant, the reply recommends the first pass. The request yields to all
    other requests and takes seconds to minutes, so set `timeout_ms` and check the service's own limit.
    """

    request = TuneRequest

    def __init__(self, call: Call, given: TuneRequest) -> None:
        self.given = given
        self._scoring = given.resolve_models(call.resolve)
        super().__init__(call, *self._scoring.all)

    @override
    def prepare(self) -> Iterator[Callable[[], Any]]:
        if self.given.lattices is not None:
            yield self._read_lattices
        if self.given.forms:
            # the numbers of a language take a tenth of a second at first
            yield lambda: make_proposers(self._scoring, forms=self.given.forms)

    def _read_lattices(self) -> None:
        """Read the lattices, and check what needs compiled code."""
        from models.lattices.graph import LabelTokenizer

        given = self.given.lattices or ()
        self.call.limits.check_count(len(given), "lattices")
        if (count := self.given.nbest * len(given)) > _MAX_STRINGS:
            problem = (
                f"times the number of lattices is {count}; at most {_MAX_STRINGS} are accepted in one request"
            )
            raise InputError.of("nbest", f"{problem}: use `gramophone tune` for more")
        job = TuneJob(lattice_settings(self.given), self._scoring)
        _ = job.models.parts[0].derived(LabelTokenizer.of)  # refuses models that cannot search
        lattices = [
            replace(one.lattice(self.given, f"lattices[{number}]."), references=one.right_texts)
            for number, one in enumerate(given)
        ]
        self._tune_lattices = partial(
            tune_on_lattices,
            job,
            lattices,
            self.given.lattice_search(),
            self.call.limits,
            nbest=self.given.nbest,
            max_strings=MAX_CANDIDATES,
        )

    @override
    def cost(self) -> Cost:
        return Cost(self.call.num_tokens, bulk=True)

    @override
    def run(self) -> Work[Any, TuneReply]:
        models, request, limits = self._scoring, self.given, self.call.limits
        given, search = request.lists or (), request.search
        count = sum(len(wire.candidates) for wire in given)
        if count > MAX_CANDIDATES:
            raise InputError(
                f"lists[].candidates has {count} entries; at most {MAX_CANDIDATES} are accepted in one request: "
                "use `gramophone tune` for more",
                param="lists",
            )
        lists = yield from map_in_steps(given, ReferredListIn.given, size=lambda wire: len(wire.candidates))
        searches = (search.folds + 1) * len(search.length_exponents) * (search.restarts + search.resamples)
        if searches > MAX_SEARCHES:
            raise InputError(
                f"(folds + 1) · length_exponents · (restarts + resamples) is {searches}; at most {MAX_SEARCHES} "
                "searches are accepted in one request",
                param="restarts",
            )
        if not lists:
            return (yield from self._tune_lattices())[1]
        numbers, referenced = with_references(lists)
        yield from _check(request.features or (), referenced, numbers, models)

        def features_of(referenced: Sequence[CandidateList]) -> Work[Any, ListFeatures]:
            phrases = PhraseList(request.phrases)
            return (yield from score_candidates(models, referenced, limits, phrases=phrases)).features

        _, reply = yield from tune_and_evaluate(request, models, lists, features_of, limits)
        return reply
