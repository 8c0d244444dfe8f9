"""KenLM's Python interface over a service: code written for the module `kenlm` runs unchanged.

    import gramophone_client.kenlm as kenlm

    model = kenlm.Model("http://127.0.0.1:8000", model="lm")
    model.score("the cat sat")  # a base-10 logarithm

A decoder that imports `kenlm` itself finds this module if it is registered first:

    sys.modules["kenlm"] = gramophone_client.kenlm

`score`, `full_scores` and `perplexity` send one request per sentence. `BaseScore` sends one per word that was not yet
scored in its context; the same request scores `</s>` after the word, and recently used words in the context.
The service stores nothing: a state is the words that the next score depends on.
"""

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from typing_extensions import Self

from gramophone_client.calls import Call, GramophoneError, json_reply, reply_error
from gramophone_client.client import Client
from gramophone_client.fusion.word_tree import probe_words
from gramophone_client.local_service import LocalService
from gramophone_client.types import DetokenizeReply, SequenceScoreResult, TokenizerInfo

_LOG10_E = 0.4342944819032518
_LOG_ZERO, _LOG10_ZERO = -9999.0, -99.0
"""The logarithm of zero in replies, natural, and in ARPA files, base 10."""
_BOS, _EOS, _UNKNOWN = "<s>", "</s>", "<unk>"
_EOS_ID, _FIRST_WORD_ID = 2, 3
_UNBOUNDED_ORDER = 100
"""Order reported for models that read the complete history."""
_MAX_VOCABULARY = 10_000_000
"""Maximum words of a model that are all requested."""
_MAX_SCORES = 100_000
"""Stored scores at which all are dropped; about 50 MB."""


class FullScoreReturn(NamedTuple):
    """Score of a word.

    Attributes:
        log_prob: its base-10 log-probability.
        ngram_length: length of the n-gram found; with other models, of the complete history.
        oov: true if the word is unknown.
    """

    log_prob: float
    ngram_length: int
    oov: bool


class _Scored(NamedTuple):
    """Scores of a text's words, and the number of last tokens that matter after each, if the service tells."""

    words: list[FullScoreReturn]
    reaches: list[int]


class Context(NamedTuple):
    """Words on which the next score depends.

    Attributes:
        bos: true if `<s>` precedes the words.
        words: the last words that matter, at most order − 1, or all if the model has no order.
    """

    bos: bool = False
    words: tuple[str, ...] = ()


_EMPTY = Context()


@dataclass(unsafe_hash=True, order=True)
class State:
    """State that methods of `Model` write; of n-gram models, two are equal if and only if their futures are.

    The order has no meaning, but a heap of scores and states needs one.

    Attributes:
        context: words on which the next score depends.
    """

    context: Context = _EMPTY


class LoadMethod(IntEnum):
    """Methods of loading a file, for `Config`."""

    LAZY = 0
    POPULATE_OR_LAZY = 1
    POPULATE_OR_READ = 2
    READ = 3
    PARALLEL_READ = 4


class ARPALoadComplain(IntEnum):
    """Warnings about ARPA files, for `Config`."""

    ALL = 0
    EXPENSIVE = 1
    NONE = 2


@dataclass
class Config:
    """Options of loading a file, which have no effect on a service."""

    load_method: LoadMethod = LoadMethod.POPULATE_OR_READ
    show_progress: bool = True
    arpa_complain: ARPALoadComplain = ARPALoadComplain.ALL


