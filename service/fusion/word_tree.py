"""Texts that a decoder grows word by word, as states of a service, in few round trips.

A decoder asks for one word after one text at a time, but texts that compete are followed by much the
same words. So each question takes the words along that came up lately. And where a model's every word
is known, all others are one unknown word to it, and are asked about as one.
"""

from collections import OrderedDict
from collections.abc import Sequence

from service.client import Client
from service.client.states import ContinuationOptions
from service.fusion.dropped import ReleasedHandles, StateHandle
from service.fusion.vocabulary import NO_INITIAL_WORDS, InitialWords, WordEstimate, score_initial_words
from service.schemas.state_replies import AdvancedState

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
        """Of its state; None while the service keeps none."""
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
        """Whether a word was asked about after it."""
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
            said = text.estimates.get(name) or text.first.get(name)
            if said is None or (eos and said.eos_logprob is None):
                longer = self._query(text, word, eos=eos)
            else:  # not put into `later`: see `Text`
                longer = WordNode(said, origin=(text, word))
        self.add_recent(word)
        return longer

    def end(self, text: WordNode) -> float:
        """Natural logarithm of the probability that the text ends here."""
        if text.eos_logprob is None:
            asked: ContinuationOptions = {"state": self._handle(text), "eos": True, "keep": False}
            (result,) = self._advanced([asked])
            text.eos_logprob = result.eos_logprob
        return text.eos_logprob or 0.0

    def known_words(self, *, bos: bool = True) -> set[str]:
        """Those of the words that the model knows."""
        self.start(bos=bos)
        return self._first.get(bos, NO_INITIAL_WORDS).known

    def close(self) -> None:
        """Free the states that were let go of."""
        self._dropped.free(self._states)

    def _query(self, text: WordNode, word: str, *, eos: bool) -> WordNode:
        """A text and a word that was not asked about after it, which is told of other words too."""
        name, handle = self._name(word), self._handle(text)
        others = {o: w for o, w in self._recent.items() if o != name and not text.has_estimate(o)}
        asked: list[ContinuationOptions] = [{"state": handle, "text": word, "eos": eos}]
        asked += [{"state": handle, "text": other, "keep": False} for other in others.values()]
        result, *results = self._advanced(asked)
        text.estimates.update(
            {other: WordEstimate.of(told) for other, told in zip(others, results, strict=True)}
        )
        longer = text.children[name] = WordNode(WordEstimate.of(result), held=self._held(result))
        return longer

    def _name(self, word: str) -> str:
        """The word, or what stands for it among all that are unknown."""
        return word if self._whole is None or word in self._whole else _UNKNOWN_WORD

    def _first_words(self, model: str, start: WordNode, *, bos: bool) -> InitialWords:
        """What is said of the words at a start; of one version, until another answers."""
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
            asked: ContinuationOptions = {"state": self._handle(before), "text": word}
            (result,) = self._advanced([asked])
            text.set_state(self._held(result))
        return text.handle or ""

    def _advanced(self, asked: Sequence[ContinuationOptions]) -> list[AdvancedState]:
        with self._dropped.batch_for(asked[0]["state"]) as free:
            return self._states.advance(asked, free=free).results

    def _held(self, result: AdvancedState) -> StateHandle:
        assert result.state is not None  # noqa: S101 - it was asked to be kept
        return StateHandle(result.state, self._dropped)
