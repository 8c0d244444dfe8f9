"""Tokenisation and detokenisation, for clients that count or compare tokens."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from models.vocabulary import BOS, CONTROL_TOKENS
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.use_cases.completions import EntryBuilder
from service.use_cases.inputs import Limits


class TokenizedText(NamedTuple):
    """Tokens of a text.

    Attributes:
        ids: of each.
        names: of each.
    """

    ids: list[int]
    names: list[str]


def tokenize(loaded: LoadedModel, text: str, limits: Limits, *, special: bool) -> Work[Any, TokenizedText]:
    """Tokenise a text.

    A text equal to `<s>`, `</s>` or `<unk>` gives that control token, unless the vocabulary has an ordinary
    token of that spelling: clients look up the ids of control tokens this way. Inside a longer text such
    spellings are ordinary text.

    Args:
        loaded: the model.
        text: any.
        limits: of one request.
        special: whether to prepend `<s>`.

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
    builder = EntryBuilder(loaded, continues=False)
    return TokenizedText(ids, [builder.name(token) for token in ids])


def detokenize(loaded: LoadedModel, ids: Sequence[int], limits: Limits) -> Work[Any, str]:
    """Decode ids to text; control tokens give none.

    Raises:
        InvalidInputError: an id is outside the vocabulary, or there are too many.
    """
    limits.check_length(len(ids), parameter="tokens")
    checked = loaded.check_ids(ids, parameter="tokens")
    yield None
    return loaded.tokenizer.decode(checked.tolist())
