"""Trees of texts extended by words or tokens of a decoder, stored as states of a service.

Word by word: a decoder requests one word after one text at a time, but competing texts continue
with similar words. So each request also scores recently used words after the same text. If all
words of a model are known, all others are one unknown word, scored once.

Token by token: a decoder requests every token after a text, so one request returns the complete
row, and the service stores the state of a text only when the text is extended.

Handles of states that the decoder dropped are freed with the next request; any thread may add
one, including the garbage collector's. The trees are for one thread at a time.
"""

import unicodedata
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import NamedTuple

from gramophone_client import Client
from gramophone_client.calls import ContinuationOptions, StateElsewhereError, reply_error
from gramophone_client.types import AdvancedState

_MAX_HANDLES = 1000
"""Maximum handles freed in one request: the service's default limit."""

_BATCH_WORDS = 1000
_CONTROL_TOKENS = 3

_UNKNOWN_WORD = "\0"
"""Placeholder of all words unknown to a model."""

_EOS = 2


class ReleasedHandles:
    """Queues of handles to free, by process; any thread may add one.

    A process rejects handles of another, and a restarted service has another name.
    """

    def __init__(self) -> None:
        self._by_process: dict[str, deque[str]] = {}

    def add(self, handle: str) -> None:
        """Add a handle to free."""
        self._queue_of(handle).append(handle)

    @contextmanager
    def batch_for(self, handle: str) -> Iterator[list[str]]:
        """Take handles to free with the request made in the context; put them back if it fails.

        Args:
            handle: handle in the request; those of its process are taken.
        """
        handles = self._queue_of(handle)
        batch = [handles.popleft() for _ in range(min(len(handles), _MAX_HANDLES))]
        with ExitStack() as undo:
            undo.callback(handles.extendleft, batch[::-1])
            yield batch
            undo.pop_all()

    def free(self, client: Client) -> None:
        """Free all handles of the responding process; states of other processes expire.

        Raises:
            GramophoneError: the service does not respond, or rejects the request.
        """
        for process, handles in [*self._by_process.items()]:
            try:
                while handles:
                    with self.batch_for(process) as batch:
                        client.states.free(batch)
            except StateElsewhereError:
                del self._by_process[process]

    def _queue_of(self, handle: str) -> deque[str]:
        return self._by_process.setdefault(handle.partition(".")[0], deque())


class StateHandle:
    """Handle of a state, released with the last reference to this object.

    Args:
        handle: handle of a state.
        dropped: queues that receive the released handle.
    """

    __slots__ = ("_dropped", "handle")

    def __init__(self, handle: str, dropped: ReleasedHandles) -> None:
        self.handle = handle
        self._dropped = dropped

    def __del__(self) -> None:
        self._dropped.add(self.handle)


class WordEstimate(NamedTuple):
    """Estimate of a word by a model.

    Attributes:
        logprob: its natural-log probability.
        is_oov: true if the word, or a part of it, is unknown.
        num_tokens: number of its tokens.
        eos_logprob: natural-log probability of `</s>` after it; None unless requested.
    """

    logprob: float
    is_oov: bool
    num_tokens: int
    eos_logprob: float | None = None

    @classmethod
    def of(cls, result: AdvancedState) -> "WordEstimate":
        """Convert the reply for one continuation to an estimate."""
        return cls(result.logprob, result.num_oov > 0, result.num_tokens, result.eos_logprob)


def probe_words(known: Sequence[str]) -> list[str]:
    """Return words known only to tokenizers that change case or Unicode form or split at punctuation."""
    changes = (str.upper, str.lower, str.title, _widened)
    changed = {change(word) for word in known[:20] for change in changes}
    decomposed = ((word, unicodedata.normalize("NFD", word)) for word in known)
    changed |= set(islice((other for word, other in decomposed if other != word), 20))
    return [*changed, *(f"{known[0]}{mark}{known[-1]}" for mark in "-'._/,1")]


def _widened(word: str) -> str:
    """Replace ASCII characters by the full-width ones, which NFKC changes back."""
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in word)


class WordNode:
    """Text reached by a decoder, with the scores of its continuations; created by `WordTree`.

    It references either longer texts or the one before it, never both: without cycles, nodes that a
    decoder drops are deleted immediately.

    Attributes:
        said: estimate of its last word.
        eos_logprob: natural-log probability of `</s>` after it; None until requested.
        held: handle of its state; None if the service has none.
        origin: for a text without a state, the text before the last word, and that word.
        children: longer texts by their last word, with states in the service.
        estimates: estimates of other next words, by word.
        first: estimates of the tree's words at the start of a text, by word.
    """

    __slots__ = ("children", "eos_logprob", "estimates", "first", "held", "origin", "said")

    def __init__(
        self,
        estimate: WordEstimate,
        *,
        held: StateHandle | None = None,
        origin: "tuple[WordNode, str] | None" = None,
    ) -> None:
        self.said = estimate
        self.eos_logprob = estimate.eos_logprob
        self.children: dict[str, WordNode] = {}
        self.estimates: dict[str, WordEstimate] = {}
        self.first: dict[str, WordEstimate] = {}
        self.held = held
        self.origin = origin

    def has_estimate(self, word: str) -> bool:
        """Return True if a word was scored after this text."""
        return word in self.children or word in self.estimates or word in self.first


