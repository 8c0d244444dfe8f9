"""Adapters of a served model for pyctcdecode and for torchaudio's CTC decoder (flashlight).

With pyctcdecode:

    from pyctcdecode import Alphabet, BeamSearchDecoderCTC
    lm = PyCTCDecodeLM(client, unigrams=words, model="lstm")
    decoder = BeamSearchDecoderCTC(Alphabet.build_alphabet(labels), lm)
    decoder.decode(logits)

Scores follow pyctcdecode 0.5's `LanguageModel`: alpha · ln p + beta per word, with an offset for
unknown words.

With torchaudio:

    from torchaudio.models.decoder import CTCDecoderLM, CTCDecoderLMState, ctc_decoder

    class ServedLM(TorchaudioLM, CTCDecoderLM):
        pass

    lm = ServedLM(client, CTCDecoderLMState, words=words, model="lstm", log10=True)
    decoder = ctc_decoder(lexicon="lexicon.txt", lm_dict="words.txt", tokens=tokens, lm=lm)

The class also inherits from the decoder's base class, as the decoder accepts no other;
flashlight's `LM` and `LMState` also work.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

from typing_extensions import Self

from gramophone_client import Client
from gramophone_client.fusion.word_tree import TokenTree, WordNode, WordTree

_LN_10 = math.log(10)
_USUAL_LENGTH = 6
"""Characters of a typical word; the offset of longer beginnings of unknown words grows."""

_PARAMETERS = ("alpha", "beta", "unk_score_offset", "score_boundary")

_END = -1
"""Index of the end of a text in flashlight's tree of states."""


class PyCTCDecodeLM:
    """`AbstractLanguageModel` of pyctcdecode over a service; for one thread at a time.

    Beams share scores, and states are freed when the decoder drops them. Each process of a pool, as in
    `decode_batch`, requires its own model.

    Args:
        client: client of the service.
        unigrams: words that may be recognised; others, and strings that begin none, get the
            offset. If None, only words unknown to the model get it.
        model: address of the model; None for the default.
        context: text spoken before each recording.
        alpha: weight of the model.
        beta: bonus added for each word.
        unk_score_offset: offset of an unknown word, in base 10, before the weight `alpha`.
        score_boundary: true to begin texts with `<s>` and score `</s>` after them.
        order: order of the model in words; beams that differ only in earlier words may be merged.
        companions: maximum recently used words scored with each new word.

    Every method raises GramophoneError.
    """

    def __init__(
        self,
        client: Client,
        *,
        unigrams: Collection[str] | None = None,
        model: str | None = None,
        context: str = "",
        alpha: float = 0.5,
        beta: float = 1.5,
        unk_score_offset: float = -10.0,
        score_boundary: bool = True,
        order: int = 100,
        companions: int = 16,
    ) -> None:
        self._tree = WordTree(
            client, model=model, context=context, words=sorted(set(unigrams or ())), companions=companions
        )
        self._known = self._tree.known_words(bos=score_boundary) if unigrams else set()
        self._sorted = sorted(self._known)
        self.order = order
        self.alpha = alpha
        self.beta = beta
        self.unk_score_offset = unk_score_offset
        self.score_boundary = score_boundary

    def get_start_state(self) -> WordNode:
        """Return the state before the first word."""
        return self._tree.start(bos=self.score_boundary)

    def score_partial_token(self, partial_token: str) -> float:
        """Return the penalty of a word's beginning; 0 if it begins a known word."""
        self._tree.add_recent(partial_token)
        if not self._known or self._is_word_prefix(partial_token):
            return 0.0
        return self.unk_score_offset * max(len(partial_token) / _USUAL_LENGTH, 1.0)

    def score(self, prev_state: WordNode, word: str, is_last_word: bool = False) -> tuple[float, WordNode]:
        """Return the weighted score of a word, after the last word including the end, and the next state."""
        eos = is_last_word and self.score_boundary
        if not word:  # a recording may end with a space; its last word is already scored
            return self.alpha * (self._tree.end(prev_state) if eos else 0.0), prev_state
        text = self._tree.extend(prev_state, word, eos=eos)
        log_prob = text.said.logprob
        if text.said.is_oov or (self._known and word not in self._known):
            log_prob += self.unk_score_offset * _LN_10
        if eos:
            log_prob += self._tree.end(text)
        return self.alpha * log_prob + self.beta, text

    def reset_params(self, **params: float | bool) -> None:
        """Set `alpha`, `beta`, `unk_score_offset` or `score_boundary`; ignore other names, like pyctcdecode."""
        for name in _PARAMETERS:
            if params.get(name) is not None:
                setattr(self, name, params[name])

    def save_to_dir(self, filepath: str) -> NoReturn:
        """Raise an error: the model is stored by the service.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"cannot save to {filepath}: the service stores the model")

    @classmethod
    def load_from_dir(cls, filepath: str) -> Self:
        """Raise an error: the model is never loaded from files.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"cannot load from {filepath}: the service stores the model")

    def close(self) -> None:
        """Free the states dropped by the decoder."""
        self._tree.close()

    def _is_word_prefix(self, beginning: str) -> bool:
        index = bisect_left(self._sorted, beginning)
        return index < len(self._sorted) and self._sorted[index].startswith(beginning)


