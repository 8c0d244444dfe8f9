"""What a stream says of a model that fails after the first event."""

import json

import pytest

STREAMS = {
    "/v1/generate": {"model": "slow", "stream": True, "max_tokens": 50},
    "/v1/completions": {"model": "slow", "prompt": "the", "max_tokens": 500, "stream": True},
}


@pytest.mark.parametrize("path", STREAMS)
def test_a_failure_after_the_first_event_is_an_event(http, server, path):
    model = server.app.state.services.host.resolve("slow").model
    with http.stream("POST", path, json=STREAMS[path]) as response:
        lines = response.iter_lines()
        next(lines)
        model.fails = True
        try:
            rest = [line for line in lines if line]
        finally:
            model.fails = False
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "internal_error"
