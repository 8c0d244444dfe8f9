"""Tree of texts that a decoder extends by words or tokens, stored as states of a service.

Word by word: a decoder asks for one word after one text at a time, but competing texts are
continued by much the same words. So each request also scores recently used words after the same
text. If all words of a model are known, every other word is one unknown word to it and is scored
once.

Token by token: a decoder asks for every token after a text, so the whole row is requested at once,
and the service keeps the state of a text only once it is extended itself.

Handles of states that the decoder has dropped are freed with the next request; any thread may add
one, including the garbage collector's. The trees themselves are for one thread at a time.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from service.client import Client
from service.client.calls import StateElsewhereError
from service.client.resources import ContinuationOptions, States
from service.schemas.replies import AdvancedState

_MAX_HANDLES = 1000
"""Handles that one request frees at most; a service takes so many unless it was told to take fewer."""


class ReleasedHandles:
    """Gathers handles; any thread may add one, the garbage collector's included.

    Those of each process by themselves: it refuses to free what another keeps, and a service that is started again
    has another name.
    """

    def __init__(self) -> None:
        self._by_process: dict[str, deque[str]] = {}

    def add(self, handle: str) -> None:
        """A handle that nobody needs."""
        self._queue_of(handle).append(handle)

    def batch_for(self, handle: str) -> AbstractContextManager[list[str]]:
        """Take handles for the request made meanwhile to free; if it fails they are put back.

        Args:
            handle: of the state in the request, whose process keeps the states.
        """
        return _pop_batch(self._queue_of(handle))

    def free(self, states: States) -> None:
        """Free all of them; what another process keeps than the one that answers ends there by itself.

        Raises:
            GramophoneError: the service does not answer, or refuses.
        """
        for process, handles in [*self._by_process.items()]:
            try:
                while handles:
                    with _pop_batch(handles) as batch:
                        states.free(batch)
            except StateElsewhereError:
                del self._by_process[process]

    def _queue_of(self, handle: str) -> deque[str]:
        return self._by_process.setdefault(handle.partition(".")[0], deque())


class StateHandle:
    """A handle that is dropped when the last reference to it goes.

    Args:
        handle: of a state.
        dropped: where it is added then.
    """

    __slots__ = ("_dropped", "handle")

    def __init__(self, handle: str, dropped: ReleasedHandles) -> None:
        self.handle = handle
        self._dropped = dropped

    def __del__(self) -> None:
        self._dropped.add(self.handle)


@contextmanager
def _pop_batch(handles: deque[str]) -> Iterator[list[str]]:
    """The first of some handles, which are put back if the block fails."""
    batch = [handles.popleft() for _ in range(min(len(handles), _MAX_HANDLES))]
    freed = False
    try:
        yield batch
        freed = True
    finally:
        if not freed:
            handles.extendleft(reversed(batch))


_BATCH_WORDS = 1000
_CONTROL_TOKENS = 3


class WordEstimate(NamedTuple):
    """Estimate of a word by a model.

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
        """Convert a reply to an estimate."""
        return cls(result.logprob, result.num_oov > 0, result.num_tokens, result.eos_logprob)


