"""Tokenisation and detokenisation."""

from typing import Any, TypeVar

from typing_extensions import override

from service.engine.job import Work
from service.operations.operation import Call, Cost, Operation
from service.schemas.replies import to_json
from service.use_cases.tokenize import (
    DetokenizeReply,
    DetokenizeRequest,
    TokenizeReply,
    TokenizeRequest,
    detokenize,
    tokenize,
)

R = TypeVar("R")


class _Tokenisation(Operation[R]):
    """Operation of a model's tokenizer."""

    def __init__(self, call: Call, given: Any) -> None:
        self.given = given
        super().__init__(call, call.resolve(given.model))

    @override
    def cost(self) -> Cost:
        return Cost(self.call.num_tokens)

    @override
    def reply(self, result: R) -> bytes:
        return to_json(result)


class Tokenize(_Tokenisation[TokenizeReply]):
    """Tokenise a text."""

    request = TokenizeRequest

    @override
    def run(self) -> Work[Any, TokenizeReply]:
        return tokenize(self.models[0], self.given, self.call.limits)


class Detokenize(_Tokenisation[DetokenizeReply]):
    """Join tokens into text."""

    request = DetokenizeRequest

    @override
    def run(self) -> Work[Any, DetokenizeReply]:
        return detokenize(self.models[0], self.given, self.call.limits)
