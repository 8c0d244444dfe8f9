"""`gramophone lsp` with pytest-lsp's client: a service's model, a local one, edits, positions, failures."""

import asyncio
import contextlib
import sys

import httpx
import pytest
from lsprotocol import types
from pytest_lsp import LanguageClient, client_capabilities, make_test_lsp_client

from tests.support.http import free_port
from tests.support.services import typed_line
from training.commands import run_train

GRAMOPHONE = (sys.executable, "-m", "service.cli")
URI = "file:///letter.txt"


@pytest.fixture(scope="module")
def trained(tmp_path_factory, no_pictures):
    """Registry with an n-gram model."""
    folder = tmp_path_factory.mktemp("lsp")
    (folder / "text.txt").write_text(
        "the cat sat on the mat\na dog sat on the rug\nthe dog sat on a cat\n" * 30
    )
    options = {"corpus": [folder / "text.txt"], "name": "small", "registry": folder / "registry"}
    run_train("ngram", **options, assignments=["tokenizer.kind=word"])
    return folder / "registry"


class Editor:
    """Editor with one document.

    Attributes:
        client: pytest-lsp's client.
    """

    def __init__(self, client: LanguageClient):
        self.client, self.version = client, 1

    def open(self, text, language="plaintext"):
        item = types.TextDocumentItem(URI, language, self.version, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def replace(self, text):
        self.version += 1
        document = types.VersionedTextDocumentIdentifier(uri=URI, version=self.version)
        change = types.TextDocumentContentChangeWholeDocument(text)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))

    async def diagnostics(self):
        await self.client.wait_for_notification(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        return list(self.client.diagnostics[URI])

    async def complete(self, line, character):
        document, position = types.TextDocumentIdentifier(URI), types.Position(line, character)
        found = await self.client.text_document_completion_async(types.CompletionParams(document, position))
        return found.items

    async def actions(self, diagnostics):
        document = types.TextDocumentIdentifier(URI)
        params = types.CodeActionParams(document, diagnostics[0].range, types.CodeActionContext(diagnostics))
        return await self.client.text_document_code_action_async(params)


def edit(script, *arguments):
    """Run a script of an editor with a language server of some arguments; the server must end well."""

    async def session():
        client = make_test_lsp_client()
        await client.start_io(*GRAMOPHONE, "lsp", *map(str, arguments), "--delay", "0.05")
        capabilities = client_capabilities("visual-studio-code")
        await client.initialize_session(types.InitializeParams(capabilities=capabilities))
        try:
            await script(Editor(client))
        finally:
            await client.shutdown_session()
            code = client._server.returncode
            await client.stop()
        assert code == 0

    asyncio.run(asyncio.wait_for(session(), 60))


@pytest.fixture(params=["service", "service with two models", "local", "two local models"])
def source(request):
    """Arguments for each source of models, a misspelling and the word."""
    models = {"service with two models": ["mixture", "chars"], "local": ["small"]}.get(request.param, [])
    if request.param.startswith("service"):
        return (*models, "--url", request.getfixturevalue("server").url), "a hosue", "house"
    models = models or ["small", "small@1"]
    return (*models, "--registry", request.getfixturevalue("trained")), "the sat on a cta", "cat"


def test_a_misspelling_is_marked_and_corrected(source):
    arguments, text, word = source
    wrong = text.split()[-1]

    async def script(editor):
        editor.open(f"the cat\n\U0001f600 {text}")
        issue = next(one for one in await editor.diagnostics() if one.range.end.character == len(text) + 3)
        assert issue.range.start == types.Position(1, len(text) + 3 - len(wrong))  # in UTF-16
        assert issue.code == "unknown_word"
        assert word in issue.message
        actions = await editor.actions([issue])
        (change,) = actions[0].edit.changes[URI]
        assert (change.new_text, change.range, actions[0].is_preferred) == (word, issue.range, True)
        assert actions[-1].title == f"Add “{wrong}” to the dictionary"

    edit(script, *arguments)


def test_words_of_a_list_of_the_service_are_right_and_offered(server):
    list_url = f"{server.url}/v1/wordlists/editor"
    httpx.put(list_url, content='"hosue"\n').raise_for_status()

    async def script(editor):
        editor.open("a hosue huose")
        issues = await editor.diagnostics()
        assert [issue.range.start.character for issue in issues] == [8]
        assert "hosue" in [item.label for item in await editor.complete(0, 4)]

    try:
        edit(script, "--url", server.url, "--wordlist", "editor")
    finally:
        httpx.delete(list_url).raise_for_status()


def test_the_word_at_the_caret_is_completed(source):
    async def script(editor):
        editor.open("the dog\n\U0001f600 the ca")
        items = await editor.complete(1, 9)
        item = next(item for item in items if item.label == "cat")
        assert item.text_edit == types.TextEdit(
            types.Range(types.Position(1, 7), types.Position(1, 9)), "cat"
        )
        assert item.filter_text == "ca"

    edit(script, *source[0])


def test_only_the_line_ends_of_the_protocol_end_lines(trained):
    text = "the cat\x0c \u2028 \x85 sat on a cta"

    async def script(editor):
        editor.open(text)
        (issue,) = await editor.diagnostics()
        assert issue.range == types.Range(types.Position(0, len(text) - 3), types.Position(0, len(text)))
        assert (await editor.actions([issue]))[-1].title == "Add “cta” to the dictionary"

    edit(script, "small", "--registry", trained)


def test_phrases_are_completed_inline(trained):
    async def script(editor):
        editor.open("the cat s")
        document, position = types.TextDocumentIdentifier(URI), types.Position(0, 9)
        context = types.InlineCompletionContext(types.InlineCompletionTriggerKind.Automatic)
        params = types.InlineCompletionParams(context, document, position)
        found = await editor.client.text_document_inline_completion_async(params)
        assert "at on the" in [item.insert_text for item in found.items]

    edit(script, "small", "--registry", trained)


def test_changes_are_checked_and_closing_removes_marks(trained):
    async def script(editor):
        editor.open("the cat sat on the mat")
        assert await editor.diagnostics() == []
        editor.replace("the cat sta on the mat")
        assert [one.code for one in await editor.diagnostics()] == ["unknown_word"]
        closed = types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(URI))
        editor.client.text_document_did_close(closed)
        assert await editor.diagnostics() == []

    edit(script, "small", "--registry", trained)