class InitialWords(NamedTuple):
    """Estimates of words at the start of texts by a model.

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
        return {word for word, estimate in self.said.items() if not estimate.is_oov}


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
    estimates: dict[str, WordEstimate] = {}
    for first in range(0, len(words), _BATCH_WORDS):
        estimates |= _estimates(client, handle, words[first : first + _BATCH_WORDS])
    known = [word for word, one in estimates.items() if not one.is_oov and one.num_tokens == 1]
    is_closed = len(known) + _CONTROL_TOKENS == client.model(model).vocab_size
    if is_closed:  # of a tokenizer that neither cuts words nor changes them
        probes = [probe for probe in _probes(known) if probe not in estimates]
        is_closed = all(
            one.is_oov and one.num_tokens == 1 for one in _estimates(client, handle, probes).values()
        )
    return InitialWords(model, estimates, frozenset(known) if is_closed else None)


def _probes(known: Sequence[str]) -> list[str]:
    """Words that are known ones to a tokenizer that changes case or cuts at marks."""
    changed = {change(word) for word in known[:20] for change in (str.upper, str.lower, str.title)}
    return [*changed, *(f"{known[0]}{mark}{known[-1]}" for mark in "-'._/,1")]


def _estimates(client: Client, handle: str, words: Sequence[str]) -> dict[str, WordEstimate]:
    continuations: list[ContinuationOptions] = [
        {"state": handle, "text": word, "keep": False} for word in words
    ]
    results = client.states.advance(continuations).results if continuations else []
    return {word: WordEstimate.of(result) for word, result in zip(words, results, strict=True)}


_UNKNOWN_WORD = "\0"
"""Stands for every word that a model does not know."""


class WordNode:
    """A text that a decoder has reached; what was asked about it is remembered as long as it is.

    Made by `WordTree`. It knows longer texts, or the shorter one that it came from, but not both, so that what
    a decoder drops is gone at once.

    Attributes:
        said: of its last word.
        eos_logprob: of `</s>` after it; None while nobody asked.
        children: longer texts by their last word, whose states the service keeps.
        estimates: what was said of words that are not among those.
        first: the same of the words of the tree, where it is the start.
    """

    __slots__ = ("_held", "_origin", "children", "eos_logprob", "estimates", "first", "said")

    def __init__(
        self,
        said: WordEstimate,
        *,
        held: StateHandle | None = None,
        origin: "tuple[WordNode, str] | None" = None,
    ) -> None:
        self.said = said
        self.eos_logprob = said.eos_logprob
        self.children: dict[str, WordNode] = {}
        self.estimates: dict[str, WordEstimate] = {}
        self.first: dict[str, WordEstimate] = {}
        self._held = held
        self._origin = origin

    @property
    def handle(self) -> str | None:
        """Handle of its state; None while the service keeps none."""
        return None if self._held is None else self._held.handle

    @property
    def origin(self) -> "tuple[WordNode, str]":
        """The text before its last word, and that word; of a text without a state."""
        assert self._origin is not None  # noqa: S101 - a text has the one or the other
        return self._origin

    def set_state(self, held: StateHandle) -> None:
        """From now on the service keeps its state."""
        self._held, self._origin = held, None

    def has_estimate(self, word: str) -> bool:
        """Return whether a word was scored after it."""
        return word in self.children or word in self.estimates or word in self.first


class WordTree:
    """Texts of one model. For one thread at a time.

    Args:
        client: of the service.
        model: address; None for the service's default.
        context: what stands before every text.
        words: whose probabilities at the start are asked for all at once, when they are first needed.
        companions: other words that a question about one takes along at most.

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
        self._client = client
        self._states = client.states
        self._model = model
        self._context = context
        self._words = words
        self._companions = companions
        self._dropped = ReleasedHandles()
        self._recent: OrderedDict[str, str] = OrderedDict()
        self._first: dict[bool, InitialWords] = {}
        self._whole: frozenset[str] | None = None

    def start(self, *, bos: bool = True) -> WordNode:
        """The text before the first word, after `<s>` or nothing."""
        reply = self._states.open(self._context, model=self._model, bos=bos)
        text = WordNode(
            WordEstimate(0.0, is_oov=False, num_tokens=0),
            held=StateHandle(reply.states[0].state, self._dropped),
        )
        if self._words:
            text.first = self._first_words(reply.model, text, bos=bos).said
        return text

    def add_recent(self, word: str) -> None:
        """A word has come up: it may soon be asked about."""
        name = self._name(word)
        self._recent[name] = word
        self._recent.move_to_end(name)
        if len(self._recent) > self._companions:
            self._recent.popitem(last=False)

    def extend(self, text: WordNode, word: str, *, eos: bool = False) -> WordNode:
        """A text and one more word.

        Args:
            text: of this tree.
            word: without spaces around it.
            eos: whether `end` will be asked of it next.
        """
        name = self._name(word)
        longer = text.children.get(name)
        if longer is None:
            estimate = text.estimates.get(name) or text.first.get(name)
            if estimate is None or (eos and estimate.eos_logprob is None):
                longer = self._query(text, word, eos=eos)
            else:  # not put into `later`: see `Text`
                longer = WordNode(estimate, origin=(text, word))
        self.add_recent(word)
        return longer

    def end(self, text: WordNode) -> float:
        """Natural logarithm of the probability that the text ends here."""
        if text.eos_logprob is None:
            continuation: ContinuationOptions = {"state": self._handle(text), "eos": True, "keep": False}
            (result,) = self._advanced([continuation])
            text.eos_logprob = result.eos_logprob
        return text.eos_logprob or 0.0

    def known_words(self, *, bos: bool = True) -> set[str]:
        """Return the words in the model's vocabulary."""
        self.start(bos=bos)
        return self._first.get(bos, NO_INITIAL_WORDS).known

    def close(self) -> None:
        """Free the states that were let go of."""
        self._dropped.free(self._states)

    def _query(self, text: WordNode, word: str, *, eos: bool) -> WordNode:
        """A text and a word that was not asked about after it, which is told of other words too."""
        name, handle = self._name(word), self._handle(text)
        unscored = {o: w for o, w in self._recent.items() if o != name and not text.has_estimate(o)}
        continuations: list[ContinuationOptions] = [{"state": handle, "text": word, "eos": eos}]
        continuations += [
            {"state": handle, "text": other_word, "keep": False} for other_word in unscored.values()
        ]
        result, *results = self._advanced(continuations)
        text.estimates.update(
            {key: WordEstimate.of(reply) for key, reply in zip(unscored, results, strict=True)}
        )
        longer = text.children[name] = WordNode(WordEstimate.of(result), held=self._held(result))
        return longer

    def _name(self, word: str) -> str:
        """The word, or what stands for it among all that are unknown."""
        return word if self._whole is None or word in self._whole else _UNKNOWN_WORD

    def _first_words(self, model: str, start: WordNode, *, bos: bool) -> InitialWords:
        """Return the estimates of words at a start; of one version, until another answers."""
        first = self._first.get(bos, NO_INITIAL_WORDS)
        if first.model != model:
            first = self._first[bos] = score_initial_words(
                self._client, model, self._handle(start), self._words
            )
            self._whole = first.whole
            self._recent.clear()
        return first

    def _handle(self, text: WordNode) -> str:
        if text.handle is None:
            before, word = text.origin
            continuation: ContinuationOptions = {"state": self._handle(before), "text": word}
            (result,) = self._advanced([continuation])
            text.set_state(self._held(result))
        return text.handle or ""

    def _advanced(self, continuations: Sequence[ContinuationOptions]) -> list[AdvancedState]:
        with self._dropped.batch_for(continuations[0]["state"]) as free:
            return self._states.advance(continuations, free=free).results

    def _held(self, result: AdvancedState) -> StateHandle:
        assert result.state is not None  # noqa: S101 - it was asked to be kept
        return StateHandle(result.state, self._dropped)


