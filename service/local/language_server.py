"""Language server for editors: completions, inline completions, probable errors and corrections.

Source: the Language Server Protocol, version 3.18. A document is prose; of Markdown, code and addresses are left out.
"""

import asyncio
import importlib.metadata
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.workspace import ServerTextPosition, TextDocument

from models.checkpoint.registry import Address
from models.errors import LanguageModelError
from service.engine.loaded_model import LoadedModel
from service.local import ask
from service.use_cases.check import MAX_DICTIONARY
from service.use_cases.inputs import WordLists

Json = dict[str, Any]
Query = Callable[[str, Json], Awaitable[Json]]
"""Function that returns the reply to a request, given the path of an endpoint and the body."""

NAME = "gramophone"
ADD_TO_DICTIONARY = "gramophone.addToDictionary"
_MAX_CONTEXT_CHARACTERS = 2000
_MAX_WORDS = 1000
_TIMEOUT_S = 10.0
_MIN_PROBABILITY = 0.01
"""Minimum probability of corrections after the first."""
_MARKDOWN = re.compile(
    r"^```.*?^```|`[^`\n]+`|https?://\S+|<[^>\n]+>|(?<=\])\([^)\n]*\)", re.DOTALL | re.MULTILINE
)
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""Line with its end by the protocol. Python also ends lines at other characters, such as form feeds and U+2028.

pygls creates the documents itself, so the class gets the property instead of a subclass."""
TextDocument.lines = property(lambda self: _LINE.findall(self.source))  # type: ignore[method-assign, assignment]
_WRAP = re.compile(r"(?<=[^\n]{40})\n(?=\w)")
"""Line breaks inside a paragraph: a model's sentences end at line breaks."""


class ServerOptions(NamedTuple):
    """Options of a language server.

    Attributes:
        limit: maximum number of completions.
        max_words: maximum words of an inline completion.
        threshold: minimum probability of an error.
        delay_s: time without changes after which a document is checked, in seconds.
        words: correct words.
        dictionary: list of correct words, one per line, to which editors add words; None for none.
    """

    limit: int = 10
    max_words: int = 3
    threshold: float = 0.5
    delay_s: float = 0.4
    words: Sequence[str] = ()
    dictionary: Path | None = None


def local_models(models: Sequence[LoadedModel], registry: Address, word_lists: WordLists) -> Query:
    """Return a function that asks loaded models of a registry, with Hunspell dictionaries, one request at a time."""
    endpoints: Mapping[str, Callable[[Json], Json]] = {
        "/v1/autocomplete": partial(ask.autocomplete, models),
        "/v1/check": partial(ask.check, models, registry, word_lists=word_lists),
    }
    thread = ThreadPoolExecutor(max_workers=1)  # a request whose client has cancelled it may still run

    async def query(path: str, body: Json) -> Json:
        return await asyncio.get_running_loop().run_in_executor(thread, endpoints[path], body)

    return query


def remote_models(url: str, models: Sequence[str], key: str | None) -> Query:
    """Return a function that asks a service.

    Args:
        url: address of the service, without a path.
        models: models of the requests; empty for the service's default.
        key: API key; None without one.
    """
    asked = {"models": [{"model": model} for model in models]} if models else {}
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    client = httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT_S)

    async def query(path: str, body: Json) -> Json:
        response = await client.post(path, json=body | asked)
        reply: Json = response.json()
        if "error" in reply:
            raise LanguageModelError(str(reply["error"]["message"]))
        return reply

    return query


