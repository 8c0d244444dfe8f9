"""Reranking of a candidate list or stream by a log-linear combination of features.

An invalid list of a stream fails alone. In a session, a list's candidates follow the text that the
client committed before: a session is a handle to one state per model, so its cost does not grow
with that text. Sessions are immutable, so a client may send a list again, with the same or
another commit.
"""

import importlib
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
from pydantic import BaseModel
from typing_extensions import override

from models.arrays import Float64s, Int64s, TokenIds, runs_by_cost
from models.calls import Work
from models.completion.token_trie import NO_TOKENS
from models.errors import DomainError, InputError, UnsupportedError
from models.files import WORD, split_words
from models.language_model import EOS, STATE
from models.normaliser import written
from models.phrases import is_phrase_feature
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.features import (
    CANDIDATES_PER_STEP,
    NUM_TOKENS,
    ListFeatures,
    check_given,
    given_column,
    is_reserved,
    needs_main_model,
    offsets_of,
    with_derived,
)
from models.reranking.mbr import WordPosterior, expected_utilities, word_confidences
from models.reranking.proposals import (
    MAX_SOURCES,
    MAX_VARIANTS,
    PROPOSERS,
    Proposal,
    ProposedCandidate,
    origins_of,
    replacements_of,
)
from models.reranking.ranking import Profile, rank_by, scaled_posteriors
from models.scoring.candidate_features import CandidateScores, StartStates, TokenScores, score_candidates
from models.scoring.candidate_texts import reads_forms, split_at_space
from models.scoring.proposed_candidates import propose_candidates
from models.scoring.sequences import ScoreItem, score_pairs
from models.text_model import Limits, check_forward, ids_after, no_context_error
from service.hosting.loaded_model import LoadedModel
from service.hosting.state_store import OwnedStateStore, StoredState
from service.operations.operation import (
    BYTES_PER_TOKEN,
    MAX_PAIR_CHARS,
    Call,
    Cost,
    LinesOperation,
    ModelOperation,
    Operation,
)
from service.operations.rerank_request import (
    DocumentsRequest,
    RerankItem,
    RerankJob,
    RerankRequest,
    RerankSettings,
    Turn,
    parse_entries,
    rerank_items,
)
from service.operations.restore import make_restorer, restoration_cost
from service.operations.score import Detail, token_scores, word_scores
from service.operations.states import continue_states, stored_states
from service.schemas.replies import DocumentsReply, RankedDocument, RankedText, Usage, to_json
from service.schemas.wire import parse_json, parse_object

_HANDLE_SEPARATOR = ","

MAX_COMPARED = 1000
"""Maximum candidates of a list of which all pairs are compared (risks, agreement, confidences)."""

_Replaced: TypeAlias = tuple[str, str, int]
"""Words heard and written, and how many times these were heard before in the text."""

_FilteredList: TypeAlias = tuple[CandidateList, Int64s]
"""A list, maybe without duplicates or with corrected candidates, and their original indices."""

_WINDOW_TOKENS = 512
"""Tokens read to compare the proposals for a candidate; most have few."""

_BATCH_CANDIDATES = 128
"""Candidates in one chunk; other requests run between chunks."""

_DOCUMENTS, _LISTS = (re.compile(rb'"(?:%b)"\s*:' % names) for names in (b"documents|query", b"lists"))
"""Names of fields in JSON; within a string, the quotation marks are escaped."""


