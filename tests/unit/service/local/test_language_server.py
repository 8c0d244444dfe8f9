"""The language server with hostile messages and documents: every request is answered, in time linear in their size."""

import asyncio
import copy
import io
import itertools
import json
import logging
import re
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types
from pygls.workspace import PositionCodec

from service.local import language_server
from service.local.language_server import (
    Document,
    ServerOptions,
    make_server,
    problem_of_word,
)

URI = "file:///a"
PLACE = {"line": 0, "character": 3}
RANGE = {"start": PLACE, "end": {"line": 0, "character": 8}}
MARK = {"range": RANGE, "message": "m", "source": "gramophone", "code": "unknown_word", "data": ["b"]}
OPEN = {"textDocument": {"uri": URI, "languageId": "markdown", "version": 1, "text": "the wrong\nend"}}
CHANGES = [{"range": RANGE, "text": "wrong"}, {"text": "the wrong\nend"}]
CHANGE = {"textDocument": {"uri": URI, "version": 2}, "contentChanges": CHANGES}
CONTEXT = {"triggerKind": 1}
REQUESTS = {
    "initialize": {"processId": None, "rootUri": None, "capabilities": {}},
    "textDocument/completion": {"textDocument": {"uri": URI}, "position": PLACE},
    "textDocument/inlineCompletion": {
        "textDocument": {"uri": URI},
        "position": PLACE,
        "context": CONTEXT,
    },
    "textDocument/codeAction": {
        "textDocument": {"uri": URI},
        "range": RANGE,
        "context": {"diagnostics": [MARK]},
    },
    "workspace/executeCommand": {"command": "gramophone.addToDictionary", "arguments": ["word"]},
    "no/suchMethod": {},
}
NOTES = {"textDocument/didOpen": OPEN, "textDocument/didChange": CHANGE, "$/cancelRequest": {"id": 1}}
HOSTILE = [-1, 2**31, 10**18, 0.5, None, True, "0", "", "\ud800", "x" * 1000, [], {}, [[]], {"jsonrpc": 1}]


def frame(content):
    """Return a message as it is sent; bytes are sent as they are."""
    if isinstance(content, bytes):
        return content
    body = json.dumps(content).encode()
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


async def answer(path, body):
    """Answer as a service that completes `the` everywhere and finds each `wrong`."""
    if path == "/v1/autocomplete":
        return {"completions": [{"text": "the", "suffix": "e", "start": 0}]}
    found = re.finditer("wrong", body["text"])
    common = {"type": "unknown_word", "text": "wrong", "suggestions": []}
    return {"issues": [{**common, "start": one.start(), "end": one.end()} for one in found]}


def talk(*messages, options=None, query=answer):
    """Return what a server sends for the messages of an editor, given as methods and parameters or as bytes."""
    begin = {"jsonrpc": "2.0", "id": "begin", "method": "initialize", "params": REQUESTS["initialize"]}
    end = [{"jsonrpc": "2.0", "id": f"end {number}", "method": "no/suchMethod"} for number in range(30)]
    output = io.BytesIO()
    output.close = lambda: None
    server = make_server(query, options or ServerOptions(delay_s=0.0))
    server.start_io(io.BytesIO(b"".join(map(frame, [begin, *messages, *end]))), output)
    pieces = re.split(rb"Content-Length: \d+\r\nContent-Type: [^\r]+\r\n\r\n", output.getvalue())
    sent = [json.loads(piece) for piece in pieces if piece]
    assert {"begin", *(one["id"] for one in end)} <= {str(one.get("id")) for one in sent}
    return sent


def request(number, method, params):
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def note(method, params):
    return {"jsonrpc": "2.0", "method": method, "params": params}