class ProseServer(LanguageServer):
    """Language server of one model or several.

    Args:
        query: function that asks the models.
        options: options.
    """

    def __init__(self, query: Query, options: ServerOptions) -> None:
        super().__init__(NAME, importlib.metadata.version("gramophone-lm"))
        self.options = options
        self.words = list(options.words)
        self._query = query
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._problem = ""

    async def ask(self, path: str, body: Json) -> Json | None:
        """Return the reply to a request; None, with a message to the user, if there is none."""
        try:
            reply = await self._query(path, body)
        except (LanguageModelError, httpx.HTTPError, ValueError) as error:
            problem = f"{NAME}: {error or type(error).__name__}"
            if problem != self._problem:  # once, not at each keystroke
                self._problem = problem
                params = types.ShowMessageParams(types.MessageType.Warning, problem)
                self.window_show_message(params)
            return None
        self._problem = ""
        return reply

    async def complete(self, document: TextDocument, position: types.Position, **options: Any) -> list[Json]:
        """Return the completions at a position, with their start in the document as `begin`."""
        end = document.offset_at_position(position)
        text = _prose(document)[:end][-_MAX_CONTEXT_CHARACTERS:]
        line = text.rpartition("\n")[2]
        body = {"text": line, "dictionary": self.words[-_MAX_WORDS:], **options}
        reply = await self.ask("/v1/autocomplete", body)
        if reply is None:
            return []
        begin = end - len(line)
        return [one | {"begin": begin + one["start"]} for one in reply["completions"]]

    def check_soon(self, uri: str) -> None:
        """Check a document after a pause without further changes."""
        self.forget(uri)
        self._checks[uri] = asyncio.create_task(self._check(uri))

    def forget(self, uri: str) -> None:
        """Cancel the check of a document."""
        if (task := self._checks.pop(uri, None)) is not None:
            task.cancel()

    async def _check(self, uri: str) -> None:
        await asyncio.sleep(self.options.delay_s)
        document = self.workspace.get_text_document(uri)
        version, body = document.version, {"text": _prose(document), "threshold": self.options.threshold}
        reply = await self.ask("/v1/check", body | {"dictionary": self.words[-MAX_DICTIONARY:]})
        if reply is None or document.version != version:
            return
        found = [
            types.Diagnostic(
                range=_range(document, issue["start"], issue["end"]),
                message=_message(issue),
                severity=types.DiagnosticSeverity.Information,
                source=NAME,
                code=issue["type"],
                data=_corrections(issue),
            )
            for issue in reply["issues"]
        ]
        params = types.PublishDiagnosticsParams(uri, found, version)
        self.text_document_publish_diagnostics(params)

    def add_word(self, word: str) -> None:
        """Add a word to the dictionary and its file, and check all documents again."""
        if word not in self.words:
            self.words.append(word)
            if self.options.dictionary is not None:
                with self.options.dictionary.open("a", encoding="utf-8") as file:
                    file.write(f"{word}\n")
        for uri in self.workspace.text_documents:
            self.check_soon(uri)


def make_server(query: Query, options: ServerOptions) -> ProseServer:
    """Return a language server with all features."""
    server = ProseServer(query, options)
    for name, (handler, settings) in _FEATURES.items():
        server.feature(name, settings)(handler)
    server.command(ADD_TO_DICTIONARY)(_add_to_dictionary)
    return server


async def _completion(ls: ProseServer, params: types.CompletionParams) -> types.CompletionList:
    document = ls.workspace.get_text_document(params.text_document.uri)
    end = document.offset_at_position(params.position)
    found = await ls.complete(document, params.position, limit=ls.options.limit)
    items = [
        types.CompletionItem(
            label=one["text"],
            kind=types.CompletionItemKind.Text,
            sort_text=f"{rank:03}",
            filter_text=document.source[one["begin"] : end] or one["text"],
            text_edit=types.TextEdit(_range(document, one["begin"], end), one["text"]),
        )
        for rank, one in enumerate(found)
    ]
    return types.CompletionList(is_incomplete=True, items=items)


