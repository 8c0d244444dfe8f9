"""POST /tokenize, POST /detokenize and GET /tokenizer_info, as vLLM has them."""

from pydantic import ConfigDict

from models.vocabulary import BOS, CONTROL_TOKENS, EOS, UNK
from service.engine.hosted import LoadedModel
from service.schemas.bounds import TokenId
from service.schemas.completion_replies import TokenizeReply, TokenizerInfo
from service.schemas.wire import WireModel
from service.use_cases.limits import Limits
from service.use_cases.tokenize import TokenizedText


class TokenizeRequest(WireModel):
    """Tell a text's tokens; other fields are ignored."""

    model_config = ConfigDict(
        extra="ignore", json_schema_extra={"examples": [{"prompt": "Return the value."}]}
    )

    prompt: str
    """The text; `<s>`, `</s>` or `<unk>` alone is that control token."""
    add_special_tokens: bool | None = None
    """Whether `<s>` is put first; it is unless this is false. These ids mean to /v1/completions what the text does."""
    model: str | None = None
    """`name`, `name@7` or `name@champion`; the service's default if it is left out."""


class DetokenizeRequest(WireModel):
    """Tell the text that tokens spell; other fields are ignored."""

    model_config = ConfigDict(
        extra="ignore", json_schema_extra={"examples": [{"tokens": [303, 260, 311, 259]}]}
    )

    tokens: list[TokenId]
    """Token ids."""
    model: str | None = None
    """`name`, `name@7` or `name@champion`; the service's default if it is left out."""


def tokenize_reply(tokens: TokenizedText, limits: Limits) -> TokenizeReply:
    """A text's tokens as they go over the wire."""
    return TokenizeReply(len(tokens.ids), limits.max_tokens_per_sequence, tokens.ids, tokens.names)


def tokenizer_info(loaded: LoadedModel, limits: Limits) -> TokenizerInfo:
    """What there is to know of a model's tokenizer."""
    return TokenizerInfo(
        model=loaded.address,
        tokenizer_class=loaded.tokenizer.kind,
        fingerprint=loaded.tokenizer.fingerprint,
        vocab_size=loaded.vocab_size,
        max_model_len=limits.max_tokens_per_sequence,
        bos_token=CONTROL_TOKENS[BOS],
        eos_token=CONTROL_TOKENS[EOS],
        unk_token=CONTROL_TOKENS[UNK],
        bos_token_id=BOS,
        eos_token_id=EOS,
        unk_token_id=UNK,
        add_bos_token=True,
        add_eos_token=False,
    )
