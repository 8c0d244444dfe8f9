"""Hashes of words, of their beginnings and of tokens, for searches in compiled code.

They are polynomials modulo 2^64, so the hash of a text and a token follows from
those of both.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import types

from models.arrays import Bools, Int32s, UInt8s, UInt64s
from models.kernels.compilation import columns_type, kernel
from models.words import JOINERS, UNSPACED

IS_WORD, BEGINS_LONGER = 1, 2
"""Flags of a text in a lexicon: it is a word; a longer word begins with it."""

_BASE = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_MAX_WORD_BYTES = 64
"""Longer words of a lexicon are not known."""


@lru_cache(maxsize=1 << 14)
def text_hash(text: bytes) -> int:
    """Return the hash of a text."""
    value = 0
    for byte in text:
        value = (value * _BASE + byte + 1) & _MASK
    return value


class HashedTexts(NamedTuple):
    """Texts that follow others.

    Attributes:
        hashes: hash of each [n].
        powers: factor of the hash of what they follow [n].
        lengths: number of bytes of each [n].
    """

    hashes: UInt64s
    powers: UInt64s
    lengths: Int32s

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> "HashedTexts":
        """Hash texts."""
        lengths = np.fromiter(map(len, texts), np.int32, len(texts))
        return cls(
            np.fromiter(map(text_hash, texts), np.uint64, len(texts)),
            np.fromiter((pow(_BASE, len(text), 1 << 64) for text in texts), np.uint64, len(texts)),
            lengths,
        )


class HashedLexicon(NamedTuple):
    """Words and their beginnings.

    Attributes:
        keys: hashes of all, ascending; empty if any text is a word.
        flags: `IS_WORD`, `BEGINS_LONGER` or both, of each.
    """

    keys: UInt64s
    flags: UInt8s

    @classmethod
    def of(cls, words: Iterable[bytes]) -> "HashedLexicon":
        """Hash words and their beginnings."""
        spelled = [word for word in dict.fromkeys(words) if 0 < len(word) <= _MAX_WORD_BYTES]
        lengths = np.fromiter(map(len, spelled), np.int64, len(spelled))
        letters = np.array(spelled, f"S{_MAX_WORD_BYTES}").view(np.uint8).reshape(-1, _MAX_WORD_BYTES)
        hashes = np.zeros(len(spelled), np.uint64)
        keys, flags = [np.zeros(1, np.uint64)], [np.full(1, BEGINS_LONGER)]
        for column in range(int(lengths.max(initial=0))):
            longer = lengths > column
            hashes, lengths, letters = hashes[longer], lengths[longer], letters[longer]
            hashes = hashes * np.uint64(_BASE) + letters[:, column] + np.uint64(1)
            keys.append(hashes)
            flags.append(np.where(lengths == column + 1, IS_WORD, BEGINS_LONGER))
        every, of_every = np.concatenate(keys), np.concatenate(flags).astype(np.uint8)
        order = np.argsort(every, kind="stable")
        unique, starts = np.unique(every[order], return_index=True)
        return cls(unique, np.bitwise_or.reduceat(of_every[order], starts))


OPEN_VOCABULARY = HashedLexicon(np.zeros(0, np.uint64), np.zeros(0, np.uint8))


class TokenHashes(NamedTuple):
    """Spellings of all tokens as hashed texts [V].

    Attributes:
        hashes, powers, lengths: see `HashedTexts`. stems, stem_powers: the same
        without final joiners and parts of characters; a power of 0 if nothing is
        left.
        is_free: whether a token may follow any text: it has letters of a script
            without spaces, or begins with the rest of a character.
    """

    hashes: UInt64s
    powers: UInt64s
    lengths: Int32s
    stems: UInt64s
    stem_powers: UInt64s
    is_free: Bools

    @classmethod
    def of(cls, spellings: Sequence[bytes]) -> "TokenHashes":
        """Hash the spellings of all tokens."""
        texts = [spelled.decode(errors="ignore") for spelled in spellings]
        stems = HashedTexts.of([text.rstrip(JOINERS).encode() for text in texts])
        is_free = [
            UNSPACED.search(text) is not None or 0x80 <= (spelled[:1] or b" ")[0] < 0xC0
            for text, spelled in zip(texts, spellings, strict=True)
        ]
        powers = np.where(stems.lengths > 0, stems.powers, np.uint64(0))
        return cls(*HashedTexts.of(spellings), stems.hashes, powers, np.array(is_free, np.bool_))


TEXTS_TYPE, LEXICON_TYPE, TOKENS_TYPE = map(columns_type, (HashedTexts, HashedLexicon, TokenHashes))


@kernel(types.int64(LEXICON_TYPE, types.uint64))
def find_flags(lexicon: Any, text: Any) -> Any:
    """Return the flags of a text by its hash; all if any text is a word."""
    if not len(lexicon.keys):
        return IS_WORD | BEGINS_LONGER
    place = np.searchsorted(lexicon.keys, text)
    if place < len(lexicon.keys) and lexicon.keys[place] == text:
        return np.int64(lexicon.flags[place])
    return 0