async def _inline_completion(
    ls: ProseServer, params: types.InlineCompletionParams
) -> types.InlineCompletionList:
    document = ls.workspace.get_text_document(params.text_document.uri)
    options = {"max_words": ls.options.max_words, "rank": "savings", "limit": 3}
    found = await ls.complete(document, params.position, **options)
    here = types.Range(params.position, params.position)
    texts = [one["suffix"] for one in found if one["suffix"]]
    return types.InlineCompletionList([types.InlineCompletionItem(text, range=here) for text in texts])


def _opened(
    ls: ProseServer, params: types.DidOpenTextDocumentParams | types.DidChangeTextDocumentParams
) -> None:
    ls.check_soon(params.text_document.uri)


def _closed(ls: ProseServer, params: types.DidCloseTextDocumentParams) -> None:
    uri = params.text_document.uri
    ls.forget(uri)
    ls.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))


def _code_actions(ls: ProseServer, params: types.CodeActionParams) -> list[types.CodeAction]:
    document = ls.workspace.get_text_document(params.text_document.uri)
    actions = list[types.CodeAction]()
    for issue in params.context.diagnostics:
        if issue.source != NAME:
            continue
        for number, text in enumerate(issue.data or ()):
            edit = types.WorkspaceEdit({document.uri: [types.TextEdit(issue.range, text)]})
            actions.append(
                types.CodeAction(
                    f"Replace with “{text}”",
                    kind=types.CodeActionKind.QuickFix,
                    diagnostics=[issue],
                    is_preferred=number == 0,
                    edit=edit,
                )
            )
        if issue.code == "unknown_word":
            word = document.text_in_client_range(issue.range)
            title = f"Add “{word}” to the dictionary"
            actions.append(
                types.CodeAction(
                    title,
                    kind=types.CodeActionKind.QuickFix,
                    diagnostics=[issue],
                    command=types.Command(title, ADD_TO_DICTIONARY, arguments=[word]),
                )
            )
    return actions


def _add_to_dictionary(ls: ProseServer, word: str) -> None:
    ls.add_word(word)


_FEATURES: Mapping[str, tuple[Callable[..., Any], Any]] = {
    types.TEXT_DOCUMENT_DID_OPEN: (_opened, None),
    types.TEXT_DOCUMENT_DID_CHANGE: (_opened, None),
    types.TEXT_DOCUMENT_DID_CLOSE: (_closed, None),
    types.TEXT_DOCUMENT_COMPLETION: (_completion, types.CompletionOptions(trigger_characters=[" "])),
    types.TEXT_DOCUMENT_INLINE_COMPLETION: (_inline_completion, None),
    types.TEXT_DOCUMENT_CODE_ACTION: (
        _code_actions,
        types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix]),
    ),
}


def _prose(document: TextDocument) -> str:
    """Return the text of a document with as many characters, and spaces for what is not prose and for wrapped lines."""
    text = document.source
    if document.language_id == "markdown":
        text = _MARKDOWN.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return _WRAP.sub(" ", text)


def _corrections(issue: Json) -> list[str]:
    """Return the corrections of an issue that are worth showing, the most probable first."""
    suggestions: list[Json] = issue["suggestions"]
    worth = [one for one in suggestions if one is suggestions[0] or one["probability"] >= _MIN_PROBABILITY]
    return [one["text"] for one in worth]


def _message(issue: Json) -> str:
    """Return the message of an issue for users."""
    said = "Unknown word" if issue["type"] == "unknown_word" else "Improbable here"
    texts = ", ".join(f"“{text}”" for text in _corrections(issue)[:3])
    return f"{said}: “{issue['text']}”" + (f". Meant: {texts}?" if texts else "")


def _range(document: TextDocument, start: int, end: int) -> types.Range:
    return types.Range(_position(document, start), _position(document, end))


def _position(document: TextDocument, offset: int) -> types.Position:
    # the mark makes a line of what follows the last line break
    lines = _LINE.findall(f"{document.source[:offset]}$")
    return document.position_to_client_units(ServerTextPosition(len(lines) - 1, len(lines[-1]) - 1))
