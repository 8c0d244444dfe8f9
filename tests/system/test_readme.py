"""Every request of the README runs and answers in the shape that it shows."""

import json

import pytest

from tests.system import readme


def shape(value):
    """Names and kinds, lists by their first item; numbers are one kind, null is any."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if isinstance(value, bool) or value is None:
        return "flag"
    return "number" if isinstance(value, int | float) else "text"


def test_there_is_a_request_for_every_endpoint():
    commands = " ".join(example.command for example in readme.examples())
    for path in (
        "next-token",
        "score",
        "rerank",
        "generate",
        "v1/completions",
        "models",
        "health/ready",
        "metrics",
    ):
        assert f"/{path}" in commands


@pytest.mark.parametrize(
    "example", readme.examples(), ids=lambda e: e.command.split(readme.ADDRESS)[1].split()[0]
)
def test_the_reply_has_the_shape_shown(example, served):
    output = readme.run(example.command, served)
    if example.language == "json":
        assert shape(json.loads(output)) == shape(json.loads(example.output))
    else:
        starts = [line[:8] for line in example.output.splitlines() if line not in {"", "…"}]
        assert [line[:8] for line in output.splitlines() if line][: len(starts)] == starts
