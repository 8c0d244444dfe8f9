"""Priority of requests by their cost; replies written in pieces; turns of keys with long bodies."""

import asyncio
from collections import defaultdict
from types import SimpleNamespace

import pytest

from models.calls import iter_outputs
from models.errors import InputError
from service.operations.operation import BYTES_PER_TOKEN, Cost, LinesOperation, request_options
from service.routes.replies import write_lines
from service.routes.request import parse_body
from service.schemas.replies import NextTokenReply, NextTokenResult, TokenScore, to_json
from service.schemas.suggestions import CheckReply, SuggestedText, TextIssue, WordSurprisal
from service.schemas.wire import json_pieces, reply_pieces

ALONE = {}


def bulk(cost=ALONE, num_bytes=100):
    return Cost(read=num_bytes // BYTES_PER_TOKEN, **cost).is_bulk


@pytest.mark.parametrize(
    "cost",
    [
        {"predicted": 64 * 16, "sequences": 64},  # num_beams, n or best_of
        {"predicted": 3100},  # contexts
        {"predicted": 32, "entries": 32 * 4000},  # long rankings
        {"predicted": 2 * 256 // 2},  # words after two contexts
        {"reread": 300 * 2000},  # candidates after a long context
        {"compared": 1000 * 1000},  # candidates compared pairwise
    ],
)
def test_short_bodies_with_much_work_are_bulk(cost):
    assert bulk(cost)


@pytest.mark.parametrize(
    "cost",
    [
        ALONE,
        {"predicted": 2000, "sequences": 1},  # a long text takes many short steps
        {"predicted": 400, "sequences": 4},
        {"predicted": 16 * 8, "sequences": 16},
        {"reread": 30 * 15},
        {"predicted": 1, "entries": 4000},
        {"predicted": 256 // 2},
        {"compared": 100 * 100},
    ],
)
def test_work_of_interactive_requests_is_not_bulk(cost):
    assert not bulk(cost)


def test_long_bodies_are_bulk():
    assert not bulk(num_bytes=1 << 14)
    assert bulk(num_bytes=(1 << 14) + 4)


def test_admission_counts_the_tokens_of_the_body_and_the_predictions():
    assert request_options(Cost(read=100, reread=35, predicted=55)).tokens == 155


@pytest.mark.parametrize(
    "more",
    [{"read": 513}, {"predicted": 65}, {"entries": 257}, {"compared": 1}, {"reread": 4000}, {"bulk": True}],
)
def test_work_is_little_up_to_each_bound(more):
    most = {"read": 512, "predicted": 64, "entries": 256}
    assert Cost(**most).is_little
    assert not Cost(**{**most, **more}).is_little


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


class Echo(LinesOperation):
    """Operation that writes each line in brackets; an empty line gives an error."""

    def __init__(self):
        super().__init__(None)

    def answer(self, lines):
        yield from ()
        return [line or InputError("empty") for line in lines]

    def line(self, result):
        return [b"[", result.encode(), b"]"]

    cost = parse_lines = reply = None


@pytest.mark.parametrize("size", [1, 100, 40_000])
def test_lines_are_sent_whole_so_a_later_error_has_a_line_of_its_own(size):
    lines = [f"{i:05} {'x' * size}" if i % 7 else "" for i in range(1000)]
    work = write_lines(iter(lines), Echo())
    pieces = [output.value for output in iter_outputs(work) if not output.last]
    assert {piece[-1:] for piece in pieces} == {b"\n"}
    assert 1 < len(pieces) <= len(lines)
    written = b"".join(pieces).decode().splitlines()
    assert len(written) == len(lines)
    assert all(
        got == f"[{line}]" if line else "empty" in got for got, line in zip(written, lines, strict=True)
    )


def test_work_belongs_to_the_key_of_its_request():
    options = request_options(Cost(read=25_000), owner="web")
    assert (options.owner, options.party) == ("web", ("web", True))


def test_keys_take_turns_while_long_bodies_are_parsed():
    admission = SimpleNamespace(check_capacity=lambda _: None)
    engine = SimpleNamespace(scheduler=SimpleNamespace(admission=admission))
    services = SimpleNamespace(parsing=defaultdict(asyncio.Lock), engine=engine)
    parsed = []

    async def main():
        await asyncio.gather(
            *(
                parse_body(services, key, key.encode() + bytes(1 << 17), lambda body: parsed.append(body[:5]))
                for key in ["busy"] * 4 + ["other"]
            )
        )

    asyncio.run(main())
    assert parsed == [b"busy\0", b"other", *[b"busy\0"] * 3]