def resume_sessions(
    job: RerankJob,
    turns: Sequence[Turn | None],
    state_store: OwnedStateStore,
    limits: Limits,
    name: Callable[[int], str],
) -> Work[Any, tuple[StartStates[StoredState], Callable[[], list[str | None]]]]:
    """Find states of sessions and read committed texts.

    Returns the states before the lists, and a function that stores new ones. It returns each list's handle for the
    next, unchanged without a commit.

    Args:
        job: models and settings.
        turns: session parameters of each list; None without a session.
        state_store: store of the states.
        limits: of the text read by a state.
        name: of `session` in a message about list i.

    For errors see `rerank`.
    """
    models, bos, eos = job.models.all, job.settings.bos, job.settings.commit_eos

    def find(turn: Turn, name: str) -> list[StoredState]:
        """Find each model's state of a session, or the start state of a new one."""
        if turn.session is None:
            starts = (one.model.initial_state(1) if bos else one.model.empty_state(1) for one in models)
            return list(map(StoredState, models, starts))
        handles = turn.session.split(_HANDLE_SEPARATOR)
        states = state_store.store.find(state_store.owner, handles, param=f"{name}session")
        found = [state.loaded for state in states]
        if len(found) != len(models) or any(a is not b for a, b in zip(found, models, strict=True)):
            raise InputError.of(
                f"{name}session",
                f"was started with {', '.join(m.address for m in found)}, but this request uses "
                f"{', '.join(m.address for m in models)} (other models, or reloaded since); start a new session, and "
                "send all text committed so far as its first commit",
            )
        return states

    def read(before: StoredState, turn: Turn, name: str) -> TokenIds:
        """Tokenise a committed text after a state."""
        if turn.commit is None:
            return NO_TOKENS
        limits.check_characters(turn.commit, param=f"{name}commit")
        text = written(turn.commit, job.models.form) if reads_forms(before.loaded) else turn.commit
        if text and not (eos or text[-1].isspace() or before.loaded.tokenizer.joins_spaces):
            text += " "  # its own token, read but not scored, as after a context
        ids = ids_after(before.loaded.tokenizer, before, text)
        if eos:
            ids = np.append(ids, EOS)
        limits.check_length(before.num_tokens + len(ids), f"{name}commit")
        return ids

    numbers: dict[Turn, int] = {}
    of_lists = [None if turn is None else numbers.setdefault(turn, len(numbers)) for turn in turns]
    names = {of_lists[i]: name(i) for i in reversed(range(len(turns)))}
    num_kept = len(models) * sum(turn.commit is not None for turn in numbers)
    state_store.store.check_capacity(state_store.owner, num_kept)
    found = [find(turn, names[n]) for turn, n in numbers.items()]
    of_models = []
    for loaded, *previous in zip(models, *found, strict=True):
        check_forward(loaded)
        texts = [read(previous[n], turn, names[n]) for turn, n in numbers.items()]
        _, states = yield from continue_states(loaded, previous, texts, STATE)
        of_models.append((yield from stored_states(states, texts, previous)))

    def store() -> list[str | None]:
        both = [*zip(of_lists, turns, strict=True)]
        new = sorted({n for n, turn in both if turn and turn.commit is not None and n is not None})
        to_keep = [states[n] for n in new for states in of_models]
        handles = iter(state_store.store.keep(state_store.owner, to_keep))
        added = {n: _HANDLE_SEPARATOR.join(next(handles) for _ in of_models) for n in new}
        return [None if turn is None or n is None else added.get(n, turn.session) for n, turn in both]

    return StartStates(of_lists, of_models), store


class RankedList(NamedTuple):
    """A list in its new order.

    Attributes:
        given: the list, without dropped duplicates and with corrected candidates.
        indices: original indices of its candidates [C].
        order: positions of its candidates in `given`, best first [C].
        posteriors: in the order of `given` [C].
        totals: in the order of `given` [C].
        computed: computed features in the order of `given`.
        utilities: expected utilities as in `given` [C]; None unless requested.
        confidences: of the best candidate's words; empty unless requested.
        tokens: returns token scores of `given`'s candidate at a position; None without a main model.
        session: handle for the next list; None without a session.
        restored: the best text with capitals and punctuation; None unless requested.
    """

    given: CandidateList
    indices: Int64s
    order: Int64s
    posteriors: Float64s
    totals: Float64s
    computed: ListFeatures
    utilities: Float64s | None
    confidences: list[WordPosterior]
    tokens: Callable[[int], TokenScores] | None
    session: str | None = None
    restored: str | None = None

    def features(self, index: int) -> dict[str, float]:
        """Return the features, given and computed, of the candidate at an index."""
        computed = zip(self.computed.names, self.computed.values[index].tolist(), strict=True)
        return {**self.given.candidates[index].features, **dict(computed)}


