"""`gramophone check`: words of a text that are probably wrong, without a server."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from models.errors import FormatError, InvalidInputError
from service.cli_options import (
    DEFAULT_REGISTRY,
    DeviceOption,
    JsonOption,
    ModelArgument,
    PrecisionOption,
    RegistryOption,
    print_json,
)

checking_app = typer.Typer()


@checking_app.command()
def check(
    model: ModelArgument,
    source: Annotated[
        str, typer.Argument(metavar="[TEXT|FILE|-]", help="A text, a file, or - for standard input.")
    ] = "-",
    threshold: Annotated[
        float | None, typer.Option(help="How probably wrong a word must be to be told [default: 0.5].")
    ] = None,
    min_precision: Annotated[
        float | None,
        typer.Option(help="Or else: how many of the words told are to be wrong, as `evaluate` measured it."),
    ] = None,
    max_suggestions: Annotated[int, typer.Option(help="How many suggestions for each.")] = 5,
    dictionary: Annotated[
        Path | None, typer.Option(help="File of words that are right, a line each.")
    ] = None,
    error_rate: Annotated[
        float, typer.Option(help="The share of words that is believed to be wrong beforehand.")
    ] = 0.01,
    max_edits: Annotated[int, typer.Option(help="How many letters of a word may be wrong: 1 or 2.")] = 2,
    registry: RegistryOption = DEFAULT_REGISTRY,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Find words that are probably wrong, by the text on both sides of them; each line is a sentence."""
    from service import local
    from service.console_checking import show_check

    text = _text(source)
    request: dict[str, Any] = {
        "text": text,
        "threshold": threshold,
        "precision": min_precision,
        "max_suggestions": max_suggestions,
        "dictionary": [] if dictionary is None else _read(dictionary).split("\n"),
        "error_rate": error_rate,
        "max_edits": max_edits,
    }
    request["dictionary"] = [word for line in request["dictionary"] if (word := line.strip())]
    reply = local.check(local.load(registry, model, device, precision), registry, request)
    print_json(reply) if as_json else show_check(text, reply)


def _text(source: str) -> str:
    """What to check: standard input, a file if there is one of that name, else the argument itself."""
    if source == "-":
        text = sys.stdin.read() if sys.stdin else ""
    else:
        text = _read(Path(source)) if _is_file(source) else source
    if not text.strip():
        raise InvalidInputError(
            "there is no text: give a text, a file, or - and lines of standard input", parameter="source"
        )
    return text


def _is_file(source: str) -> bool:
    try:
        return Path(source).is_file()
    except (OSError, ValueError):  # a text may be no path at all
        return False


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(path, f"cannot be read: {error}") from None