class _StateTree:
    """Texts of one model, stored as states of a service."""

    def __init__(self, client: Client, model: str | None, context: str) -> None:
        self._client = client
        self._states = client.states
        self._model = model
        self._context = context
        self._dropped = ReleasedHandles()

    def close(self) -> None:
        """Free the states of dropped texts."""
        self._dropped.free(self._client)

    def _open(self, *, bos: bool) -> tuple[str, StateHandle]:
        """Return the address of the responding version, and its state at the start of a text."""
        reply = self._states.open(self._context, model=self._model, bos=bos)
        return reply.model, StateHandle(reply.states[0].state, self._dropped)

    def _advance(
        self, continuations: Sequence[ContinuationOptions], next_token_ids: Sequence[int] = ()
    ) -> list[AdvancedState]:
        with self._dropped.batch_for(continuations[0]["state"]) as free:
            return self._states.advance(continuations, next_token_ids=next_token_ids, free=free).results

    def _held(self, result: AdvancedState) -> StateHandle:
        if result.state is None:  # although the request has `keep`
            raise reply_error("the reply to POST /v1/states/advance lacks a state")
        return StateHandle(result.state, self._dropped)


class WordTree(_StateTree):
    """Tree of texts of one model, extended by words; for one thread at a time.

    Args:
        client: client of the service.
        model: address of the model; None for the default.
        context: text before every text of the tree.
        words: words scored together at the start of a text, when first needed.
        companions: maximum other, recently used words scored in a request for one word.

    Every method raises GramophoneError.
    """

    def __init__(
        self,
        client: Client,
        *,
        model: str | None = None,
        context: str = "",
        words: Sequence[str] = (),
        companions: int = 16,
    ) -> None:
        super().__init__(client, model, context)
        self._words = words
        self._companions = companions
        self._recent: OrderedDict[str, str] = OrderedDict()
        self._first: dict[bool, tuple[str, dict[str, WordEstimate]]] = {}  # with the responding version
        # known only if the model maps all other words to one unknown token
        self._vocabulary: frozenset[str] | None = None

    def start(self, *, bos: bool = True) -> WordNode:
        """Return the text before the first word, after `<s>` if `bos`."""
        model, held = self._open(bos=bos)
        text = WordNode(WordEstimate(0.0, is_oov=False, num_tokens=0), held=held)
        if self._words:
            text.first = self._first_words(model, held.handle, bos=bos)
        return text

    def add_recent(self, word: str) -> None:
        """Mark a word as recently used, to score it with others."""
        name = self._name(word)
        self._recent[name] = word
        self._recent.move_to_end(name)
        if len(self._recent) > self._companions:
            self._recent.popitem(last=False)

    def extend(self, text: WordNode, word: str, *, eos: bool = False) -> WordNode:
        """Return a text extended by one word.

        Args:
            text: text of this tree.
            word: word without surrounding spaces.
            eos: true if `end` will be called for the longer text next.
        """
        name = self._name(word)
        longer = text.children.get(name)
        if longer is None:
            estimate = text.estimates.get(name) or text.first.get(name)
            if estimate is None or (eos and estimate.eos_logprob is None):
                longer = self._query(text, word, eos=eos)
            else:  # not stored in `children`: it references this text, see `WordNode`
                longer = WordNode(estimate, origin=(text, word))
        self.add_recent(word)
        return longer

    def end(self, text: WordNode) -> float:
        """Return the natural-log probability that the text ends here."""
        if text.eos_logprob is None:
            (result,) = self._advance([{"state": self._handle(text), "eos": True, "keep": False}])
            text.eos_logprob = result.eos_logprob
        return text.eos_logprob or 0.0

    def known_words(self, *, bos: bool = True) -> set[str]:
        """Return the words in the model's vocabulary."""
        return {word for word, estimate in self.start(bos=bos).first.items() if not estimate.is_oov}

    def _query(self, text: WordNode, word: str, *, eos: bool) -> WordNode:
        """Extend a text by an unscored word; score recently used words after the text in the same request."""
        name, handle = self._name(word), self._handle(text)
        unscored = {n: w for n, w in self._recent.items() if n != name and not text.has_estimate(n)}
        continuation: ContinuationOptions = {"state": handle, "text": word, "eos": eos}
        result, *results = self._advance([continuation, *_trials(handle, unscored.values())])
        text.estimates.update(
            {key: WordEstimate.of(reply) for key, reply in zip(unscored, results, strict=True)}
        )
        longer = text.children[name] = WordNode(WordEstimate.of(result), held=self._held(result))
        return longer

    def _name(self, word: str) -> str:
        """Return the word, or the placeholder of words unknown to the model."""
        return word if self._vocabulary is None or word in self._vocabulary else _UNKNOWN_WORD

    def _first_words(self, model: str, handle: str, *, bos: bool) -> dict[str, WordEstimate]:
        """Return the estimates of words at a start, rescored if another model version responds."""
        known_model, estimates = self._first.get(bos, ("", {}))
        if known_model != model:
            estimates = self._score_initial_words(model, handle)
            self._first[bos] = model, estimates
            self._recent.clear()
        return estimates

    def _score_initial_words(self, model: str, handle: str) -> dict[str, WordEstimate]:
        estimates: dict[str, WordEstimate] = {}
        for begin in range(0, len(self._words), _BATCH_WORDS):
            estimates |= self._estimates(handle, self._words[begin : begin + _BATCH_WORDS])
        known = [word for word, one in estimates.items() if not one.is_oov and one.num_tokens == 1]
        is_closed = len(known) + _CONTROL_TOKENS == self._client.model(model).vocab_size
        if is_closed:  # unless the tokenizer splits or changes words, which the probes detect
            probes = [probe for probe in probe_words(known) if probe not in estimates]
            unknown = self._estimates(handle, probes).values()
            is_closed = all(one.is_oov and one.num_tokens == 1 for one in unknown)
        self._vocabulary = frozenset(known) if is_closed else None
        return estimates

    def _estimates(self, handle: str, words: Sequence[str]) -> dict[str, WordEstimate]:
        results = self._states.advance(_trials(handle, words)).results if words else []
        return {word: WordEstimate.of(result) for word, result in zip(words, results, strict=True)}

    def _handle(self, text: WordNode) -> str:
        if text.held is None:
            assert text.origin is not None  # noqa: S101 - a text has a state or an origin
            shorter, word = text.origin
            (result,) = self._advance([{"state": self._handle(shorter), "text": word}])
            text.held, text.origin = self._held(result), None
        return text.held.handle