def rerank(
    job: RerankJob,
    items: Sequence[RerankItem],
    limits: Limits,
    *,
    states: OwnedStateStore | None = None,
    name: Callable[[int], str] = "lists[{}].".format,
) -> Work[Any, list[RankedList]]:
    """Score candidates as complete sentences after contexts; re-rank each list.

    Args:
        job: models and settings.
        items: lists to re-rank, at least one.
        limits: of one text with its context.
        states: store of sessions; None without sessions.
        name: of `candidates` in a message about list i.

    Raises:
        InputError: a weight has no feature, a feature is invalid, a list is too long to compare
            pairwise, or a session began with other models than the request's.
        UnknownStateError: a session was freed or expired.
        StateElsewhereError: another process has the session.
        ContextLengthError: a candidate with its context, or a committed text, is too long.
        UnsupportedError: there is a context and a model reads backward, or
            unnormalised scores are requested of a model not trained for them.
        StatesFullError: the store is full.
    """
    models, settings = job.models, job.settings
    given = _checked_columns(job, [item.given for item in items], name)
    yield None
    starts, turns, store = StartStates[StoredState](), [item.turn for item in items], None
    if states is not None and any(turns):
        starts, store = yield from resume_sessions(job, turns, states, limits, name)
    filtered = [_filter_candidates(item.given, drop_duplicates=settings.drop_duplicates) for item in items]
    if job.proposes:
        filtered = yield from _add_proposed(job, filtered, starts, limits)
    if settings.drop_duplicates or job.proposes:
        offsets = offsets_of([item.given for item in items])
        rows = np.concatenate(
            [first + indices for first, (_, indices) in zip(offsets, filtered, strict=False)]
        )
        given = {name: column[rows] for name, column in given.items()}
    lists = [kept for kept, _ in filtered]
    scores = yield from score_candidates(
        models,
        lists,
        limits,
        bos=settings.bos,
        eos=settings.eos,
        score_mode=settings.score_mode,
        starts=starts,
        phrases=job.phrases,
        prefix=name,
    )
    weighting = job.weighting
    features = scores.features.normalised(weighting.length_exponent)
    features = yield from with_derived(lists, features, weighting.weights, place=name)
    totals = weighting.totals(features.matrix(list(weighting.weights), given))
    ranked = yield from _rank_lists(filtered, features, totals, scores, job)
    if store is None:
        return ranked
    return [item._replace(session=session) for item, session in zip(ranked, store(), strict=True)]


def _filter_candidates(given: CandidateList, *, drop_duplicates: bool) -> _FilteredList:
    """Keep the first candidate of each text, or all candidates."""
    if drop_duplicates:
        first: dict[str, int] = {}
        for index, candidate in enumerate(given.candidates):
            first.setdefault(candidate.text, index)
        if len(first) < len(given.candidates):
            candidates = tuple(given.candidates[index] for index in first.values())
            return replace(given, candidates=candidates), np.array(list(first.values()))
    return given, np.arange(len(given.candidates))


def _add_proposed(
    job: RerankJob, filtered: Sequence[_FilteredList], starts: StartStates[StoredState], limits: Limits
) -> Work[Any, list[_FilteredList]]:
    """Append candidates of proposals, with the original indices of their sources."""
    lists = [given for given, _ in filtered]
    states = starts.of_lists or [None] * len(lists)
    num_read = [0 if n is None else max(of[n].num_tokens for of in starts.of_models) for n in states]
    extended = yield from propose_candidates(
        job.models, lists, job.proposers, job.weighting, limits, phrases=job.phrases, num_read=num_read
    )
    return [
        (one, indices[origins_of(one.candidates)])
        for one, (_, indices) in zip(extended, filtered, strict=True)
    ]


