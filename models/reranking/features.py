"""Features of candidates: given, derived and computed ones, as columns over all candidates.

Given with the candidates: an acoustic score, for example. Computed with models: `lm`, the
natural-log probability; `tokens`, the number of tokens it sums over; `unk`, how many of those are
unknown; and `words`, runs between white space. A further model named `old` has `lm:old`,
`tokens:old`, `unk:old`. With a length exponent, `lm` is divided by `tokens` to that power, and
`lm_sum` is the sum itself.

Derived from a list's texts, order and given features:

    rank                  −r: number of other texts before this one in the list
    rank:log              −ln(r + 1)
    NAME*words            a given feature times the text's number of words
    NAME*characters       … times its number of characters
    NAME*tokens           … times its number of tokens for the language model
    consensus:UTILITY     mean utility (`chrf`, `bleu`, `wer`) against all candidates of the list
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.language_model import count_words
from models.reranking.candidates import CandidateList, Steps
from models.reranking.mbr import UTILITIES, Utility, expected_utilities

Floats: TypeAlias = npt.NDArray[np.float64]

RANK, RANK_LOG = "rank", "rank:log"
CONSENSUS = "consensus"
LENGTHS = ("words", "characters", "tokens")

CANDIDATES_PER_STEP = 256
"""Candidates whose features are looked at in a step."""

_LENGTH_MARK = "*"


def is_derived(name: str) -> bool:
    """Return whether a feature of this name is made here and not given, by the name's shape alone."""
    return name.partition(":")[0] in {RANK, CONSENSUS} or base_feature(name) is not None


def base_feature(name: str) -> str | None:
    """The given feature that a derived one needs: `am` for `am*words`; None if it needs none."""
    base, _, length = name.rpartition(_LENGTH_MARK)
    return base if base and length in LENGTHS else None


def needs_tokens(name: str) -> bool:
    """Return whether a derived feature needs the language model's token counts."""
    return base_feature(name) is not None and name.endswith(_LENGTH_MARK + "tokens")


def length_scaled_name(name: str, length: str) -> str:
    """The name of a given feature times a length of the text."""
    return name + _LENGTH_MARK + length


def check_derived(name: str) -> None:
    """Refuse what has the shape of a derived feature and is none.

    Raises:
        InvalidInputError: the message names the choices.
    """
    kind, colon, which = name.partition(":")
    if base_feature(name) is not None:
        return
    choices = {RANK: ("", "log"), CONSENSUS: UTILITIES}[kind]
    if which not in choices or (colon and not which):
        known = ", ".join(f"{kind}:{choice}" if choice else kind for choice in choices)
        raise InvalidInputError(f"there is no feature {name!r}; there are: {known}", parameter="weights")


def derive(
    name: str, texts: Sequence[str], given: Callable[[str], Floats], tokens: Floats | None = None
) -> Steps[Floats]:
    """A derived feature of one list's candidates [C].

    There is a stop after every bounded piece: comparing each text with each takes its time.

    Args:
        name: of the feature.
        texts: of all candidates of the list, in first-pass order.
        given: finds the values [C] of a given feature by name.
        tokens: the language model's token counts [C]; where there is no model, None.

    Raises:
        InvalidInputError: there is no such feature, or it needs a model and there is none.
    """
    check_derived(name)
    base = base_feature(name)
    if base is not None:
        if not needs_tokens(name):
            count = count_words if name.endswith("words") else len
            return given(base) * np.array([count(text) for text in texts], dtype=np.float64)
        if tokens is None:
            raise InvalidInputError(f"{name} needs a language model, and none is asked", parameter="weights")
        return given(base) * tokens
    if name == RANK:
        return 0.0 - text_ranks(texts)  # not −0 for the first
    if name == RANK_LOG:
        return 0.0 - np.log1p(text_ranks(texts))
    uniform = np.full(len(texts), 1 / len(texts))
    utility = cast("Utility", name.partition(":")[2])
    return (yield from expected_utilities(texts, uniform, utility))


def text_ranks(texts: Sequence[str]) -> Floats:
    """Number of other texts of its list before each [C]; equal texts have the rank of the first."""
    seen: dict[str, int] = {}
    return np.array([seen.setdefault(text, len(seen)) for text in texts], dtype=np.float64)


