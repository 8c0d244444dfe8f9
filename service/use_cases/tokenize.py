"""Texts to token ids and back, for clients that count or compare tokens."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from models.vocabulary import BOS, CONTROL_TOKENS
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.use_cases.completions import EntryBuilder
from service.use_cases.inputs import Limits


class TokenizedText(NamedTuple):
    """A text's tokens.

    Attributes:
        ids: of each.
        names: what each is called.
    """

    ids: list[int]
    names: list[str]


def tokenize(loaded: LoadedModel, text: str, limits: Limits, *, special: bool) -> Work[Any, TokenizedText]:
    """The tokens of a text.

    A text that is nothing but `<s>`, `</s>` or `<unk>` is that control token, unless the vocabulary has an
    ordinary one of that spelling: clients find out this way which ids they have. Within a text they are
    spellings like any other.

    Args:
        loaded: whose tokens.
        text: any.
        limits: of one request.
        special: whether `<s>` is put first.

    Raises:
        ContextLengthError: the text is too long.
    """
    limits.check_characters(text, parameter="prompt")
    if text in CONTROL_TOKENS and text not in loaded.model.vocabulary:
        ids = [CONTROL_TOKENS.index(text)]
    else:
        ids = list(loaded.tokenizer.encode(text))
    yield None
    if special and ids[:1] != [BOS]:
        ids.insert(0, BOS)
    limits.check_length(len(ids), parameter="prompt")
    speller = EntryBuilder(loaded, continues=False)
    return TokenizedText(ids, [speller.name(token) for token in ids])


def detokenize(loaded: LoadedModel, ids: Sequence[int], limits: Limits) -> Work[Any, str]:
    """The text that ids spell; control tokens spell nothing.

    Raises:
        InvalidInputError: an id is outside the vocabulary, or there are too many.
    """
    limits.check_length(len(ids), parameter="tokens")
    checked = loaded.check_ids(ids, parameter="tokens")
    yield None
    return loaded.tokenizer.decode(checked.tolist())
