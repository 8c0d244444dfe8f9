"""Language server for editors: completions, also inline, probable errors and corrections.

Source: the Language Server Protocol, version 3.18. A document is prose; what Markdown marks as code
or address is left out, and so are comments of commit messages.
Every request is answered, with an error if damaged; work is proportional to the length of messages and
documents. These are kept here as lines: pygls splits a document for each change and position.
"""

import asyncio
import importlib.metadata
import logging
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache, partial
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import httpx
from lsprotocol import types
from markdown_it import MarkdownIt
from markdown_it.common.utils import normalizeReference
from markdown_it.helpers import parseLinkDestination, parseLinkTitle
from markdown_it.rules_inline import StateInline, autolink, backtick, entity, html_inline
from markdown_it.token import Token
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams, JsonRpcInvalidRequest
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, default_converter
from pygls.workspace import PositionCodec
from typing_extensions import override

from models.completion.user_completions import MAX_DICTIONARY_WORDS
from models.errors import DomainError
from models.words import is_word_character
from service.local.ask import LocalCall, ask
from service.operations.check import MAX_CHARS, MAX_DICTIONARY

NAME = "gramophone"
ADD_TO_DICTIONARY = "gramophone.addToDictionary"
_MAX_CONTEXT_CHARS = 2000
_MAX_WORDS = 1000
_MAX_CHARS_AFTER = 200
_MAX_WORD_CHARS = 200
"""Maximum characters of the rest of a word that a completion replaces."""
_TIMEOUT_S = 10.0
_MIN_PROBABILITY = 0.01
"""Minimum probability of corrections after the first."""
_MAX_DOCUMENT_CHARS = 1_000_000
_MAX_MESSAGE_BYTES, _MAX_HEADER_BYTES, _MAX_READ_BYTES = 16 << 20, 100, 1 << 20
_MARKDOWN = MarkdownIt("commonmark", {"maxNesting": 100})
"""Parser of blocks. Tables are paragraphs: a few characters can make 65,536 cells."""
_QUOTE_MARKS = re.compile(r"(?:[ \t]|>|[*+-][ \t]|\d{1,9}[.)][ \t])*")
_MAX_QUOTE_LINES = 100_000
"""Maximum lines of a document times quotes around a line; deeper ones are not read."""
_MARK = re.compile(r"\\.|[`<&\]]", re.DOTALL)
"""Escaped characters, and characters that begin what is not prose."""
_TARGET = re.compile(r"\(([ \t\n]*)|\[([^\[\]\\]{1,999})\]")
_BLANKS = frozenset(" \t\n")
_HIDDEN_HTML = re.compile(r"\s*<(?:[!?]|(?:script|pre|style|textarea)\b)", re.IGNORECASE)
# Addresses without marks. None begins inside a run of characters before an @: each is read once.
_ADDRESS = re.compile(
    r"(?<![\w.+-])(?:(?:(?:https?|ftp)://|mailto:|www\.)[^\s<>\]`]*[\w/&=#%-]|[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"
)
_COMMENT = re.compile(r"(?<![^\r\n])(?:\S -{24} >8 -{24}[^\S\r\n]*(?![^\r\n]).*|#[^\r\n]*)", re.DOTALL)
"""Comments of a commit message, of which the last may begin with scissors."""
_COMMIT_FILES = ("COMMIT_EDITMSG", "MERGE_MSG", "TAG_EDITMSG")
_LINE_START = re.compile(r"(?<=\n)|(?<=\r)(?!\n)")
"""Starts of lines by the protocol. Python has other line ends, too, such as form feeds and U+2028."""
_PIECE = re.compile(r".{1,8000}[^\n]*\n?", re.DOTALL)
"""Complete lines checked together: completions wait for one piece only."""
_WRAP = re.compile(r"\n(?<=[^\n]{40}\n)(?=\w)")
"""Line breaks inside a paragraph: a model's sentences end at line breaks."""
Json = dict[str, Any]
Span = tuple[int, int]
"""Beginning and end, in characters of a document."""
Query = Callable[[str, Json], Awaitable[Json]]
"""Function from an endpoint's path and a body to the reply."""
_log = logging.getLogger(__name__)