def _trials(handle: str, words: Iterable[str]) -> list[ContinuationOptions]:
    """Return continuations of a state by each word, to be scored only."""
    return [{"state": handle, "text": word, "keep": False} for word in words]


class TokenNode:
    """Text reached by a decoder; created by `TokenTree`.

    Attributes:
        logprob: natural-log probability of its last token.
    """

    __slots__ = ("held", "logprob", "origin", "row")

    def __init__(
        self,
        logprob: float,
        *,
        held: StateHandle | None = None,
        origin: "tuple[TokenNode, int] | None" = None,
    ) -> None:
        self.logprob = logprob
        self.held = held
        self.origin = origin
        self.row: list[float] | None = None


class TokenTree(_StateTree):
    """Tree of texts of one model, extended by tokens of a list; for one thread at a time.

    Args:
        client: client of the service.
        token_ids: token ids by the decoder's index.
        model: address of the model; None for the default.
        context: text before every text of the tree.

    Every method raises GramophoneError.
    """

    def __init__(
        self, client: Client, token_ids: Sequence[int], *, model: str | None = None, context: str = ""
    ) -> None:
        super().__init__(client, model, context)
        self._ids = list(token_ids)

    def start(self, *, bos: bool = True) -> TokenNode:
        """Return the text before the first token, after `<s>` if `bos`."""
        return TokenNode(0.0, held=self._open(bos=bos)[1])

    def extend(self, text: TokenNode, index: int) -> TokenNode:
        """Return a text extended by the token of an index."""
        return TokenNode(self._row(text)[index], origin=(text, index))

    def end(self, text: TokenNode) -> float:
        """Return the natural-log probability that the text ends here."""
        return self._row(text)[-1]

    def _row(self, text: TokenNode) -> list[float]:
        """Return the log-probabilities after a text: of each index, then of `</s>`."""
        if text.row is None:
            continuation: ContinuationOptions
            if text.origin is None:
                continuation = {"state": _token_handle(text), "keep": False}
            else:
                shorter, index = text.origin
                continuation = {"state": _token_handle(shorter), "token_ids": [self._ids[index]]}
            (result,) = self._advance([continuation], [*self._ids, _EOS])
            if result.state is not None:
                text.held, text.origin = self._held(result), None
            text.row = result.next_logprobs
        return text.row


def _token_handle(text: TokenNode) -> str:
    """Return the handle of a text with a state: the start, or an extended text."""
    return "" if text.held is None else text.held.handle