def _checked_columns(
    job: RerankJob, lists: Sequence[CandidateList], name: Callable[[int], str]
) -> dict[str, Float64s]:
    """Check weights and given features before scoring; return given columns with weights."""
    models = job.models
    job.weighting.check(models.extra)
    for feature in job.weighting.weights if not models.parts else ():
        if needs_main_model(feature):  # a profile without models can have such weights
            raise InputError.of(
                f"weights.{feature}", "is given, but no model scores the candidates; name one in `model`"
            )
    check_given(lists, models=models.extra, place=name)
    longest = max(range(len(lists)), key=lambda i: len(lists[i].candidates))
    count = len(lists[longest].candidates)
    if job.is_pairwise and count > MAX_COMPARED:
        raise InputError.of(
            f"{name(longest)}candidates",
            f"has {count} entries; for pairwise comparison (mbr, confidences, consensus), "
            f"at most {MAX_COMPARED} are accepted in a list",
        )
    columns = {feature: given_column(lists, feature, place=name) for feature in job.weighting.given}
    absent = {feature for feature in job.weighting.weights if is_phrase_feature(feature)}
    zeros = np.zeros(sum(len(one.candidates) for one in lists))
    return columns | dict.fromkeys(absent.difference(job.phrases.features), zeros)


def _rank_lists(
    filtered: Sequence[_FilteredList],
    features: ListFeatures,
    totals: Float64s,
    scores: CandidateScores,
    job: RerankJob,
) -> Work[Any, list[RankedList]]:
    ranked = []
    done = 0
    for number, (given, indices) in enumerate(filtered):
        first, end = features.offsets[number : number + 2].tolist()
        texts = [candidate.text for candidate in given.candidates] if job.is_pairwise else []
        own, tokens = totals[first:end], scores.tokens_from(first)
        posteriors = scaled_posteriors(own, job.posterior_scale)
        values, utilities = own, None
        if job.settings.mbr is not None:
            values = utilities = yield from expected_utilities(texts, posteriors, job.settings.mbr)
        order = rank_by(values)
        shown = features.of_lists(number, number + 1)
        if job.phrases or job.proposes:
            shown = shown.without_absent()
        confidences: list[WordPosterior] = []
        if job.settings.confidences:
            confidences = yield from word_confidences(texts, posteriors, int(order[0]))
        found = given, indices, order, posteriors, own, shown, utilities, confidences, tokens
        ranked.append(RankedList(*found))
        done += len(indices)
        if job.is_pairwise or done > CANDIDATES_PER_STEP:
            done = 0
            yield None
    return ranked


def proposal_masses(ranked: RankedList) -> Mapping[_Replaced, float]:
    """Sum the posteriors of all candidates with each replacement."""
    masses = defaultdict[_Replaced, float](float)
    candidates = ranked.given.candidates
    for one, posterior in zip(candidates, ranked.posteriors.tolist(), strict=True):
        for replaced in {_replaced(candidates, one, each) for each in replacements_of(one)}:
            masses[replaced] += posterior
    return masses


def _replaced(candidates: Sequence[Candidate], made: Candidate, one: Proposal) -> _Replaced:
    heard = split_words(one.heard)
    words = split_words(candidates[made.origin].text) if isinstance(made, ProposedCandidate) else []
    before = sum(words[at : at + len(heard)] == heard for at in range(one.begin))
    return one.heard, one.written, before


def corrected_spans(
    candidates: Sequence[Candidate], position: int, masses: Mapping[_Replaced, float]
) -> list[dict[str, Any]]:
    """Return the replacements that made a candidate, with their places in the one that it was made from."""
    made = candidates[position]
    if not isinstance(made, ProposedCandidate):
        return []
    places = [match.span() for match in WORD.finditer(candidates[made.origin].text)]
    return [
        {
            "start": places[one.begin][0],
            "end": places[one.end - 1][1],
            "heard": one.heard,
            "written": one.written,
            "proposer": PROPOSERS[one.feature],
            "posterior": masses[_replaced(candidates, made, one)],
        }
        for one in made.replacements
    ]


