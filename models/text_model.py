"""Text model: a language model with what an algorithm on texts needs, and texts as it reads them.

That is its tokenizer and address, and what is derived from these: names and spellings of tokens, a checker, caches.
A backward model scores the reversed text after `<s>`; its `</s>` is the text's start. Replies are in text order,
`</s>` last.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from models.arrays import TokenIds
from models.calls import Work, map_in_steps
from models.checking.checker import Checker
from models.completion.token_trie import NO_TOKENS, TokenTrie
from models.errors import ContextLengthError, InputError, UnsupportedError
from models.language_model import CONTROL_TOKENS, UNK, LanguageModel, is_lookup
from models.prefix_cache import LimitedCache, NextTokenCache, PrefixCache
from models.slot_model import with_slots
from models.tokenizers import Tokenizer, WordTokenizer

if TYPE_CHECKING:
    from models.ngram.texts import NGramTexts

_MAX_SLOTTED = 16
"""Maximum models with members from requests that are kept for each text model."""

_MAX_SLOTTED_BYTES = 1 << 30
"""Maximum memory of these models together."""

_TOKEN_BYTES = 1 << 10
"""Maximum memory of a token of these models."""

_SLOTTED_CACHE_BYTES = 1 << 22

V = TypeVar("V", bound=np.number[Any])
Derived = TypeVar("Derived")
TextOrIds: TypeAlias = str | Sequence[int]
"""A string, or token ids not yet checked against a vocabulary."""

MAX_CHARS_PER_TOKEN = 16
"""Characters accepted per token of the token limit; longer texts are rejected without tokenising."""

MAX_CHARS_AT_LEAST = 65_536
"""Characters always accepted, however low the token limit: one word may be long."""

_LONG_CONTEXT, _TAIL = 1024, 512
"""Characters above which a context is tokenised once for all texts after it, but for its last characters."""


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
    model: LanguageModel = field(repr=False)
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
    def is_known_word(self) -> Callable[[str], bool] | None:
        """Test whether a word is in the vocabulary or in the training text; None where no words are recorded."""
        if isinstance(self.tokenizer, WordTokenizer):
            encode = self.tokenizer.encode  # no reference to the model, whose memory a cycle would keep
            return lambda word: UNK not in encode(word)
        return frozenset(self.tokenizer.lexicon).__contains__ if self.tokenizer.lexicon else None

    @cached_property
    def token_trie(self) -> TokenTrie:
        """Trie of the tokens by spelling; built during loading because it is slow."""
        return TokenTrie(self.tokenizer)

    @cached_property
    def ngram_texts(self) -> "NGramTexts | None":
        """Scorer and completer of texts in one kernel call; None unless an n-gram model reads words forward."""
        if self.reads_backward or not is_lookup(self.model):
            return None
        # its kernels, which a service of networks does not need
        from models.ngram.texts import NGramTexts

        return NGramTexts.of(self.model, self.tokenizer)

    @cached_property
    def _derived(self) -> dict[Callable[..., Any], Any]:
        return {}

    def derived(self, make: "Callable[[TextModel], Derived]") -> Derived:
        """Return what a feature makes of the model, made once."""
        if make not in self._derived:
            self._derived[make] = make(self)
        made: Derived = self._derived[make]
        return made

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one request, from the settings; its methods reject what is beyond them.

    Attributes:
        max_texts: maximum texts, contexts or candidates in all lists of a request.
        max_tokens_per_sequence: maximum tokens of one text with its context.
        max_new_tokens: maximum tokens to generate.
        max_top_k: maximum `top_k`; None for the size of the vocabulary.
        max_reply_entries: maximum candidates or separately reported tokens in a reply: each is
            an object, whose serialisation delays all other requests.
    """

    max_texts: int
    max_tokens_per_sequence: int
    max_new_tokens: int
    max_top_k: int | None = None
    max_reply_entries: int = 131_072

    def check_count(self, count: int, param: str) -> None:
        """Raise InputError for more texts than the limit."""
        if count > self.max_texts:
            raise InputError.of(
                param, f"has {count} entries; at most {self.max_texts} are accepted in one request"
            )

    def check_entries(self, count: int, param: str, *, description: str, instead: str) -> None:
        """Raise InputError for a reply of more entries than the limit.

        Args:
            count: entries of the reply.
            param: responsible parameter, for the message.
            description: request in words, such as `top_k is 4000 for 100 contexts`.
            instead: an alternative for large requests.
        """
        if count > self.max_reply_entries:
            raise InputError(
                f"{description}: {count} entries; a reply has at most {self.max_reply_entries} ({instead})",
                param=param,
            )

    def check_characters(self, *given: str | Sequence[int], param: str) -> None:
        """Raise a `ContextLengthError` for a text, in one or more pieces, too long to tokenise; ids do not count."""
        size = sum(len(piece) for piece in given if isinstance(piece, str))
        if size <= MAX_CHARS_AT_LEAST:
            return
        limit = max(MAX_CHARS_PER_TOKEN * self.max_tokens_per_sequence, MAX_CHARS_AT_LEAST)
        if size > limit:
            raise ContextLengthError.of(
                param,
                f"has {size} characters with its context; at most {limit} characters or "
                f"{self.max_tokens_per_sequence} tokens are accepted in one sequence",
            )

    def check_length(self, num_tokens: int, param: str) -> None:
        """Raise a `ContextLengthError` for a sequence of more tokens than the limit."""
        if num_tokens > self.max_tokens_per_sequence:
            raise ContextLengthError.of(
                param,
                f"has {num_tokens} tokens; at most {self.max_tokens_per_sequence} are accepted "
                "in one sequence",
            )


