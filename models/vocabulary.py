"""Vocabulary: tokens and their ids.

Three control tokens have the same ids in every model: `<unk>` 0, `<s>` 1, `</s>` 2. They are ids,
not spellings: the characters "<s>" in a text are looked up among ordinary tokens only, never
become a control token.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from models.arrays import TokenIds
from models.errors import InputError

UNK, BOS, EOS = 0, 1, 2
CONTROL_TOKENS = ("<unk>", "<s>", "</s>")


class Vocabulary:
    """Immutable list of tokens; a token's id is its index in the list.

    Args:
        tokens: the ordinary tokens, in id order from 3 on, without duplicates.

    Attributes:
        tokens: all tokens in id order, the three control tokens first.
        ids: ids of the ordinary tokens, ascending; control tokens are excluded on purpose.

    Raises:
        InputError: a token occurs twice.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = (*CONTROL_TOKENS, *tokens)
        self.ids = {token: index for index, token in enumerate(self.tokens) if index >= len(CONTROL_TOKENS)}
        if len(self.ids) + len(CONTROL_TOKENS) != len(self.tokens):
            seen: set[str] = set()
            twice = next(t for t in self.tokens[3:] if t in seen or seen.add(t))  # type: ignore[func-returns-value]
            raise InputError(f"the vocabulary lists the token {twice!r:.80} twice", param="vocabulary")

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, token_id: int) -> str:
        return self.tokens[token_id]

    def __contains__(self, token: str) -> bool:
        return token in self.ids

    def id_of(self, token: str) -> int:
        """Return the id of an ordinary token; the id of `<unk>` for any other string."""
        return self.ids.get(token, UNK)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the tokens in order: equal exactly for equal vocabularies."""
        text = json.dumps(self.tokens, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def check_ids(self, ids: Sequence[int] | npt.NDArray[np.integer], *, param: str) -> TokenIds:
        """Return the ids as an array [T] after checking that each is in the vocabulary.

        Raises:
            InputError: an id is outside [0, V); the message names its index and value.
        """
        try:
            array = np.asarray(ids, np.int64).reshape(-1)
        except OverflowError:
            index = next(i for i, v in enumerate(ids) if not -(2**63) <= int(v) < 2**63)
            raise self._outside(param, index, int(ids[index])) from None
        bad = np.flatnonzero((array < 0) | (array >= len(self)))
        if bad.size:
            raise self._outside(param, int(bad[0]), int(array[bad[0]]))
        return array

    def _outside(self, param: str, index: int, value: int) -> InputError:
        return InputError(
            f"{param}[{index}] is {value}, but this model's token ids are 0 to {len(self) - 1}",
            param=f"{param}[{index}]",
        )