_EOS = 2


class TokenNode:
    """A text that a decoder has reached.

    Made by `TokenTree`.

    Attributes:
        logprob: natural logarithm of the probability of its last token.
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


class TokenTree:
    """Texts of one model over a list of its tokens. For one thread at a time.

    Args:
        client: of the service.
        token_ids: what the decoder's indices mean to the model.
        model: address; None for the service's default.
        context: what stands before every text.

    Every method raises GramophoneError.
    """

    def __init__(
        self, client: Client, token_ids: Sequence[int], *, model: str | None = None, context: str = ""
    ) -> None:
        self._states = client.states
        self._ids = list(token_ids)
        self._model = model
        self._context = context
        self._dropped = ReleasedHandles()

    def start(self, *, bos: bool = True) -> TokenNode:
        """The text before the first token, after `<s>` or nothing."""
        reply = self._states.open(self._context, model=self._model, bos=bos)
        return TokenNode(0.0, held=StateHandle(reply.states[0].state, self._dropped))

    def extend(self, text: TokenNode, index: int) -> TokenNode:
        """A text and the token of one more index."""
        return TokenNode(self._row(text)[index], origin=(text, index))

    def end(self, text: TokenNode) -> float:
        """Natural logarithm of the probability that the text ends here."""
        return self._row(text)[-1]

    def close(self) -> None:
        """Free the states that were let go of."""
        self._dropped.free(self._states)

    def _row(self, text: TokenNode) -> list[float]:
        """Log-probabilities of what follows a text: of each index, and last of `</s>`."""
        if text.row is None:
            text.row = self._query(text)
        return text.row

    def _query(self, text: TokenNode) -> list[float]:
        continuation: ContinuationOptions
        if text.origin is None:
            continuation = {"state": self._handle(text), "keep": False}
        else:
            before, index = text.origin
            continuation = {"state": self._handle(before), "token_ids": [self._ids[index]]}
        with self._dropped.batch_for(continuation["state"]) as free:
            (result,) = self._states.advance(
                [continuation], next_token_ids=[*self._ids, _EOS], free=free
            ).results
        if result.state is not None:
            text.held, text.origin = StateHandle(result.state, self._dropped), None
        return result.next_logprobs

    def _handle(self, text: TokenNode) -> str:
        """Return the handle of a text that was continued, or is the start."""
        return "" if text.held is None else text.held.handle
