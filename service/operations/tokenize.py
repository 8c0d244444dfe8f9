"""Tokenisation and detokenisation, for clients that count or compare tokens.

Requests and replies use the field names of OpenAI and vLLM.
"""

from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from models.calls import Work
from models.language_model import BOS, CONTROL_TOKENS, EOS, UNK
from models.text_model import Limits, TextModel
from service.operations.operation import ModelOperation
from service.schemas import with_examples
from service.schemas.replies import ModelReply
from service.schemas.wire import ModelAddress, TokenId, WireModel


class TokenizeRequest(WireModel):
    """Tokenise a text; unknown fields are ignored."""

    model_config = with_examples({"prompt": "Return the value."}, extra="ignore")

    prompt: str
    """Text to tokenise; the entire text `<s>`, `</s>` or `<unk>` is the control token."""
    add_special_tokens: bool | None = None
    """False to omit the leading `<s>`. With it, the ids are equivalent to the text as a prompt of /v1/completions."""
    model: ModelAddress = None


class DetokenizeRequest(WireModel):
    """Decode token ids to text; unknown fields are ignored."""

    model_config = with_examples({"tokens": [303, 260, 311, 259]}, extra="ignore")

    tokens: list[TokenId]
    """Token ids to decode."""
    model: ModelAddress = None


@dataclass(slots=True)
class TokenizeReply:
    """Tokens of a text."""

    count: int
    """number of tokens."""
    max_model_len: int
    """maximum number of tokens of one sequence."""
    tokens: list[int]
    """token ids."""
    token_strs: list[str]
    """names of the tokens."""


@dataclass(slots=True)
class DetokenizeReply:
    """Text of token ids."""

    prompt: str
    """the text."""


@dataclass(slots=True)
class TokenizerInfo(ModelReply):
    """A model's tokenizer."""

    tokenizer_class: str
    """kind of the tokenizer: `word`, `char` or `sentencepiece`."""
    fingerprint: str
    """hash of all settings that affect tokenisation."""
    vocab_size: int
    """number of tokens in the vocabulary."""
    max_model_len: int
    """maximum number of tokens of one sequence."""
    bos_token: str
    """text of `<s>`."""
    eos_token: str
    """text of `</s>`."""
    unk_token: str
    """text of `<unk>`."""
    bos_token_id: int
    """id of `<s>`."""
    eos_token_id: int
    """id of `</s>`."""
    unk_token_id: int
    """id of `<unk>`."""
    add_bos_token: bool
    """always true, because `<s>` precedes texts."""
    add_eos_token: bool
    """always false, because no `</s>` is appended to texts."""


def tokenizer_info(loaded: TextModel, limits: Limits) -> Work[Any, TokenizerInfo]:
    """Describe a model's tokenizer."""
    yield None
    tokenizer = loaded.tokenizer
    facts = loaded.address, tokenizer.kind, tokenizer.fingerprint, loaded.vocab_size
    names = CONTROL_TOKENS[BOS], CONTROL_TOKENS[EOS], CONTROL_TOKENS[UNK]
    most, ids = limits.max_tokens_per_sequence, (BOS, EOS, UNK)
    return TokenizerInfo(*facts, most, *names, *ids, add_bos_token=True, add_eos_token=False)


class Tokenize(ModelOperation[TokenizeReply]):
    """Tokenise a text."""

    request = TokenizeRequest

    @override
    def run(self) -> Work[Any, TokenizeReply]:
        text, loaded, limits = self.given.prompt, self.models[0], self.call.limits
        limits.check_characters(text, param="prompt")
        # so clients look up the ids of control tokens; within longer texts these are ordinary text
        if text in CONTROL_TOKENS and text not in loaded.model.vocabulary:
            ids = [CONTROL_TOKENS.index(text)]
        else:
            ids = list(loaded.tokenizer.encode(text))
        yield None
        if self.given.add_special_tokens is not False and ids[:1] != [BOS]:
            ids.insert(0, BOS)
        limits.check_length(len(ids), "prompt")
        names = [loaded.token_names[token] for token in ids]
        return TokenizeReply(len(ids), limits.max_tokens_per_sequence, ids, names)


class Detokenize(ModelOperation[DetokenizeReply]):
    """Join tokens into text."""

    request = DetokenizeRequest

    @override
    def run(self) -> Work[Any, DetokenizeReply]:
        given, loaded = self.given.tokens, self.models[0]
        self.call.limits.check_length(len(given), "tokens")
        checked = loaded.model.vocabulary.check_ids(given, param="tokens")
        yield None
        return DetokenizeReply(loaded.tokenizer.decode(checked.tolist()))