class EncodedText(NamedTuple):
    """Ids to score, and unscored ids of the context before them.

    Attributes:
        context: ids of the context [C], may be empty.
        text: ids to score [T].
    """

    context: TokenIds
    text: TokenIds


def encode(loaded: TextModel, given: TextOrIds, *, param: str) -> TokenIds:
    """Tokenise a text [T], or check given ids.

    Raises:
        InputError: an id is outside the vocabulary.
    """
    if isinstance(given, str):
        return np.asarray(loaded.tokenizer.encode(given), np.int64)
    return loaded.model.vocabulary.check_ids(given, param=param)


def encode_within(loaded: TextModel, given: TextOrIds, limits: Limits, *, param: str) -> TokenIds:
    """Tokenise a text [T], or check given ids, within the limits.

    Raises:
        InputError: an id is outside the vocabulary.
        ContextLengthError: there are too many tokens.
    """
    limits.check_characters(given, param=param)
    ids = encode(loaded, given, param=param)
    limits.check_length(len(ids), param=param)
    return ids


def encode_each(
    loaded: TextModel, named: Sequence[tuple[str, TextOrIds]], limits: Limits
) -> Work[Any, list[TokenIds]]:
    """Encode texts, each with its name in the request; see `encode_within`."""
    return map_in_steps(
        named,
        lambda item: encode_within(loaded, item[1], limits, param=item[0]),
        size=lambda item: len(item[1]),
    )


def encode_after(loaded: TextModel, context: TextOrIds, given: TextOrIds, *, param: str) -> EncodedText:
    """Encode a context and its continuation as one text.

    A token that begins in the context and ends in the text belongs to the text.

    Args:
        loaded: model.
        context: may be empty.
        given: the continuation; text after a text, ids after ids.
        param: name of the continuation, for messages.

    Raises:
        InputError: an id is outside the vocabulary, or text and ids are mixed.
    """
    if isinstance(context, str) and isinstance(given, str):
        joint, border = loaded.tokenizer.encode_after(context, given)
        return EncodedText(np.array(joint[:border], np.int64), np.array(joint[border:], np.int64))
    if isinstance(context, str) != isinstance(given, str) and context:
        kinds = ("text", "token ids") if isinstance(context, str) else ("token ids", "text")
        raise InputError.of("context", f"is {kinds[0]} but {param} is {kinds[1]}; both must be of one kind")
    before = encode(loaded, context, param="context") if context else NO_TOKENS
    return EncodedText(before, encode(loaded, given, param=param))


