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
from markdown_it import MarkdownIt
from pygls.workspace import PositionCodec

from service.local import language_server
from service.local.language_server import Document, ProseServer, ServerOptions, add_word, problem_of_word

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
    server = ProseServer(query, options or ServerOptions(delay_s=0.0))
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
    *(
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
    ),
    *(
        "[",
        "![",
        "[a]:",
        "[a]: b\n",
        "[a]: b 'x\n",
        '](a "',
        "](<",
        "](<a>",
        "][",
        "][a",
        "](\\",
        "\\",
        "*",
        "&",
        "&a",
    ),
    *(
        "<!--",
        "<!-- ",
        "<?",
        "<!A",
        "<![CDATA[",
        '<a b="',
        "<a b='",
        "</a",
        "<div>\n",
        "<b>\n\n",
        "<a:b>",
        "<a@b>",
    ),
    *(
        ">",
        "> ",
        "> a\n\n",
        "> - ",
        "- ",
        "-\n",
        "-\ta\n",
        "- a\n\n",
        "1) a\n2. b\n",
        "1. ",
        "#",
        "# #a",
        "~~~\n> ",
    ),
    *(
        "a\n====\n",
        "===\n",
        "---\n",
        "|a",
        "|-",
        "|-|\n",
        "a@",
        "a.",
        "a@b.",
        "-@",
        "www.",
        "https://.",
        "\r",
        "\x00",
        "\t",
    ),
]
WHOLE = {
    "ticks of all lengths": "".join("`" * count + " " for count in range(1, 400)),
    "nested quotes": "".join("> " * depth + "a\n" for depth in range(280)),
    "nested lists": "".join("  " * depth + "- a\n" for depth in range(280)),
    "quotes around many lines": "> " * 50 + "a\n" * 40_000,
    "a table of many columns": "|a" * 10_000 + "|\n" + "|-" * 10_000 + "|\n" + "|\n" * 20_000,
    "many tables": ("|a" * 256 + "|\n" + "|-" * 256 + "|\n" + "|\n" * 256 + "\n") * 50,
    "nested brackets": "[" * 40_000 + "a" + "]" * 40_000,
    "nested parentheses": "[a](" + "(" * 40_000 + ")" * 40_000,
    "comments without an end": "<!--" * 20_000 + ">",
}