def test_code_and_addresses_of_markdown_are_not_checked_and_wrapped_lines_are_one_sentence(trained):
    text = (
        "the cat `xyzzy` sat on the [mat](http://example.org/qwrt) <b>\n\n```sh\nfoobar\n```\n"
        "the cat sat on the mat the dog sat on the\nmta\n"
    )

    async def script(editor):
        editor.open(text, "markdown")
        found = await editor.diagnostics()
        assert [one.range.start for one in found] == [types.Position(6, 0)]

    edit(script, "small", "--registry", trained)


def test_words_are_added_to_the_dictionary_and_its_file(trained, tmp_path):
    words = tmp_path / "words.txt"

    async def script(editor):
        editor.open("the cta sat")
        (issue,) = await editor.diagnostics()
        assert (issue.range.start, issue.range.end) == (types.Position(0, 4), types.Position(0, 7))
        params = types.ExecuteCommandParams("gramophone.addToDictionary", ["cta"])
        await editor.client.workspace_execute_command_async(params)
        assert await editor.diagnostics() == []
        assert "cta" in [item.label for item in await editor.complete(0, 6)]

    edit(script, "small", "--registry", trained, "--dictionary", words)
    assert words.read_text() == "cta\n"


def test_words_of_a_hunspell_dictionary_are_right_beside_lists_of_words(trained, tmp_path):
    added, more, dictionary = (tmp_path / name for name in ("words.txt", "more.txt", "en.dic"))
    more.write_text("qwerty\n")
    dictionary.with_suffix(".aff").write_text("SET UTF-8\nSFX S Y 1\nSFX S 0 s .\n")
    dictionary.write_text("1\ncta/S\n")

    async def script(editor):
        editor.open("the ctas qwerty dgo")
        (issue,) = await editor.diagnostics()
        assert issue.range.start == types.Position(0, 16)
        params = types.ExecuteCommandParams("gramophone.addToDictionary", ["dgo"])
        await editor.client.workspace_execute_command_async(params)
        assert await editor.diagnostics() == []

    files = [word for file in (dictionary, added, more) for word in ("--dictionary", file)]
    edit(script, "small", "--registry", trained, *files)
    assert [file.read_text() for file in (added, more, dictionary)] == ["dgo\n", "qwerty\n", "1\ncta/S\n"]


def test_a_service_that_is_away_is_said_once():
    async def script(editor):
        editor.open("the cta")
        for _ in range(3):
            assert not await editor.complete(0, 7)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(editor.diagnostics(), 0.5)
        assert len(editor.client.messages) == 1
        assert "gramophone" in editor.client.messages[0].message

    edit(script, "--url", f"http://127.0.0.1:{free_port()}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give a model, or the --url of a service"),
        (
            ("--url", "http://localhost:1", "--dictionary", "a.dic"),
            "a.dic: with --url, give no Hunspell dictionary",
        ),
        (("small", "--dictionary", "a.dic"), "a.dic: cannot be read: No such file or directory"),
        (("small", "--wordlist", "terms"), "word lists are a service's, give its --url"),
    ],
)
def test_missing_or_contradictory_options_exit_with_a_message(
    words, said, capsys, monkeypatch, logs_as_before
):
    code, _, told = typed_line(capsys, monkeypatch, "lsp", *words)
    assert code == 2
    assert said in told