LM, LM_SUM, NUM_TOKENS, NUM_UNKNOWN, NUM_WORDS = "lm", "lm_sum", "tokens", "unk", "words"
MODEL_FEATURES = (LM, NUM_TOKENS, NUM_UNKNOWN)
"""What is computed with each model."""

COMPUTED_FEATURES = frozenset({*MODEL_FEATURES, LM_SUM, NUM_WORDS})
MAX_FEATURE = 1e12
"""Beyond it, in either direction, totals would no longer be exact, and at last not finite."""

_MODEL_SEPARATOR = ":"
_MODEL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def feature_name(kind: str, model: str) -> str:
    """The name of a feature, such as `lm`, of a model called so; of the main model if that is empty."""
    return kind + _MODEL_SEPARATOR + model if model else kind


def feature_model(feature: str) -> str | None:
    """The further model that a feature is computed with, by the name it is called; None if with no such."""
    kind, colon, name = feature.partition(_MODEL_SEPARATOR)
    return name if colon and kind in {*MODEL_FEATURES, LM_SUM} else None


def is_reserved(feature: str, models: Collection[str]) -> bool:
    """Return whether a feature of this name is made here, so that it cannot be given."""
    is_computed = feature in COMPUTED_FEATURES or feature_model(feature) in models
    return is_computed or is_derived(feature)


def needs_main_model(feature: str) -> bool:
    """Return whether a feature is computed with the main model, or derived of such."""
    return not {feature, base_feature(feature)}.isdisjoint({*MODEL_FEATURES, LM_SUM}) or needs_tokens(feature)


def check_model_names(names: Sequence[str], *, parameter: str) -> None:
    """Refuse names of further models that features could not be called by.

    Raises:
        InvalidInputError: one has other characters than letters, digits and `_.-`, is too long, or is given twice.
    """
    for index, name in enumerate(names):
        where = f"{parameter}[{index}].name"
        if _MODEL_NAME.fullmatch(name) is None:
            raise InvalidInputError(
                f"{where} is {name[:80]!r}; a name has 1 to 64 letters, digits, '_', '.' or '-'",
                parameter=where,
            )
        if name in names[:index]:
            raise InvalidInputError(f"{where} is {name!r}, as another model is called", parameter=where)


class ListFeatures(NamedTuple):
    """Computed features of the candidates of L lists: N rows, one list after the other.

    Attributes:
        names: of the columns; `lm` is the sum of the tokens' log-probabilities, whatever the length exponent.
        values: float64 [N, F].
        offsets: where each list's rows begin, and N at the end [L + 1].
    """

    names: tuple[str, ...]
    values: Floats
    offsets: npt.NDArray[np.int64]

    def column(self, name: str) -> Floats:
        """One feature of all candidates [N]."""
        values: Floats = self.values[:, self.names.index(name)]
        return values

    def matrix(self, names: Sequence[str], given: Mapping[str, Floats]) -> Floats:
        """Features by name, those that are not computed as they were given, of all candidates [N, len(names)]."""
        columns = [self.column(name) if name in self.names else given[name] for name in names]
        return np.column_stack(columns) if columns else np.zeros((len(self.values), 0), dtype=np.float64)

    def of_lists(self, begin: int, end: int) -> "ListFeatures":
        """The features of the candidates of some lists in a row."""
        offsets = self.offsets[begin : end + 1]
        return ListFeatures(self.names, self.values[offsets[0] : offsets[-1]], offsets - offsets[0])

    def normalised(self, length_exponent: float) -> "ListFeatures":
        """The same with each model's sum divided by its tokens to a power, and the undivided sums beside them."""
        if not length_exponent:
            return self
        models = [
            feature_model(name) or "" for name in self.names if name.partition(_MODEL_SEPARATOR)[0] == LM
        ]
        values, sums = self.values.copy(), []
        for model in models:
            index = self.names.index(feature_name(LM, model))
            tokens = np.maximum(self.column(feature_name(NUM_TOKENS, model)), 1.0)
            sums.append(self.values[:, index])
            values[:, index] /= tokens**length_exponent
        names = (*self.names, *(feature_name(LM_SUM, model) for model in models))
        return ListFeatures(names, np.column_stack([values, *sums]), self.offsets)


def offsets_of(lists: Sequence[CandidateList]) -> npt.NDArray[np.int64]:
    """Offsets of each list's candidates in their concatenation, and their number [L + 1]."""
    offsets = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(one.candidates) for one in lists], out=offsets[1:])
    return offsets