class Model:
    """Language model of a service, with the methods of `kenlm.Model`; for any threads and forked processes.

    Args:
        path: URL of a service, or ARPA file or registry folder, served in a process of its own.
        config: accepted and ignored.
        model: address of the model, such as `lm@3`; None for the URL's fragment or the default.
        api_key: API key, if the service requires one.
        timeout_s: seconds to wait for a reply.
        companions: maximum recently used words scored with each new word.

    Every method raises GramophoneError.

    Raises:
        OSError: the file or folder does not exist or cannot be served.
    """

    def __init__(
        self,
        path: str | bytes | os.PathLike[str],
        config: Config | None = None,  # noqa: ARG002 - KenLM's signature
        *,
        model: str | None = None,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        companions: int = 32,
    ) -> None:
        self.path = os.fsencode(path)
        self._copy = partial(
            Model, path, model=model, api_key=api_key, timeout_s=timeout_s, companions=companions
        )
        url, _, fragment = os.fsdecode(path).partition("#")
        self._service = None
        if not url.startswith(("http://", "https://")):
            self._service = LocalService(os.fsdecode(path))
            url, fragment = self._service.url, ""
        self._model = model or fragment or None
        self._companions = companions
        self._connect = partial(Client, url, api_key=api_key, timeout_s=timeout_s)
        self._client, self._process_id = self._connect(), os.getpid()
        self._lock = threading.Lock()
        self._recent: dict[str, None] = {}
        self._version = ""
        self._order: int | None = None
        self._scores: dict[tuple[Context, str], FullScoreReturn] = {}
        self._reaches: dict[tuple[Context, str], int] = {}
        self._known: dict[str, bool] = {}
        self._has_vocabulary = self._is_closed = False
        try:
            self._full_score(Context(bos=True), _EOS)
        except GramophoneError:
            self.close()
            raise

    @property
    def order(self) -> int:
        """Length of the model's longest n-grams; 100 for a model without n-grams."""
        return self._order or _UNBOUNDED_ORDER

    def score(self, sentence: str | bytes, bos: bool = True, eos: bool = True) -> float:
        """Return a sentence's base-10 log-probability, after `<s>` if `bos`, with `</s>` if `eos`."""
        return sum(score.log_prob for score in self.full_scores(sentence, bos, eos))

    def perplexity(self, sentence: str | bytes) -> float:
        """Return the perplexity per word of a sentence, `</s>` included."""
        return float(10.0 ** (-self.score(sentence) / (len(_words(sentence)) + 1)))

    def full_scores(
        self, sentence: str | bytes, bos: bool = True, eos: bool = True
    ) -> Iterator[FullScoreReturn]:
        """Yield the score of each word of a sentence."""
        words, context = _words(sentence), Context(bool(bos))
        if words and {_BOS, _EOS}.isdisjoint(words):
            yield from self._request([" ".join(map(_spelling, words))], context, eos=bool(eos))[0].words
            return
        for word in [*words, _EOS] if eos else words:
            yield self._full_score(context, word)
            context = self._extended(context, word)

    def BeginSentenceWrite(self, state: State) -> None:
        """Set a state to the start of a sentence."""
        _checked(state).context = Context(bos=True)

    def NullContextWrite(self, state: State) -> None:
        """Set a state to the empty context, without `<s>`."""
        _checked(state).context = _EMPTY

    def BaseScore(self, in_state: State, word: str, out_state: State) -> float:
        """Return a word's base-10 log-probability after a state; write the state after the word."""
        return self.BaseFullScore(in_state, word, out_state).log_prob

    def BaseFullScore(self, in_state: State, word: str, out_state: State) -> FullScoreReturn:
        """Return the score of a word after a state; write the state after the word."""
        context, word = _checked(in_state).context, self._name(word)
        score = self._full_score(context, word)
        _checked(out_state).context = self._extended(context, word)
        return score

    def __contains__(self, word: str | bytes) -> bool:
        word = self._name(_decoded(word))
        known = self._known.get(word)
        return known if known is not None else not self._full_score(_EMPTY, word).oov

    def __repr__(self) -> str:
        return f"<Model from {os.path.basename(os.fsdecode(self.path))}>"  # noqa: PTH119 - also of a URL

    def __reduce__(self) -> tuple[Callable[[], "Model"], tuple[()]]:
        return self._copy, ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, and end the service that this object started."""
        self._client.close()
        if self._service is not None:
            self._service.close()

    @property
    def _connection(self) -> Client:
        """Client of this process: a forked process must not use its parent's connections."""
        if self._process_id != os.getpid():
            self._client, self._process_id = self._connect(), os.getpid()
        return self._client

    def _full_score(self, context: Context, word: str) -> FullScoreReturn:
        """Return the score of a word in a context, from the service unless it is stored."""
        if word == _BOS:
            return FullScoreReturn(_LOG10_ZERO, 1, oov=False)  # no model predicts it
        score = self._scores.get((context, word))
        if score is not None:
            return score
        if word != _EOS:
            return self._request_scores(context, word)[0]
        if context.words:  # `</s>` is scored together with the word before it
            before = context._replace(words=context.words[:-1])
            return self._request_scores(before, context.words[-1])[1]
        score = self._scores[context, _EOS] = self._request(None, context, eos=False)[0].words[0]
        return score

    def _extended(self, context: Context, word: str) -> Context:
        """Return the context after one more word; no n-gram contains words after `</s>`."""
        if word in {_BOS, _EOS}:
            return Context(bos=word == _BOS)
        words = (*context.words, word)
        reach = self._reaches.get((context, word), self.order - 1 if self._order else len(words) + 1)
        if len(words) < reach:
            return Context(context.bos, words)
        return Context(bos=False, words=words[len(words) - reach :])

    def _request_scores(self, context: Context, word: str) -> tuple[FullScoreReturn, FullScoreReturn]:
        """Return the scores of a word in a context and of `</s>` after it; also store those of recent words."""
        with self._lock:
            self._recent.pop(word, None)
            companions = [other for other in self._recent if (context, other) not in self._scores]
            self._recent[word] = None
            if len(self._recent) > self._companions:
                del self._recent[next(iter(self._recent))]
        words = [word, *companions]
        results = self._request(list(map(_spelling, words)), context, eos=True)
        if len(self._scores) > _MAX_SCORES:
            self._scores.clear()
            self._reaches.clear()
        scores = [_word_and_end(result.words) for result in results]
        for one, result, (score, end) in zip(words, results, scores, strict=True):
            self._scores[context, one] = score
            if len(result.reaches) > 1:
                self._reaches[context, one] = result.reaches[-2]  # before `</s>`
            self._scores[self._extended(context, one), _EOS] = end
            self._known[one] = not score.oov
        return scores[0]

    def _request(self, texts: list[str] | None, context: Context, *, eos: bool) -> list[_Scored]:
        """Return the scores of the words of texts in a context, or of `</s>` if there are none.

        Stored scores of another model version are dropped.
        """
        space = " " if context.words else ""
        what: dict[str, Any] = (
            {"token_ids": [[_EOS_ID]]} if texts is None else {"texts": [space + text for text in texts]}
        )
        reply = self._connection.score(
            **what,
            context=" ".join(map(_spelling, context.words)),
            bos=context.bos,
            eos=eos,
            detail="word",
            ngram_lengths=True,
            **self._address,
        )
        if reply.model != self._version:
            self._version, self._order = reply.model, reply.results[0].order
            self._has_vocabulary = self._is_closed = False
            self._scores.clear()
            self._reaches.clear()
            self._known.clear()
        try:
            scores = [_Scored(_word_scores(one, context), one.context_lengths) for one in reply.results]
        except IndexError:
            scores = []
        if not scores or not all(one.words for one in scores):
            raise reply_error("the reply to POST /v1/score lacks words, or lengths of n-grams")
        return scores

    @property
    def _address(self) -> Any:
        """Option that names the model; empty for the default model."""
        return {"model": self._model} if self._model else {}

    def _name(self, word: str) -> str:
        """Return a word, or `<unk>` for any that a word model's vocabulary lacks."""
        if not self._has_vocabulary:
            self._load_vocabulary()
        return _UNKNOWN if self._is_closed and not self._known.get(word) else word

    def _load_vocabulary(self) -> None:
        """Request the words of a word model; words of other models are looked up one by one."""
        fetch = self._connection.fetch
        info = fetch(Call("GET", "/tokenizer_info", json_reply(TokenizerInfo), query=self._address))
        last = info.vocab_size if info.tokenizer_class == "word" and info.vocab_size <= _MAX_VOCABULARY else 0
        step = max(1, info.max_model_len)
        for begin in range(_FIRST_WORD_ID, last, step):
            ids = list(range(begin, min(begin + step, last)))
            body = {"tokens": ids, **self._address}
            reply = fetch(Call("POST", "/detokenize", json_reply(DetokenizeReply), body))
            self._known.update(dict.fromkeys(_words(reply.prompt), True))
        if known := [word for word, is_known in self._known.items() if is_known and last]:
            # other words are unknown unless the tokenizer changes or splits words
            version, probes = self._version, [word for word in probe_words(known) if word not in self._known]
            results = self._request([_UNKNOWN, *probes], _EMPTY, eos=True)
            is_unknown = all(_word_and_end(result.words)[0].oov for result in results)
            self._is_closed = is_unknown and self._version == version
        self._known.update({_BOS: True, _EOS: True, _UNKNOWN: False})
        self._has_vocabulary = True


