"""Log-linear ranking of candidates, total = Σ_f w_f · feature_f, and weight profiles.

Weights are signed and totals not normalised: only the order of a list's candidates counts.
Weights of `words` and `tokens` are insertion bonuses, a negative weight of `unk` is a penalty for
unknown words. A negative weight of a model subtracts its contribution, such as that of the model
inside a recogniser (density ratio, McDermott et al. 2019).
"""

import json
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from models.arrays import Float64s, Int64s
from models.checkpoint.documents import DocumentStore, StoredDocument
from models.checkpoint.manifest import check_name
from models.errors import InputError, check_range
from models.language_model import weighted
from models.normaliser import Writing
from models.phrases import MAX_PHRASES, Phrase, is_phrase_feature
from models.reranking import features
from models.reranking.corrections import CorrectionTable, PhraseCorrection
from models.reranking.features import COMPUTED_FEATURES, LM, LM_SUM, feature_model

MAX_POSTERIOR_SCALE = 1e6
"""Maximum factor of totals."""

MAX_LENGTH_EXPONENT = 4.0
MAX_WEIGHT = 1e6
"""Maximum magnitude of a weight; beyond it, totals would be inexact."""

MAX_WEIGHTS = 1000


def scaled_posteriors(totals: Float64s, scale: float = 1.0) -> Float64s:
    """Return exp(scale · total), normalised over the list [C]: uniform at scale 0, sharper if larger.

    A candidate with the total −∞ is impossible: without mass, unless all are impossible, thus equal.
    """
    possible = totals > -np.inf
    if not possible.any():
        possible, totals = ~possible, np.zeros(len(totals))
    mass: Float64s = np.where(possible, np.exp(scale * np.where(possible, totals - totals.max(), 0.0)), 0.0)
    mass /= mass.sum()
    return mass


def rank_by(values: Float64s) -> Int64s:
    """Order candidates by descending value [C]; equal ones keep their order."""
    return np.argsort(-values, kind="stable")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLinearModel:
    """Feature weights; features without a weight do not count.

    Attributes:
        weights: signed weights by feature.
        length_exponent: `lm` is divided by `tokens` to this power: 0 uses the sum of the tokens'
            log-probabilities, 1 their mean.

    Raises:
        InputError: a weight or the exponent is out of range.
    """

    weights: Mapping[str, float] = field(default_factory=lambda: {LM: 1.0})
    length_exponent: float = 0.0

    def __post_init__(self) -> None:
        for name, weight in self.weights.items():
            check_range(f"weights.{name}", weight, -MAX_WEIGHT, MAX_WEIGHT)
        check_range("length_exponent", self.length_exponent, 0, MAX_LENGTH_EXPONENT)

    def check(self, models: Collection[str]) -> None:
        """Check that every weighted feature can be computed or given.

        Args:
            models: names of the further models.

        Raises:
            InputError: a weight is for an unknown model, an unknown derived feature, or an undivided sum
                without a length exponent.
        """
        for name in self.weights:
            model, where = feature_model(name), f"weights.{name}"
            if model is not None and model not in models:
                called = ", ".join(sorted(models)) or "none"
                raise InputError.of(where, f"is given, but there is no model {model!r}; models: {called}")
            if name.partition(":")[0] == LM_SUM and not self.length_exponent:
                raise InputError.of(
                    where, f"requires length_exponent; without it, the sum is the feature {LM}"
                )
            if features.is_derived(name):
                features.check_derived(name)

    @property
    def given(self) -> tuple[str, ...]:
        """Features that every candidate must have for the weights."""
        needed = dict.fromkeys(
            features.base_feature(name) if features.is_derived(name) else name for name in self.weights
        )
        given = (name for name in needed if name is not None and feature_model(name) is None)
        return tuple(name for name in given if name not in COMPUTED_FEATURES and not is_phrase_feature(name))

    def totals(self, values: Float64s) -> Float64s:
        """Compute the weighted sum of each candidate's features [N].

        Args:
            values: values of the weighted features, in order of the weights [N, W].
        """
        totals = np.zeros(len(values))
        for index, weight in enumerate(self.weights.values()):  # no matrix product, which rounds by batch
            totals += weighted(values[:, index], weight)
        return totals


class ProfileModel(StoredDocument):
    """Language model of a profile.

    Attributes:
        name: name in features: `old` for `lm:old`, empty for `lm`. Several models without a name are a mixture.
        address: version that the weights were tuned on, as `name@version`; while it is not served, the model's served
            version scores.
        weight: weight in the mixture.
    """

    name: str = ""
    address: str
    weight: float = 1.0


