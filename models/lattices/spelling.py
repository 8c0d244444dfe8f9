"""Words of lattices as a model's tokens.

In a lattice a word is scored before it is known what follows. So a word must have the same tokens in every
sentence, and the tokens of a sentence must be those of its words one after the other: as words are for word
tokenizers, and as they are for SentencePiece models whose pieces do not reach beyond a space.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from models.arrays import TokenIds
from models.errors import UnsupportedParameterError
from models.lattices.lattice import Indices
from models.scoring import pad_sequences
from models.tokenizers import Tokenizer
from models.vocabulary import EOS, UNK


@dataclass(frozen=True, eq=False, slots=True)
class LabelTokens:
    """The tokens of W labels: no word, some words, and last the end of the sentence.

    Attributes:
        tokens: ids [W, T].
        lengths: how many of them a label has [W]; that without a word has none.
        num_words: words of each label, 0 or 1 [W].
        num_unknown: tokens of each that are `<unk>` [W].
        canonical: the first label with the same tokens as each [W]: to the model, it is the same word.
    """

    tokens: TokenIds
    lengths: TokenIds
    num_words: Indices
    num_unknown: Indices
    canonical: Indices

    @property
    def end(self) -> int:
        """The label of the end of the sentence."""
        return len(self.lengths) - 1


class LabelTokenizer:
    """Tells words as a model's tokens.

    Args:
        tokenizer: the model's.

    Raises:
        UnsupportedParameterError: it has tokens that reach from one word to the next.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        across = next((token for token in tokenizer.token_bytes if token.find(b" ", 1) > 0), None)
        if across is not None:
            raise self._dependent(f"its token {across.decode(errors='replace')!r} reaches beyond a space")

    def label_tokens(self, words: Sequence[str]) -> LabelTokens:
        """The tokens of words, of which the first is empty and stands for none.

        Raises:
            UnsupportedParameterError: a word's tokens depend on what stands beside it.
        """
        spelled = [tuple(ids) for ids in self._tokenizer.encode_all(words)]
        self._check_independent(words[1:], spelled[1:])
        spelled.append((EOS,))
        tokens, lengths = pad_sequences(spelled)
        first: dict[tuple[int, ...], int] = {}
        return LabelTokens(
            tokens,
            lengths,
            np.array([0, *[1] * (len(words) - 1), 0]),
            np.array([ids.count(UNK) for ids in spelled]),
            np.array([first.setdefault(ids, label) for label, ids in enumerate(spelled)]),
        )

    def _check_independent(self, words: Sequence[str], spelled: Sequence[tuple[int, ...]]) -> None:
        """Refuse words whose tokens are others in a sentence than alone."""
        if self._tokenizer.encode(" ".join(words)) == list(chain.from_iterable(spelled)):
            return
        for word, ids in zip(words, spelled, strict=True):
            twice = self._tokenizer.encode(f"{word} {word}")
            if twice != [*ids, *ids]:
                raise self._dependent(f"the word {word!r} has {len(ids)} tokens, and said twice {len(twice)}")
        raise self._dependent("words have other tokens beside each other than alone")

    def _dependent(self, problem: str) -> UnsupportedParameterError:
        return UnsupportedParameterError(
            f"lattices are walked word by word, but tokens of this {self._tokenizer.kind} tokenizer depend on what "
            f"stands beside a word: {problem}; take a model with a word or SentencePiece tokenizer, or re-rank n-best "
            "lists",
            parameter="model",
        )