class ServerOptions(NamedTuple):
    """Options of a language server.

    Attributes:
        limit: maximum completions.
        max_words: maximum words of an inline completion.
        threshold: minimum probability of an error.
        delay_s: time without changes after which a document is checked.
        words: correct words.
        word_lists: names of word lists of the service, of further correct words.
        dictionary: correct words, one per line, to which editors add; None for none.
    """

    limit: int = 10
    max_words: int = 3
    threshold: float = 0.5
    delay_s: float = 0.4
    words: Sequence[str] = ()
    word_lists: Sequence[str] = ()
    dictionary: Path | None = None


def local_models(call: LocalCall, models: Sequence[str]) -> Query:
    """Return a function that asks models in this process, in turn."""
    asked = {"models": [{"model": model} for model in models]} if models else {}
    thread = ThreadPoolExecutor(max_workers=1)  # a cancelled request may still run

    async def query(path: str, body: Json) -> Json:
        return await asyncio.get_running_loop().run_in_executor(thread, ask, call, path, {**asked, **body})

    return query


def remote_models(url: str, models: Sequence[str], key: str | None) -> Query:
    """Return a function that asks a service at a URL without a path; by default its default model."""
    asked = {"models": [{"model": model} for model in models]} if models else {}
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    client = httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT_S)

    async def query(path: str, body: Json) -> Json:
        response = await client.post(path, json=body | asked)
        reply: Json = response.json()
        if "error" in reply:
            raise DomainError(str(reply["error"]["message"]))
        return reply

    return query


@lru_cache(maxsize=2)  # the two ends of a range
def _units_before(line: str, units_of: Callable[[str], int]) -> Sequence[int]:
    """Return the number of an editor's units before each character and the end of a line."""
    return range(len(line) + 1) if line.isascii() else [*accumulate(map(units_of, line), initial=0)]


def _read_target(state: StateInline, silent: bool) -> bool:  # noqa: ARG001
    """Read the destination or label after a link's or image's text; a rule of markdown-it.

    It replaces rules that read a link's text again for each bracket before it.
    """
    text, size = state.src, state.posMax
    if (begun := _TARGET.match(text, state.pos + 1)) is None:
        return False
    end = begun.end()
    if begun[2] is not None:
        if normalizeReference(begun[2]) not in state.env.get("references", {}):
            return False
    else:
        for parse in (parseLinkDestination, parseLinkTitle):
            if (found := parse(text, end, size)).ok:
                end = found.pos
                while text[end : end + 1] in _BLANKS:
                    end += 1
        if text[end : end + 1] != ")":
            return False
        end += 1
    state.push("text", "", 0)
    state.pos = end
    return True


_RULES = {"`": (backtick,), "<": (autolink, html_inline), "&": (entity,), "]": (_read_target,)}


def _marked_spans(text: str, env: Json) -> Iterator[Span]:
    """Yield spans of code, tags, addresses, entities and link targets in a Markdown block's text."""
    yield from (found.span() for found in _ADDRESS.finditer(text))
    state = StateInline(text, _MARKDOWN, env, [])
    while (found := _MARK.search(text, state.pos)) is not None:
        begin, state.pos = found.start(), found.end()
        if len(found[0]) > 1:
            continue
        state.pos = begin
        state.tokens.clear()
        if not any(rule(state, silent=False) for rule in _RULES[found[0]]):
            state.pos += 1
        elif state.tokens:  # back-ticks without an end are read without a token
            yield begin + (found[0] == "]"), state.pos


