"""Tokens by what they spell."""

import time

import pytest

from models.completion.text import WordState
from models.completion.token_trie import TokenTrie, fold_case
from models.vocabulary import EOS
from tests.slow_completion import Pieces

PIECES = ["a", "b", "ab", " a", " ", "s,", ".", "'", "'s", " a b", "-.", "Ab", "é"]
TOKENS = TokenTrie(Pieces([*(piece.encode() for piece in PIECES), b"\xc3", b"\xa9", b"a", b"\xff", b""]))


def spellings(ids):
    return sorted(TOKENS.token_bytes[i] if i != EOS else b"</s>" for i in ids.tolist())


def test_tokens_that_begin_with_some_bytes():
    assert spellings(TOKENS.exact.with_prefix(b"a")) == [b"a", b"a", b"ab"]
    assert spellings(TOKENS.exact.with_prefix(b" a")) == [b" a", b" a b"]
    assert spellings(TOKENS.exact.with_prefix(b"\xff")) == [b"\xff"]
    assert not len(TOKENS.exact.with_prefix(b"x"))


def test_tokens_that_are_a_beginning_of_some_bytes():
    assert spellings(TOKENS.exact.proper_prefixes_of(b"abc")) == [b"a", b"a", b"ab"]
    assert spellings(TOKENS.exact.proper_prefixes_of(b" a")) == [b" "]
    assert not len(TOKENS.exact.proper_prefixes_of(b"a"))


def test_case_is_folded():
    assert spellings(TOKENS.folded.with_prefix(b"ab")) == [b"Ab", b"ab"]
    assert fold_case("Straße".encode()) == b"strasse"
    assert fold_case(b"\xc3") == b"\xc3"


@pytest.mark.parametrize(
    ("place", "kind", "expected"),
    [
        (WordState(begun=True), "ending", [b" ", b" a", b" a b", b"-.", b".", b"</s>", b"\xa9", b"\xff"]),
        (
            WordState(begun=True),
            "inside",
            [b"'", b"'s", b"Ab", b"a", b"a", b"ab", b"b", b"\xc3", b"\xc3\xa9"],
        ),
        (WordState(begun=True), "crossing", [b"s,"]),
        (WordState(begun=True), "onward", [b" ", b" a"]),
        (WordState(begun=True), "leaping", [b" a b"]),
        (WordState(), "ending", []),
        (WordState(), "inside", [b"Ab", b"a", b"a", b"ab", b"b", b"\xc3", b"\xc3\xa9"]),
        (
            WordState(begun=True, pending=b"'"),
            "inside",
            [b"Ab", b"a", b"a", b"ab", b"b", b"\xc3", b"\xc3\xa9"],
        ),
        (
            WordState(begun=True, pending=b"'"),
            "ending",
            [b" ", b" a", b" a b", b"'", b"'s", b"-.", b".", b"</s>", b"\xa9", b"\xff"],
        ),
        (WordState(begun=True, pending=b"\xc3"), "crossing", [b"\xa9"]),
        (WordState(begun=False, pending=b"\xc3"), "ending", []),
    ],
)
def test_what_tokens_do_at_a_place(place, kind, expected):
    assert spellings(getattr(TOKENS.transitions(place), kind)) == expected


def test_what_tokens_do_along_what_was_typed():
    moves = TOKENS.transitions_along(WordState(), b" a", TOKENS.exact)
    assert spellings(moves.inside) == [b" ", b" a"]
    assert spellings(moves.crossing) == [b" a b"]


def test_fifty_thousand_pieces_are_sorted_in_no_time():
    pieces = Pieces([f"{' ' * (n % 2)}piece{n}".encode() for n in range(50_000)])
    begun = time.thread_time()
    TokenTrie(pieces)
    assert time.thread_time() - begun < 2  # 0.1 s on an idle machine
