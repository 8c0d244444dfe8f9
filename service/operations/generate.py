"""Generation of texts, by our own API and by OpenAI's completions API."""

import time
import uuid
from typing import Any

import structlog
from typing_extensions import override

from service.engine.job import Work
from service.operations.operation import TOKENS_PER_PREDICTION, Call, Cost, EventsOperation
from service.schemas.replies import GenerateReply, to_json
from service.use_cases.choices import ChoiceChunk, GenerateResult
from service.use_cases.completions import (
    OBJECT_TYPE,
    CompletionReply,
    CompletionRequest,
    complete_prompts,
)
from service.use_cases.generate import GenerateRequest, generate

_log = structlog.get_logger(__name__)
_MAX_NAMES_LOGGED, _MAX_NAME_CHARACTERS = 20, 64
_FINGERPRINT_CHARACTERS = 12


class _Generation(EventsOperation[ChoiceChunk, GenerateResult]):
    """Operation with generated choices, and their usage."""

    @override
    def reply(self, result: GenerateResult) -> bytes:
        metrics, address = self.call.resources.metrics, self.models[0].address
        metrics.prompt_tokens.labels(address).inc(result.usage.prompt_tokens)
        metrics.generation_tokens.labels(address).inc(result.usage.completion_tokens)
        for reason in result.finish_reasons:
            metrics.generated.labels(address, reason).inc()
        return self._written(result.choices, result.usage)

    @override
    def event(self, event: ChoiceChunk) -> bytes:
        choice, _, usage = event
        return self._written([choice], usage)

    def _written(self, choices: list[Any], usage: Any) -> bytes:
        raise NotImplementedError


class Generate(_Generation):
    """Continue a text.

    With `stream`, the reply has an event per token of each choice, an event with `finish_reason` at the end of each
    choice, `usage` in the last event, then `[DONE]`; comments keep an idle connection alive. Beam search sends all
    events at its end. An error after the first event is an event with `error`.
    """

    request = GenerateRequest

    def __init__(self, call: Call, given: GenerateRequest) -> None:
        self.given, self._parameters = given, given.parameters(call.limits)
        super().__init__(call, call.resolve(given.model))
        self.slots, self.streams = given.slots, given.stream

    @override
    def cost(self) -> Cost:
        rows = self._parameters.beams * self._parameters.num_samples
        predicted = rows * self._parameters.max_tokens
        return Cost(self.call.num_tokens, predicted=predicted, sequences=rows)

    @override
    def run(self) -> Work[ChoiceChunk, GenerateResult]:
        return generate(self.models[0], self.given, self._parameters, self.call.limits)

    @override
    def _written(self, choices: list[Any], usage: Any) -> bytes:
        return to_json(GenerateReply(self.models[0].address, choices, usage))


class Completions(_Generation):
    """Continue texts or score them, with OpenAI's completions API.

    With `stream`, the reply has an event per token of each choice, then `[DONE]`; comments keep an idle connection
    alive. An error after the first event is an event with `error`.
    """

    request = CompletionRequest

    def __init__(self, call: Call, given: CompletionRequest) -> None:
        self.given, self._parameters = given, given.parameters(call.limits)
        if given.model_extra:
            names = sorted(given.model_extra)[:_MAX_NAMES_LOGGED]
            ignored = [name[:_MAX_NAME_CHARACTERS] for name in names]
            _log.debug("fields ignored", fields=ignored, request_id=call.request_id)
        super().__init__(call, call.resolve(given.model))
        self.slots, self.streams = given.slots, bool(given.stream)
        self.ends_with_result = given.stream_options is not None and bool(given.stream_options.include_usage)
        self._id, self._created = f"cmpl-{uuid.uuid4().hex}", int(time.time())

    @override
    def cost(self) -> Cost:
        read, predicted, rows = self.call.num_tokens, 0, len(self.given.prompts)
        if self._parameters is not None:
            rows *= self._parameters.num_samples
            predicted = rows * self._parameters.max_tokens
        # with `echo` and `logprobs`, each token of the prompts is predicted, one after the other
        echoed = TOKENS_PER_PREDICTION * read if self.given.echo and self.given.logprobs else 0
        return Cost(read, reread=echoed, predicted=predicted, sequences=rows)

    @override
    def run(self) -> Work[ChoiceChunk, GenerateResult]:
        return complete_prompts(self.models[0], self.given, self._parameters, self.call.limits)

    @override
    def _written(self, choices: list[Any], usage: Any) -> bytes:
        loaded = self.models[0]
        # model version and tokenizer: with the request, they determine the reply
        fingerprint = f"{loaded.address}-{loaded.tokenizer.fingerprint[:_FINGERPRINT_CHARACTERS]}"
        reply = CompletionReply(
            self._id, OBJECT_TYPE, self._created, loaded.address, fingerprint, choices, usage
        )
        return to_json(reply)