def _markdown_spans(lines: Sequence[str]) -> Iterator[Span]:
    """Yield the spans of Markdown that are not prose."""
    bare = [line.rstrip("\r\n") for line in lines]
    starts = [*accumulate(map(len, lines), initial=0)]
    front, env = 0, dict[str, Any]()
    if bare[0].rstrip() == "---":
        front = next((end for end, line in enumerate(bare[1:], 2) if line.rstrip() in {"---", "..."}), 0)
    most = max(3, _MAX_QUOTE_LINES // len(lines))
    deep = {
        number
        for number, line in enumerate(bare)
        if (marks := _QUOTE_MARKS.match(line)) is not None and marks[0].count(">") > most
    }
    source = ["" if number < front or number in deep else line for number, line in enumerate(bare)]
    tokens = list[Token]()
    _MARKDOWN.block.parse("\n".join(source), _MARKDOWN, env, tokens)
    definitions = [*env.get("references", {}).values(), *env.get("duplicate_refs", ())]
    hidden = [[0, front], *(one["map"] for one in definitions), *([number, number + 1] for number in deep)]
    for token in tokens:
        first, last = token.map or (0, 0)
        is_html = token.type == "html_block"
        if token.type in {"fence", "code_block"} or (is_html and _HIDDEN_HTML.match(token.content)):
            hidden.append([first, last])
        elif token.type == "inline" or is_html:
            pieces = [piece.strip() for piece in token.content.split("\n")]
            columns = [line.rfind(piece) for line, piece in zip(bare[first:last], pieces, strict=False)]
            if min(columns) < 0:  # lines of no-break spaces were left out
                hidden.append([first, last])
                continue
            places = [start + column for start, column in zip(starts[first:last], columns, strict=False)]
            begins = [*accumulate((len(piece) + 1 for piece in pieces), initial=0)]
            for begin, end in _marked_spans("\n".join(pieces), env):
                one, other = (bisect_right(begins, offset) - 1 for offset in (begin, end - 1))
                yield places[one] + begin - begins[one], places[other] + end - begins[other]
    yield from (
        (starts[first], starts[last - 1] + len(bare[last - 1])) for first, last in hidden if first < last
    )


class Document:
    """Open document, as lines with ends; the last has none and may be empty.

    The codec has the units of the editor's positions.

    Attributes:
        version: version of the editor.
    """

    def __init__(self, item: types.TextDocumentItem, codec: PositionCodec) -> None:
        self.version: int | None = item.version
        self._is_markdown = item.language_id == "markdown"
        self._is_commit = item.language_id in {"git-commit", "gitcommit"} or item.uri.endswith(_COMMIT_FILES)
        self._units_of = codec.impl.code_units_for_char
        self._lines = _LINE_START.split(item.text)

    @property
    def text(self) -> str:
        """The complete text."""
        return "".join(self._lines)

    @cached_property
    def hidden(self) -> Sequence[Span]:
        """Spans that are not prose, in order; they may overlap."""
        if self._is_markdown:
            return sorted(_markdown_spans(self._lines))
        return [found.span() for found in _COMMENT.finditer(self.text)] if self._is_commit else ()

    @cached_property
    def prose(self) -> str:
        """The text, with spaces for what is not prose and for wraps of lines; as many characters."""
        text, pieces, read = self.text, list[str](), 0
        for begin, end in self.hidden:
            if end > read:
                pieces += text[read:begin], re.sub(r"[^\n]", " ", text[max(read, begin) : end])
                read = end
        return _WRAP.sub(" ", "".join([*pieces, text[read:]]))

    def change(self, change: types.TextDocumentContentChangeEvent) -> None:
        """Replace a range of the text, or all of it."""
        for name in ("hidden", "prose"):
            self.__dict__.pop(name, None)
        if isinstance(change, types.TextDocumentContentChangeWholeDocument):
            self._lines = _LINE_START.split(change.text)
            return
        (first, begin), (last, end) = self._span(change.range)
        lines = self._lines
        # and its neighbours: a line break's characters may meet
        before, after = lines[max(first - 1, 0) : first], lines[last + 1 : last + 2]
        new = _LINE_START.split(
            "".join([*before, lines[first][:begin], change.text, lines[last][end:], *after])
        )
        if last + 2 < len(lines):
            new.pop()  # the beginning of the next line
        lines[max(first - 1, 0) : last + 2] = new

    def offset(self, position: types.Position) -> int:
        """Return the number of characters before a position, or the nearest one there is."""
        line, column = self._place(position)
        return sum(map(len, self._lines[:line])) + column

    def extract(self, within: types.Range) -> str:
        """Return the text in a range."""
        (first, begin), (last, end) = self._span(within)
        return "".join([*self._lines[first:last], self._lines[last][:end]])[begin:]

    def ranges(self, spans: Iterable[Span]) -> list[types.Range]:
        """Return the range of each span."""
        starts = [*accumulate(map(len, self._lines[:-1]), initial=0)]

        def position(offset: int) -> types.Position:
            line = bisect_right(starts, offset) - 1
            return types.Position(
                line, _units_before(self._lines[line], self._units_of)[offset - starts[line]]
            )

        return [types.Range(position(begin), position(end)) for begin, end in spans]

    def _span(self, within: types.Range) -> list[tuple[int, int]]:
        return sorted((self._place(within.start), self._place(within.end)))

    def _place(self, position: types.Position) -> tuple[int, int]:
        """Return line and column, in characters, of the place nearest to a position."""
        if position.line >= len(self._lines):
            return len(self._lines) - 1, len(self._lines[-1])
        line = self._lines[position.line]
        column = bisect_left(_units_before(line, self._units_of), position.character)
        return position.line, min(column, len(line.rstrip("\r\n")))


class _Protocol(LanguageServerProtocol):
    """Protocol that answers damaged requests too."""

    @override
    def structure_message(self, data: dict[str, Any]) -> Any:
        """Return a message's object as it is; `handle_message` converts the whole message."""
        return data

    @override
    def handle_message(self, message: Any) -> None:
        """Convert and handle a message, or answer that it is damaged.

        Without an id, pygls tells the user.
        """
        fields = message if isinstance(message, dict) else {}
        try:
            if fields.get("jsonrpc") != self.VERSION or (
                self._shutdown and fields.get("method") != types.EXIT
            ):
                when = "after the shutdown" if self._shutdown else f"not of JSON-RPC {self.VERSION}"
                raise JsonRpcInvalidRequest(f"a message is {when}: {message!s:.200}")
            converted = super().structure_message(fields)
        except JsonRpcException as error:
            if not {"id", "method"} <= fields.keys():
                raise
            self._send_response(fields["id"], error=error.to_response_error())
        else:
            super().handle_message(converted)


class _BoundedInput:
    """Input of messages, of which too long ones are not read.

    Their bytes are taken for headers up to the next real one.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readline(self) -> bytes:
        """Return the next header; in place of a long line, another or part of it."""
        line = self._stream.readline(_MAX_READ_BYTES)
        line = line[max(0, line.rfind(b"Content-Length: ")) :]
        return line if len(line) <= _MAX_HEADER_BYTES else b"-"

    def read(self, size: int) -> bytes:
        """Return a message; in place of one that is too long, the reason."""
        if size > _MAX_MESSAGE_BYTES:
            return f'"Content-Length is {size}; at most {_MAX_MESSAGE_BYTES} bytes are read"'.encode()
        return self._stream.read(size)


class ProseServer(LanguageServer):
    """Language server of one model or several."""

    def __init__(self, query: Query, options: ServerOptions) -> None:
        version = importlib.metadata.version("gramophone-lm")
        super().__init__(NAME, version, protocol_cls=_Protocol, converter_factory=default_converter)
        self.options = options
        self.documents = dict[str, Document]()
        self.words = list[str]()
        for word in options.words:
            if problem := problem_of_word(word):
                _log.warning("the word %.40r %s: it is skipped", word, problem)
            else:
                self.words.append(word)
        self._query = query
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._problem = ""
        actions = types.CodeActionOptions([types.CodeActionKind.QuickFix])
        self._handle(types.TEXT_DOCUMENT_DID_OPEN, self._opened)
        self._handle(types.TEXT_DOCUMENT_DID_CHANGE, self._changed)
        self._handle(types.TEXT_DOCUMENT_DID_CLOSE, self._closed)
        self._handle(types.TEXT_DOCUMENT_COMPLETION, self._completion, types.CompletionOptions([" "]))
        self._handle(types.TEXT_DOCUMENT_INLINE_COMPLETION, self._inline_completion)
        self._handle(types.TEXT_DOCUMENT_CODE_ACTION, self._code_actions, actions)
        self.command(ADD_TO_DICTIONARY)(add_word)

    def _handle(self, method: str, handler: Callable[..., Any], settings: Any = None) -> None:
        # pygls sets attributes; methods have none
        self.feature(method, settings)(partial(handler))
        # or pygls keeps documents, too
        self.protocol.fm.builtin_features.pop(method, None)

    @override
    def start_io(self, stdin: BinaryIO | None = None, stdout: BinaryIO | None = None) -> None:
        """Answer an editor on standard input and output, or other streams."""
        super().start_io(cast("BinaryIO", _BoundedInput(stdin or sys.stdin.buffer)), stdout)

    async def ask(self, path: str, body: Json) -> Json | None:
        """Return the reply to a request; None, with a message to the user, without one."""
        try:
            reply = await self._query(path, body)
        except (DomainError, httpx.HTTPError, ValueError) as error:
            self._say(f"{error or type(error).__name__}")
            return None
        self._problem = ""
        return reply

    def _say(self, problem: str) -> None:
        """Tell the user of a problem once, not at each keystroke."""
        if problem != self._problem:
            self._problem = problem
            params = types.ShowMessageParams(types.MessageType.Warning, f"{NAME}: {problem}")
            self.window_show_message(params)

    async def complete(
        self, params: types.CompletionParams | types.InlineCompletionParams, **options: Any
    ) -> list[Json]:
        """Return the completions at a position.

        Each has, besides the service's fields, the text before the caret that it replaces as `typed`, its range as
        `range`, which includes the rest of a word around the caret, and that of the rest as `rest`.
        """
        document = self.documents.get(params.text_document.uri)
        if document is None or len(text := document.text) > _MAX_DOCUMENT_CHARS:
            return []
        version, end = document.version, document.offset(params.position)
        if any(begin < end <= stop for begin, stop in document.hidden):
            return []
        line = document.prose[max(0, end - _MAX_CONTEXT_CHARS) : end].rpartition("\n")[2]
        start = end - len(line)
        first = max(start // _MAX_CONTEXT_CHARS - 1, 0) * _MAX_CONTEXT_CHARS  # seldom changes
        after = len([*takewhile(is_word_character, text[end : end + _MAX_WORD_CHARS])])
        following = text[end + after : end + after + _MAX_CHARS_AFTER]
        around = {"before": document.prose[first:start], "text_after": following}
        body = {"text": line, **around, "dictionary": self._dictionary(_MAX_WORDS), **options}
        reply = await self.ask("/v1/autocomplete", body)
        found = reply["completions"] if reply is not None and document.version == version else []
        spans = list[Span]()
        for one in found:
            start = end - len(line) + one["start"]
            one["typed"] = text[start:end]
            # a completion ends its word; a further word goes before the next, or is it
            suffix = one["suffix"] or ""  # null if typed characters change
            rest = len(suffix) if text.startswith(suffix, end) else 0
            stop = end + max(rest, after if one["typed"] else 0)
            spans += (start, stop), (end, stop)
        ranges = iter(document.ranges(spans))
        return [one | {"range": next(ranges), "rest": next(ranges)} for one in found]

    def _dictionary(self, most: int) -> list[str | Json]:
        """Return the word lists and the newest words, as requests have them."""
        lists = [{"wordlist": name} for name in self.options.word_lists]
        return [*lists, *self.words[-most + len(lists) :]]

    def check_soon(self, uri: str) -> None:
        """Check a document after a pause without further changes."""
        self._forget(uri)
        self._checks[uri] = asyncio.create_task(self._check(uri))

    def _forget(self, uri: str) -> None:
        """Cancel the check of a document."""
        if (task := self._checks.pop(uri, None)) is not None:
            task.cancel()

    async def _check(self, uri: str) -> None:
        await asyncio.sleep(self.options.delay_s)
        document = self.documents[uri]
        version, prose, issues, spans = document.version, "", list[Json](), list[Span]()
        if (length := len(document.text)) > _MAX_DOCUMENT_CHARS:
            self._say(f"{uri:.200} has {length} characters; at most {_MAX_DOCUMENT_CHARS} are checked")
        else:
            prose = document.prose
        options = {"threshold": self.options.threshold, "dictionary": self._dictionary(MAX_DICTIONARY)}
        for piece in _PIECE.finditer(prose):
            reply = await self.ask("/v1/check", {"text": piece[0], **options})
            if reply is None or document.version != version:
                return
            issues += reply["issues"]
            begin = piece.start()
            spans += [(begin + one["start"], begin + one["end"]) for one in reply["issues"]]
        found = [
            types.Diagnostic(
                range=place,
                message=_message(issue),
                severity=types.DiagnosticSeverity.Information,
                source=NAME,
                code=issue["type"],
                data=_corrections(issue),
            )
            for issue, place in zip(issues, document.ranges(spans), strict=True)
        ]
        params = types.PublishDiagnosticsParams(uri, found, version)
        self.text_document_publish_diagnostics(params)

    async def _completion(self, params: types.CompletionParams) -> types.CompletionList:
        items = [
            types.CompletionItem(
                label=one["text"],
                kind=types.CompletionItemKind.Text,
                sort_text=f"{rank:03}",
                filter_text=one["typed"] or one["text"],
                text_edit=types.TextEdit(one["range"], one["text"]),
            )
            for rank, one in enumerate(await self.complete(params, limit=self.options.limit))
        ]
        return types.CompletionList(is_incomplete=True, items=items)

    async def _inline_completion(self, params: types.InlineCompletionParams) -> types.InlineCompletionList:
        found = await self.complete(params, max_words=self.options.max_words, rank="savings", limit=3)
        return types.InlineCompletionList(
            [types.InlineCompletionItem(one["suffix"], range=one["rest"]) for one in found if one["suffix"]]
        )

    def _opened(self, params: types.DidOpenTextDocumentParams) -> None:
        uri = params.text_document.uri
        self.documents[uri] = Document(params.text_document, self.workspace.position_codec)
        self.check_soon(uri)

    def _changed(self, params: types.DidChangeTextDocumentParams) -> None:
        uri = params.text_document.uri
        if (document := self.documents.get(uri)) is not None:
            for change in params.content_changes:
                document.change(change)
            document.version = params.text_document.version
            self.check_soon(uri)

    def _closed(self, params: types.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        self._forget(uri)
        self.documents.pop(uri, None)
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))

    def _code_actions(self, params: types.CodeActionParams) -> list[types.CodeAction]:
        uri, kind, actions = params.text_document.uri, types.CodeActionKind.QuickFix, list[types.CodeAction]()
        if (document := self.documents.get(uri)) is None:
            return actions
        for issue in (one for one in params.context.diagnostics if one.source == NAME):
            for number, text in enumerate(issue.data or ()):
                edit = types.WorkspaceEdit({uri: [types.TextEdit(issue.range, text)]})
                title = f"Replace with “{text}”"
                actions.append(types.CodeAction(title, kind, [issue], is_preferred=number == 0, edit=edit))
            word = document.extract(issue.range)
            if issue.code == "unknown_word" and not problem_of_word(word):
                title = f"Add “{word}” to the dictionary"
                command = types.Command(title, ADD_TO_DICTIONARY, arguments=[word])
                actions.append(types.CodeAction(title, kind, [issue], command=command))
        return actions


def add_word(ls: ProseServer, word: str) -> None:
    """Add a word to the dictionary and its file, and check all documents again; a command.

    Raises:
        JsonRpcInvalidParams: requests could not have the word.
    """
    if problem := problem_of_word(word):
        raise JsonRpcInvalidParams(f"the word {word!r:.40} {problem}")
    if word not in ls.words:
        if ls.options.dictionary is not None:
            with ls.options.dictionary.open("a", encoding="utf-8") as file:
                file.write(f"{word}\n")
        ls.words.append(word)
    for uri in ls.documents:
        ls.check_soon(uri)


def problem_of_word(word: str) -> str:
    """Return why a word cannot be in a dictionary; empty if it can."""
    if len(word) > MAX_CHARS:
        return f"has {len(word)} characters; at most {MAX_CHARS} are accepted"
    if not word.strip() or "\n" in word or "\r" in word:
        return "is empty or has a line break"
    if (count := len(word.split())) > (most := MAX_DICTIONARY_WORDS // _MAX_WORDS):
        return f"has {count} words; at most {most} are accepted"
    return "" if word.encode(errors="ignore").decode() == word else "is not Unicode"


def _corrections(issue: Json) -> list[str]:
    """Return an issue's corrections worth showing, most probable first."""
    suggestions: list[Json] = issue["suggestions"]
    worth = [one for one in suggestions if one is suggestions[0] or one["probability"] >= _MIN_PROBABILITY]
    return [one["text"] for one in worth]


def _message(issue: Json) -> str:
    """Return the message of an issue for users."""
    said = "Unknown word" if issue["type"] == "unknown_word" else "Improbable here"
    texts = ", ".join(f"“{text}”" for text in _corrections(issue)[:3])
    return f"{said}: “{issue['text']}”" + (f". Meant: {texts}?" if texts else "")