class ContextEncoder:
    """Encodes texts after contexts; equal ones are one array, long ones are tokenised once.

    Tokens that end long before a text do not depend on it. That the tokenizer has a boundary where a
    context is cut is checked for each.
    """

    def __init__(self, loaded: TextModel) -> None:
        self._loaded = loaded
        # where each is cut, and the ids before; by the text or the id of the list, which is kept
        self._heads: dict[str | int, tuple[TextOrIds, int, TokenIds]] = {}
        self._contexts: dict[tuple[int, bytes], TokenIds] = {}

    def encode(self, context: TextOrIds, given: TextOrIds, *, param: str) -> EncodedText:
        """Encode a context and its continuation, see `encode_after`."""
        if not context and isinstance(given, str):
            return EncodedText(NO_TOKENS, encode(self._loaded, given, param=param))
        cut, head = 0, NO_TOKENS
        is_text = isinstance(context, str)
        if is_text == isinstance(given, str) and len(context) > (_LONG_CONTEXT if is_text else 0):
            key = context if isinstance(context, str) else id(context)
            if key not in self._heads:
                self._heads[key] = context, *self._cut(context)
            _, cut, head = self._heads[key]
        encoded = encode_after(self._loaded, context[cut:], given, param=param)
        whole = (id(head), encoded.context.tobytes())
        if whole not in self._contexts:
            parts = [part for part in (head, encoded.context) if part.size]
            self._contexts[whole] = np.concatenate(parts) if len(parts) > 1 else (*parts, NO_TOKENS)[0]
        return EncodedText(self._contexts[whole], encoded.text)

    def _cut(self, context: TextOrIds) -> tuple[int, TokenIds]:
        """Return where to cut a context, 0 for nowhere, and the ids before; ids are only checked."""
        if not isinstance(context, str):
            return len(context), encode(self._loaded, context, param="context")
        cut = context.rfind(" ", 0, len(context) - _TAIL)
        if cut > 0:
            tail, whole = (encode_after(self._loaded, one, "", param="") for one in (context[cut:], context))
            size = max(0, len(whole.context) - len(tail.context))
            if np.array_equal(whole.context[size:], tail.context):
                return cut, whole.context[:size]
        return 0, NO_TOKENS


def check_forward(loaded: TextModel) -> None:
    """Raise UnsupportedError for a backward model."""
    if loaded.reads_backward:
        raise UnsupportedError.of(
            "model",
            f"{loaded.address} reads from right to left; it can score and re-rank, but not predict next tokens",
        )


def no_context_error(loaded: TextModel, *, param: str) -> UnsupportedError:
    """Return the error for a text with a context and a backward model."""
    return UnsupportedError(
        f"model {loaded.address} reads from right to left; it does not accept a context before {param}",
        param="context",
    )


def to_text_order(loaded: TextModel, values: npt.NDArray[V], *, ends: bool) -> npt.NDArray[V]:
    """Convert a scored text's values [T] to text order.

    If it `ends` in `</s>`, that value stays last.
    """
    if not loaded.reads_backward:
        return values
    if not ends:
        return np.ascontiguousarray(values[::-1])
    return np.concatenate([values[-2::-1], values[-1:]])


class TextState(Protocol):
    """State of a model after a text, which may be continued."""

    @property
    def state(self) -> Any:
        """Model state, one row."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens read, not counting `<s>`."""

    @property
    def last_token(self) -> int | None:
        """Id of the last token; None if none was read."""


def ids_after(tokenizer: Tokenizer, before: TextState, text: str) -> TokenIds:
    """Tokenise words that follow a state [T].

    They are tokenised as after a space: one is inserted if neither the text before the state ends
    with white space nor the words begin with it.
    """
    if tokenizer.leading_space:
        text = text.removeprefix(" ")  # the tokenizer adds one
    elif text and not text[0].isspace() and before.last_token is not None:
        spelled = tokenizer.token_bytes[before.last_token]
        if spelled and not spelled[-1:].isspace():
            text = " " + text
    return np.asarray(tokenizer.encode(text), np.int64)
