"""Ask a published model in this process: the service's schemas and use cases, without HTTP."""

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import Registry
from models.errors import InvalidInputError
from service.engine.host import LoadedModel
from service.engine.job import Work, items, result_of
from service.schemas.generate import GenerateRequest, generate_reply
from service.schemas.next_token import NextTokenRequest, next_token_reply
from service.schemas.rerank import RerankRequest, rerank_reply
from service.schemas.score import ScoreRequest, score_reply
from service.schemas.wire import parse_json
from service.use_cases import generate as generating
from service.use_cases.continuation import Continuation, Piece
from service.use_cases.limits import Limits
from service.use_cases.next_token import next_tokens
from service.use_cases.rerank import rerank
from service.use_cases.score import score as score_texts

Json = dict[str, Any]
_UNLIMITED = Limits(
    max_texts=sys.maxsize,
    max_tokens_per_sequence=sys.maxsize,
    max_new_tokens=sys.maxsize,
    max_reply_entries=sys.maxsize,
)


def load(registry: Path, address: str, device: str, precision: str) -> LoadedModel:
    """Load a published model.

    Raises:
        LanguageModelError: there is no such registry or model, or it is damaged.
    """
    version = Registry(registry).resolve(address)
    return LoadedModel(version.address, load_checkpoint(version.path, device=device, precision=precision))


def next_token(loaded: LoadedModel, request: Mapping[str, Any]) -> Json:
    """As POST /v1/next-token."""
    command = parse_json(NextTokenRequest, _body(request)).command(_UNLIMITED)
    return dataclasses.asdict(next_token_reply(loaded, result_of(next_tokens(loaded, command, _UNLIMITED))))


def score(loaded: LoadedModel, request: Mapping[str, Any]) -> Json:
    """As POST /v1/score."""
    parsed = parse_json(ScoreRequest, _body(request))
    options = parsed.options()
    scores = result_of(score_texts(loaded, parsed.items(_UNLIMITED), options, _UNLIMITED))
    return dataclasses.asdict(score_reply(loaded, scores, options.detail))


def generate(loaded: LoadedModel, request: Mapping[str, Any]) -> Json:
    """As POST /v1/generate, unstreamed."""
    command = parse_json(GenerateRequest, _body(request)).command(_UNLIMITED)
    done = result_of(generating.generate(loaded, command, _UNLIMITED))
    return dataclasses.asdict(generate_reply(loaded, done, alternatives=0))


def generate_pieces(loaded: LoadedModel, request: Mapping[str, Any]) -> Iterator[str]:
    """The text of a continuation as it comes.

    Raises:
        InvalidInputError: the request is wrong, or not for this model; raised here, not by the iterator.
    """
    command = parse_json(GenerateRequest, _body(request)).command(_UNLIMITED)
    pieces = _pieces(generating.generate(loaded, dataclasses.replace(command, stream=True), _UNLIMITED))
    first = next(pieces)  # there is always one: the end of a choice, if no other
    return itertools.chain([first], pieces)


def _pieces(work: Work[Piece | Continuation, generating.Generated]) -> Iterator[str]:
    for item in items(work):
        if isinstance(item.value, Piece):
            yield item.value.text
        elif isinstance(item.value, Continuation):
            yield item.value.rest


def rerank_line(loaded: LoadedModel, line: str, options: Mapping[str, Any], *, place: str) -> Json:
    """As POST /v1/rerank, for one list in JSON.

    Raises:
        InvalidInputError: the line is wrong; the message starts with its place.
    """
    try:
        one = json.loads(line)
        command = parse_json(RerankRequest, _body({"lists": [one], **options})).command(_UNLIMITED)
        reply = rerank_reply(loaded, result_of(rerank(loaded, command, _UNLIMITED)))
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"{place}: not JSON: {error}") from None
    except RecursionError:
        raise InvalidInputError(f"{place}: nested too deeply") from None
    except InvalidInputError as error:
        raise InvalidInputError(f"{place}: {error}", parameter=error.parameter) from None
    return dataclasses.asdict(reply.lists[0])


def parse_weights(text: str) -> dict[str, float]:
    """`lm=0.7,am=1` as a mapping.

    Raises:
        InvalidInputError: a weight is not NAME=NUMBER.
    """
    weights = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            weights[name.strip()] = float(value)
        except ValueError:
            raise InvalidInputError(
                f"--weights takes NAME=NUMBER,…, given {part.strip()!r}", parameter="weights"
            ) from None
    return weights


def _body(request: Mapping[str, Any]) -> bytes:
    """JSON, so that the command line's values pass the very checks that a client's pass."""
    try:
        return json.dumps(request, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidInputError("the text is not UTF-8: convert it first, for example with iconv") from None
