"""Priority of requests by their cost; replies written in pieces; turns of keys with long bodies."""

import asyncio
from collections import defaultdict
from types import SimpleNamespace

import pytest

from models.errors import InvalidInputError
from service.engine.job import iter_outputs
from service.routes.request import json_pieces, read_body, reply_pieces, request_options, to_json
from service.routes.streaming import write_lines
from service.schemas.replies import NextTokenReply, NextTokenResult, TokenScore
from service.schemas.suggestions import CheckReply, SuggestedText, TextIssue, WordSurprisal

REQUEST = SimpleNamespace(state=SimpleNamespace(request_id="1"), scope={"state": {"facts": {"key": "web"}}})


BODY_ALONE = {}


def bulk(beside=BODY_ALONE, body_bytes=100):
    return request_options(REQUEST, None, bytes(body_bytes), **beside).bulk


@pytest.mark.parametrize(
    "beside",
    [
        {"count": 64, "predicted_each": 16},  # num_beams, n or best_of
        {"count": 3100, "predicted_each": 1},  # contexts
        {"count": 32, "work_each": 4000 // 8, "predicted_each": 1},  # long rankings
        {"count": 2 * 256 // 2, "predicted_each": 1},  # words after two contexts
        {"count": 300, "work_each": 2000},  # candidates after a long context
        {"count": 1000, "work_each": 1000 // 16},  # candidates compared pairwise
    ],
)
def test_short_bodies_that_ask_for_much_give_way(beside):
    assert bulk(beside)


@pytest.mark.parametrize(
    "beside",
    [
        BODY_ALONE,
        {"count": 1, "predicted_each": 2000},  # a long text takes many short steps
        {"count": 4, "predicted_each": 100},
        {"count": 16, "predicted_each": 8},
        {"count": 30, "work_each": 15},
        {"count": 1, "work_each": 4000 // 8, "predicted_each": 1},
        {"count": 256 // 2, "predicted_each": 1},
        {"count": 100, "work_each": 100 // 16},
    ],
)
def test_what_people_wait_for_does_not(beside):
    assert not bulk(beside)


def test_long_bodies_give_way_as_well():
    assert not bulk(body_bytes=1 << 14)
    assert bulk(body_bytes=(1 << 14) + 4)


def test_admission_counts_the_tokens_of_the_body_and_those_to_be_predicted():
    assert request_options(REQUEST, None, bytes(400), count=5, work_each=7, predicted_each=11).tokens == 155


def result(number):
    return NextTokenResult([TokenScore(number, '"results":[]', -0.5)] * 10, None)


@pytest.mark.parametrize("count", [0, 1, 51, 52, 500])
def test_pieces_are_the_whole_reply(count):
    pieces = list(
        json_pieces(NextTokenReply('"results":[]', []), "results", range(count), result, entries=10 * count)
    )
    assert b"".join(pieces) == to_json(NextTokenReply('"results":[]', [result(i) for i in range(count)]))
    assert len(pieces) == max(1, -(-count // 51))


@pytest.mark.parametrize(("words", "issues"), [(0, 0), (1000, 0), (0, 300), (1000, 300)])
def test_pieces_of_several_lists_are_the_whole_reply(words, issues):
    issue = TextIssue(0, 1, '"issues":[]', "unknown_word", 0.5, [SuggestedText("b", 0.5, 1.0, 1)] * 20)
    reply = CheckReply(
        '"words":[]',
        0.5,
        None,
        [WordSurprisal(0, 1, '"issues":[]', 1.0, known=True)] * words,
        [issue] * issues,
        1,
        1,
    )
    pieces = list(reply_pieces(reply, words=words, issues=21 * issues))
    assert b"".join(pieces) == to_json(reply)
    assert max(piece.count(b'"text"') for piece in pieces) <= 512 + 512
    assert len(pieces) >= (words + 21 * issues) // 512


def answered(lines):
    """Outcomes of a batch; an empty line gives an error."""
    yield from ()
    return [line or InvalidInputError("empty") for line in lines]


@pytest.mark.parametrize("size", [1, 100, 40_000])
def test_lines_are_sent_whole_so_a_later_error_has_a_line_of_its_own(size):
    lines = [f"{i:05} {'x' * size}" if i % 7 else "" for i in range(1000)]
    work = write_lines(iter(lines), answered, lambda line: [b"[", line.encode(), b"]"], lambda _: 1)
    pieces = [output.value for output in iter_outputs(work) if not output.last]
    assert {piece[-1:] for piece in pieces} == {b"\n"}
    assert 1 < len(pieces) <= len(lines)
    written = b"".join(pieces).decode().splitlines()
    assert len(written) == len(lines)
    assert all(
        got == f"[{line}]" if line else "empty" in got for got, line in zip(written, lines, strict=True)
    )


def test_work_belongs_to_the_key_of_its_request():
    options = request_options(REQUEST, None, bytes(100_000))
    assert (options.owner, options.party) == ("web", ("web", True))


def long_request(key, services):
    async def body():
        return key.encode() + bytes(1 << 17)

    app = SimpleNamespace(state=SimpleNamespace(services=services))
    return SimpleNamespace(app=app, body=body, scope={"state": {"facts": {"key": key}}})


def test_keys_take_turns_while_long_bodies_are_parsed():
    admission = SimpleNamespace(check_capacity=lambda _: None)
    engine = SimpleNamespace(scheduler=SimpleNamespace(admission=admission))
    services = SimpleNamespace(parsing=defaultdict(asyncio.Lock), engine=engine)
    parsed = []

    async def main():
        waiting = [long_request(key, services) for key in ["busy"] * 4 + ["other"]]
        await asyncio.gather(
            *(read_body(request, lambda body: parsed.append(body[:5])) for request in waiting)
        )

    asyncio.run(main())
    assert parsed == [b"busy\0", b"other", *[b"busy\0"] * 3]