class LanguageModel(Model):
    """Former name of `Model`."""


def _checked(state: State) -> State:
    """Return a state of this module.

    Raises:
        TypeError: it is of another class.
    """
    if not isinstance(state, State):
        raise TypeError(
            f"state is a {type(state).__module__}.{type(state).__name__}, it must be a gramophone_client.kenlm.State; "
            'run sys.modules["kenlm"] = gramophone_client.kenlm before the import of code that imports kenlm'
        )
    return state


def _words(sentence: str | bytes) -> list[str]:
    """Return a sentence's words, separated by ASCII white space only."""
    encoded = sentence.encode() if isinstance(sentence, str) else sentence
    return list(map(_decoded, encoded.split()))


def _decoded(word: str | bytes) -> str:
    """Return a word as text; invalid UTF-8 is an unknown word."""
    return word if isinstance(word, str) else word.decode(errors="replace")


def _spelling(word: str) -> str:
    """Return a word, or the unknown word for an empty one or one with spaces."""
    return word if _words(word) == [word] else _UNKNOWN


def _word_scores(result: SequenceScoreResult, context: Context) -> list[FullScoreReturn]:
    """Return the score of each word of a result, in base 10."""
    ends = accumulate(word.num_tokens for word in result.words)
    lengths = [result.ngram_lengths[end - 1] for end in ends] if result.ngram_lengths else None
    before = len(context.words) + context.bos
    return [
        FullScoreReturn(
            word.logprob * _LOG10_E if word.logprob > _LOG_ZERO else _LOG10_ZERO,
            lengths[number] if lengths else before + number + 1,
            word.is_oov,
        )
        for number, word in enumerate(result.words)
    ]


def _word_and_end(scores: list[FullScoreReturn]) -> tuple[FullScoreReturn, FullScoreReturn]:
    """Return the scores of one word, which a tokenizer may have split, and of `</s>` after it."""
    *parts, end = scores
    word = FullScoreReturn(
        sum(part.log_prob for part in parts),
        max((part.ngram_length for part in parts), default=0),
        any(part.oov for part in parts),
    )
    return word, end