def places(value, path=()):
    """Yield the path of each value within a value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


def damaged(params):
    """Yield the parameters with each value replaced by each hostile one."""
    for path, hostile in itertools.product(places({"params": params}), HOSTILE):
        whole = {"params": copy.deepcopy(params)}
        if path:
            inner = whole
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = hostile
            yield whole["params"]


@pytest.fixture(autouse=True)
def no_log(caplog):
    caplog.set_level(logging.CRITICAL + 1, "pygls")


@pytest.mark.parametrize("method", REQUESTS)
def test_every_request_is_answered_once_whatever_it_holds(method):
    sent = [request(number, method, params) for number, params in enumerate(damaged(REQUESTS[method]))]
    received = talk(note("textDocument/didOpen", OPEN), *sent)
    answered = sorted(one["id"] for one in received if isinstance(one.get("id"), int) and "method" not in one)
    assert answered == list(range(len(sent)))


@pytest.mark.parametrize("method", NOTES)
def test_no_notification_ends_the_server(method):
    sent = [note(method, params) for params in damaged(NOTES[method])]
    last = [note("textDocument/didOpen", OPEN), request(1, *[*REQUESTS.items()][1])]
    received = talk(note("textDocument/didOpen", OPEN), *sent, *last)
    (reply,) = (one for one in received if one.get("id") == 1)
    assert [item["label"] for item in reply["result"]["items"]] == ["the"]


@pytest.mark.parametrize("field", ["jsonrpc", "id", "method", "params"])
@pytest.mark.parametrize("value", [*HOSTILE, "absent"])
def test_no_envelope_ends_the_server(field, value):
    message = request(7, *[*REQUESTS.items()][1])
    message |= {field: value}
    if value == "absent":
        del message[field]
    received = talk(message)
    if field != "id" and (field, value) != ("method", "absent"):  # it is a response then
        assert [one["id"] for one in received].count(7) == 1


LENGTHS = [b"0", b"-5", b"+5", b"9" * 5000, b"99999999999999", b"16777217", b"x", b""]
FRAMES = [
    *(b"Content-Length: %s\r\n\r\n{}" % length for length in LENGTHS),
    b"\r\n\r\n{}",
    b"\xff" * 300_000,
    b"Content-Length: 5\r\n\r\nhello",
    b"Content-Length: 4\r\n\r\nnull",
    b"Content-Length: 2\r\n\r\n[]",
    b"Content-Length: 3\r\n\r\n\xff\xfe\xfd",
    b"Content-Length: 200000\r\n\r\n" + b"[" * 200_000,
    b"Content-Length: 17000000\r\n\r\n" + b"x" * 17_000_000,
    b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    b"Content-Length: 2\r\nX: " + b"y" * 100_000 + b"\r\n\r\n{}",
]


@pytest.mark.parametrize("damaged_frame", FRAMES, ids=[one[:40].decode("latin-1") for one in FRAMES])
def test_messages_after_a_damaged_one_are_answered(damaged_frame):
    received = talk(damaged_frame, request(1, "no/suchMethod", {}))
    assert [one["error"]["code"] for one in received if one.get("id") == 1] == [-32601]


def test_a_message_that_is_too_long_is_told_and_not_read():
    taken = []
    stream = SimpleNamespace(read=lambda size: taken.append(size) or b"", readline=None)
    assert language_server._BoundedInput(stream).read(10**14).decode() == (
        '"Content-Length is 100000000000000; at most 16777216 bytes are read"'
    )
    assert taken == []
    said = [one["params"]["message"] for one in talk(FRAMES[4]) if one.get("method") == "window/showMessage"]
    assert said == [
        "Error in server: a message is not of JSON-RPC 2.0: "
        + json.loads(language_server._BoundedInput(None).read(99999999999999))
    ]


def test_a_request_after_shutdown_is_refused():
    received = talk(request(1, "shutdown", None), request(2, *[*REQUESTS.items()][1]))
    assert [one["error"]["code"] for one in received if one.get("id") == 2] == [-32600]


def test_a_document_that_was_not_opened_is_not_read(tmp_path):
    path = tmp_path / "text"
    path.write_text("the wrong")
    uri = {"textDocument": {"uri": path.as_uri()}}
    sent = [
        request(1, "textDocument/completion", uri | {"position": PLACE}),
        note("textDocument/didChange", CHANGE),
        request(2, "textDocument/codeAction", REQUESTS["textDocument/codeAction"]),
    ]
    results = {one["id"]: one["result"] for one in talk(*sent) if one.get("id") in {1, 2}}
    assert results == {1: {"isIncomplete": True, "items": []}, 2: []}


def opened(text, language="plaintext", encoding=types.PositionEncodingKind.Utf16):
    return Document(types.TextDocumentItem(URI, language, 1, text), PositionCodec(encoding))


TEXTS = st.text(st.sampled_from("ab \r\n\u2028\u00e9\u65e5\U0001f600"), max_size=12)
POSITIONS = st.builds(types.Position, st.integers(0, 6), st.integers(0, 14))


def reference_offset(text, position):
    """Return the offset of a position in UTF-16 by reading all characters before it."""
    line = column = 0
    for offset, character in enumerate(text):
        ends = character == "\n" or (character == "\r" and text[offset + 1 : offset + 2] != "\n")
        at_break = ends or character == "\r"
        if line == position.line and (column >= position.character or at_break):
            return offset
        column += 1 + (character > "\uffff")
        if ends:
            line, column = line + 1, 0
    return len(text)


@given(TEXTS, st.lists(st.tuples(POSITIONS, POSITIONS, TEXTS), max_size=6))
def test_edits_are_those_of_the_whole_text(text, edits):
    document = opened(text)
    for start, end, new in edits:
        begin, last = sorted((reference_offset(text, start), reference_offset(text, end)))
        text = text[:begin] + new + text[last:]
        document.change(types.TextDocumentContentChangePartial(types.Range(start, end), new))
        assert document.text == text
        assert document._lines == opened(text)._lines


@given(TEXTS, POSITIONS, POSITIONS)
def test_texts_and_offsets_are_those_of_the_whole_text(text, start, end):
    begin, last = sorted((reference_offset(text, start), reference_offset(text, end)))
    document = opened(text)
    assert document.extract(types.Range(start, end)) == text[begin:last]
    assert document.offset(start) == reference_offset(text, start)


@pytest.mark.parametrize("encoding", types.PositionEncodingKind)
@given(text=TEXTS)
def test_ranges_come_back_in_every_encoding(encoding, text):
    document = opened(text, encoding=encoding)
    inside = [offset for offset in range(len(text) + 1) if text[offset - 1 : offset + 1] != "\r\n"]
    for begin, place in zip(inside, document.ranges((one, one) for one in inside), strict=True):
        assert document.offset(place.start) == begin


def seconds(work):
    begin = time.process_time()
    work()
    return time.process_time() - begin


UNITS = [
    "<",
    "](",
    "]((",
    "](a)(",
    "](a",
    "`",
    "``",
    "```\n",
    "```a\n",
    "\n```",
    "http://",
    "<a",
    "<a\n",
    "(<",
    "]<`(",
]


@pytest.mark.parametrize("unit", UNITS)
def test_markdown_is_read_in_time_in_proportion_to_its_length(unit):
    short, long = (opened(unit * (size // len(unit)), "markdown") for size in (5_000, 80_000))
    assert seconds(lambda: long.prose) < 40 * (0.01 + seconds(lambda: short.prose))


def test_what_is_no_prose_is_left_out():
    text = "a `code` [link](http://x.y/z_(w)) [r](../p_(q)) <b class='c'> https://x.y <- 1 < 2\n\n```\nfenced\n```\n"
    assert opened(text, "markdown").prose.split() == ["a", "[link]", "[r]", "<-", "1", "<", "2"]
    assert len(opened(text, "markdown").prose) == len(text)


class Counter:
    """Expression that counts the characters that it splits."""

    def __init__(self, expression):
        self.expression, self.characters = expression, 0

    def split(self, text):
        self.characters += len(text)
        return self.expression.split(text)


@pytest.mark.parametrize("new", ["x", "x\n", "", "\n\n"])
def test_edits_split_only_the_lines_beside_them(monkeypatch, new):
    document = opened("Return the length\n" * 5000)
    counter = Counter(language_server._LINE_START)
    monkeypatch.setattr(language_server, "_LINE_START", counter)
    for number in range(5000):
        place = types.Position(number, 0)
        document.change(types.TextDocumentContentChangePartial(types.Range(place, place), new))
    assert counter.characters < 5000 * 4 * 20


def test_marks_read_each_line_once():
    document = opened("\u00e9" * 50_000 + "\n" + "\u00e9\n" * 5000)
    language_server._units_before.cache_clear()
    places = document.ranges((offset, offset + 1) for offset in range(55_000))
    assert places[-1].start.line > 2000
    assert language_server._units_before.cache_info().misses < 6000


def marks(received):
    return [one["params"]["diagnostics"] for one in received if "publishDiagnostics" in one.get("method", "")]


def test_a_long_document_is_checked_in_pieces_of_complete_lines():
    asked = []

    async def query(path, body):
        asked.append(body["text"])
        return await answer(path, body)

    text = "a wrong line\n" * 2000 + "wrong" * 2000 + "\nwrong"
    (found,) = marks(
        talk(
            note("textDocument/didOpen", {"textDocument": OPEN["textDocument"] | {"text": text}}), query=query
        )
    )
    assert [one["range"]["start"] for one in found][:: len(found) - 1] == [
        {"line": 0, "character": 2},
        {"line": 2001, "character": 0},
    ]
    assert len(found) == 4001
    assert "".join(asked) == opened(text, "markdown").prose
    assert max(map(len, asked)) < 20_000
    assert all(piece.endswith("\n") for piece in asked[:-1])


def test_a_document_that_is_too_long_is_not_checked_and_the_user_is_told():
    long = {"textDocument": OPEN["textDocument"] | {"text": "wrong " * 200_000}}
    received = talk(note("textDocument/didOpen", long), request(1, *[*REQUESTS.items()][1]))
    assert marks(received) == [[]]
    assert [one["result"]["items"] for one in received if one.get("id") == 1] == [[]]
    said = [one["params"]["message"] for one in received if one.get("method") == "window/showMessage"]
    assert said == ["gramophone: file:///a has 1200000 characters; at most 1000000 are checked"]


def test_completions_of_a_text_that_has_changed_are_left_out():
    async def query(path, body):
        document.version += 1
        return await answer(path, body)

    document = opened("the wrong")
    server = make_server(query, ServerOptions())
    server.documents[URI] = document
    assert asyncio.run(server.complete(URI, types.Position(0, 9))) == []


WRONG_WORDS = {
    "x" * 201: "has 201 characters; at most 200 are accepted",
    "a " * 41: "has 41 words; at most 40 are accepted",
    "": "is empty or has a line break",
    " ": "is empty or has a line break",
    "a\nb": "is empty or has a line break",
    "a\rb": "is empty or has a line break",
    "\ud800": "is not Unicode",
}


@pytest.mark.parametrize(("word", "problem"), WRONG_WORDS.items(), ids=map(ascii, WRONG_WORDS))
def test_words_that_requests_cannot_have_are_refused(tmp_path, word, problem):
    path = tmp_path / "words.txt"
    params = {"command": "gramophone.addToDictionary", "arguments": [word]}
    received = talk(
        request(1, "workspace/executeCommand", params), options=ServerOptions(dictionary=path, delay_s=0)
    )
    (error,) = (one["error"] for one in received if one.get("id") == 1)
    assert (error["code"], error["message"]) == (-32602, f"the word {word!r:.40} {problem}")
    assert not path.exists()


@pytest.mark.parametrize(
    "word", ["Zürich", "New York", "\u0645\u06cc\u200c\u062e", "\U0001f600", "x" * 200, "a\u2028b"]
)
def test_other_words_are_added(tmp_path, word):
    assert problem_of_word(word) == ""
    path = tmp_path / "words.txt"
    server = make_server(answer, ServerOptions(dictionary=path))
    server.add_word(word)
    assert path.read_text() == f"{word}\n"
    assert server.words == [word]


def test_a_word_that_cannot_be_stored_is_not_used(tmp_path):
    server = make_server(answer, ServerOptions(dictionary=tmp_path))
    with pytest.raises(OSError, match="Is a directory"):
        server.add_word("word")
    assert server.words == []


def test_wrong_words_of_a_list_are_skipped_with_a_warning(caplog):
    caplog.set_level(logging.WARNING)
    server = make_server(answer, ServerOptions(words=["right", *WRONG_WORDS]))
    assert server.words == ["right"]
    assert len(caplog.messages) == len(WRONG_WORDS)
    assert caplog.messages[0].endswith(" has 201 characters; at most 200 are accepted: it is skipped")
