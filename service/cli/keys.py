"""`gramophone keys …`: keys for those who may ask the service."""

from typing import Annotated

import typer

from service.cli.options import JsonOption, print_json

keys_app = typer.Typer(help="Make API keys.", no_args_is_help=True)


@keys_app.callback()
def _group() -> None:
    """Make API keys."""  # a callback keeps `create` a command of its own, though it is the only one


@keys_app.command("create")
def create(
    name: Annotated[str, typer.Option(help="Whose key it is; stands in the log.")],
    scopes: Annotated[
        str,
        typer.Option(
            help="What it may ask for, with commas between: infer, every path below /v1; metrics; admin, all below "
            "/admin. None includes another."
        ),
    ] = "infer",
    as_json: JsonOption = False,
) -> None:
    """Make a key. It is shown once, on standard error; the line to keep goes to standard output.

    Example, `keys` being the file that GRAMOPHONE_API_KEYS_FILE names:

        gramophone keys create --name app --scopes infer >> keys

    A running service reads the file again within a second; a line that is taken out withdraws its key.
    """
    from service.security.keys import create_key

    made = create_key(name, scopes.split(","))
    if as_json:
        print_json({"key": made.secret, "line": made.key.line})
        return
    typer.echo(f"The key, which is not kept anywhere: {made.secret}", err=True)
    typer.echo(made.key.line)
