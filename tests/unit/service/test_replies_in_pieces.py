"""Long replies are written piece by piece, and are the same bytes."""

import pytest

from service.routes.request import json_pieces, to_json
from service.schemas.replies import NextTokenReply, NextTokenResult, TokenCandidate


def result(number):
    return NextTokenResult([TokenCandidate(number, '"results":[]', -0.5)] * 10, None)


@pytest.mark.parametrize("count", [0, 1, 51, 52, 500])
def test_pieces_are_the_whole_reply(count):
    pieces = list(
        json_pieces(NextTokenReply('"results":[]', []), "results", range(count), result, entries=10 * count)
    )
    assert b"".join(pieces) == to_json(NextTokenReply('"results":[]', [result(i) for i in range(count)]))
    assert len(pieces) == max(1, -(-count // 51))
