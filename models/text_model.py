"""Text model: a language model with what an algorithm on texts needs.

That is its tokenizer and address, and what is derived from these: names and spellings of tokens, a checker, caches.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from models.checking.checker import Checker
from models.completion.token_trie import TokenTrie
from models.language_model import LanguageModel, is_lookup
from models.prefix_cache import LimitedCache, NextTokenCache, PrefixCache
from models.slot_model import with_slots
from models.tokenizers import Tokenizer
from models.vocabulary import CONTROL_TOKENS

if TYPE_CHECKING:
    from models.ngram.lines import LineScorer

_MAX_SLOTTED = 16
"""Maximum models with members from requests that are kept for each text model."""

_MAX_SLOTTED_BYTES = 1 << 30
"""Maximum memory of these models together."""

_TOKEN_BYTES = 1 << 10
"""Maximum memory of a token of these models."""

_SLOTTED_CACHE_BYTES = 1 << 22


@dataclass(frozen=True, eq=False)
class TextModel:
    """Language model with its tokenizer.

    Attributes:
        address: `name@number`.
        model: language model of any family.
        tokenizer: its tokenizer.
        reads_backward: True if the model reads texts from end to start.
        prefix_cache: states after recently read texts; None if the cache is disabled.
        next_token_cache: next-token distributions after recently typed texts.
    """

    address: str
    model: LanguageModel[Any] = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    reads_backward: bool = False
    prefix_cache: PrefixCache | None = field(default=None, repr=False)
    next_token_cache: NextTokenCache = field(default_factory=lambda: NextTokenCache(0), repr=False)
    _slotted: LimitedCache[str, Self] = field(
        default_factory=lambda: LimitedCache(_MAX_SLOTTED_BYTES), init=False, repr=False
    )

    @property
    def vocab_size(self) -> int:
        """Vocabulary size V, with the members of classes."""
        return len(self.model.vocabulary)

    @cached_property
    def token_texts(self) -> tuple[str, ...]:
        """Display text of each token [V]."""
        return tuple(self.tokenizer.surface(i) for i in range(self.vocab_size))

    @cached_property
    def token_names(self) -> tuple[str, ...]:
        """Distinct name of each token [V]: the text it adds, else its bytes as in OpenAI's API."""
        added, controls = self.tokenizer.token_bytes, self.token_texts[: len(CONTROL_TOKENS)]
        spaced = (b" " + text.encode() == own for text, own in zip(self.token_texts, added, strict=True))
        texts = [" " * space + text for text, space in zip(self.token_texts, spaced, strict=True)]
        texts[: len(controls)] = controls
        owners = {text: i for i, text in enumerate(texts)} | {text: i for i, text in enumerate(controls)}
        names: dict[str, int] = {}
        for i, text in enumerate(texts):
            is_named = owners[text] == i and ("\ufffd" not in text or added[i] == text.encode())
            spelled = text if is_named else "bytes:" + "".join(f"\\x{byte:02x}" for byte in added[i])
            names[f"token_id:{i}" if spelled in names else spelled] = i
        return tuple(names)

    @cached_property
    def token_trie(self) -> TokenTrie:
        """Trie of the tokens by spelling; built during loading because it is slow."""
        return TokenTrie(self.tokenizer)

    @cached_property
    def line_scorer(self) -> "LineScorer | None":
        """Scorer of texts in one kernel call; None unless an n-gram model reads words forward."""
        if self.reads_backward or not is_lookup(self.model):
            return None
        # its kernels, which a service of networks does not need
        from models.ngram.lines import LineScorer

        return LineScorer.of(self.model, self.tokenizer)

    @cached_property
    def checker(self) -> Checker:
        """Checker of texts; building it takes up to a few tenths of a second."""
        return Checker(self.tokenizer)

    def with_slots(self, slots: Mapping[str, Any] | None) -> Self:
        """Return this model with other members of its classes; those of recent requests are kept.

        Raises:
            InputError: a class is unknown, or a member is invalid.
        """
        if not slots:
            return self
        key = json.dumps(slots)
        slotted = self._slotted.find(key)
        if slotted is None:
            model, tokenizer = with_slots(self.model, self.tokenizer, slots)
            cache = NextTokenCache(_SLOTTED_CACHE_BYTES)
            slotted = replace(
                self, model=model, tokenizer=tokenizer, prefix_cache=None, next_token_cache=cache
            )
            size = max(_TOKEN_BYTES * slotted.vocab_size, _MAX_SLOTTED_BYTES // _MAX_SLOTTED)
            self._slotted.insert(key, slotted, min(size, _MAX_SLOTTED_BYTES))  # the latest is always kept
        return slotted
