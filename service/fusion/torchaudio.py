"""A served model as a custom language model of torchaudio's CTC decoder, which is flashlight's.

    from torchaudio.models.decoder import CTCDecoderLM, CTCDecoderLMState, ctc_decoder

    class ServedLM(TorchaudioLM, CTCDecoderLM):
        pass

    lm = ServedLM(client, CTCDecoderLMState, words=words, model="lstm", log10=True)
    decoder = ctc_decoder(lexicon="lexicon.txt", lm_dict="words.txt", tokens=tokens, lm=lm)

The decoder's base class is inherited beside ours, as it takes no model that is not of it; flashlight's own
`LM` and `LMState` do as well.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from service.client import Client
from service.fusion.token_tree import TokenNode, TokenTree
from service.fusion.word_tree import WordNode, WordTree

T = TypeVar("T")
_LN_10 = math.log(10)
_END = -1
"""The index under which flashlight's trees of states hold the end of a text."""


class _DecoderTexts(Protocol[T]):
    """Texts that grow by one of the decoder's indices."""

    def start(self, *, bos: bool) -> T: ...
    def extend(self, text: T, index: int) -> tuple[T, float]: ...
    def end(self, text: T) -> float: ...
    def close(self) -> None: ...


class TorchaudioLM:
    """What torchaudio asks of a `CTCDecoderLM`, answered by a service. For one decoder, and one thread at a time.

    A decoder with a lexicon has words for its indices, one without has tokens of the model. States are freed
    when the decoder begins anew, which is when it lets go of its tree.

    Args:
        client: of the service.
        new_state: makes an empty state of the decoder's, such as `CTCDecoderLMState`.
        words: what the decoder's indices mean, with a lexicon; in the order of its dictionary.
        token_ids: what they mean, without one; any id for tokens that are never scored, as the blank.
        model: address; None for the service's default.
        context: what was said before, to which each recording is the next.
        log10: whether scores are in base 10, as those of the decoder's own KenLM, for weights that go with it.
        companions: words that came up lately and are asked about along with another.

    Every method raises GramophoneError.
    """

    def __init__(
        self,
        client: Client,
        new_state: Callable[[], Any],
        *,
        words: Sequence[str] = (),
        token_ids: Sequence[int] = (),
        model: str | None = None,
        context: str = "",
        log10: bool = False,
        companions: int = 16,
    ) -> None:
        super().__init__()  # the decoder's class, which is inherited beside this one
        if bool(words) == bool(token_ids):
            raise ValueError("give either words or token_ids")
        self._texts: _DecoderTexts[Any]
        if words:
            self._texts = _Words(client, words, model=model, context=context, companions=companions)
        else:
            self._texts = _Tokens(client, token_ids, model=model, context=context)
        self._new_state = new_state
        self._scale = 1 / _LN_10 if log10 else 1.0
        self._reached: dict[Any, tuple[Any, float]] = {}

    def start(self, start_with_nothing: bool) -> Any:
        """Forget all states and begin anew, after `<s>` unless with nothing."""
        self._reached.clear()
        self._texts.close()
        state = self._new_state()
        self._reached[state] = (self._texts.start(bos=not start_with_nothing), 0.0)
        return state

    def score(self, state: Any, usr_token_idx: int) -> tuple[Any, float]:
        """The state after one more word or token, and the score of that."""
        after = state.child(usr_token_idx)
        if after not in self._reached:
            self._reached[after] = self._texts.extend(self._reached[state][0], usr_token_idx)
        return after, self._scale * self._reached[after][1]

    def finish(self, state: Any) -> tuple[Any, float]:
        """The state after the end, and the score of that."""
        after = state.child(_END)
        if after not in self._reached:
            text = self._reached[state][0]
            self._reached[after] = (text, self._texts.end(text))
        return after, self._scale * self._reached[after][1]

    def close(self) -> None:
        """Free all states; the decoder must begin anew."""
        self._reached.clear()
        self._texts.close()


class _Words:
    """Indices are words."""

    def __init__(
        self, client: Client, words: Sequence[str], *, model: str | None, context: str, companions: int
    ) -> None:
        self._words = words
        self._tree = WordTree(client, model=model, context=context, words=words, companions=companions)

    def start(self, *, bos: bool) -> WordNode:
        return self._tree.start(bos=bos)

    def extend(self, text: WordNode, index: int) -> tuple[WordNode, float]:
        longer = self._tree.extend(text, self._words[index])
        return longer, longer.said.logprob

    def end(self, text: WordNode) -> float:
        return self._tree.end(text)

    def close(self) -> None:
        self._tree.close()


class _Tokens:
    """Indices are tokens of the model."""

    def __init__(self, client: Client, token_ids: Sequence[int], *, model: str | None, context: str) -> None:
        self._tree = TokenTree(client, token_ids, model=model, context=context)

    def start(self, *, bos: bool) -> TokenNode:
        return self._tree.start(bos=bos)

    def extend(self, text: TokenNode, index: int) -> tuple[TokenNode, float]:
        longer = self._tree.extend(text, index)
        return longer, longer.logprob

    def end(self, text: TokenNode) -> float:
        return self._tree.end(text)

    def close(self) -> None:
        self._tree.close()
