"""Commands `gramophone wordlists …`: store word lists in a service, and read them."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import typer

from models.errors import DomainError, InputError, require_package
from service.cli.ask import read_dictionary, read_text
from service.cli.options import JsonOption, print_json

if TYPE_CHECKING:
    import httpx

wordlists_app = typer.Typer(
    name="wordlists",
    help="Store word lists in a service, for completion, checking and re-ranking; list, read and delete them.",
    no_args_is_help=True,
)
_COLUMNS = ("name", "version", "entries", "words", "casing", "language", "bytes")
_BYTES_AT_ONCE = 1 << 16
_Name = Annotated[str, typer.Argument(help="Name of the list.")]
_Url = Annotated[str, typer.Option(help="URL of the service.")]
_Key = Annotated[
    str | None, typer.Option(envvar="GRAMOPHONE_API_KEY", help="API key; lists belong to a key.")
]
_DEFAULT_URL = "http://127.0.0.1:8000"


@wordlists_app.command("list")
def list_all(url: _Url = _DEFAULT_URL, key: _Key = None, as_json: JsonOption = False) -> None:
    """List the word lists of the key."""
    reply = _asked(url, key, "GET").json()
    print_json(reply) if as_json else _show(reply["wordlists"])


@wordlists_app.command()
def put(
    name: _Name,
    file: Annotated[
        Path,
        typer.Argument(
            help="Entries: one per line, with an optional weight after a tab; or JSON lines, if it ends in .jsonl."
        ),
    ],
    casing: Annotated[
        Literal["exact", "ignore"], typer.Option(help="Compare entries in their case, or in any.")
    ] = "ignore",
    language: Annotated[
        str | None,
        typer.Option(help="Language such as en-US, in which LanguageTool's API accepts the words by itself."),
    ] = None,
    url: _Url = _DEFAULT_URL,
    key: _Key = None,
    as_json: JsonOption = False,
) -> None:
    """Store a list, in place of one of its name."""
    from service.console.evaluation import TuningProgress

    lines = _lines_of(file)
    given = {"casing": casing} | ({"language": language} if language else {})

    def parts() -> Iterator[bytes]:
        with TuningProgress() as progress:
            for begin in range(0, len(lines), _BYTES_AT_ONCE):
                progress("sending", begin, len(lines))
                yield lines[begin : begin + _BYTES_AT_ONCE]

    reply = _asked(url, key, "PUT", name, content=parts(), params=given).json()
    print_json(reply) if as_json else _show([reply])


@wordlists_app.command()
def show(name: _Name, url: _Url = _DEFAULT_URL, key: _Key = None, as_json: JsonOption = False) -> None:
    """Describe a list."""
    reply = _asked(url, key, "GET", name).json()
    print_json(reply) if as_json else _show([reply])


@wordlists_app.command()
def export(name: _Name, url: _Url = _DEFAULT_URL, key: _Key = None) -> None:
    """Print the entries of a list as JSON lines, which `put` takes from a file FILE.jsonl."""
    sys.stdout.buffer.write(_asked(url, key, "GET", name, "/entries").content)


@wordlists_app.command()
def delete(name: _Name, url: _Url = _DEFAULT_URL, key: _Key = None, as_json: JsonOption = False) -> None:
    """Delete a list; later requests that name it are rejected."""
    reply = _asked(url, key, "DELETE", name).json()
    if as_json:
        print_json(reply)
    elif reply["deleted"]:
        typer.echo(f"deleted: {name}")
    else:
        raise InputError.of("name", f"is {name!r}; there is no word list of that name")


def _lines_of(file: Path) -> bytes:
    """Return the JSON lines of a file's entries."""
    if file.suffix == ".jsonl":
        return read_text(file).encode()
    entries = ({"text": one["text"], "weight": one["weight"]} for one in read_dictionary(file))
    return b"".join(json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in entries)


def _asked(
    url: str, key: str | None, method: str, name: str | None = None, part: str = "", **given: Any
) -> "httpx.Response":
    """Return a service's reply.

    Raises:
        InputError: the service rejects the request.
        DomainError: it cannot be reached, or fails.
    """
    require_package("httpx", "`gramophone wordlists`")
    import httpx

    headers = {"content-type": "application/x-ndjson"} | (
        {} if key is None else {"authorization": f"Bearer {key}"}
    )
    path = "/v1/wordlists" + ("" if name is None else f"/{quote(name, safe='')}{part}")
    try:
        reply = httpx.request(method, url.rstrip("/") + path, headers=headers, timeout=600, **given)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DomainError(f"the service at {url} does not answer: {error}") from None
    if reply.is_success:
        return reply
    try:
        problem = str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        raise DomainError(f"the reply of {url} is no word list: status {reply.status_code}") from None
    raise InputError(problem) if reply.status_code < 500 else DomainError(problem)


def _show(lists: list[dict[str, Any]]) -> None:
    from service.console.tables import print_table

    rows = [["" if one[column] is None else str(one[column]) for column in _COLUMNS] for one in lists]
    print_table(_COLUMNS, rows)