def _check_restores(loaded: LoadedModel) -> None:
    """Build a model's restorer and load its compiled code; refuse a model that has none."""
    try:
        make_restorer(loaded)
    except UnsupportedError as error:
        raise UnsupportedError.of("restore", f"needs another model: {error.problem}") from None


class Rerank(LinesOperation[RerankItem, RankedList]):
    """Order lists of candidates by Σ weight · feature; the language model's score is one of the features.

    A body with `query` and `documents`, as for Jina's and Cohere's services, orders documents by the probability of
    the query after each.

    With `Content-Type: application/x-ndjson`, each line of the body is one of the `lists`; options are in the query
    string, with pairs as in `weights=lm=0.5,am=1`, `mixture=a=0.3,b=0.7` and `models=old=small@3`, and `phrases` as a
    JSON array. The reply has one line per list, in order: a result, or `{"error": …}`. If the service fails midway, the
    last line is an error.

    Other programs' list formats get the same reply: `text/x-NAME-nbest` for moses, srilm, kaldi and fairseq;
    `application/x-NAME+json` for mlm-scoring, hyporadise, nemo-manifest, vosk, whisper, azure, google, aws and
    sockeye. A candidate that cannot be read is left out, and its error is in `problems` of its list's line.
    """

    request: ClassVar[Any] = RerankRequest | DocumentsRequest
    settings: ClassVar[type[BaseModel]] = RerankSettings
    may_run_inline = True

    def __init__(self, call: Call, given: RerankSettings) -> None:
        super().__init__(call)
        lists = given.lists if isinstance(given, RerankRequest) else []
        call.limits.check_count(sum(len(one.candidates) for one in lists), "lists[].candidates")
        self.items = [one.item() for one in lists]
        self.given = given
        self._resolve = cache(call.resolve)  # a model counts as used once
        self.may_run_inline = not given.restore
        if given.profile is None:
            self._find_job(None)

    @override
    def prepare(self) -> Iterator[Callable[[], Any]]:
        given, found = self.given, list[Profile]()
        if (name := given.profile) is not None:
            # the registry may be remote
            yield lambda: found.append(self.call.resources.profiles.read(name))
            self._find_job(found[0])
        if given.slots:
            yield self._replace_members
        if self.job.phrases or self.job.proposes:
            yield lambda: (self.job.phrases.automaton, self.job.proposers)
        if self.job.is_pairwise:  # its kernels take 1 s to compile at first
            yield lambda: importlib.import_module("models.reranking.metrics.ngram_overlap")
        if (restoring := self.job.restoring) is not None:
            yield lambda: _check_restores(restoring)

    def _find_job(self, profile: Profile | None) -> None:
        self.job = self.given.job(profile, self._resolve, self.call.phrases)
        self.models = tuple(self.job.models.all)
        if self.job.models.parts:
            self.call.annotate(model=self.job.models.parts[0].address)
        if self.job.tuned_on:
            self.call.annotate(tuned_on=", ".join(self.job.tuned_on))

    @override
    def _replace_members(self) -> None:
        def resolve(*asked: Any, **options: Any) -> LoadedModel:
            return self._resolve(*asked, **options).with_slots(self.given.slots)

        self.job = self.given.job(self.job.profile, resolve, self.call.phrases)
        self.models = tuple(self.job.models.all)

    @override
    @classmethod
    def parse(cls, body: bytes) -> RerankRequest | DocumentsRequest:
        if _DOCUMENTS.search(body) and not _LISTS.search(body):
            return parse_json(DocumentsRequest, body)
        return parse_json(RerankRequest, body)

    @override
    @classmethod
    def of(cls, call: Call, given: Any) -> Operation[Any]:
        return RankDocuments(call, given) if isinstance(given, DocumentsRequest) else cls(call, given)

    @override
    @classmethod
    def parse_settings(cls, query: Mapping[str, str]) -> RerankSettings:
        return parse_object(RerankSettings, parse_entries(query), strict=False)

    @override
    def cost(self) -> Cost:
        lists = [item.given for item in self.items]
        longest = max((len(given.candidates) for given in lists), default=0)
        context = max((len(given.context) + len(given.continuation or "") for given in lists), default=0)
        count = sum(len(given.candidates) for given in lists)
        compared = longest if self.job.is_pairwise else 0
        # a context is read with each candidate: both are tokenised together
        reread = count * (context // BYTES_PER_TOKEN)
        if self.job.proposes:
            sources = sum(len(given.candidates[:MAX_SOURCES]) for given in lists)
            reread += MAX_VARIANTS * self.call.num_tokens + sources * _WINDOW_TOKENS
        restored = Cost()
        if (restoring := self.job.restoring) is not None:
            chars = sum(max(len(one.text) for one in given.candidates) for given in lists)
            best = chars // BYTES_PER_TOKEN if lists else self.call.num_tokens
            restored = restoration_cost(restoring, best)
        return Cost(
            self.call.num_tokens,
            reread=reread + restored.reread,
            predicted=restored.predicted,
            compared=count * compared,
        )

    @override
    def parse_lines(self, body: bytes, form: str) -> Iterator[RerankItem | InputError]:
        extra = self.job.models.extra
        return rerank_items(body, form, self.call.limits, reserved=lambda name: is_reserved(name, extra))

    @property
    @override
    def address(self) -> str:
        return self.job.models.main_address or ""

    @override
    def size(self, item: RerankItem) -> int:
        return len(item.given.candidates)

    @override
    def run(self) -> Work[Any, Sequence[RankedList]]:
        return self._restored(rerank(self.job, self.items, self.call.limits, states=self.call.states))

    @override
    def answer(self, items: Sequence[RerankItem]) -> Work[Any, Sequence[RankedList | DomainError]]:
        ranked = rerank(self.job, items, self.call.limits, states=self.call.states, name=lambda _: "")
        return self._restored(ranked)

    def _restored(self, work: Work[Any, list[RankedList]]) -> Work[Any, list[RankedList]]:
        """Re-rank lists, and restore their best texts if requested."""
        ranked = yield from work
        if (loaded := self.job.restoring) is None:
            return ranked
        from models.restoration import Restorer, restore, restored_text  # compiled code

        for number, one in enumerate(ranked):
            text = self.best_text(one)
            words = yield from restore(loaded.derived(Restorer.of), text)
            self.call.count_scored(loaded, len(words))
            ranked[number] = one._replace(restored=restored_text(text, words))
        return ranked

    def best_text(self, ranked: RankedList) -> str:
        """Return the text of a list to restore."""
        return ranked.given.candidates[int(ranked.order[0])].text

    @override
    def reply(self, result: Sequence[RankedList]) -> Iterator[bytes]:
        job, detail = self.job, self.given.detail
        if detail is not Detail.NONE and job.models.parts:
            self.call.limits.check_entries(
                int(sum(ranked.computed.column(NUM_TOKENS).sum() for ranked in result)),
                "detail",
                description=f"detail is {detail.value!r} for all candidates of {len(result)} lists",
                instead="send lines, application/x-ndjson, for more",
            )
        head = {
            "model": job.models.main_address,
            "models": {name: loaded.address for name, loaded in job.models.extra.items()},
            "weights": dict(job.weighting.weights),
            "length_exponent": job.weighting.length_exponent,
            "posterior_scale": job.posterior_scale,
            **({"tuned_on": job.tuned_on} if job.tuned_on else {}),
        }
        yield to_json(head)[:-1] + b',"lists":['
        for number, ranked in enumerate(result):
            if number:
                yield b","
            yield from self._chunks(ranked)
        yield b"]}"

    @override
    def line(self, result: RankedList) -> Iterable[bytes]:
        return self._chunks(result, tuned_on=self.job.tuned_on)

    def _chunks(self, ranked: RankedList, *, tuned_on: Sequence[str] = ()) -> Iterator[bytes]:
        """Yield a list's JSON, best candidate first; in a stream with any `tuned_on`."""
        head: dict[str, Any] = {"id": ranked.given.name, "unchanged": int(ranked.order[0]) == 0}
        if tuned_on:
            head["tuned_on"] = tuned_on
        if ranked.given.problems:
            head["problems"] = ranked.given.problems
        if ranked.session is not None:
            head["session"] = ranked.session
        if self.given.confidences:
            head["confidences"] = [word._asdict() for word in ranked.confidences]
        if ranked.restored is not None:
            head["restored"] = ranked.restored
        yield to_json(head)[:-1] + b',"ranking":['
        order = ranked.order[: self.given.top]
        masses = proposal_masses(ranked) if self.job.proposes else {}
        for first in range(0, len(order), _BATCH_CANDIDATES):
            candidates = self._candidates(ranked, order[first : first + _BATCH_CANDIDATES], masses)
            yield (b"," if first else b"") + to_json(candidates)[1:-1]
        yield b"]}"

    def _candidates(
        self, ranked: RankedList, order: Int64s, masses: Mapping[_Replaced, float]
    ) -> list[dict[str, Any]]:
        """Return candidates; dictionaries instead of dataclasses take a third of the time."""
        positions = order.tolist()
        candidates, names = ranked.given.candidates, ranked.computed.names
        written: list[dict[str, Any]] = [
            {
                "index": index,
                "text": candidates[position].text,
                "total": total,
                "posterior": posterior,
                "features": {**candidates[position].features, **dict(zip(names, values, strict=True))},
            }
            for position, index, total, posterior, values in zip(
                positions,
                *(
                    column[order].tolist()
                    for column in (ranked.indices, ranked.totals, ranked.posteriors, ranked.computed.values)
                ),
                strict=True,
            )
        ]
        if masses:
            for fields, position in zip(written, positions, strict=True):
                if spans := corrected_spans(candidates, position, masses):
                    fields["corrections"] = spans
        if ranked.utilities is not None:
            for fields, utility in zip(written, ranked.utilities[order].tolist(), strict=True):
                fields["expected_utility"] = utility
        detail = self.given.detail
        if detail is not Detail.NONE and ranked.tokens is not None:
            scores_of = token_scores if detail is Detail.TOKEN else word_scores
            for fields, position in zip(written, positions, strict=True):
                fields[f"{detail.value}s"] = scores_of(self.job.models.parts[0], *ranked.tokens(position))
        return written


class RankDocuments(ModelOperation[DocumentsReply]):
    """Order documents by the probability of a query, without `</s>`, after each."""

    @override
    def cost(self) -> Cost:
        query, count = len(self.given.query) // BYTES_PER_TOKEN, len(self.given.documents)
        return Cost(self.call.num_tokens, reread=count * query, entries=count)

    @override
    def run(self) -> Work[Any, DocumentsReply]:
        loaded, given, limits = self.models[0], self.given, self.call.limits
        texts = [one if isinstance(one, str) else one.text for one in given.documents]
        limits.check_count(len(texts), "documents")
        if loaded.reads_backward:
            raise no_context_error(loaded, param="query")
        pairs = []
        for index, text in enumerate(texts):
            context, query = split_at_space(loaded, text, given.query)
            pairs.append(ScoreItem(f"documents[{index}]", query, context).checked())
        num_tokens, parts = 0, []
        for run in runs_by_cost([pair.size() for pair in pairs], MAX_PAIR_CHARS):
            sequences, scores = yield from score_pairs(loaded, pairs[run], limits)
            num_tokens += sum(len(context) + len(text) for context, text in sequences)
            parts.append(scores)
        totals = np.concatenate(parts)
        posteriors = scaled_posteriors(totals).tolist()
        results = [
            RankedDocument(
                index,
                posteriors[index],
                float(totals[index]),
                RankedText(texts[index]) if given.return_documents else None,
            )
            for index in rank_by(totals)[: given.top_n].tolist()
        ]
        usage = Usage(num_tokens, 0, num_tokens)
        return DocumentsReply(f"rerank-{uuid.uuid4().hex}", "list", loaded.address, results, usage)
