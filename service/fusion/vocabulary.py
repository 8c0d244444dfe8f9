"""What a model says of a decoder's words, asked for at once; and whether it knows any others."""

from collections.abc import Sequence
from typing import NamedTuple

from service.client import Client
from service.client.states import ContinuationOptions
from service.schemas.state_replies import AdvancedState

_BATCH_WORDS = 1000
_CONTROL_TOKENS = 3


class WordEstimate(NamedTuple):
    """What a model said of a word.

    Attributes:
        logprob: natural logarithm of its probability.
        is_oov: whether it, or a part of it, is unknown.
        num_tokens: it is made of.
        eos_logprob: of `</s>` after it; None where nobody asked.
    """

    logprob: float
    is_oov: bool
    num_tokens: int
    eos_logprob: float | None = None

    @classmethod
    def of(cls, result: AdvancedState) -> "WordEstimate":
        """What a reply says."""
        return cls(result.logprob, result.num_oov > 0, result.num_tokens, result.eos_logprob)


class InitialWords(NamedTuple):
    """What a model says of words at the start of texts.

    Attributes:
        model: the version.
        said: of each word.
        whole: the words that it knows, where every other word is the same unknown one to it; else None.
    """

    model: str
    said: dict[str, WordEstimate]
    whole: frozenset[str] | None

    @property
    def known(self) -> set[str]:
        """The words that it knows, their parts included."""
        return {word for word, said in self.said.items() if not said.is_oov}


NO_INITIAL_WORDS = InitialWords("", {}, None)


def score_initial_words(client: Client, model: str, handle: str, words: Sequence[str]) -> InitialWords:
    """Ask a version for all of some words.

    Args:
        client: of the service.
        model: the version.
        handle: of its state at the start of texts.
        words: each once.

    Raises:
        GramophoneError: the service does not answer.
    """
    said: dict[str, WordEstimate] = {}
    for first in range(0, len(words), _BATCH_WORDS):
        said |= _estimates(client, handle, words[first : first + _BATCH_WORDS])
    known = [word for word, one in said.items() if not one.is_oov and one.num_tokens == 1]
    whole = len(known) + _CONTROL_TOKENS == client.model(model).vocab_size
    if whole:  # of a tokenizer that neither cuts words nor changes them
        probes = [probe for probe in _probes(known) if probe not in said]
        whole = all(one.is_oov and one.num_tokens == 1 for one in _estimates(client, handle, probes).values())
    return InitialWords(model, said, frozenset(known) if whole else None)


def _probes(known: Sequence[str]) -> list[str]:
    """Words that are known ones to a tokenizer that changes case or cuts at marks."""
    changed = {change(word) for word in known[:20] for change in (str.upper, str.lower, str.title)}
    return [*changed, *(f"{known[0]}{mark}{known[-1]}" for mark in "-'._/,1")]


def _estimates(client: Client, handle: str, words: Sequence[str]) -> dict[str, WordEstimate]:
    asked: list[ContinuationOptions] = [{"state": handle, "text": word, "keep": False} for word in words]
    results = client.states.advance(asked).results if asked else []
    return {word: WordEstimate.of(result) for word, result in zip(words, results, strict=True)}