class TorchaudioLM:
    """`CTCDecoderLM` of torchaudio over a service; for one decoder and one thread at a time.

    With a lexicon the decoder's indices are words, without one they are tokens of the model. States are freed
    when the decoder starts again and drops its tree.

    Args:
        client: client of the service.
        new_state: constructor of the decoder's empty state, such as `CTCDecoderLMState`.
        words: words by the decoder's index, in the order of its dictionary; with a lexicon.
        token_ids: token ids by the decoder's index, any for unscored ones like the blank; without a lexicon.
        model: address of the model; None for the default.
        context: text spoken before each recording.
        log10: true for scores in base 10, like the decoder's own KenLM, to reuse its weights.
        companions: maximum recently used words scored with each new word.

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
        super().__init__()  # the other base class of a subclass
        if bool(words) == bool(token_ids):
            raise ValueError("give either words or token_ids")
        self._words = words
        self._texts = (
            WordTree(client, model=model, context=context, words=words, companions=companions)
            if words
            else TokenTree(client, token_ids, model=model, context=context)
        )
        self._new_state = new_state
        self._scale = 1 / _LN_10 if log10 else 1.0
        self._reached: dict[Any, tuple[Any, float]] = {}

    def start(self, start_with_nothing: bool) -> Any:
        """Free all states and return a new start state, after `<s>` unless `start_with_nothing`."""
        self._reached.clear()
        self._texts.close()
        state = self._new_state()
        self._reached[state] = (self._texts.start(bos=not start_with_nothing), 0.0)
        return state

    def score(self, state: Any, usr_token_idx: int) -> tuple[Any, float]:
        """Return the state after one more word or token, and its score."""
        next_state = state.child(usr_token_idx)
        if next_state not in self._reached:
            self._reached[next_state] = self._extend(self._reached[state][0], usr_token_idx)
        return next_state, self._scale * self._reached[next_state][1]

    def finish(self, state: Any) -> tuple[Any, float]:
        """Return the state after the end of the text, and its score."""
        return self.score(state, _END)

    def close(self) -> None:
        """Free all states; the decoder must call `start` again."""
        self._reached.clear()
        self._texts.close()

    def _extend(self, text: Any, index: int) -> tuple[Any, float]:
        """Return a text extended by the word or token of an index, and its natural-log probability."""
        if index == _END:
            return text, self._texts.end(text)
        if isinstance(self._texts, WordTree):
            after_word = self._texts.extend(text, self._words[index])
            return after_word, after_word.said.logprob
        after_token = self._texts.extend(text, index)
        return after_token, after_token.logprob
