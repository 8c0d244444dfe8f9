"""The Python client's reply types are those of the service."""

from clients.python.generate_types import TYPES, generate_types


def test_reply_types_are_those_of_the_openapi_document():
    assert TYPES.read_text(encoding="utf-8") == generate_types(), "stale: run `make client-types`"
