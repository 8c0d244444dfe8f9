"""Texts that a decoder grows token by token, as states of a service: one round trip a text that is continued.

A decoder asks for every token after a text, so the whole row is asked for at once, and a text's state
is only kept by the service once it is itself continued.
"""

from collections.abc import Sequence

from service.client import Client
from service.client.states import ContinuationOptions
from service.fusion.dropped import ReleasedHandles, StateHandle

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
        asked: ContinuationOptions
        if text.origin is None:
            asked = {"state": self._handle(text), "keep": False}
        else:
            before, index = text.origin
            asked = {"state": self._handle(before), "token_ids": [self._ids[index]]}
        with self._dropped.batch_for(asked["state"]) as free:
            (result,) = self._states.advance([asked], next_token_ids=[*self._ids, _EOS], free=free).results
        if result.state is not None:
            text.held, text.origin = StateHandle(result.state, self._dropped), None
        return result.next_logprobs

    def _handle(self, text: TokenNode) -> str:
        """Of a text that was continued, or stands at the start."""
        return "" if text.held is None else text.held.handle