def feature_matrix(
    lists: Sequence[CandidateList],
    computed: ListFeatures,
    names: Sequence[str],
    *,
    place: Callable[[int], str] = "lists[{}].".format,
) -> Steps[Floats]:
    """Features by name, whether computed, derived or given, of all candidates [N, len(names)].

    There is a stop after every bounded piece: comparing each text with each takes its time.

    Args:
        lists: whose candidates.
        computed: features of them.
        names: of the columns.
        place: what stands before `candidates` in a message about a list, by its number.

    Raises:
        InvalidInputError: a feature is not given, is outside its limits, or cannot be derived.
    """
    features = yield from with_derived(lists, computed, names, place=place)
    given = {name: given_column(lists, name, place=place) for name in names if name not in features.names}
    return features.matrix(names, given)


def with_derived(
    lists: Sequence[CandidateList],
    computed: ListFeatures,
    names: Iterable[str],
    *,
    place: Callable[[int], str] = "lists[{}].".format,
) -> Steps[ListFeatures]:
    """Add features that are made of each list's texts, order and given features.

    Args:
        lists: whose candidates.
        computed: features of them.
        names: of features; those that are not derived are left out.
        place: what stands before `candidates` in a message about a list, by its number.

    Raises:
        InvalidInputError: there is no such feature, or what it needs is not given.
    """
    made = tuple(name for name in names if is_derived(name))
    if not made:
        return computed
    has_tokens = NUM_TOKENS in computed.names
    parts = [np.zeros((0, len(made)))]
    num_candidates = 0
    for number, one in enumerate(lists):
        texts = [candidate.text for candidate in one.candidates]
        given = partial(given_column, [one], place=place, first=number)
        tokens = computed.of_lists(number, number + 1).column(NUM_TOKENS) if has_tokens else None
        columns = []
        for name in made:
            columns.append((yield from derive(name, texts, given, tokens)))  # noqa: PERF401 - it yields
        parts.append(np.column_stack(columns))
        num_candidates += len(texts)
        if num_candidates > CANDIDATES_PER_STEP:
            num_candidates = 0
            yield
    values = np.column_stack([computed.values, np.concatenate(parts)])
    return ListFeatures((*computed.names, *made), values, computed.offsets)


def given_column(
    lists: Sequence[CandidateList],
    name: str,
    *,
    place: Callable[[int], str] = "lists[{}].".format,
    first: int = 0,
) -> Floats:
    """A given feature of all candidates [N]; `place` is told numbers of lists from `first` up.

    Raises:
        InvalidInputError: a candidate lacks it, or it is outside its limits.
    """
    try:
        values = np.array([c.features[name] for one in lists for c in one.candidates], dtype=np.float64)
    except KeyError:
        where = next(w for w, features in _feature_locations(lists, place, first) if name not in features)
        raise InvalidInputError(f"{where} has no {name!r}, which has a weight", parameter=where) from None
    wrong = np.flatnonzero(~(np.abs(values) <= MAX_FEATURE))
    if wrong.size:
        where = (
            next(w for i, (w, _) in enumerate(_feature_locations(lists, place, first)) if i == wrong[0])
            + f".{name}"
        )
        raise InvalidInputError(
            f"{where} is {values[wrong[0]]}; it must be from {-MAX_FEATURE:g} to {MAX_FEATURE:g}",
            parameter=where,
        )
    return values


def check_given(
    lists: Sequence[CandidateList],
    *,
    models: Collection[str],
    place: Callable[[int], str] = "lists[{}].".format,
) -> None:
    """Refuse given features that have the name of one that is computed here.

    Raises:
        InvalidInputError: there is one.
    """
    names: set[str] = set().union(*(c.features for one in lists for c in one.candidates))
    for name in sorted(names):
        if is_reserved(name, models):
            where = (
                next(w for w, features in _feature_locations(lists, place) if name in features) + f".{name}"
            )
            raise InvalidInputError(
                f"{where} is given, but {name} is computed by the service", parameter=where
            )


def _feature_locations(
    lists: Sequence[CandidateList], label: Callable[[int], str], first: int = 0
) -> Iterator[tuple[str, Mapping[str, float]]]:
    """The name of each candidate's features in the request, and the features."""
    for i, one in enumerate(lists, start=first):
        for j, candidate in enumerate(one.candidates):
            yield f"{label(i)}candidates[{j}].features", candidate.features