@pytest.mark.parametrize("unit", UNITS)
def test_markdown_is_read_in_time_in_proportion_to_its_length(unit):
    short, long = (opened(unit * (size // len(unit)), "markdown") for size in (5_000, 80_000))
    assert seconds(lambda: long.prose) < 40 * (0.01 + seconds(lambda: short.prose))


@pytest.mark.parametrize("text", WHOLE.values(), ids=WHOLE)
def test_nested_markdown_is_read_in_a_second_or_so(text):
    document = opened(text, "markdown")
    assert seconds(lambda: document.prose) < 5  # the machine may be busy
    assert len(document.prose) == len(text)


NO_PROSE = {
    "fence": "a cat\n\n```sh\nqqq\n```\nsat",
    "tildes": "a cat\n~~~\nqqq\n```\nqqq\n~~~\nsat",
    "fence without an end": "a cat sat\n```\nqqq",
    "fence in a list": "- a cat\n\n  ```\n  qqq\n\n  qqq\n  ```\n- sat",
    "fence in a quote": "> a cat\n> ```\n> qqq\n> ```\n> sat",
    "fence in a list in a quote": "> - a cat\n>   ~~~\n>   qqq\n>   ~~~\n> - sat",
    "line ends of Windows": "a cat\r\n\r\n```\r\nqqq\r\n```\r\nsat `qqq`\r\n",
    "indented": "a cat\n\n    qqq\n\n\tqqq\n\nsat",
    "indented in a list": "- a cat\n\n      qqq\n\n  sat",
    "spans": "a `qqq` ``qq ` q`` cat ```qqq``` sat",
    "span over lines": "a `qqq\nqqq` cat sat",
    "span in a quote": "> a `qqq\n> qqq` cat\n> sat",
    "heading": "# a `qqq` cat #\n\nsat\n===",
    "comment": "a <!-- qqq --> cat\n\n<!-- qqq\n\nqqq\n-->\n\nsat",
    "comment without an end": "a cat sat\n\n<!-- qqq\n\nqqq",
    "tags": "a <b class='qqq'>cat</b> <img\n  src=\"qqq\"> sat",
    "block of HTML": "<div\n class='qqq'>\na cat <!-- qqq -->\n</div>\n\n<script>\nqqq\n</script>\n\nsat",
    "front matter": "---\ntitle: qqq\n---\na cat sat",
    "destination": "a [cat](qqq) [sat](<qqq qqq> 'qqq') ![](qqq_(q))",
    "destination on the next line": "a [cat](\n  qqq\n  'qqq') sat",
    "label": "a [cat][qqq] sat\n\n[qqq]: http://qqq 'qqq'\n[qqq]: qqq",
    "autolinks": "a <https://qqq.q> cat <q@qqq.q> sat",
    "bare addresses": "a https://qqq.q/?q=q#q cat q.q@qqq.qq sat www.qqq.q mailto:q@q",
    "entities": "a&nbsp;cat &#xA0; sat",
    "table": "| a `q|` | cat |\n|---|---|\n| `qqq` | sat |",
}
PROSE = [
    "a `cat",
    "a \\`cat\\`",
    "cat](",
    "a < cat > b",
    "_cat_ sat",
    "cat &amp",
    "[cat]",
    "[a] (cat)",
    "- cat",
    "1. a\n2. cat",
]


@pytest.mark.parametrize("text", NO_PROSE.values(), ids=NO_PROSE)
def test_markup_and_code_are_not_checked(text):
    prose = opened(text, "markdown").prose
    assert re.findall(r"[a-z]+", prose) == ["a", "cat", "sat"]
    assert len(prose) == len(text)
    assert all(one in {" ", other} for one, other in zip(prose, text, strict=True))
    document = opened(text, "plaintext")
    assert document.prose == language_server._WRAP.sub(" ", text)


@pytest.mark.parametrize("text", PROSE)
def test_text_that_resembles_code_is_checked(text):
    assert opened(text, "markdown").prose == text


MARKUP = st.lists(
    st.sampled_from(
        [
            *"ab`<>[](!)#-\n\r\t|*_&\\",
            "    ",
            "> ",
            "- ",
            "](",
            "```\n",
            "<!--",
            "-->",
            "---\n",
            "[a]: b\n",
            "\xa0",
            "\u2028",
            "\x00",
        ]
    ),
    max_size=40,
).map("".join)


@given(MARKUP)
def test_any_markdown_keeps_its_length_and_lines(text):
    document = opened(text, "markdown")
    assert all(one in {" ", other} for one, other in zip(document.prose, text, strict=True))
    assert all(0 <= begin < end <= len(text) or begin == end for begin, end in document.hidden)


@given(MARKUP.filter(lambda text: not set("`&|\x00") & set(text)), st.sampled_from(["", "> ", "- "]))
def test_spans_are_those_that_markdown_it_finds(text, before):
    """A code span of letters of its own is hidden if the parser reads it as code, wherever it is."""
    text = f"{before}{text} `qqq` "
    tokens = MarkdownIt("commonmark", {"maxNesting": 100}).parse(
        text.replace("\r\n", "\n").replace("\r", "\n")
    )
    shown = "".join(one.content for token in tokens for one in token.children or () if one.type == "text")
    assert "qqq" not in shown
    assert "qqq" not in opened(text, "markdown").prose


COMMITS = {
    "comments": "a cat sat\n# qqq\n#qqq\n",
    "scissors": f"a cat sat\n# {'-' * 24} >8 {'-' * 24}\nqqq\n+qqq\n",
    "line ends of Windows": f"a cat sat\r\n# qqq\r\n; {'-' * 24} >8 {'-' * 24}\r\nqqq",
    "only comments": "# qqq",
}


@pytest.mark.parametrize("text", COMMITS.values(), ids=COMMITS)
@pytest.mark.parametrize(
    ("language", "uri"),
    [("git-commit", URI), ("gitcommit", URI), ("plaintext", "file:///a/.git/COMMIT_EDITMSG")],
)
def test_comments_of_commit_messages_are_left_out(text, language, uri):
    document = Document(types.TextDocumentItem(uri, language, 1, text), PositionCodec())
    assert "qqq" not in document.prose
    assert len(document.prose) == len(text)
    assert document.prose.split() == [one for one in ("a", "cat", "sat") if one in text]
    assert "qqq" in opened(text, "plaintext").prose


def completed(text, line, character, found, language="markdown"):
    """Return the documents after each completion of a word at a position, and after each inline completion."""

    async def query(path, body):
        if path == "/v1/check":
            return await answer(path, body)
        start = len(body["text"]) - len(found["typed"])
        return {"completions": [{"text": found["text"], "suffix": found["suffix"], "start": start}]}

    place = {"textDocument": {"uri": URI}, "position": {"line": line, "character": character}}
    item = {"uri": URI, "languageId": language, "version": 1, "text": text}
    received = talk(
        note("textDocument/didOpen", {"textDocument": item}),
        request(1, "textDocument/completion", place),
        request(2, "textDocument/inlineCompletion", place | {"context": CONTEXT}),
        query=query,
    )
    texts = []
    for one in sorted((one for one in received if one.get("id") in {1, 2}), key=lambda one: one["id"]):
        for entry in one["result"]["items"]:
            edit = entry.get("textEdit") or {"range": entry["range"], "newText": entry["insertText"]}
            document = opened(text, language)
            begin, end = (types.Position(**edit["range"][name]) for name in ("start", "end"))
            document.change(types.TextDocumentContentChangePartial(types.Range(begin, end), edit["newText"]))
            texts.append(document.text)
    return texts


LENGTH = {"text": "length", "suffix": "gth", "typed": "len"}
NEXT = {"text": "length", "suffix": "length", "typed": ""}


@pytest.mark.parametrize(
    ("text", "place", "found", "after"),
    [
        ("the len", (0, 7), LENGTH, "the length"),
        ("the length", (0, 7), LENGTH, "the length"),
        ("the lengths of", (0, 7), LENGTH, "the length of"),
        ("the lenses. b", (0, 7), LENGTH, "the length. b"),
        ("\U0001f600\n\U0001f600 length", (1, 6), LENGTH, "\U0001f600\n\U0001f600 length"),
        ("the l\u00e9ngth", (0, 7), {**LENGTH, "typed": "l\u00e9n"}, "the length"),
        ("do", (0, 2), {"text": "don't", "suffix": "n't", "typed": "do"}, "don't"),
        ("don't b", (0, 2), {"text": "don't", "suffix": "n't", "typed": "do"}, "don't b"),
        ("the cat", (0, 4), NEXT, "the lengthcat"),
        ("the length", (0, 4), NEXT, "the length"),
        ("the len", (0, 10**9), LENGTH, "the length"),
        ("a\nthe len", (10**9, 3), LENGTH, "a\nthe length"),
        ("the len\na", (0, 8), LENGTH, "the length\na"),
    ],
)
def test_a_completion_replaces_the_rest_of_the_word(text, place, found, after):
    first, inline = completed(text, *place, found)
    assert first == after
    assert inline == (after if "\u00e9" not in text else "the l\u00e9ngth")


def test_a_completion_that_changes_typed_letters_replaces_them():
    assert completed("the gi", 0, 6, {"text": "GitHub", "suffix": None, "typed": "gi"})[0] == "the GitHub"


HIDDEN = [
    ("```\nlen", 1, 3), ("a `len` b", 0, 6), ("[a](len) b", 0, 7), ("    len", 0, 7), ("<b len> b", 0, 6),
    ("a https://x.y/len", 0, 17), ("<!-- len -->", 0, 8), ("---\nlen\n---", 1, 3), ("> ```\n> len", 1, 5),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "character"), HIDDEN)
def test_nothing_is_completed_where_no_prose_is(text, line, character):
    assert completed(text, line, character, LENGTH) == []
    assert len(completed(text, line, character, LENGTH, "plaintext")) == 2


@pytest.mark.parametrize("place", [{"line": -1, "character": 0}, {"line": 0, "character": -1}])
@pytest.mark.parametrize("method", ["textDocument/completion", "textDocument/inlineCompletion"])
def test_negative_positions_are_refused(method, place):
    params = {"textDocument": {"uri": URI}, "position": place, "context": CONTEXT}
    (reply,) = (one for one in talk(request(1, method, params)) if one.get("id") == 1)
    assert reply["error"]["code"] == -32602


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
    server = ProseServer(query, ServerOptions())
    server.documents[URI] = document
    assert (
        asyncio.run(
            server.complete(types.CompletionParams(types.TextDocumentIdentifier(URI), types.Position(0, 9)))
        )
        == []
    )


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
    server = ProseServer(answer, ServerOptions(dictionary=path))
    add_word(server, word)
    assert path.read_text() == f"{word}\n"
    assert server.words == [word]


def test_a_word_that_cannot_be_stored_is_not_used(tmp_path):
    server = ProseServer(answer, ServerOptions(dictionary=tmp_path))
    with pytest.raises(OSError, match="Is a directory"):
        add_word(server, "word")
    assert server.words == []


def test_wrong_words_of_a_list_are_skipped_with_a_warning(caplog):
    caplog.set_level(logging.WARNING)
    server = ProseServer(answer, ServerOptions(words=["right", *WRONG_WORDS]))
    assert server.words == ["right"]
    assert len(caplog.messages) == len(WRONG_WORDS)
    assert caplog.messages[0].endswith(" has 201 characters; at most 200 are accepted: it is skipped")
