"""A corpus as numbers: all sentences' token ids in one flat array."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.vocabulary import BOS, EOS


class EncodedCorpus(NamedTuple):
    """Sentences of token ids, without `<s>` and `</s>`.

    Attributes:
        tokens: ids of all sentences one after the other [N], int32.
        offsets: where each sentence starts, and N at the end [S + 1], int64.
        num_words: words between white space in the text, for figures per word.
        num_bytes: bytes of UTF-8 in the text, line ends aside, for figures per byte.
    """

    tokens: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    num_words: int
    num_bytes: int

    @property
    def num_sentences(self) -> int:
        """S."""
        return len(self.offsets) - 1

    @property
    def num_tokens(self) -> int:
        """Tokens to predict: every token and one `</s>` a sentence."""
        return len(self.tokens) + self.num_sentences

    def sentence(self, index: int) -> npt.NDArray[np.int32]:
        """The ids of one sentence [T]."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def with_boundaries(self) -> npt.NDArray[np.int32]:
        """The whole text [N + 2S], every sentence between control tokens: `<s> w w </s> <s> w w </s> …`."""
        sentences = np.arange(self.num_sentences)
        starts, ends = self.offsets[:-1] + 2 * sentences, self.offsets[1:] + 2 * sentences + 1
        text = np.empty(len(self.tokens) + 2 * self.num_sentences, dtype=np.int32)
        is_token = np.ones(len(text), dtype=np.bool_)
        is_token[starts] = is_token[ends] = False
        text[starts], text[ends], text[is_token] = BOS, EOS, self.tokens
        return text

    def reversed(self) -> "EncodedCorpus":
        """The same sentences in the same places, each from its last word to its first."""
        lengths = np.diff(self.offsets)
        mirrored = np.repeat(self.offsets[:-1] + self.offsets[1:] - 1, lengths) - np.arange(len(self.tokens))
        return self._replace(tokens=self.tokens[mirrored])

    @classmethod
    def from_sentences(
        cls, sentences: Iterable[Sequence[int]], *, num_words: int = 0, num_bytes: int = 0
    ) -> "EncodedCorpus":
        """Collect sentences that are already encoded."""
        rows = [np.asarray(s, dtype=np.int32) for s in sentences]
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(r) for r in rows], out=offsets[1:])
        tokens = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32)
        return cls(tokens, offsets, num_words, num_bytes)