class Profile(StoredDocument):
    """Tuned weights for re-ranking, saved in a registry.

    Attributes:
        schema_version: version of this format.
        name: name of the profile.
        weights: weights by feature; {"rank": 1} keeps the order of the first pass.
        length_exponent: exponent e of the `lm` feature's divisor, `tokens` ** e.
        posterior_scale: scale of the posteriors, exp(scale · total) normalised over a list.
        metric: metric that the weights were tuned for.
        signature: settings of the metric, as sacrebleu writes them.
        models: language models of the features.
        form: form in which pretrained models read the texts.
        phrases: phrases of the features `phrases` and `phrases:CLASS`.
        corrections: corrections of systematic errors; see `CorrectionTable`.
        propose: true to propose the phrases for words that are spelled nearly like them.
        forms: language in which forms of numbers and abbreviations are proposed; None for none.
        decision: `tuned` if the weights improve on the first pass on held-out lists, else `first_pass`.
        figures: scores from tuning, as in the reply of /v1/rerank/tune.
        created: time of tuning, ISO 8601 in UTC.
    """

    schema_version: Literal[1] = 1
    name: str
    weights: Annotated[dict[str, float], Field(min_length=1, max_length=MAX_WEIGHTS)]
    length_exponent: float = 0.0
    posterior_scale: Annotated[float, Field(ge=0)] = 1.0
    metric: str
    signature: str
    models: list[ProfileModel]
    # omitted if empty, so that services without these fields read other profiles
    form: Annotated[Writing, Field(exclude_if="asis".__eq__)] = "asis"
    phrases: list[Phrase] = Field([], max_length=MAX_PHRASES, exclude_if=operator.not_)
    corrections: list[PhraseCorrection] = Field([], exclude_if=operator.not_)
    propose: Annotated[bool, Field(exclude_if=operator.not_)] = False
    forms: Annotated[str | None, Field(exclude_if=operator.not_)] = None
    decision: Literal["tuned", "first_pass"]
    figures: dict[str, Any]
    created: str

    @field_validator("figures")
    @classmethod
    def _are_json(cls, figures: dict[str, Any]) -> dict[str, Any]:
        json.dumps(figures, allow_nan=False)  # raises ValueError for NaN and infinity
        return figures

    @model_validator(mode="after")
    def _is_within_limits(self) -> Self:
        """Refuse weights, exponents and corrections outside their limits."""
        self.weighting()
        _ = self.correction_table
        return self

    def replaced_versions(self, scoring: Collection[str]) -> list[str]:
        """Return the versions of the tuning, of models of which another version scores.

        Args:
            scoring: the versions that score, as `name@version`.
        """
        names = {address.partition("@")[0] for address in scoring}
        tuned_on = dict.fromkeys(entry.address for entry in self.models if entry.address not in scoring)
        parts = (address.partition("@") for address in tuned_on)
        return ["".join(part) for part in parts if part[0] in names and part[2].isdecimal()]

    def weighting(self) -> LogLinearModel:
        """Return the weights as a model."""
        return LogLinearModel(weights=self.weights, length_exponent=self.length_exponent)

    @cached_property
    def correction_table(self) -> CorrectionTable | None:
        """Return the corrections as a table; None if there are none."""
        return CorrectionTable(self.corrections) if self.corrections else None


class ProfileStore(DocumentStore[Profile]):
    """Profiles of a registry; see `DocumentStore` for errors."""

    folder, _kind, _what = ".profiles", Profile, "profile"
    _hint, _name = "tune and save it again", "name"

    def read(self, name: str) -> Profile:
        """Read a profile.

        Raises:
            InputError: it does not exist; the message lists the existing profiles.
        """
        check_name(name, param="profile")
        profile = self._find(name)
        if profile is None:
            raise self._unknown(name)
        return profile

    def write(self, profile: Profile) -> str | Path:
        """Store a profile, replacing one with the same name; return its path or URL.

        Raises:
            InputError: its name cannot be a file name, or it is too large.
        """
        check_name(profile.name, param="profile")
        return self._put(profile.name, profile)

    def delete(self, name: str) -> None:
        """Remove a profile.

        Raises:
            InputError: it does not exist.
        """
        check_name(name, param="profile")
        if not self._delete(name):
            raise self._unknown(name)

    def _unknown(self, name: str) -> InputError:
        known = ", ".join(self.names()) or "none"
        return InputError(f"there is no profile {name!r}; profiles: {known}", param="profile")
